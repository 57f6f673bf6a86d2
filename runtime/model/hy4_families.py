"""Hy4: from its ``config.json`` to layers of sparse attention over latents, whose heads have sinks
and gates, around several residual streams that are not mixed with each other.

What is left out gets the default that ``transformers`` has for it.
"""

from dataclasses import replace
from itertools import pairwise

from runtime.model.config import Experts, Gated, Layer, ModelConfig
from runtime.model.config_fields import Fields
from runtime.model.family import (
    Family,
    TensorNames,
    read_activation,
    read_decoder,
    read_listed_if_there,
)
from runtime.model.latent import Indexer, Latent
from runtime.model.latent_families import corrected_router, read_latent
from runtime.model.streams import Streams

_MIXERS = {"indexed_attention": True}
_MLPS = {"dense": True, "sparse": False}
_INDEXERS = {"full": False, "shared": True}


def _read_hy_v4(fields: Fields, _: int | None) -> ModelConfig:
    """Every fourth layer behind the first two has scores of its own; the first has one MLP."""
    count = fields.size("num_hidden_layers", 34)
    read_listed_if_there(fields, "layer_types", _MIXERS, count)
    mixer, context = _read_mixer(fields)
    assert mixer.indexer is not None
    shared = read_listed_if_there(fields, "indexer_types", _INDEXERS, count)
    if shared is None:
        shared = [each > 0 and (each - 1) % 4 != 0 for each in range(count)]
    dense = read_listed_if_there(fields, "mlp_layer_types", _MLPS, count)
    fields.whole("moe_layer_freq", 1, "1: every layer behind the first has experts")
    if dense is None:
        fields.whole("first_k_dense_replace", 1, "1, or mlp_layer_types")
        dense = [each < 1 for each in range(count)]
    experts, activation = _read_experts(fields), read_activation(fields)
    mlp = Gated(size=fields.size("intermediate_size", 6912), activation=activation)
    layers = [
        Layer(
            mixer=replace(mixer, indexer=replace(mixer.indexer, shared=takes)),
            feed_forward=mlp if one else experts,
        )
        for takes, one in zip(shared, dense, strict=True)
    ]
    return read_decoder(fields, layers, context, norm_eps=1e-5, streams=_read_streams(fields))


def _read_mixer(fields: Fields) -> tuple[Latent, int]:
    """Of a layer with scores of its own, and the context."""
    for name in ("rope_interleave", "indexer_rope_interleave"):
        fields.whole(name, False, "false: this model type rotates halves")
    if "q_lora_rank" in fields and fields.get("q_lora_rank") is None:
        raise fields.error("q_lora_rank", None, "a number: index queries are made of a latent")
    mixer, context = read_latent(fields, ranks=(512, 1536), dims=(192, 64, 256))
    indexer = Indexer(
        heads=fields.size("index_n_heads", 16),
        dim=fields.size("index_head_dim", 128),
        top_k=fields.size("index_topk", 2048),
        turns_last=True,
        eps=fields.number("rms_norm_eps", 1e-5),
    )
    own = replace(mixer, interleaved=False, gated="numbers", sinks=True, indexer=indexer)
    return own, context


def _read_streams(fields: Fields) -> Streams:
    fields.whole("hc_sinkhorn_iters", None, "absent: streams are not mixed with each other")
    largest, eps = fields.number("hc_magnitude", 2.0), fields.number("hc_eps", 1e-6)
    if not largest:
        raise fields.error("hc_magnitude", largest, "above 0")
    return Streams(
        count=fields.size("hc_mult", 4),
        iterations=None,
        eps=eps,
        largest=largest,
        behind_eps=eps,
    )


def _read_experts(fields: Fields) -> Experts:
    """Experts whose gates and values are held within a limit; the one that every token takes has
    none."""
    router = corrected_router(fields, groups=1, chosen=1, per_token=8, experts=256, scale=2.827)
    limit = fields.number("swiglu_limit", 10.0)
    if not limit:
        raise fields.error("swiglu_limit", limit, "above 0")
    each = fields.size("moe_intermediate_size", 768)
    wide = each * fields.size("n_shared_experts", 1)
    return Experts(
        router=replace(router, least_sum=1e-20),
        each=Gated(size=each, activation="clamped_silu", limit=limit),
        shared=Gated(size=wide, activation=read_activation(fields)),
    )


def _of_half(half: str, layer: str) -> tuple[tuple[str, str], ...]:
    """The spellings of what streams go through, one for the other."""
    names = f"{half}.", f"{layer}.hc_", f"{layer}.hc_pre.hc_", f"hc_pre.{layer}.hc_"
    return tuple(pairwise(names))


def _of_head(kind: str) -> tuple[str, tuple[str, ...]]:
    """Likewise, behind the last layer."""
    own = (
        "hc_head.hc_pre.hc_head",
        "hc_head.hc_pre.hc",
        "hc_head.hc_head",
        "hc_pre.hc_head.hc_head",
    )
    return f"model.hc_head.hc_{kind}", tuple(f"model.{name}_{kind}" for name in own)


_GATES = "self_attn", "mlp", "mlp.shared_experts"
_NAMES = TensorNames(
    replaced=(("mlp.shared_expert.", "mlp.shared_experts."),),
    or_else=tuple((f"{part}.gate_proj", f"{part}.linear_gate") for part in _GATES),
    either=(
        ("self_attn.sinks", "self_attn.learnable_sink_param"),
        *_of_half("attn_hc", "hc_attn_layer"),
        *_of_half("ffn_hc", "hc_mlp_layer"),
    ),
    outside=tuple(_of_head(kind) for kind in ("fn", "base", "scale")),
    stacked_experts="outputs first",
    predicts_more=True,
)
"""As Tencent's folders have it, and as ``transformers`` saves it."""

HY4_FAMILIES = {"hy_v4": Family(read=_read_hy_v4, names=_NAMES)}
