"""Step 3.5 and the text part of Step 3.7: from their ``config.json`` to layers.

A checkpoint says of each layer what it is like, those behind the last included, which predict
further tokens. Where programs read in two ways what it leaves unsaid, it is asked to say so.
"""

import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from runtime.model.config import Attention, Experts, Gated, Layer, ModelConfig, Router
from runtime.model.config_fields import Fields
from runtime.model.expert_families import SHARED_EXPERTS
from runtime.model.family import (
    Family,
    TensorNames,
    read_activation,
    read_decoder,
    rotated_dimensions,
)
from runtime.model.laguna_families import KindRopes, read_rope_by_kind
from runtime.model.rope_config import RopeConfig
from runtime.model.rope_fields import rope_object, rope_of

_FULL, _SLIDING = "full_attention", "sliding_attention"
_ROPES: KindRopes = {_FULL: {"rope_theta": 10000.0}, _SLIDING: {"rope_theta": 10000.0}}


def _read_step3p5(fields: Fields, _: int | None) -> ModelConfig:
    """Layers with a window have more heads, each weighed by a sigmoid; sigmoids with a correction
    and a shared expert; the first layers have one MLP, the last ones hold their inner values."""
    count = fields.size("num_hidden_layers")
    _check_fields(fields)
    windowed = _read_windowed(fields, count)
    mixers, context = _read_mixers(fields, windowed)
    feed_forwards = _read_feed_forwards(fields, count)
    layers = [
        Layer(mixer=mixer, feed_forward=feed_forward)
        for mixer, feed_forward in zip(mixers, feed_forwards, strict=True)
    ]
    return read_decoder(fields, layers, context, norm_eps=1e-5)


def _check_fields(fields: Fields) -> None:
    """Raises LoadError: there is what no published checkpoint computes with."""
    for name in ("use_head_wise_attn_gate", "gating", "use_qk_norm", "zero_centered"):
        fields.whole(name, True, "true: this model type computes with it")
    for name in ("use_moe_router_bias", "norm_expert_weight", "use_moe"):
        fields.whole(name, True, "true: this model type computes with it")
    for name in ("attention_bias", "mlp_bias", "sink", "use_mfa", "use_bidirectional_attention"):
        fields.whole(name, False, "false: this model type computes without it")
    fields.whole("att_impl_type", "GQA", "GQA")
    fields.whole("moe_router_activation", "sigmoid", "sigmoid")


def _of_each(fields: Fields, name: str, count: int) -> list[Any] | None:
    """A list with something for each layer, and perhaps for those behind the last; None: there is
    none."""
    found = fields.get(name)
    if found is None or found == []:
        return None
    more = fields.get("num_nextn_predict_layers", 0)
    lengths = {count, count + more} if type(more) is int else {count}
    if not isinstance(found, list) or len(found) not in lengths:
        raise fields.error(name, found, f"a list for {count} layers")
    return found[:count]


def _checked(
    fields: Fields, name: str, count: int, fits: Callable[[Any], bool], wanted: str
) -> list[Any] | None:
    """The same of what ``fits``."""
    found = _of_each(fields, name, count)
    if found is not None and not all(map(fits, found)):
        raise fields.error(name, fields.get(name), f"a list of {wanted}")
    return found


def _is_number(value: object) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return 0 <= value <= sys.float_info.max


def _read_windowed(fields: Fields, count: int) -> list[bool]:
    """Which layers have a window. Without a list some programs give one to every other layer."""
    kinds = _FULL, _SLIDING
    found = _checked(fields, "layer_types", count, kinds.__contains__, " or ".join(kinds))
    if found is None:
        fields.whole("sliding_window", None, "null: no layer_types say which layers have a window")
        return [False] * count
    return [kind == _SLIDING for kind in found]


