"""Families with experts: from their ``config.json`` to layers.

What a family's checkpoints leave out gets the default that ``transformers`` has for it.
"""

from dataclasses import replace

from runtime.model.config import Experts, Gated, Layer, ModelConfig, Router
from runtime.model.config_fields import Fields
from runtime.model.dense_families import qwen_windows
from runtime.model.family import (
    Family,
    TensorNames,
    read_activation,
    read_attention,
    read_corrected_router,
    read_decoder,
    read_layer_types,
    read_listed,
    rotated_dimensions,
)
from runtime.model.rope_fields import read_rope, rope_object, rope_of


def _read_qwen3_moe(fields: Fields, _: int | None) -> ModelConfig:
    biased, count = fields.flag("attention_bias", False), fields.size("num_hidden_layers")
    rope, context = read_rope(fields)
    mixer = read_attention(fields, rope=rope, bias=biased, output_bias=biased, norm="each")
    router = Router(
        num_experts=fields.size(_spelled(fields), 128),
        per_token=fields.size("num_experts_per_tok", 8),
        normalise=fields.flag("norm_topk_prob", False),
    )
    activation = read_activation(fields)
    experts = Experts(
        router=router,
        each=Gated(size=fields.size("moe_intermediate_size", 768), activation=activation),
    )
    mlp = Gated(
        size=fields.size("intermediate_size"),
        activation=activation,
        bias=fields.flag("mlp_bias", False),
    )
    windows = qwen_windows(fields, every=True) or (None,) * count
    layers = [
        Layer(mixer=replace(mixer, window=window), feed_forward=experts if sparse else mlp)
        for window, sparse in zip(windows, sparse_layers(fields, count), strict=True)
    ]
    return read_decoder(fields, layers, context)


def _read_qwen2_moe(fields: Fields, _: int | None) -> ModelConfig:
    """One more expert, which every token takes by a weight of its own."""
    count = fields.size("num_hidden_layers")
    rope, context = read_rope(fields)
    mixer = read_attention(fields, rope=rope, bias=fields.flag("qkv_bias", True))
    activation = read_activation(fields)
    experts = Experts(
        router=Router(
            num_experts=fields.size(_spelled(fields), 60),
            per_token=fields.size("num_experts_per_tok", 4),
            normalise=fields.flag("norm_topk_prob", False),
        ),
        each=Gated(size=fields.size("moe_intermediate_size", 1408), activation=activation),
        shared=Gated(
            size=fields.size("shared_expert_intermediate_size", 5632), activation=activation
        ),
        shared_gate=True,
    )
    mlp = Gated(size=fields.size("intermediate_size", 5632), activation=activation)
    windowed: tuple[bool, ...] = (False,) * count
    if fields.flag("use_sliding_window", False):
        full = fields.number("max_window_layers", 28)
        alternating = [each % 2 == 0 and each < full for each in range(count)]
        windowed = read_layer_types(fields, alternating)
    window = fields.size("sliding_window", 4096) if any(windowed) else None
    layers = [
        Layer(
            mixer=replace(mixer, window=window if has else None),
            feed_forward=experts if sparse else mlp,
        )
        for has, sparse in zip(windowed, sparse_layers(fields, count), strict=True)
    ]
    return read_decoder(fields, layers, context)


def _spelled(fields: Fields) -> str:
    return "num_local_experts" if "num_local_experts" in fields else "num_experts"


def sparse_layers(fields: Fields, count: int) -> list[bool]:
    """Which layers have experts."""
    every = fields.size("decoder_sparse_step", 1)
    plain = fields.get("mlp_only_layers", [])
    if not isinstance(plain, list) or not all(type(layer) is int for layer in plain):
        raise fields.error("mlp_only_layers", plain, "a list of layer numbers")
    return [layer not in plain and (layer + 1) % every == 0 for layer in range(count)]


def _read_mixtral(fields: Fields, _: int | None) -> ModelConfig:
    rope, context = read_rope(fields, theta=1000000.0)
    window = None if fields.get("sliding_window") is None else fields.size("sliding_window")
    experts = Experts(
        router=Router(
            num_experts=fields.size("num_local_experts", 8),
            per_token=fields.size("num_experts_per_tok", 2),
            normalise=True,
        ),
        each=Gated(size=fields.size("intermediate_size"), activation=read_activation(fields)),
    )
    layer = Layer(mixer=read_attention(fields, rope=rope, window=window), feed_forward=experts)
    layers = (layer,) * fields.size("num_hidden_layers")
    return read_decoder(fields, layers, context, norm_eps=1e-5)


