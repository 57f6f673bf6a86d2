"""Gemma 4: from its ``config.json`` to layers.

Layers with a window and those without differ in the size and number of their heads of keys, and in
how they are rotated. In some models the last layers read keys and values of earlier ones, each
layer has an input of its own, values are keys, or experts stand beside an MLP. What checkpoints
leave out gets the default that ``transformers`` has for it. No torch here.
"""

from dataclasses import dataclass, replace
from typing import Any

from runtime.model.config import (
    Attention,
    Experts,
    Gated,
    Layer,
    LayerInputs,
    ModelConfig,
    Router,
)
from runtime.model.config_fields import Fields
from runtime.model.family import Family, TensorNames, read_decoder, read_layer_types
from runtime.model.rope_fields import rope_of_kind

_DEFAULTS = {
    "vocab_size": 262144,
    "hidden_size": 2304,
    "intermediate_size": 9216,
    "num_hidden_layers": 30,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "max_position_embeddings": 131072,
    "sliding_window": 512,
}
_OF_TEXT = {"vocab_size_per_layer_input": 262144, "hidden_size_per_layer_input": 256}
_UNIFIED = {"max_position_embeddings": 262144, "sliding_window": 1024}
_ROPES: dict[str, dict[str, Any]] = {
    "sliding_attention": {"rope_theta": 10000.0},
    "full_attention": {
        "rope_type": "proportional",
        "partial_rotary_factor": 0.25,
        "rope_theta": 1000000.0,
    },
}


@dataclass(frozen=True, slots=True)
class _Heads:
    """Heads of keys and values in one layer."""

    count: int
    size: int


def _read_gemma4(fields: Fields, _: int | None) -> ModelConfig:
    fields = fields.with_defaults({**_DEFAULTS, **_OF_TEXT})
    config = _read_layers(fields)
    size = fields.get("hidden_size_per_layer_input", 0)
    rows = fields.size("vocab_size_per_layer_input", config.vocab_size)
    if size == 0:
        return config
    own = LayerInputs(vocabulary=rows, size=fields.size("hidden_size_per_layer_input"))
    return replace(config, layer_inputs=own)


def _read_unified(fields: Fields, _: int | None) -> ModelConfig:
    """The same without experts and inputs of layers."""
    return _read_layers(fields.with_defaults({**_DEFAULTS, **_UNIFIED}), dense=True)


def _read_layers(fields: Fields, *, dense: bool = False) -> ModelConfig:
    """``dense``: the family has no experts."""
    _check_direction(fields)
    count, hidden = fields.size("num_hidden_layers"), fields.size("hidden_size")
    every_sixth = [each % 6 != 5 and each != count - 1 for each in range(count)]
    windowed = read_layer_types(fields, every_sixth)
    if windowed[-1]:
        raise fields.error("layer_types", "sliding_attention at its end", "full_attention there")
    experts = None if dense else _read_experts(fields)
    fields.one_of("hidden_activation", {"gelu_pytorch_tanh": True}, "gelu_pytorch_tanh")
    mlp = Gated(size=fields.size("intermediate_size"), activation="gelu_tanh")
    wider = replace(mlp, size=mlp.size * (2 if fields.flag("use_double_wide_mlp", False) else 1))
    layers = []
    for mixer in _read_mixers(fields, windowed):
        own = mlp if mixer.shares is None else wider
        layers.append(
            Layer(
                mixer=mixer,
                feed_forward=own if experts is None else replace(experts, shared=own),
                norms="both",
                learnt_scale=True,
            )
        )
    cap = fields.get("final_logit_softcapping")
    return read_decoder(
        fields,
        layers,
        fields.size("max_position_embeddings"),
        tied=True,
        embedding_scale=hidden**0.5,
        logit_cap=None if cap is None else fields.number("final_logit_softcapping"),
    )


def _check_direction(fields: Fields) -> None:
    """Raises LoadError: tokens see those behind them. Those of images may, and are not served."""
    seen = fields.get("use_bidirectional_attention", "vision")
    if seen != "vision":
        raise fields.error("use_bidirectional_attention", seen, '"vision" or null')


