"""Families whose attention compresses what is far: from their ``config.json`` to layers.

What a family's checkpoints leave out gets the default that ``transformers`` has for it.
"""

from collections.abc import Sequence
from dataclasses import replace

from runtime.model.compressed import Compressed
from runtime.model.config import Experts, Gated, Layer, ModelConfig, Router
from runtime.model.config_fields import Fields
from runtime.model.family import Family, TensorNames, read_activation, read_decoder
from runtime.model.latent import Indexer
from runtime.model.module_names import ModuleNames
from runtime.model.rope_config import RopeConfig
from runtime.model.rope_fields import rope_object, rope_of
from runtime.model.schemes import Quantisation, Scheme
from runtime.model.streams import MOST_ROUNDS, Streams

_SLIDING, _CHOSEN, _ALL = (
    "sliding_attention",
    "compressed_sparse_attention",
    "heavily_compressed_attention",
)
_KINDS = (_SLIDING, _CHOSEN, _ALL)
_OF_RATIO = {0: _SLIDING, 4: _CHOSEN, 128: _ALL}
"""Kinds of layers by the numbers that published folders have for them."""
_NAMES_OF_RATES = {_CHOSEN: "compress_rate_csa", _ALL: "compress_rate_hca"}


def _read_deepseek_v4(fields: Fields, _: int | None) -> ModelConfig:
    """A window and entries of either kind in most layers, experts in all, several streams."""
    count = fields.size("num_hidden_layers")
    fields.whole("num_key_value_heads", 1, "1: all heads have one key")
    for name in ("attention_bias", "mlp_bias"):
        fields.whole(name, False, "false")
    dim = fields.size("head_dim", 512)
    rotated = _rotated(fields, dim)
    near, (far, context) = _ropes(fields)
    mixer = Compressed(
        heads=fields.size("num_attention_heads", 64),
        dim=dim,
        rotary_dim=rotated,
        query_rank=fields.size("q_lora_rank", 1024),
        near=fields.size("sliding_window", 128),
        output_groups=fields.size("o_groups", 8),
        output_rank=fields.size("o_lora_rank", 1024),
        rope=near,
    )
    indexer = Indexer(
        heads=fields.size("index_n_heads", 64),
        dim=fields.size("index_head_dim", 128),
        top_k=fields.size("index_topk", 512),
    )
    chosen, all_seen = _rates(fields)
    mixers = {
        _SLIDING: mixer,
        _CHOSEN: replace(mixer, rope=far, ratio=chosen, indexer=indexer),
        _ALL: replace(mixer, rope=far, ratio=all_seen),
    }
    by_table, by_router = _experts(fields)
    layers = [
        Layer(mixer=mixers[kind], feed_forward=by_table if hashed else by_router)
        for kind, hashed in zip(_kinds(fields, count), _hashed(fields, count), strict=True)
    ]
    rounds = fields.size("hc_sinkhorn_iters", 20)
    if rounds > MOST_ROUNDS:
        raise fields.error("hc_sinkhorn_iters", rounds, f"at most {MOST_ROUNDS}")
    streams = Streams(
        count=fields.size("hc_mult", 4),
        iterations=rounds,
        eps=fields.number("hc_eps", 1e-6),
    )
    return read_decoder(fields, layers, context, streams=streams)


def _experts(fields: Fields) -> tuple[Experts, Experts]:
    """Those that a table chooses, and those that a router does."""
    fields.whole("norm_topk_prob", True, "true: this model type norms experts' weights")
    fields.whole("topk_method", "noaux_tc", "noaux_tc: experts are chosen with a correction")
    fields.whole("n_shared_experts", 1, "1: every token takes one as wide as the others")
    fields.whole("n_group", 1, "1: experts are in no groups")
    fields.whole("topk_group", 1, "1: experts are in no groups")
    scores = {"sqrtsoftplus": "sqrt_softplus", "sigmoid": "sigmoid", "softmax": "softmax"}
    router = Router(
        num_experts=fields.size("n_routed_experts", 256),
        per_token=fields.size("num_experts_per_tok", 6),
        scores=fields.one_of("scoring_func", scores, "sqrtsoftplus"),
        wide=True,
        normalise=True,
        correction=True,
        scale=fields.number("routed_scaling_factor", 1.5),
        least_sum=1e-20,
    )
    read_activation(fields)
    limit = fields.number("swiglu_limit", 10.0)
    if not limit:
        raise fields.error("swiglu_limit", limit, "above 0")
    size = fields.size("moe_intermediate_size", 2048)
    mlp = Gated(size=size, activation="clamped_silu", limit=limit)
    chosen = Experts(router=router, each=mlp, shared=mlp)
    rows = fields.size("vocab_size", 129_280)
    table = replace(router, correction=False, table_rows=rows)
    return replace(chosen, router=table), chosen


