"""Families with latent attention: from their ``config.json`` to layers.

What a family's checkpoints leave out gets the default that ``transformers`` has for it.
"""

import math
from collections.abc import Sequence
from dataclasses import replace

from runtime.model.config import Experts, Gated, Layer, ModelConfig, Router
from runtime.model.config_fields import Fields
from runtime.model.expert_families import SHARED_EXPERTS
from runtime.model.family import (
    Family,
    TensorNames,
    read_activation,
    read_decoder,
    read_listed_if_there,
    rotated_dimensions,
)
from runtime.model.latent import Indexer, Latent
from runtime.model.rope_config import RopeConfig
from runtime.model.rope_fields import read_growing_rope, read_rope, rope_object


def _read_deepseek_v3(fields: Fields, _: int | None) -> ModelConfig:
    """Sigmoids with a correction, groups and a shared expert; the first layers have one MLP."""
    count = fields.size("num_hidden_layers")
    router = corrected_router(fields, groups=8, chosen=4, per_token=8, experts=256, scale=2.5)
    experts = _experts(fields, router, size=2048)
    mixer, context = read_latent(fields, ranks=(512, 1536), dims=(128, 64, 128))
    layers = _layers(fields, mixer, experts, [each < _dense(fields, 3) for each in range(count)])
    return read_decoder(fields, layers, context)


def _read_glm4_moe_lite(fields: Fields, _: int | None) -> ModelConfig:
    """The same, of other sizes; which layers have one MLP is a list."""
    count = fields.size("num_hidden_layers")
    router = corrected_router(fields, groups=1, chosen=1, per_token=4, experts=64, scale=1.8)
    experts = _experts(fields, router, size=1536)
    mixer, context = read_latent(fields, ranks=(512, 768), dims=(192, 64, 256))
    dense = read_dense(fields, count, 1)
    return read_decoder(fields, _layers(fields, mixer, experts, dense), context, norm_eps=1e-5)


def _read_deepseek_v32(fields: Fields, _: int | None) -> ModelConfig:
    """DeepSeek V3 with sparse attention; every layer has scores of its own."""
    count = fields.size("num_hidden_layers")
    router = corrected_router(fields, groups=8, chosen=4, per_token=8, experts=256, scale=2.5)
    experts = _experts(fields, router, size=2048)
    mixer, context = read_latent(fields, ranks=(512, 1536), dims=(128, 64, 128))
    mixer = replace(mixer, indexer=_read_indexer(fields, heads=64, interleaved=False))
    layers = _layers(fields, mixer, experts, read_dense(fields, count, 3))
    return read_decoder(fields, layers, context)


def _read_glm_moe_dsa(fields: Fields, _: int | None) -> ModelConfig:
    """The same, of other sizes; some layers take the choice of one before them."""
    count = fields.size("num_hidden_layers")
    router = corrected_router(fields, groups=1, chosen=1, per_token=8, experts=256, scale=2.5)
    experts = _experts(fields, router, size=2048)
    mixer, context = read_latent(fields, ranks=(512, 2048), dims=(192, 64, 256))
    indexer = _read_indexer(fields, heads=32, interleaved=True)
    layers = [
        replace(layer, mixer=replace(mixer, indexer=replace(indexer, shared=shared)))
        for layer, shared in zip(
            _layers(fields, mixer, experts, read_dense(fields, count, 3)),
            _read_shared(fields, count),
            strict=True,
        )
    ]
    return read_decoder(fields, layers, context, norm_eps=1e-5)


def _read_indexer(fields: Fields, *, heads: int, interleaved: bool) -> Indexer:
    """Of a layer with scores of its own; the arguments are defaults."""
    fields.whole("rope_interleave", True, "true: this model type rotates neighbours")
    if "q_lora_rank" in fields and fields.get("q_lora_rank") is None:
        raise fields.error("q_lora_rank", None, "a number: index queries are made of a latent")
    return Indexer(
        heads=fields.size("index_n_heads", heads),
        dim=fields.size("index_head_dim", 128),
        top_k=fields.size("index_topk", 2048),
        interleaved=fields.flag("indexer_rope_interleave", interleaved),
    )


def _read_shared(fields: Fields, count: int) -> list[bool]:
    """Which layers take the choice of one before them: a list, a word of letters, or every layer
    but one of ``index_topk_freq`` behind the first ones."""
    every, behind = fields.size("index_topk_freq", 1), fields.size("index_skip_topk_offset", 2)
    listed, pattern = fields.get("indexer_types"), fields.get("index_topk_pattern")
    if listed is None and pattern is None:
        return [max(each - behind + 1, 0) % every != 0 for each in range(count)]
    name, kinds = ("index_topk_pattern", pattern) if listed is None else ("indexer_types", listed)
    letters = isinstance(kinds, str) and listed is None
    full, shared = ("F", "S") if letters else ("full", "shared")
    right = (letters or isinstance(kinds, list)) and len(kinds) == count
    if not right or not all(kind in (full, shared) for kind in kinds):
        raise fields.error(name, kinds, f"{count} of {full}, {shared}")
    return [kind == shared for kind in kinds]