_BLOCK_SPARSE = (
    ("mlp.", "block_sparse_moe."),
    ("gate_proj", "w1"),
    ("up_proj", "w3"),
    ("down_proj", "w2"),
)


def _read_minimax_m2(fields: Fields, _: int | None) -> ModelConfig:
    """Heads normed together, a part of each rotated; sigmoids with a correction."""
    mixer = read_attention(fields, 128, norm="all")
    spelled = rope_object(fields)
    share = fields.size("rotary_dim", mixer.head_dim) / mixer.head_dim
    rotated = rotated_dimensions(fields, spelled, mixer.head_dim, share)
    theta = fields.number("rope_theta", 5000000.0)
    rope, context = rope_of(fields, spelled, theta=theta, rotated=rotated)
    fields.whole("use_qk_norm", True, "true: this model type has norms of heads")
    fields.whole("qk_norm_type", "per_layer", "per_layer")
    fields.whole("scoring_func", "sigmoid", "sigmoid")
    fields.whole("use_routing_bias", True, "true: its experts are chosen with a correction")
    if fields.get("shared_intermediate_size", 0) != 0:
        raise fields.error("shared_intermediate_size", "set", "0: it has no shared expert")
    experts = Experts(
        router=Router(
            num_experts=fields.size("num_local_experts", 256),
            per_token=fields.size("num_experts_per_tok", 8),
            scores="sigmoid",
            normalise=True,
            correction=True,
        ),
        each=Gated(size=fields.size("intermediate_size"), activation=read_activation(fields)),
    )
    layer = Layer(mixer=replace(mixer, rope=rope), feed_forward=experts)
    return read_decoder(fields, (layer,) * fields.size("num_hidden_layers"), context)


def _read_glm4_moe(fields: Fields, _: int | None) -> ModelConfig:
    """Half of each head rotated; sigmoids with a correction, groups and a shared expert; the first
    layers have one MLP."""
    count = fields.size("num_hidden_layers")
    mixer = read_attention(
        fields,
        bias=fields.flag("attention_bias", False),
        norm="each" if fields.flag("use_qk_norm", False) else None,
    )
    spelled = rope_object(fields)
    rotated = rotated_dimensions(fields, spelled, mixer.head_dim, 0.5)
    theta = fields.number("rope_theta", 10000.0)
    rope, context = rope_of(fields, spelled, theta=theta, rotated=rotated)
    size, activation = fields.size("moe_intermediate_size", 1408), read_activation(fields)
    fields.whole("scoring_func", "sigmoid", "sigmoid")
    experts = Experts(
        router=read_corrected_router(fields, experts=128),
        each=Gated(size=size, activation=activation),
        shared=Gated(size=size * fields.size("n_shared_experts", 1), activation=activation),
    )
    mlp = Gated(size=fields.size("intermediate_size", 10944), activation=activation)
    dense = fields.number("first_k_dense_replace", 1)
    mixer = replace(mixer, rope=rope)
    layers = [
        Layer(mixer=mixer, feed_forward=mlp if each < dense else experts) for each in range(count)
    ]
    return read_decoder(fields, layers, context, norm_eps=1e-5)


def _read_gpt_oss(fields: Fields, _: int | None) -> ModelConfig:
    """Sinks, biases everywhere, a clamped gate; every other layer has a window."""
    count, biased = fields.size("num_hidden_layers"), fields.flag("attention_bias", True)
    spelled = rope_object(fields)
    theta = fields.number("rope_theta", 150000.0)
    rope, context = rope_of(fields, spelled, theta=theta)
    windowed = read_layer_types(fields, [each % 2 == 0 for each in range(count)])
    window = fields.size("sliding_window", 128)
    mixer = read_attention(fields, 64, rope=rope, bias=biased, output_bias=biased, sinks=True)
    read_activation(fields)  # its name for what follows
    fields.whole("swiglu_alpha", 1.702, "1.702")
    limit = fields.number("swiglu_limit", 7.0)
    if limit == 0:
        raise fields.error("swiglu_limit", limit, "a number above 0")
    experts = Experts(
        router=Router(
            num_experts=fields.size(_spelled(fields), 128),
            per_token=fields.size("num_experts_per_tok", fields.size("experts_per_token", 4)),
            normalise=True,  # a softmax over those chosen is the same
            bias=True,
        ),
        each=Gated(
            size=fields.size("intermediate_size"),
            activation="clamped_swiglu",
            limit=limit,
            bias=True,
        ),
    )
    layers = [
        Layer(mixer=replace(mixer, window=window if has else None), feed_forward=experts)
        for has in windowed
    ]
    return read_decoder(fields, layers, context, norm_eps=1e-5)