def _read_mixers(fields: Fields, windowed: list[bool]) -> tuple[list[Attention], int]:
    """Attention of each layer, and the context."""
    kv_heads = fields.size("num_key_value_heads", fields.size("num_attention_groups", 8))
    fields.whole("num_attention_groups", kv_heads, f"{kv_heads}, as num_key_value_heads is")
    head_dim = fields.size("head_dim", 128)
    scalar = fields.number("query_pre_attn_scalar", head_dim)
    if scalar == 0:
        raise fields.error("query_pre_attn_scalar", scalar, "a number above 0")
    full = Attention(
        heads=fields.size("num_attention_heads"),
        kv_heads=kv_heads,
        head_dim=head_dim,
        norm="each",
        gated_heads=True,
        scale=None if scalar == head_dim else scalar**-0.5,
    )
    sliding = full
    if any(windowed):
        heads = _read_sliding_heads(fields, full, windowed)
        sliding = replace(full, heads=heads, window=fields.size("sliding_window"))
    ropes, context = _read_ropes(fields, windowed, head_dim)
    mixers = [
        replace(sliding if has else full, rope=rope)
        for has, rope in zip(windowed, ropes, strict=True)
    ]
    return mixers, context


def _read_sliding_heads(fields: Fields, full: Attention, windowed: list[bool]) -> int:
    """Heads of layers with a window: as published, and as ``transformers`` spells it."""
    heads = full.heads
    other = fields.within("attention_other_setting")
    if other is not None:
        other.whole("attention_type", _SLIDING, _SLIDING)
        other.whole("num_attention_groups", full.kv_heads, f"{full.kv_heads}, as other layers have")
        for name in ("head_dim", "true_head_dim"):
            other.whole(name, full.head_dim, f"{full.head_dim}, as in other layers")
        heads = other.size("num_attention_heads", heads)
        other.check_known()
    heads = fields.size("num_sliding_attention_heads", heads)
    own = {str(at): {"num_attention_heads": heads} for at, has in enumerate(windowed) if has}
    if heads == full.heads and fields.get("per_layer_config") == {}:
        return heads
    fields.whole("per_layer_config", own, f"{heads} heads for each layer with a window")
    return heads


def _read_ropes(
    fields: Fields, windowed: list[bool], head_dim: int
) -> tuple[list[RopeConfig], int]:
    """Positions of each layer, and the context that those say who see all."""
    _checked(fields, "use_rope_layers", len(windowed), bool, "true: all layers know positions")
    nested, beside = fields.within("rope_parameters"), fields.get("rope_scaling")
    if nested is not None and beside not in (None, fields.get("rope_parameters")):
        raise fields.error("rope_scaling", beside, "absent, or what rope_parameters says")
    if nested is not None and (_FULL in nested or _SLIDING in nested):
        by_kind = {
            has: read_rope_by_kind(fields, _SLIDING if has else _FULL, _ROPES, head_dim)
            for has in set(windowed)
        }
        found = [by_kind[has] for has in windowed]
    else:
        found = _read_listed_ropes(fields, windowed, head_dim)
    first = windowed.index(False) if False in windowed else 0
    return [rope for rope, _ in found], found[first][1]


def _read_listed_ropes(
    fields: Fields, windowed: list[bool], head_dim: int
) -> list[tuple[RopeConfig, int]]:
    """As published: a theta and a part for each layer, and how those that see all are stretched."""
    count, stretch = len(windowed), rope_object(fields)
    spelled = fields.get("rope_parameters", fields.get("rope_scaling", {}))
    if "factor" in stretch and "rope_type" not in stretch and "type" not in stretch:
        raise stretch.error("rope_type", None, "llama3 or another way of stretching by a factor")
    stretched = stretch.get("rope_type", stretch.get("type", "default")) != "default"
    if stretched and any(windowed) and fields.get("yarn_only_types") != [_FULL]:
        shown = fields.get("yarn_only_types")
        raise fields.error("yarn_only_types", shown, f"[{_FULL!r}]: the others are not stretched")
    theta = fields.get("rope_theta", stretch.get("rope_theta"))
    thetas = [theta] * count
    if isinstance(theta, list):
        thetas = _checked(fields, "rope_theta", count, _is_number, "numbers") or thetas
    shares = _checked(fields, "partial_rotary_factors", count, _is_number, "numbers")
    found = []
    for at, has in enumerate(windowed):
        own = {} if has else dict(spelled)
        own |= {"rope_theta": thetas[at], "partial_rotary_factor": 1.0}
        if shares is not None:
            own["partial_rotary_factor"] = shares[at]
        rope = Fields(fields.path, own, prefix=f"rope_parameters (layer {at}).")
        rotated = rotated_dimensions(fields, rope, head_dim, 1.0)
        whole = rotated == head_dim
        found.append(rope_of(fields, rope, theta=10000.0, rotated=None if whole else rotated))
    return found