def _read_axk1(fields: Fields, _: int | None) -> ModelConfig:
    """DeepSeek V3, of other sizes; what comes of experts is normed once more."""
    count = fields.size("num_hidden_layers")
    router = corrected_router(fields, groups=8, chosen=4, per_token=8, experts=192, scale=2.5)
    experts = _experts(fields, replace(router, least_sum=1e-20), size=2048)
    if "q_lora_rank" in fields and fields.get("q_lora_rank") is None:
        raise fields.error("q_lora_rank", None, "a number: queries come from a latent")
    mixer, context = read_latent(fields, ranks=(512, 1536), dims=(128, 64, 128))
    first, every = fields.number("first_k_dense_replace", 1), fields.size("moe_layer_freq", 1)
    dense = read_listed_if_there(fields, "mlp_layer_types", {"dense": True, "sparse": False}, count)
    if dense is None:
        dense = [each < first or each % every != 0 for each in range(count)]
    layers = [
        replace(layer, norms="before" if one else "around_mlp")
        for layer, one in zip(_layers(fields, mixer, experts, dense), dense, strict=True)
    ]
    return read_decoder(fields, layers, context)


def _read_deepseek_v2(fields: Fields, _: int | None) -> ModelConfig:
    """A softmax over all experts, whose weights are not normed; groups count by their best."""
    count = fields.size("num_hidden_layers")
    fields.whole("scoring_func", "softmax", "softmax")
    fields.whole("norm_topk_prob", False, "false: this model type does not norm experts' weights")
    fields.whole("mlp_bias", False, "false")
    ways = {"greedy": False, "group_limited_greedy": True}
    grouped = fields.one_of("topk_method", ways, "greedy")
    groups, chosen = fields.size("n_group", 1), fields.size("topk_group", 1)
    router = Router(
        num_experts=fields.size("n_routed_experts", 64),
        per_token=fields.size("num_experts_per_tok"),
        wide=True,
        normalise=False,
        groups=groups if grouped else 1,
        chosen_groups=chosen if grouped else 1,
        best_of_group=1,
        scale=fields.number("routed_scaling_factor", 1.0),
    )
    experts = _experts(fields, router, size=1407, shared=2)
    mixer, context = read_latent(fields, ranks=(512, 1536), dims=(128, 64, 128))
    layers = _layers(fields, mixer, experts, [each < _dense(fields, 0) for each in range(count)])
    return read_decoder(fields, layers, context)


def _read_mistral4(fields: Fields, _: int | None) -> ModelConfig:
    """A softmax over all experts, whose groups count by their two best; queries grow with their
    position."""
    if fields.get("rope_scaling") is None:
        fields = fields.with_defaults({"rope_parameters": _MISTRAL4_ROPE})
    count = fields.size("num_hidden_layers")
    fields.whole("scoring_func", "softmax", "softmax")
    router = Router(
        num_experts=fields.size("n_routed_experts", 128),
        per_token=fields.size("num_experts_per_tok", 4),
        normalise=fields.flag("norm_topk_prob", True),
        groups=fields.size("n_group", 1),
        chosen_groups=fields.size("topk_group", 1),
        scale=fields.number("routed_scaling_factor", 1.0),
    )
    experts = _experts(fields, router, size=2048)
    mixer, context = read_latent(fields, ranks=(256, 1024), dims=(64, 64, 128), growing=True)
    layers = _layers(fields, mixer, experts, [each < _dense(fields, 0) for each in range(count)])
    return read_decoder(fields, layers, context)


def corrected_router(
    fields: Fields, *, groups: int, chosen: int, per_token: int, experts: int, scale: float
) -> Router:
    """Sigmoids with a correction; the numbers are defaults."""
    fields.whole("scoring_func", "sigmoid", "sigmoid")
    fields.whole("topk_method", "noaux_tc", "noaux_tc: experts are chosen with a correction")
    return Router(
        num_experts=fields.size("n_routed_experts", experts),
        per_token=fields.size("num_experts_per_tok", per_token),
        scores="sigmoid",
        normalise=fields.flag("norm_topk_prob", True),
        correction=True,
        groups=fields.size("n_group", groups),
        chosen_groups=fields.size("topk_group", chosen),
        scale=fields.number("routed_scaling_factor", scale),
    )


def _experts(fields: Fields, router: Router, *, size: int, shared: int = 1) -> Experts:
    """Experts beside one that every token takes, as wide as ``shared`` of them by default."""
    each, activation = fields.size("moe_intermediate_size", size), read_activation(fields)
    wide = each * fields.size("n_shared_experts", shared)
    return Experts(
        router=router,
        each=Gated(size=each, activation=activation),
        shared=Gated(size=wide, activation=activation),
    )


def _dense(fields: Fields, default: int) -> float:
    """How many of the first layers have one MLP."""
    fields.whole("moe_layer_freq", 1, "1: every layer behind the first has experts")
    return fields.number("first_k_dense_replace", default)


