"""MiniMax M3's text part: from its ``config.json`` to layers.

What a checkpoint leaves out gets the default that ``transformers`` has for it.
"""

from dataclasses import replace

from runtime.model.chosen_blocks import BlockChoice
from runtime.model.config import Attention, Experts, Gated, Layer, ModelConfig, Router
from runtime.model.config_fields import Fields
from runtime.model.family import (
    SWITCHED,
    Family,
    TensorNames,
    read_attention,
    read_decoder,
    read_listed,
    rotated_dimensions,
)
from runtime.model.rope_fields import rope_object, rope_of


def _read_minimax_m3(fields: Fields, _: int | None) -> ModelConfig:
    """Heads normed one by one, a part of each rotated; some layers choose blocks; sigmoids with a
    correction and a shared expert; the first layers have one MLP."""
    count = fields.size("num_hidden_layers")
    for name in ("use_gemma_norm", "use_qk_norm", "use_routing_bias"):
        fields.whole(name, True, "true: this model type computes with it")
    fields.whole("qk_norm_type", "per_head", "per_head")
    fields.whole("scoring_func", "sigmoid", "sigmoid")
    fields.whole("attention_bias", False, "false")
    mixer = replace(read_attention(fields, 128), norm="each")
    spelled = rope_object(fields)
    share = fields.size("rotary_dim", 64) / mixer.head_dim
    rotated = rotated_dimensions(fields, spelled, mixer.head_dim, share)
    if "rotary_dim" in fields and rotated != fields.size("rotary_dim", rotated):
        raise fields.error("rotary_dim", fields.get("rotary_dim"), f"{rotated} as the share says")
    theta = fields.number("rope_theta", 5000000.0)
    rope, context = rope_of(fields, spelled, theta=theta, rotated=rotated)
    mixer = replace(mixer, rope=rope)
    choice, sparse = _read_choice(fields, mixer, count)
    mlp, experts = _read_feed_forwards(fields)
    layers = [
        Layer(
            mixer=replace(mixer, choice=choice if chooses else None),
            feed_forward=experts if has_experts else mlp,
        )
        for chooses, has_experts in zip(sparse, _read_sparse_mlps(fields, count), strict=True)
    ]
    return read_decoder(fields, layers, context)


def _read_feed_forwards(fields: Fields) -> tuple[Gated, Experts]:
    """The one MLP of the first layers, and the experts of the others."""
    fields.one_of("hidden_act", {"swigluoai": True, "silu": True}, "swigluoai")
    fields.whole("swiglu_alpha", 1.702, "1.702")
    fields.whole("n_shared_experts", 1, "1: shared_intermediate_size is the width of all")
    limit = fields.number("swiglu_limit", 7.0)
    if limit == 0:
        raise fields.error("swiglu_limit", limit, "a number above 0")

    def gated(name: str, default: int) -> Gated:
        return Gated(size=fields.size(name, default), activation="clamped_swiglu", limit=limit)

    router = Router(
        num_experts=fields.size("num_local_experts", 128),
        per_token=fields.size("num_experts_per_tok", 4),
        scores="sigmoid",
        normalise=True,
        correction=True,
        scale=fields.number("routed_scaling_factor", 2.0),
    )
    experts = Experts(
        router=router,
        each=gated("intermediate_size", 3072),
        shared=gated("shared_intermediate_size", 3072),
    )
    return gated("dense_intermediate_size", 12288), experts


def _read_choice(fields: Fields, mixer: Attention, count: int) -> tuple[BlockChoice, list[bool]]:
    """Which blocks are chosen, and in which layers."""
    heads = mixer.kv_heads
    flat = {
        "index_n_heads": "sparse_num_index_heads",
        "index_head_dim": "sparse_index_dim",
        "index_block_size": "sparse_block_size",
        "index_topk_blocks": "sparse_topk_blocks",
        "index_local_blocks": "sparse_local_block",
    }
    defaults = dict(zip(flat, (4, 128, 128, 16, 1), strict=True))
    found = {name: fields.size(name, default) for name, default in defaults.items()}
    own = fields.within("sparse_attention_config")
    kinds, sparse = fields.get("layer_types"), [False] * count
    if kinds is not None:
        known = {"minimax_m3_sparse": True, "full_attention": False}
        sparse = read_listed(fields, "layer_types", known, count)
    if own is not None:
        found = {name: own.size(theirs, found[name]) for name, theirs in flat.items()}
        own.whole("use_sparse_attention", True, "true: its layers are listed beside it")
        own.whole("sparse_score_type", "max", "max: a block counts by its best token")
        own.whole("sparse_init_block", 0, "0: the first blocks have no place of their own")
        if own.get("sparse_attention_freq") is not None and kinds is None:
            sparse = read_listed(own, "sparse_attention_freq", SWITCHED, count)
        if own.get("sparse_disable_index_value") is not None:
            without = read_listed(own, "sparse_disable_index_value", SWITCHED, count)
            if any(chooses and not none for chooses, none in zip(sparse, without, strict=True)):
                value = own.get("sparse_disable_index_value")
                raise own.error("sparse_disable_index_value", value, "set in layers that choose")
        own.get("sparse_attention_freq")
        own.check_known()
    if any(sparse) and found["index_n_heads"] != heads:
        raise fields.error(
            "sparse_num_index_heads", found["index_n_heads"], f"{heads}, like num_key_value_heads"
        )
    choice = BlockChoice(
        dim=found["index_head_dim"],
        size=found["index_block_size"],
        count=found["index_topk_blocks"],
        local=found["index_local_blocks"],
    )
    return choice, sparse


def _read_sparse_mlps(fields: Fields, count: int) -> list[bool]:
    """Which layers have experts."""
    if fields.get("mlp_layer_types") is not None:
        return read_listed(fields, "mlp_layer_types", {"sparse": True, "dense": False}, count)
    every = fields.get("moe_layer_freq") is None
    return [True] * count if every else read_listed(fields, "moe_layer_freq", SWITCHED, count)


_GATE_UP = ("gate_proj", "up_proj")
_OF_TRANSFORMERS = TensorNames(
    replaced=(("mlp.shared_expert.", "mlp.shared_experts."),),
    fused=tuple(
        (f"{mlp}.gate_up_proj", tuple(f"{mlp}.{part}" for part in _GATE_UP))
        for mlp in ("mlp", "mlp.shared_expert")
    ),
    stacked_experts="outputs first",
    norms_from_zero=True,
)
"""Names in a text part that ``transformers`` saves alone."""
_EXPERTS = "block_sparse_moe."
_NAMES = TensorNames(
    replaced=(
        ("self_attn.indexer.", "self_attn.index_"),
        ("mlp.gate.e_score", f"{_EXPERTS}e_score"),
        ("mlp.gate.", f"{_EXPERTS}gate."),
        ("mlp.shared_expert.", f"{_EXPERTS}shared_experts."),
        ("mlp.experts.", f"{_EXPERTS}experts."),
    ),
    patterns=(
        (r"(experts\.\d+\.)gate_proj", r"\1w1"),
        (r"(experts\.\d+\.)up_proj", r"\1w3"),
        (r"(experts\.\d+\.)down_proj", r"\1w2"),
    ),
    norms_from_zero=True,
    predicts_more=True,
    others=((".gate_up_proj", _OF_TRANSFORMERS),),
)

MINIMAX_FAMILIES = {
    name: Family(read=_read_minimax_m3, names=_NAMES)
    for name in ("minimax_m3_vl_text", "minimax_m3_text", "minimax_m3")
}
"""One by its names in ``transformers``, in vLLM and in published folders."""
