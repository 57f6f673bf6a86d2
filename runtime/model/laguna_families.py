"""Laguna and Mellum 2, whose layers are rotated by kind: from their ``config.json`` to layers.

What a family's checkpoints leave out gets the default that ``transformers`` has for it.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from runtime.model.config import Attention, Experts, Gated, Layer, ModelConfig, Router
from runtime.model.config_fields import Fields
from runtime.model.expert_families import sparse_layers
from runtime.model.family import (
    Family,
    TensorNames,
    read_activation,
    read_attention,
    read_decoder,
    read_layer_types,
    read_listed_if_there,
    rotated_dimensions,
)
from runtime.model.rope_config import RopeConfig
from runtime.model.rope_fields import rope_of

_FULL, _SLIDING = "full_attention", "sliding_attention"
_SPARSE = {"dense": False, "sparse": True}

KindRopes = Mapping[str, Mapping[str, Any]]
"""Of each kind of layers the object of its positions."""

_LAGUNA_ROPES: KindRopes = {
    _FULL: {"rope_theta": 500000.0, "partial_rotary_factor": 0.5},
    _SLIDING: {"rope_theta": 10000.0},
}
_MELLUM_ROPES: KindRopes = {_FULL: {"rope_theta": 500000.0}, _SLIDING: {"rope_theta": 10000.0}}


def _read_laguna(fields: Fields, _: int | None) -> ModelConfig:
    """Each layer has heads of its own number, weighed by softplus; sigmoids with a correction and a
    shared expert, the first layer has one MLP."""
    count = fields.size("num_hidden_layers")
    _check_laguna(fields)
    own = {**_read_gate(fields, count), **_read_bias(fields)}
    mixer = read_attention(fields, 128, norm="each", **own)
    mixers, context = _read_mixers(fields, count, mixer, _LAGUNA_ROPES, window=512)
    heads = _read_heads(fields, mixer.heads, count)
    activation = read_activation(fields)
    cap = fields.number("moe_router_logit_softcapping", 0.0)
    experts = Experts(
        router=Router(
            num_experts=fields.size("num_experts", 256),
            per_token=fields.size("num_experts_per_tok", 8),
            scores="sigmoid",
            normalise=True,
            correction=True,
            scale=fields.number("moe_routed_scaling_factor", 1.0),
            logit_cap=cap or None,
        ),
        each=Gated(size=fields.size("moe_intermediate_size", 512), activation=activation),
        shared=Gated(
            size=fields.size("shared_expert_intermediate_size", 512), activation=activation
        ),
    )
    mlp = Gated(size=fields.size("intermediate_size", 8192), activation=activation)
    layers = [
        Layer(mixer=replace(mixer, heads=number), feed_forward=experts if sparse else mlp)
        for mixer, number, sparse in zip(mixers, heads, _read_sparse(fields, count), strict=True)
    ]
    return read_decoder(fields, layers, context)


def _check_laguna(fields: Fields) -> None:
    """Raises LoadError: there is what no published checkpoint computes with."""
    fields.whole("norm_topk_prob", True, "true: this model type norms experts' weights")
    fields.whole("moe_router_score_func", "sigmoid", "sigmoid")
    fields.whole("moe_apply_router_weight_on_input", False, "false: results are weighed")
    fields.whole("swa_attention_sink_enabled", False, "false: no layer has sinks")
    why = "absent: num_attention_heads_per_layer has each layer's"
    fields.whole("swa_num_attention_heads", None, why)


def _read_gate(fields: Fields, count: int) -> dict[str, Any]:
    """How heads' results are weighed."""
    gating = fields.get("gating", True)
    by_head = gating is True or gating == "per-head"
    if not by_head and gating != "per-element":
        raise fields.error("gating", gating, "true, per-head or per-element")
    word = "per_head" if by_head else "per_element"
    fields.whole("gating_types", [word] * count, f"{count} of {word}, which gating says")
    if by_head:
        return {"gated_heads": True, "gate_function": "softplus"}
    return {"gated": True, "gate_apart": True, "gate_function": "softplus"}


def _read_bias(fields: Fields) -> dict[str, bool]:
    biased = fields.flag("attention_bias", False)
    fields.whole("qkv_bias", biased, "what attention_bias says")
    return {"bias": biased, "output_bias": biased}


def _read_heads(fields: Fields, usual: int, count: int) -> list[int]:
    """Heads of each layer."""
    found = fields.get("num_attention_heads_per_layer", [usual] * count)
    whole = isinstance(found, list) and len(found) == count
    if not whole or not all(type(each) is int and 1 <= each <= 65_536 for each in found):
        raise fields.error("num_attention_heads_per_layer", found, f"{count} numbers of heads")
    return list(found)