def _rotated(fields: Fields, dim: int) -> int:
    """How many dimensions of a head are rotated: a number, or a part of the head."""
    share = fields.number("partial_rotary_factor", 64 / 512)
    rotated = int(dim * share)
    if "partial_rotary_factor" not in fields:
        rotated = fields.size("qk_rope_head_dim", rotated)
    stated = fields.size("qk_rope_head_dim", rotated)
    if stated != rotated:
        raise fields.error("qk_rope_head_dim", stated, f"{rotated}, as partial_rotary_factor says")
    if rotated < 2 or rotated % 2 or rotated > dim:
        raise fields.error("qk_rope_head_dim", rotated, f"pairs of the {dim} dimensions of a head")
    return rotated


def _ropes(fields: Fields) -> tuple[RopeConfig, tuple[RopeConfig, int]]:
    """Positions of layers without entries, and of those with them; and the context. Either each has
    an object, or one is plain and the other as the object says."""
    rope = rope_object(fields)
    theta = fields.number("rope_theta", 10000.0)
    far_theta = fields.number("compress_rope_theta", 160_000.0)
    main, compress = rope.within("main"), rope.within("compress")
    if main is None or compress is None:
        near = RopeConfig(theta=theta)
        rope.whole("rope_theta", theta, f"{theta:g}, as rope_theta of the model says")
        part = fields.number("partial_rotary_factor", 64 / 512)
        rope.whole("partial_rotary_factor", part, "that of the whole model")
        own = rope if rope.get("attention_factor") is not None else rope.with_defaults(_UNTEMPERED)
        own = own.without("rope_theta", "partial_rotary_factor")
        return near, rope_of(fields, own, theta=far_theta)
    for each in (main, compress):
        part = each.get("partial_rotary_factor")
        if part is not None and part != fields.number("partial_rotary_factor", 64 / 512):
            raise each.error("partial_rotary_factor", part, "that of the whole model")
    near, _ = rope_of(fields, main, theta=theta)
    return near, rope_of(fields, compress, theta=far_theta)


_UNTEMPERED = {"attention_factor": 1.0}
"""Published folders leave it out: angles are stretched, scores stay as they are."""


def _rates(fields: Fields) -> tuple[int, int]:
    """Tokens of an entry in layers that choose, and in those that see all."""
    spelled = fields.within("compress_rates")
    found = []
    for kind, default in ((_CHOSEN, 4), (_ALL, 128)):
        stated = default if spelled is None else spelled.size(kind, default)
        rate = fields.size(_NAMES_OF_RATES[kind], stated)
        if rate < 2:
            raise fields.error(_NAMES_OF_RATES[kind], rate, "at least 2")
        found.append(rate)
    return found[0], found[1]


def _kinds(fields: Fields, count: int) -> Sequence[str]:
    """The kind of each layer; numbers behind those of the layers are of such as predict further
    tokens."""
    kinds, ratios = fields.get("layer_types"), fields.get("compress_ratios")
    by_ratio: list[str] | None = None
    if ratios is not None:
        right = isinstance(ratios, list) and len(ratios) >= count
        if not right or not all(type(ratio) is int and ratio in _OF_RATIO for ratio in ratios):
            known = ", ".join(map(str, _OF_RATIO))
            raise fields.error("compress_ratios", ratios, f"at least {count} of {known}")
        by_ratio = [_OF_RATIO[ratio] for ratio in ratios[:count]]
    if kinds is None:
        interleaved = [_CHOSEN if each > 1 and each % 2 else _ALL for each in range(count)]
        return interleaved if by_ratio is None else by_ratio
    found = _listed(fields, "layer_types", kinds, count, _KINDS)
    if by_ratio is not None and by_ratio != found:
        raise fields.error("layer_types", kinds, "what compress_ratios says")
    return found


