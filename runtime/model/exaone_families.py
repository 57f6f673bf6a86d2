"""EXAONE 4 and K-EXAONE, of which layers without a window know no positions: from their
``config.json`` to layers.

What a family's checkpoints leave out gets the default that ``transformers`` has for it.
"""

from dataclasses import replace

from runtime.model.config import Attention, Experts, Gated, Layer, ModelConfig
from runtime.model.config_fields import Fields
from runtime.model.expert_families import SHARED_EXPERTS
from runtime.model.family import (
    Family,
    TensorNames,
    read_activation,
    read_attention,
    read_corrected_router,
    read_decoder,
    read_layer_types,
    read_listed,
    read_mlp,
)
from runtime.model.rope_fields import read_rope


def _read_mixers(fields: Fields, count: int) -> tuple[list[Attention], int]:
    """Attention of each layer, and the longest context. Heads are normed one by one; where some
    layers have a window the others know no positions."""
    rope, context = read_rope(fields)
    windowed: tuple[bool, ...] = (False,) * count
    mixed = "sliding_window" not in fields or fields.get("sliding_window") is not None
    if mixed and fields.get("layer_types") is None:
        every = fields.size("sliding_window_pattern", 4)
        windowed = tuple((each + 1) % every != 0 for each in range(count))
    windowed = read_layer_types(fields, windowed)
    if any(windowed) and not mixed:
        raise fields.error("sliding_window", None, "a number: layers with a window are listed")
    window = fields.size("sliding_window", 4096) if any(windowed) else None
    mixer = read_attention(fields, norm="each")
    mixers = [
        replace(mixer, rope=rope if has or not mixed else None, window=window if has else None)
        for has in windowed
    ]
    return mixers, context


def _read_exaone4(fields: Fields, _: int | None) -> ModelConfig:
    """Norms behind each half."""
    mixers, context = _read_mixers(fields, fields.size("num_hidden_layers"))
    mlp = read_mlp(fields, activation=read_activation(fields))
    layers = [Layer(mixer=mixer, feed_forward=mlp, norms="after") for mixer in mixers]
    return read_decoder(fields, layers, context, norm_eps=1e-5)


def _read_exaone_moe(fields: Fields, _: int | None) -> ModelConfig:
    """Sigmoids with a correction and shared experts in one; the first layers have one MLP."""
    count = fields.size("num_hidden_layers")
    mixers, context = _read_mixers(fields, count)
    size, activation = fields.size("moe_intermediate_size", 1024), read_activation(fields)
    experts = Experts(
        router=read_corrected_router(fields, "num_experts", experts=64, scale=2.5),
        each=Gated(size=size, activation=activation),
        shared=Gated(size=size * fields.size("num_shared_experts", 1), activation=activation),
    )
    mlp = Gated(size=fields.size("intermediate_size", 16384), activation=activation)
    dense = fields.number("first_k_dense_replace", 1)
    sparse = [each >= dense for each in range(count)]
    if fields.get("mlp_layer_types") is not None:
        sparse = read_listed(fields, "mlp_layer_types", {"dense": False, "sparse": True}, count)
    layers = [
        Layer(mixer=mixer, feed_forward=experts if each else mlp)
        for mixer, each in zip(mixers, sparse, strict=True)
    ]
    return read_decoder(fields, layers, context, norm_eps=1e-5)


_EXAONE4 = TensorNames(
    replaced=(
        ("after_mixer_norm", "post_attention_layernorm"),
        ("after_mlp_norm", "post_feedforward_layernorm"),
    )
)

EXAONE_FAMILIES = {
    "exaone4": Family(read=_read_exaone4, names=_EXAONE4),
    "exaone_moe": Family(
        read=_read_exaone_moe,
        names=TensorNames(replaced=(("mlp.gate.e_score", "mlp.e_score"), *SHARED_EXPERTS)),
    ),
}