def _read_mixers(
    fields: Fields, count: int, mixer: Attention, ropes: KindRopes, *, window: int
) -> tuple[list[Attention], int]:
    """Attention of each layer, and the context; ``ropes``: of each kind, where none is given,
    ``window``: likewise."""
    windowed = read_layer_types(fields, (False,) * count)
    found, context = {}, 0
    for has in sorted(set(windowed), reverse=True):  # the last say how long: those that see all
        rope, context = read_rope_by_kind(fields, _SLIDING if has else _FULL, ropes, mixer.head_dim)
        seen = fields.size("sliding_window", window) if has else None
        found[has] = replace(mixer, rope=rope, window=seen)
    return [found[has] for has in windowed], context


def read_rope_by_kind(
    fields: Fields, kind: str, ropes: KindRopes, head_dim: int
) -> tuple[RopeConfig, int]:
    """Positions of layers of one kind, and the context. Each kind has an object within
    ``rope_parameters``; earlier folders have that of layers with a window beside it."""
    given, beside = fields.within("rope_parameters"), fields.within("swa_rope_parameters")
    rope: Fields | None = Fields(fields.path, ropes[kind], prefix=f"rope_parameters.{kind}.")
    if given is not None:
        rope = given.within(kind)
        if rope is None and _FULL not in given and _SLIDING not in given:
            rope = given if kind == _FULL else beside
    if given is None:
        for name in ("rope_scaling", "rope_theta", "swa_rope_parameters"):
            fields.whole(name, None, "absent: rope_parameters has an object for each kind of layer")
    if rope is None:
        shown = fields.get("rope_parameters")
        raise fields.error("rope_parameters", shown, f"one with an object {kind}")
    if given is not None and kind in given and "partial_rotary_factor" not in rope:
        why = f"within rope_parameters.{kind}: programs read it in two ways here"
        fields.whole("partial_rotary_factor", 1.0, why)
    rotated = rotated_dimensions(fields, rope, head_dim, 1.0)
    theta = rope.number("rope_theta")
    return rope_of(fields, rope, theta=theta, rotated=None if rotated == head_dim else rotated)


def _read_sparse(fields: Fields, count: int) -> list[bool]:
    """Which layers have experts; where two lists say it, they say the same."""
    listed = read_listed_if_there(fields, "mlp_layer_types", _SPARSE, count)
    told, plain = None, fields.get("mlp_only_layers")
    if plain is not None or fields.get("decoder_sparse_step", 1) != 1:
        told = sparse_layers(fields, count)
    if listed is not None and told not in (None, listed):
        raise fields.error("mlp_only_layers", plain, "the layers that mlp_layer_types calls dense")
    return listed or told or [False, *[True] * (count - 1)]


def _read_mellum(fields: Fields, _: int | None) -> ModelConfig:
    """Qwen3-MoE, of which some layers have a window."""
    count, biased = fields.size("num_hidden_layers"), fields.flag("attention_bias", False)
    mixer = read_attention(fields, 128, bias=biased, output_bias=biased, norm="each")
    mixers, context = _read_mixers(fields, count, mixer, _MELLUM_ROPES, window=1024)
    if any(mixer.window is not None for mixer in mixers):
        fields.whole("use_sliding_window", True, "true: layers with a window are listed")
    activation = read_activation(fields)
    number = "num_local_experts" if "num_local_experts" in fields else "num_experts"
    experts = Experts(
        router=Router(
            num_experts=fields.size(number, 64),
            per_token=fields.size("num_experts_per_tok", 8),
            normalise=fields.flag("norm_topk_prob", True),
        ),
        each=Gated(size=fields.size("moe_intermediate_size", 896), activation=activation),
    )
    mlp = Gated(size=fields.size("intermediate_size", 7168), activation=activation)
    listed = read_listed_if_there(fields, "mlp_layer_types", _SPARSE, count)
    layers = [
        Layer(mixer=mixer, feed_forward=experts if sparse else mlp)
        for mixer, sparse in zip(mixers, listed or [True] * count, strict=True)
    ]
    return read_decoder(fields, layers, context)


LAGUNA_FAMILIES = {
    "laguna": Family(
        read=_read_laguna,
        names=TensorNames(
            replaced=(
                ("self_attn.gate_proj", "self_attn.g_proj"),
                ("mlp.gate.e_score", "mlp.experts.e_score"),
            )
        ),
    ),
    "mellum": Family(read=_read_mellum),
}