def _read_mixers(fields: Fields, windowed: tuple[bool, ...]) -> list[Attention]:
    window, biased = fields.size("sliding_window"), fields.flag("attention_bias", False)
    same = fields.flag("attention_k_eq_v", False)
    fields.whole("rope_scaling", None, "absent: rope_parameters has an object for each layer type")
    mixers = []
    for has, heads in zip(windowed, _read_heads(fields, windowed), strict=True):
        kind = "sliding_attention" if has else "full_attention"
        mixers.append(
            Attention(
                heads=fields.size("num_attention_heads"),
                kv_heads=heads.count,
                head_dim=heads.size,
                rope=rope_of_kind(fields, kind, _ROPES[kind], heads.size),
                window=window if has else None,
                scale=1.0,
                bias=biased,
                output_bias=biased,
                norm="each",
                value_norm=True,
                keys_are_values=same and not has,
            )
        )
    sources = _read_sources(fields, windowed)
    return [replace(mixer, shares=of) for mixer, of in zip(mixers, sources, strict=True)]


def _read_heads(fields: Fields, windowed: tuple[bool, ...]) -> list[_Heads]:
    """By ``per_layer_config``, or by the fields for layers without a window."""
    every = _Heads(fields.size("num_key_value_heads"), fields.size("head_dim"))
    wide = fields.size("global_head_dim", 512)
    kv_heads = fields.size("num_global_key_value_heads", every.count)
    if not fields.flag("attention_k_eq_v", False):
        kv_heads = every.count
    own = fields.get("per_layer_config")
    if own is None:
        return [every if has else _Heads(kv_heads, wide) for has in windowed]
    if not isinstance(own, dict):
        raise fields.error("per_layer_config", own, "an object")
    found = [every] * len(windowed)
    places = {str(each): each for each in range(len(windowed))}
    each_layer = fields.within("per_layer_config")
    assert each_layer is not None
    for name in own:
        layer = each_layer.within(name)
        if name not in places or layer is None:
            raise each_layer.error(name, own[name], f"of one of {len(windowed)} layers, an object")
        strange = own[name].keys() - {"head_dim", "num_key_value_heads"}
        if strange:
            other = min(strange)
            raise layer.error(other, own[name][other], "absent: the heads of keys differ alone")
        size = layer.size("head_dim", every.size)
        found[places[name]] = _Heads(layer.size("num_key_value_heads", every.count), size)
    return found


def _read_sources(fields: Fields, windowed: tuple[bool, ...]) -> list[int | None]:
    """The layer whose keys each one reads: of the last layers, the last of its kind before them."""
    count = fields.get("num_kv_shared_layers", 0)
    count = 0 if count == 0 else fields.size("num_kv_shared_layers")
    first = len(windowed) - count
    sources: list[int | None] = [None] * len(windowed)
    for layer in range(max(0, first), len(windowed)):
        own = [each for each in range(first) if windowed[each] == windowed[layer]]
        if not own:
            raise fields.error("num_kv_shared_layers", count, "so few that each kind has its keys")
        sources[layer] = own[-1]
    return sources


def _read_experts(fields: Fields) -> Experts | None:
    if not fields.flag("enable_moe_block", False):
        fields.get("num_experts")  # what it says then holds for no layer
        return None
    return Experts(
        router=Router(
            num_experts=fields.size("num_experts"),
            per_token=fields.size("top_k_experts"),
            normalise=True,
            scaled=True,
        ),
        each=Gated(size=fields.size("moe_intermediate_size"), activation="gelu_tanh"),
        shared=Gated(size=fields.size("intermediate_size"), activation="gelu_tanh"),
        apart=True,
    )


_NAMES = TensorNames(
    replaced=(
        ("post_attention_layernorm", "pre_feedforward_layernorm"),
        ("after_mixer_norm", "post_attention_layernorm"),
        ("after_mlp_norm", "post_feedforward_layernorm"),
        ("after_dense_norm", "post_feedforward_layernorm_1"),
        ("before_experts_norm", "pre_feedforward_layernorm_2"),
        ("after_experts_norm", "post_feedforward_layernorm_2"),
        ("layer_scale", "layer_scalar"),
        ("mlp.experts", "experts"),
        ("mlp.shared_expert", "mlp"),
        ("mlp.gate.weight", "router.proj.weight"),
        ("mlp.gate.input_scale", "router.scale"),
        ("mlp.gate.expert_scale", "router.per_expert_scale"),
    ),
    stacked_experts="outputs first",
)

GEMMA4_FAMILIES = {
    "gemma4_text": Family(read=_read_gemma4, names=_NAMES),
    "gemma4_unified_text": Family(read=_read_unified, names=_NAMES),
}
