"""Descriptions of decoders with a few values changed in every layer."""

from dataclasses import replace
from typing import Any

from runtime.model.config import Attention, ModelConfig


def changed(
    config: ModelConfig,
    *,
    count: int | None = None,
    mixer: dict[str, Any] | None = None,
    mlp: dict[str, Any] | None = None,
    **own: Any,
) -> ModelConfig:
    """``config`` with so many layers, changes of each mixer and MLP, and ``own`` fields."""
    layers = config.layers if count is None else (config.layers[0],) * count
    layers = tuple(
        replace(
            layer,
            mixer=replace(layer.mixer, **(mixer or {})),
            feed_forward=replace(layer.feed_forward, **(mlp or {})),
        )
        for layer in layers
    )
    return replace(config, **{"layers": layers, **own})


def with_other_keys(config: ModelConfig) -> ModelConfig:
    """``config`` whose last layer of attention has one head of keys, of half as many dimensions
    again: the pool has two groups."""
    last = max(
        place for place, each in enumerate(config.layers) if isinstance(each.mixer, Attention)
    )
    layers = list(config.layers)
    mixer = layers[last].mixer
    assert isinstance(mixer, Attention)
    size = mixer.head_dim * 3 // 2
    layers[last] = replace(layers[last], mixer=replace(mixer, kv_heads=1, head_dim=size))
    return replace(config, layers=tuple(layers))