def _read_hy_v3(fields: Fields, _: int | None) -> ModelConfig:
    """Heads normed one by one; sigmoids with a correction and a shared expert; the first layers
    have one MLP."""
    count, biased = fields.size("num_hidden_layers"), fields.flag("attention_bias", False)
    for name in ("qk_norm", "route_norm"):
        fields.whole(name, True, "true: this model type computes with it")
    rope, context = read_rope(fields, theta=11158840.0)
    mixer = read_attention(fields, 128, rope=rope, bias=biased, output_bias=biased, norm="each")
    size, activation = fields.size("moe_intermediate_size", 1536), read_activation(fields)
    inner = fields.flag("mlp_bias", False)
    router = Router(
        num_experts=fields.size(_spelled(fields), 192),
        per_token=fields.size("num_experts_per_tok", 8),
        scores="sigmoid",
        normalise=True,
        correction=True,
        scale=fields.number("router_scaling_factor", 2.826),
    )
    shared = size * fields.size("num_shared_experts", 1)
    experts = Experts(
        router=router,
        each=Gated(size=size, activation=activation),
        shared=Gated(size=shared, activation=activation, bias=inner),
    )
    mlp = Gated(size=fields.size("intermediate_size", 13312), activation=activation, bias=inner)
    dense = fields.number("first_k_dense_replace", 1)
    sparse = [each >= dense for each in range(count)]
    if fields.get("mlp_layer_types") is not None:
        sparse = read_listed(fields, "mlp_layer_types", {"dense": False, "sparse": True}, count)
    layers = [Layer(mixer=mixer, feed_forward=experts if each else mlp) for each in sparse]
    return read_decoder(fields, layers, context, norm_eps=1e-5)


def _read_afmoe(fields: Fields, _: int | None) -> ModelConfig:
    """Norms on both sides, gated attention; layers with a window know positions, the others none;
    sigmoids with a correction and a shared expert; the first layers have one MLP."""
    count, biased = fields.size("num_hidden_layers"), fields.flag("attention_bias", False)
    fields.whole("score_func", "sigmoid", "sigmoid")
    fields.whole("route_norm", True, "true: this model type norms experts' weights")
    rope, context = read_rope(fields)
    every = fields.size("global_attn_every_n_layers", 4)
    windowed = read_layer_types(fields, [(each + 1) % every != 0 for each in range(count)])
    window = fields.size("sliding_window", 1024) if any(windowed) else None
    mixer = read_attention(
        fields, 128, bias=biased, output_bias=biased, norm="each", gated=True, gate_apart=True
    )
    size, activation = fields.size("moe_intermediate_size", 1408), read_activation(fields)
    router = Router(
        num_experts=fields.size(_spelled(fields), 64),
        per_token=fields.size("num_experts_per_tok", 6),
        scores="sigmoid",
        normalise=True,
        correction=True,
        scale=fields.number("route_scale", 1.0),
    )
    experts = Experts(
        router=router,
        each=Gated(size=size, activation=activation),
        shared=Gated(size=size * fields.size("num_shared_experts", 2), activation=activation),
    )
    mlp = Gated(size=fields.size("intermediate_size", 6144), activation=activation)
    dense = fields.number("num_dense_layers", 1)
    layers = [
        Layer(
            mixer=replace(mixer, rope=rope if has else None, window=window if has else None),
            feed_forward=mlp if each < dense else experts,
            norms="both",
        )
        for each, has in enumerate(windowed)
    ]
    grown = fields.flag("mup_enabled", False)
    scale = fields.size("hidden_size") ** 0.5 if grown else 1.0
    return read_decoder(fields, layers, context, norm_eps=1e-5, embedding_scale=scale)