def _hashed(fields: Fields, count: int) -> Sequence[bool]:
    """Whether a table chooses a layer's experts."""
    kinds, first = fields.get("mlp_layer_types"), fields.number("num_hash_layers", 3)
    counted = [each < first for each in range(count)]
    if kinds is None:
        return counted
    known = ("hash_moe", "moe")
    listed = [kind == known[0] for kind in _listed(fields, "mlp_layer_types", kinds, count, known)]
    if fields.get("num_hash_layers") is not None and listed != counted:
        raise fields.error("mlp_layer_types", kinds, "what num_hash_layers says")
    return listed


def _listed(
    fields: Fields, name: str, kinds: object, count: int, known: Sequence[str]
) -> list[str]:
    if isinstance(kinds, list) and len(kinds) == count:
        found = [kind for kind in kinds if isinstance(kind, str) and kind in known]
        if len(found) == count:
            return found
    raise fields.error(name, kinds, f"{count} of {', '.join(known)}")


_DEEPSEEK_V4 = TensorNames(
    replaced=(
        ("self_attn.compressor.indexer.q_b_proj", "self_attn.indexer.wq_b"),
        ("self_attn.compressor.indexer.scorer.", "self_attn.indexer."),
        ("self_attn.compressor.indexer.", "self_attn.indexer.compressor."),
        ("compressor.kv_norm", "compressor.norm"),
        ("compressor.position_bias", "compressor.ape"),
        ("compressor.gate_proj", "compressor.wgate"),
        ("q_a_proj", "wq_a"),
        ("q_b_proj", "wq_b"),
        ("q_a_norm", "q_norm"),
        ("kv_proj", "wkv"),
        ("o_a_proj", "wo_a"),
        ("o_b_proj", "wo_b"),
        ("self_attn.sinks", "self_attn.attn_sink"),
        ("self_attn.", "attn."),
        ("attn_hc.", "hc_attn_"),
        ("ffn_hc.", "hc_ffn_"),
        ("input_layernorm", "attn_norm"),
        ("post_attention_layernorm", "ffn_norm"),
        ("mlp.shared_expert.", "mlp.shared_experts."),
        ("mlp.gate.e_score_correction_bias", "mlp.gate.bias"),
        ("gate_proj", "w1"),
        ("up_proj", "w3"),
        ("down_proj", "w2"),
        ("mlp.", "ffn."),
    ),
    or_else=(("attn.kv_norm", "attn.norm"),),
    outside=(
        ("model.embed_tokens.weight", ("model.embed.weight",)),
        ("lm_head.weight", ("head.weight",)),
        ("model.hc_head.hc_fn", ("model.hc_head_fn",)),
        ("model.hc_head.hc_base", ("model.hc_head_base",)),
        ("model.hc_head.hc_scale", ("model.hc_head_scale",)),
    ),
    bare=True,
    predicts_more=True,
)
"""As DeepSeek's folders have it, and as ``transformers`` saves it."""


def _quantised(fields: Fields, quantisation: Quantisation) -> Quantisation:
    """Folders in FP8 may have experts in MXFP4, and do not list what is in neither."""
    if quantisation.method != "fp8":
        return quantisation
    inner = fields.within("quantization_config")
    stated = None if inner is None else inner.get("expert_dtype")
    in_four = {"fp4": True, "fp8": False}
    kind = fields.one_of("expert_dtype", in_four, "fp8" if stated is None else stated)
    own = quantisation.own
    if kind:
        experts = ModuleNames("parts", (".ffn.experts.",))
        own = ((experts, Scheme(layout="mxfp4", bits=4, group=32)), *own)
    return replace(quantisation, own=own, tensors_decide=True)


COMPRESSED_FAMILIES = {
    "deepseek_v4": Family(read=_read_deepseek_v4, names=_DEEPSEEK_V4, quantised=_quantised)
}
