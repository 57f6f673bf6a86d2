"""GLM-5.3-Flash: from its ``config.json`` to layers of Kimi Delta Attention and of sparse attention
over latents, around several residual streams.

What is left out gets the default that ``transformers`` has for it. No layer knows positions, so
fields of rope say nothing.
"""

from runtime.model.config import Experts, Gated, Layer, ModelConfig
from runtime.model.config_fields import Fields
from runtime.model.family import (
    Family,
    TensorNames,
    read_activation,
    read_corrected_router,
    read_decoder,
    read_listed_if_there,
)
from runtime.model.kimi_families import read_lowest
from runtime.model.latent import Indexer, Latent
from runtime.model.recurrent import KimiDelta
from runtime.model.streams import MOST_ROUNDS, Streams

_MIXERS = {"linear_attention": False, "indexed_attention": True, "full_attention": True}
_MLPS = {"dense": True, "sparse": False}
_INDEXERS = {"full": True, "shared": False}


def _read_glm5_next(fields: Fields, _: int | None) -> ModelConfig:
    """Every fourth layer attends, the first three have one MLP."""
    count = fields.size("num_hidden_layers", 45)
    attending = read_listed_if_there(fields, "layer_types", _MIXERS, count)
    delta = _recurrent(fields, stated=attending is not None)
    if attending is None:
        attending = [each % 4 == 3 for each in range(count)]
    latent = _latent(fields)
    _check_indexers(fields, attending)
    dense = read_listed_if_there(fields, "mlp_layer_types", _MLPS, count)
    if dense is None:
        fields.whole("first_k_dense_replace", 3, "3, or mlp_layer_types")
        dense = [each < 3 for each in range(count)]
    read_activation(fields)
    limit = fields.number("swiglu_limit", 10.0)
    if not limit:
        raise fields.error("swiglu_limit", limit, "above 0")
    experts = _experts(fields, limit)
    size = fields.size("intermediate_size", 12288)
    mlp = Gated(size=size, activation="clamped_silu", limit=limit)
    layers = [
        Layer(mixer=latent if attends else delta, feed_forward=mlp if one else experts)
        for attends, one in zip(attending, dense, strict=True)
    ]
    rounds = fields.size("hc_sinkhorn_iters", 20)
    if rounds > MOST_ROUNDS:
        raise fields.error("hc_sinkhorn_iters", rounds, f"at most {MOST_ROUNDS}")
    streams = Streams(
        count=fields.size("hc_mult", 4),
        iterations=rounds,
        eps=fields.number("hc_eps", 1e-6),
        learnt_end=False,
    )
    context = fields.size("max_position_embeddings", 1 << 20)
    return read_decoder(fields, layers, context, norm_eps=1e-5, streams=streams)


def _latent(fields: Fields) -> Latent:
    heads = fields.size("num_attention_heads", 64)
    fields.whole("num_key_value_heads", heads, f"{heads}, like num_attention_heads")
    fields.whole("qk_rope_head_dim", 0, "0: this model type's latent attention has no positions")
    fields.whole("mla_use_nope", True, "true: this model type's latent attention has no positions")
    fields.whole("attention_bias", False, "false")
    tail = "index_kpool_always_select_tail"
    fields.whole(tail, True, "true: tokens behind the last full pool are seen")
    pool = fields.size("index_kpool", 16)
    if pool < 2:
        raise fields.error("index_kpool", pool, "at least 2")
    indexer = Indexer(
        heads=fields.size("index_n_heads", 32),
        dim=fields.size("index_head_dim", 128),
        top_k=fields.size("index_topk", 2048),
        pool=pool,
    )
    return Latent(
        heads=heads,
        rank=fields.size("kv_lora_rank", 512),
        plain_dim=fields.size("qk_nope_head_dim", 256),
        rotary_dim=0,
        value_dim=fields.size("v_head_dim", 256),
        query_rank=fields.size("q_lora_rank", 1536),
        rope=None,
        interleaved=False,
        eps=fields.number("rms_norm_eps", 1e-5),
        indexer=indexer,
    )


def _check_indexers(fields: Fields, attending: list[bool]) -> None:
    """Every layer that attends has scores of its own."""
    count = len(attending)
    fields.whole("index_topk_freq", 1, "1: every layer that attends has scores of its own")
    pattern = fields.get("index_topk_pattern")
    if pattern is not None and fields.get("indexer_types") is None:
        if pattern != "F" * count:
            raise fields.error("index_topk_pattern", pattern, f"{count} times F")
        return
    own = read_listed_if_there(fields, "indexer_types", _INDEXERS, count)
    if own is None:
        return
    for each, (attends, full) in enumerate(zip(attending, own, strict=True)):
        if attends and not full:
            wanted = f"full for layer {each}, which attends: such have scores of their own"
            raise fields.error("indexer_types", "shared", wanted)


def _experts(fields: Fields, limit: float) -> Experts:
    fields.whole("scoring_func", "sigmoid", "sigmoid")
    fields.whole("topk_method", "noaux_tc", "noaux_tc: experts are chosen with a correction")
    fields.whole("moe_layer_freq", 1, "1")
    each = fields.size("moe_intermediate_size", 2048)
    router = read_corrected_router(fields, experts=288, scale=2.5, least_sum=1e-20)
    wide = each * fields.size("n_shared_experts", 1)
    return Experts(
        router=router,
        each=Gated(size=each, activation="clamped_silu", limit=limit),
        shared=Gated(size=wide, activation="clamped_silu", limit=limit),
    )


def _recurrent(fields: Fields, *, stated: bool) -> KimiDelta:
    """The mixer of recurrent layers. ``stated``: which these are is said elsewhere, so lists of
    them say nothing new."""
    sizes = {
        "head_dim": fields.size("linear_head_dim", 128),
        "num_heads": fields.size("linear_num_heads", 64),
        "short_conv_kernel_size": fields.size("linear_conv_kernel_dim", 4),
    }
    lowest = fields.get("linear_lower_bound")
    unbound = "linear_lower_bound" in fields and lowest is None
    own = fields.within("linear_attn_config")
    if own is not None:
        sizes = {name: own.size(name, size) for name, size in sizes.items()}
        unbound = not own.flag("safe_gate", True) and own.get("gate_lower_bound") is None
        lowest = own.get("gate_lower_bound", lowest)
        for name in ("full_attn_layers", "kda_layers"):
            if own.get(name) is not None and not stated:
                raise own.error(name, "set", "absent: layer_types says which layers attend")
        own.check_known()
    if unbound:
        raise fields.error("linear_lower_bound", None, "a number: decays have a bound")
    lowest = -5.0 if lowest is None else lowest
    return KimiDelta(
        heads=sizes["num_heads"],
        head_dim=sizes["head_dim"],
        taps=sizes["short_conv_kernel_size"],
        lowest=read_lowest(fields, "linear_lower_bound", lowest),
    )


_NAMES = TensorNames(
    replaced=(
        ("linear_attn.", "self_attn."),
        ("indexer.pool_gate", "indexer.index_kpool_compress_gate"),
        ("indexer.pool_bias", "indexer.index_kpool_compress_ape"),
        ("attn_hc.", "hc_attn_"),
        ("ffn_hc.", "hc_ffn_"),
        ("mlp.shared_expert.", "mlp.shared_experts."),
    ),
    predicts_more=True,
)
_FAMILY = Family(read=_read_glm5_next, names=_NAMES)

GLM_NEXT_FAMILIES = {"glm5_next": _FAMILY, "glm5_next_text": _FAMILY}
"""Folders of text alone have the wrapper's name."""