def read_dense(fields: Fields, count: int, default: int) -> list[bool]:
    """Which layers have one MLP, where that may be a list."""
    dense = [each < _dense(fields, default) for each in range(count)]
    kinds = fields.get("mlp_layer_types")
    if kinds is None:
        return dense
    known = ("dense", "sparse")
    right = isinstance(kinds, list) and len(kinds) == count
    if not right or not all(isinstance(kind, str) and kind in known for kind in kinds):
        raise fields.error("mlp_layer_types", kinds, f"{count} of {', '.join(known)}")
    return [kind == "dense" for kind in kinds]


def _layers(fields: Fields, mixer: Latent, experts: Experts, dense: Sequence[bool]) -> list[Layer]:
    mlp = Gated(size=fields.size("intermediate_size"), activation=read_activation(fields))
    return [Layer(mixer=mixer, feed_forward=mlp if one else experts) for one in dense]


def read_latent(
    fields: Fields,
    *,
    ranks: tuple[int, int],
    dims: tuple[int, int, int],
    growing: bool = False,
) -> tuple[Latent, int]:
    """The mixer, and the context. ``ranks``: defaults of keys' latents and of queries'; ``dims``:
    of a head's plain and rotated dimensions and of its values; ``growing``: whether queries may
    grow with their position. Folders of these say which part of a head is rotated, too."""
    heads = fields.size("num_attention_heads")
    fields.whole("num_key_value_heads", heads, f"{heads}, like num_attention_heads")
    query_rank: int | None = None
    if fields.get("q_lora_rank") is not None or "q_lora_rank" not in fields:
        query_rank = fields.size("q_lora_rank", ranks[1])
    plain_dim, rotary_dim = (
        fields.size("qk_nope_head_dim", dims[0]),
        fields.size("qk_rope_head_dim", dims[1]),
    )
    if growing:
        head_dim = plain_dim + rotary_dim
        part = rotated_dimensions(fields, rope_object(fields), head_dim, rotary_dim / head_dim)
        if part != rotary_dim:
            stated = f"{rotary_dim} of {head_dim} dimensions: qk_rope_head_dim of a head"
            raise rope_object(fields).error("partial_rotary_factor", part / head_dim, stated)
        rope, context = read_growing_rope(fields, rotated=rotary_dim)
        rope = replace(rope, rotated=None)
    else:
        rope, context = read_rope(fields)
    mixer = Latent(
        heads=heads,
        rank=fields.size("kv_lora_rank", ranks[0]),
        plain_dim=plain_dim,
        rotary_dim=rotary_dim,
        value_dim=fields.size("v_head_dim", dims[2]),
        query_rank=query_rank,
        rope=rope,
        interleaved=fields.flag("rope_interleave", True),
        scale=(plain_dim + rotary_dim) ** -0.5 * _stretched(fields, rope) ** 2,
        bias=fields.flag("attention_bias", False),
    )
    return mixer, context


def _stretched(fields: Fields, rope: RopeConfig) -> float:
    """What queries and keys are multiplied with in a context that is stretched, for the whole of
    them (``mscale_all_dim``)."""
    if rope.kind == "default" or rope.factor <= 1:
        return 1.0
    spelled = rope_object(fields)
    share = spelled.number("mscale_all_dim", 0.0)
    if share > _MOST_SHARE:
        raise spelled.error("mscale_all_dim", share, f"at most {_MOST_SHARE:g}")
    return 0.1 * share * math.log(rope.factor) + 1.0


_MISTRAL4_ROPE = {
    "rope_type": "yarn",
    "rope_theta": 10000.0,
    "factor": 128.0,
    "original_max_position_embeddings": 8192,
    "mscale": 1.0,
    "mscale_all_dim": 1.0,
    "llama_4_scaling_beta": 0.1,
}
_MOST_SHARE = 100.0
_NAMES = TensorNames(replaced=SHARED_EXPERTS, predicts_more=True)
_AXK1 = replace(
    _NAMES,
    replaced=(*SHARED_EXPERTS, ("after_mlp_norm", "post_mlp_layernorm")),
    either=(("post_mlp_layernorm", "mlp.post_mlp_layernorm"),),
    may_lack=(".mlp.gate.e_score_correction_bias",),
    unused=(".post_mlp_layernorm.weight",),
)
"""Published without corrections, and with norms that layers of one MLP do not use."""

LATENT_FAMILIES = {
    "deepseek_v3": Family(read=_read_deepseek_v3, names=_NAMES),
    "kimi_k2": Family(read=_read_deepseek_v3, names=_NAMES),
    "deepseek_v32": Family(read=_read_deepseek_v32, names=_NAMES),
    "glm_moe_dsa": Family(read=_read_glm_moe_dsa, names=_NAMES),
    "glm4_moe_lite": Family(read=_read_glm4_moe_lite, names=_NAMES),
    "axk1": Family(read=_read_axk1, names=_AXK1),
    "deepseek_v2": Family(read=_read_deepseek_v2, names=_NAMES),
    "mistral4": Family(read=_read_mistral4, names=replace(_NAMES, stacked_experts="outputs first")),
}
