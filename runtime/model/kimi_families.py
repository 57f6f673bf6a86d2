"""Kimi Linear: from its ``config.json`` to layers of Kimi Delta Attention and of latents.

Read as Moonshot publishes it, with an object for recurrent layers that lists layers from 1 on, and
as ``transformers`` saves it. What is left out gets the default that ``transformers`` has for it.
Latent attention knows no positions, so fields of rope say nothing.
"""

from typing import Any

from runtime.model.config import Experts, Gated, Layer, ModelConfig, Router
from runtime.model.config_fields import Fields
from runtime.model.family import (
    Family,
    TensorNames,
    read_activation,
    read_decoder,
    read_listed_if_there,
)
from runtime.model.latent import Latent
from runtime.model.recurrent import KimiDelta

_MIXERS = {"full_attention": True, "linear_attention": False}
_MLPS = {"dense": True, "sparse": False}


def _read_kimi_linear(fields: Fields, _: int | None) -> ModelConfig:
    """Sigmoids with a correction, groups and a shared expert; the first layers have one MLP."""
    count, activation = fields.size("num_hidden_layers"), read_activation(fields)
    latent, experts = _latent(fields), _experts(fields)
    delta, attending = _recurrent(fields, count)
    mlp = Gated(size=fields.size("intermediate_size", 9216), activation=activation)
    layers = [
        Layer(mixer=latent if attends else delta, feed_forward=mlp if dense else experts)
        for attends, dense in zip(attending, _dense(fields, count), strict=True)
    ]
    context = either_name(fields, "model_max_length", "max_position_embeddings")
    return read_decoder(fields, layers, fields.size(context, 1 << 20), norm_eps=1e-5)


def either_name(fields: Fields, published: str, other: str) -> str:
    """Which of two names of a field is used. Raises LoadError: both, unlike each other."""
    one, two = fields.get(published), fields.get(other)
    if one is not None and two is not None and one != two:
        raise fields.error(other, two, f"{one}, like {published}")
    return other if one is None and two is not None else published


def read_lowest(fields: Fields, name: str, lowest: Any) -> float:
    """The bound of decays' logarithms, of which ``lowest`` was found under ``name``."""
    if isinstance(lowest, bool) or not isinstance(lowest, int | float) or not -1e6 < lowest < 0:
        raise fields.error(name, lowest, "a number below 0")
    return float(lowest)


def _latent(fields: Fields) -> Latent:
    heads = fields.size("num_attention_heads", 32)
    fields.whole("num_key_value_heads", heads, f"{heads}, like num_attention_heads")
    fields.whole("mla_use_nope", True, "true: this model type's latent attention has no positions")
    query_rank: int | None = None
    if fields.get("q_lora_rank") is not None:
        query_rank = fields.size("q_lora_rank")
    return Latent(
        heads=heads,
        rank=fields.size("kv_lora_rank", 512),
        plain_dim=fields.size("qk_nope_head_dim", 128),
        rotary_dim=fields.size("qk_rope_head_dim", 64),
        value_dim=fields.size("v_head_dim", 128),
        query_rank=query_rank,
        rope=None,
        interleaved=False,
        bias=fields.flag("attention_bias", False),
    )


def _experts(fields: Fields) -> Experts:
    each, activation = fields.size("moe_intermediate_size", 1024), read_activation(fields)
    fields.whole("moe_router_activation_func", "sigmoid", "sigmoid")
    groups = fields.size(either_name(fields, "num_expert_group", "n_group"), 1)
    if not fields.flag("use_grouped_topk", True) and groups > 1:
        raise fields.error("use_grouped_topk", False, f"true with {groups} groups of experts")
    router = Router(
        num_experts=fields.size(either_name(fields, "num_experts", "num_local_experts"), 256),
        per_token=fields.size(
            either_name(fields, "num_experts_per_token", "num_experts_per_tok"), 8
        ),
        scores="sigmoid",
        normalise=fields.flag(either_name(fields, "moe_renormalize", "norm_topk_prob"), True),
        correction=True,
        groups=groups,
        chosen_groups=fields.size("topk_group", 1),
        scale=fields.number("routed_scaling_factor", 2.446),
    )
    shared = each * fields.size(either_name(fields, "num_shared_experts", "n_shared_experts"), 1)
    return Experts(
        router=router,
        each=Gated(size=each, activation=activation),
        shared=Gated(size=shared, activation=activation),
    )


def _recurrent(fields: Fields, count: int) -> tuple[KimiDelta, list[bool]]:
    """The mixer of recurrent layers, and which layers attend instead."""
    own = fields.within("linear_attn_config")
    sizes = {
        "head_dim": fields.size("linear_head_dim", 128),
        "num_heads": fields.size("linear_num_heads", 32),
        "short_conv_kernel_size": fields.size("linear_conv_kernel_dim", 4),
    }
    kinds = read_listed_if_there(fields, "layer_types", _MIXERS, count)
    if own is not None:
        sizes = {name: own.size(name, size) for name, size in sizes.items()}
        listed = _listed(own, count)
        own.check_known()
        kinds = listed if kinds is None else kinds
        if listed is not None and listed != kinds:
            raise fields.error("layer_types", fields.get("layer_types"), "as linear_attn_config")
    delta = KimiDelta(
        heads=sizes["num_heads"],
        head_dim=sizes["head_dim"],
        taps=sizes["short_conv_kernel_size"],
    )
    return delta, kinds or [each > 0 and each % 4 == 0 for each in range(count)]


def _listed(own: Fields, count: int) -> list[bool] | None:
    """Which layers attend, by two lists of layers, the first of which is 1."""
    lists = {name: own.get(name) for name in ("full_attn_layers", "kda_layers")}
    if all(listed is None for listed in lists.values()):
        return None
    for name, listed in lists.items():
        if not isinstance(listed, list) or not all(type(each) is int for each in listed):
            raise own.error(name, listed, "a list of layer numbers")
    attending, others = lists["full_attn_layers"], lists["kda_layers"]
    if sorted([*attending, *others]) != list(range(1, count + 1)):
        wanted = f"the layers from 1 to {count} that full_attn_layers has not"
        raise own.error("kda_layers", others, wanted)
    return [each in set(attending) for each in range(1, count + 1)]


def _dense(fields: Fields, count: int) -> list[bool]:
    """Which layers have one MLP."""
    fields.whole("moe_layer_freq", 1, "1: every layer behind the first has experts")
    first = fields.number("first_k_dense_replace", 1)
    kinds = read_listed_if_there(fields, "mlp_layer_types", _MLPS, count)
    return [each < first for each in range(count)] if kinds is None else kinds


_NAMES = TensorNames(
    patterns=(
        (r"linear_attn\.", "self_attn."),
        (r"(mlp\.experts\.\d+\.)gate_proj", r"\1w1"),
        (r"(mlp\.experts\.\d+\.)up_proj", r"\1w3"),
        (r"(mlp\.experts\.\d+\.)down_proj", r"\1w2"),
        (r"mlp\.shared_expert\.", "mlp.shared_experts."),
        (r"mlp\.(gate\.|experts\.|shared_experts\.)", r"block_sparse_moe.\1"),
    ),
    or_else=(
        ("mlp.gate_proj", "block_sparse_moe.gate_proj"),
        ("mlp.up_proj", "block_sparse_moe.up_proj"),
        ("mlp.down_proj", "block_sparse_moe.down_proj"),
    ),
    predicts_more=True,
)
"""``transformers`` saves the MLPs of layers without experts under the name of experts'."""

KIMI_FAMILIES = {"kimi_linear": Family(read=_read_kimi_linear, names=_NAMES)}