def _read_feed_forwards(fields: Fields, count: int) -> list[Gated | Experts]:
    """The second half of each layer."""
    read_activation(fields)  # its name; whether inner values are held is said of each layer
    limits, shared = (
        _checked(fields, name, count, lambda each: each is None or _is_number(each), "numbers")
        or [None] * count
        for name in ("swiglu_limits", "swiglu_limits_shared")
    )
    names = "moe_num_experts" if "moe_num_experts" in fields else "n_routed_experts"
    router = Router(
        num_experts=fields.size(names, 288),
        per_token=fields.size("num_experts_per_tok", fields.size("moe_top_k", 8)),
        scores="sigmoid",
        normalise=True,
        correction=True,
        scale=fields.number("moe_router_scaling_factor", 1.0),
    )
    sizes = {
        "dense": fields.size("intermediate_size", 11264),
        "each": fields.size("moe_intermediate_size", 1280),
        "shared": fields.size("share_expert_dim", 1280),
    }
    return [
        Experts(
            router=router,
            each=_held(sizes["each"], limits[at]),
            shared=_held(sizes["shared"], shared[at]),
        )
        if sparse
        else _held(sizes["dense"], shared[at])
        for at, sparse in enumerate(_read_sparse(fields, count))
    ]


def _held(size: int, limit: float | None) -> Gated:
    """An MLP whose inner values are held within the limit, if there is one."""
    if not limit:
        return Gated(size=size)
    return Gated(size=size, activation="clamped_after_silu", limit=float(limit))


def _read_sparse(fields: Fields, count: int) -> list[bool]:
    """Which layers have experts: numbers of layers as published, or ``transformers``' list. Without
    either some programs begin behind the first layer, some behind the third."""
    words = ("dense", "sparse")
    listed = _checked(fields, "mlp_layer_types", count, words.__contains__, " or ".join(words))
    if listed is not None:
        return [kind == "sparse" for kind in listed]
    given = fields.get("moe_layers_enum")
    numbers = given.split(",") if isinstance(given, str) else given
    if not isinstance(numbers, list) or not all(str(each).strip().isdecimal() for each in numbers):
        raise fields.error("moe_layers_enum", given, "the numbers of layers with experts")
    chosen = {int(each) for each in numbers}
    return [each in chosen for each in range(count)]


_STEP = TensorNames(
    replaced=(
        ("mlp.gate.e_score_correction_bias", "moe.router_bias"),
        ("mlp.gate.weight", "moe.gate.weight"),
        ("mlp.experts.", "moe.experts."),
        ("moe.experts.gate_proj", "moe.gate_proj"),
        ("moe.experts.up_proj", "moe.up_proj"),
        ("moe.experts.down_proj", "moe.down_proj"),
        ("mlp.shared_expert.", "share_expert."),
    ),
    stacked_experts="by map",
    norms_from_zero=True,
    predicts_more=True,
)
_OF_TRANSFORMERS = TensorNames(
    replaced=SHARED_EXPERTS,
    stacked_experts="outputs first",
    norms_from_zero=True,
    predicts_more=True,
)

STEP_FAMILIES = {
    "step3p5": Family(
        read=_read_step3p5, names=replace(_STEP, others=((".mlp.experts.", _OF_TRANSFORMERS),))
    ),
}