def _read_ernie4_5_moe(fields: Fields, _: int | None) -> ModelConfig:
    """Neighbours are rotated; softmax with a correction, shared experts in one; some layers have
    one MLP."""
    count = fields.size("num_hidden_layers")
    fields.whole("use_bias", False, "false: its output projection would have one too")
    rope, context = read_rope(fields, theta=500000.0)
    size, activation = fields.size("moe_intermediate_size", 1536), read_activation(fields)
    least = fields.number("moe_norm_min", 1e-12)
    if least > _NO_SUM:
        raise fields.error("moe_norm_min", least, f"at most {_NO_SUM}: what no sum comes to")
    shared = None
    if fields.get("moe_num_shared_experts", 2) != 0:
        each = fields.size("moe_num_shared_experts", 2)
        shared = Gated(size=size * each, activation=activation)
    experts = Experts(
        router=Router(
            num_experts=fields.size("moe_num_experts", 64),
            per_token=fields.size("moe_k", 6),
            normalise=True,
            correction=True,
        ),
        each=Gated(size=size, activation=activation),
        shared=shared,
    )
    mlp = Gated(size=fields.size("intermediate_size", 12288), activation=activation)
    first, last = fields.number("moe_layer_start_index", 1), count - 1
    if fields.get("moe_layer_end_index", -1) != -1:
        last = fields.size("moe_layer_end_index")
    every = fields.size("moe_layer_interval", 1)
    sparse = [first <= at <= last and (at + 1) % every == 0 for at in range(count)]
    mixer = read_attention(fields, rope=rope, interleaved=True)
    layers = [Layer(mixer=mixer, feed_forward=experts if each else mlp) for each in sparse]
    return read_decoder(fields, layers, context, norm_eps=1e-5, tied=True)


_NO_SUM = 1e-6
"""Weights of the experts of a token add up to more."""
SHARED_EXPERTS = (("mlp.shared_expert.", "mlp.shared_experts."),)
"""Names of experts that every token takes: several in one."""

_ERNIE_CORRECTION = "mlp.moe_statics.e_score_correction_bias"

EXPERT_FAMILIES = {
    "qwen2_moe": Family(read=_read_qwen2_moe),
    "qwen3_moe": Family(read=_read_qwen3_moe),
    "mixtral": Family(read=_read_mixtral, names=TensorNames(replaced=_BLOCK_SPARSE)),
    "minimax_m2": Family(
        read=_read_minimax_m2,
        names=TensorNames(
            replaced=(("mlp.gate.e_score", "mlp.e_score"), *_BLOCK_SPARSE), predicts_more=True
        ),
    ),
    "glm4_moe": Family(
        read=_read_glm4_moe,
        names=TensorNames(replaced=SHARED_EXPERTS, predicts_more=True),
    ),
    "hy_v3": Family(
        read=_read_hy_v3,
        names=TensorNames(
            replaced=(
                ("mlp.gate.e_score_correction_bias", "mlp.expert_bias"),
                ("mlp.gate.", "mlp.router.gate."),
                ("mlp.shared_expert.", "mlp.shared_mlp."),
            ),
            predicts_more=True,
        ),
    ),
    "afmoe": Family(
        read=_read_afmoe,
        names=TensorNames(
            replaced=(
                ("mlp.gate.e_score_correction_bias", "mlp.expert_bias"),
                ("mlp.gate.", "mlp.router.gate."),
                *SHARED_EXPERTS,
                ("post_attention_layernorm", "pre_mlp_layernorm"),
                ("after_mixer_norm", "post_attention_layernorm"),
                ("after_mlp_norm", "post_mlp_layernorm"),
            )
        ),
    ),
    "ernie4_5_moe": Family(
        read=_read_ernie4_5_moe,
        names=TensorNames(
            replaced=(
                ("mlp.gate.e_score_correction_bias", _ERNIE_CORRECTION),
                *SHARED_EXPERTS,
            ),
            either=((_ERNIE_CORRECTION, "mlp.gate.moe_statics.e_score_correction_bias"),),
            of_one_row=(_ERNIE_CORRECTION.rpartition(".")[2],),
        ),
    ),
    "gpt_oss": Family(
        read=_read_gpt_oss,
        names=TensorNames(replaced=(("mlp.gate.", "mlp.router."),), stacked_experts="inputs first"),
    ),
}
