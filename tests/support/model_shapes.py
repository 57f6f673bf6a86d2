"""Descriptions of decoders with a few values changed in every layer."""

from dataclasses import replace
from typing import Any

from runtime.model.config import ModelConfig


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
