"""Families with recurrent layers among those of attention: from their ``config.json`` to layers.

What a family's checkpoints leave out gets the default that ``transformers`` has for it.
"""

from dataclasses import replace
from typing import Any

from runtime.model.config import Attention, Experts, Gated, Layer, ModelConfig, Router
from runtime.model.config_fields import Fields
from runtime.model.family import Family, TensorNames, read_attention, read_decoder
from runtime.model.recurrent import ShortConv
from runtime.model.rope_fields import read_rope, rope_of_kind

_KINDS = {"full_attention": True, "conv": False}


def _read_lfm2(fields: Fields, _: int | None) -> ModelConfig:
    """Short convolutions, and attention in some layers."""
    mlp = Gated(size=_lfm2_mlp_size(fields))
    return _lfm2_decoder(fields, [mlp] * fields.size("num_hidden_layers"))


def _lfm2_mlp_size(fields: Fields) -> int:
    """Two thirds of what is stated, times a factor, rounded up: unless it is to be as stated."""
    size = fields.size("block_ff_dim", fields.size("intermediate_size"))
    if not fields.flag("block_auto_adjust_ff_dim", True):
        return size
    size = int(2 * size / 3)
    factor = fields.number("block_ffn_dim_multiplier", 1.0)
    multiple = fields.size("block_multiple_of", 256)
    return multiple * -(-int(factor * size) // multiple)


def _read_lfm2_moe(fields: Fields, _: int | None) -> ModelConfig:
    """The configuration of LFM2 with experts in all layers but the first."""
    count = fields.size("num_hidden_layers")
    experts = Experts(
        router=Router(
            num_experts=fields.size("num_experts", 32),
            per_token=fields.size("num_experts_per_tok", 4),
            scores="sigmoid",
            normalise=fields.flag("norm_topk_prob", True),
            correction=fields.flag("use_expert_bias", True),
            scale=fields.number("routed_scaling_factor", 1.0),
            least_sum=1e-6,
        ),
        each=Gated(size=fields.size("moe_intermediate_size", 1792)),
    )
    mlp, dense = Gated(size=fields.size("intermediate_size")), fields.number("num_dense_layers", 2)
    return _lfm2_decoder(fields, [mlp if each < dense else experts for each in range(count)])


def _lfm2_decoder(fields: Fields, feed_forwards: list[Gated | Experts]) -> ModelConfig:
    rope, context = read_rope(fields, theta=1000000.0)
    attention = read_attention(fields, rope=rope, norm="each")
    convolution = ShortConv(
        channels=fields.size("hidden_size"),
        taps=fields.size("conv_L_cache", 3),
        bias=fields.flag("conv_bias", False),
    )
    layers = [
        Layer(mixer=attention if attends else convolution, feed_forward=feed_forward)
        for attends, feed_forward in zip(
            _attending(fields, len(feed_forwards)), feed_forwards, strict=True
        )
    ]
    tied = fields.flag("tie_embedding", True)
    return read_decoder(fields, layers, context, norm_eps=1e-5, eps_field="norm_eps", tied=tied)


def _attending(fields: Fields, count: int) -> list[bool]:
    """Which layers are of attention; all where nothing is said."""
    kinds = fields.get("layer_types")
    if kinds is None:
        places = fields.get("full_attn_idxs", list(range(count)))
        if not isinstance(places, list) or not all(type(each) is int for each in places):
            raise fields.error("full_attn_idxs", places, "a list of layer numbers")
        return [each in places for each in range(count)]
    right = isinstance(kinds, list) and len(kinds) == count
    if not right or not all(isinstance(kind, str) and kind in _KINDS for kind in kinds):
        raise fields.error("layer_types", kinds, f"{count} of {', '.join(_KINDS)}")
    return [_KINDS[kind] for kind in kinds]


_LFM2 = (
    ("self_attn.o_proj", "self_attn.out_proj"),
    ("q_norm", "q_layernorm"),
    ("k_norm", "k_layernorm"),
    ("input_layernorm", "operator_norm"),
    ("post_attention_layernorm", "ffn_norm"),
    ("mlp.gate.e_score_correction_bias", "mlp.expert_bias"),
    ("gate_proj", "w1"),
    ("up_proj", "w3"),
    ("down_proj", "w2"),
    ("mlp.", "feed_forward."),
)


def _read_lfm3(fields: Fields, _: int | None) -> ModelConfig:
    """Short convolutions; attention with a window or without, each rotated in a way of its own,
    whose heads are gated; norms on both sides of each half."""
    count = fields.size("num_hidden_layers")
    attention = _read_lfm3_attention(fields)
    mixers: dict[str, Attention | ShortConv] = {
        "conv": ShortConv(
            channels=fields.size("hidden_size"),
            taps=fields.size("conv_L_cache", 7),
            bias=fields.flag("conv_bias", False),
        ),
    }
    found = fields.get("layer_types", [_lfm3_kind(each) for each in range(count)])
    known = ("conv", "full_attention", "sliding_attention")
    right = isinstance(found, list) and len(found) == count
    if not right or not all(isinstance(kind, str) and kind in known for kind in found):
        raise fields.error("layer_types", found, f"{count} of {', '.join(known)}")
    for kind in known[1:]:
        if kind in found:
            theta, share = _LFM3_ROPES[kind]
            rope = rope_of_kind(fields, kind, share | {"rope_theta": theta}, attention.head_dim)
            window = _lfm3_window(fields) if kind == "sliding_attention" else None
            mixers[kind] = replace(attention, rope=rope, window=window)
    sandwiched = fields.flag("use_sandwich_norm", True)
    mlp = Gated(size=fields.size("intermediate_size", 7680))
    layers = [
        Layer(mixer=mixers[kind], feed_forward=mlp, norms="both" if sandwiched else "before")
        for kind in found
    ]
    context = fields.size("max_position_embeddings", 128_000)
    return read_decoder(fields, layers, context, norm_eps=1e-5, eps_field="norm_eps", tied=True)


def _read_lfm3_attention(fields: Fields) -> Attention:
    """Attention, but for its window and positions."""
    biased = fields.flag("attention_bias", False)
    return Attention(
        heads=fields.size("num_attention_heads"),
        kv_heads=fields.size("num_key_value_heads", 4),
        head_dim=fields.size("head_dim", 128),
        norm="each",
        bias=biased,
        output_bias=biased,
        gated_heads=fields.flag("use_attention_gate", True),
    )


def _lfm3_kind(layer: int) -> str:
    """Where nothing is said."""
    if layer % 4 == 2:
        return "full_attention"
    return "sliding_attention" if layer % 4 == 0 and layer > 0 else "conv"


def _lfm3_window(fields: Fields) -> int:
    if "sliding_window" in fields and fields.get("sliding_window") is None:
        raise fields.error("sliding_window", None, "a number: layers with a window are listed")
    return fields.size("sliding_window", 256)


_LFM3_ROPES: dict[str, tuple[float, dict[str, Any]]] = {
    "sliding_attention": (10000.0, {}),
    "full_attention": (
        1000000.0,
        {"rope_type": "proportional", "partial_rotary_factor": 0.5},
    ),
}
_LFM3 = TensorNames(
    replaced=(
        ("input_layernorm", "operator_norm"),
        ("post_attention_layernorm", "ffn_norm"),
        ("after_mixer_norm", "post_operator_norm"),
        ("after_mlp_norm", "post_ffn_norm"),
        ("mlp.gate_proj", "feed_forward.w1"),
        ("mlp.up_proj", "feed_forward.w3"),
        ("mlp.down_proj", "feed_forward.w2"),
        ("self_attn.g_proj", "self_attn.gate_proj"),
    ),
    or_else=(("self_attn.gate_proj", "self_attn.g_proj"),),
    last_norm="model.embedding_norm",
)

HYBRID_FAMILIES = {
    "lfm3": Family(read=_read_lfm3, names=_LFM3),
    "lfm2": Family(
        read=_read_lfm2, names=TensorNames(replaced=_LFM2, last_norm="model.embedding_norm")
    ),
    "lfm2_moe": Family(
        read=_read_lfm2_moe, names=TensorNames(replaced=_LFM2, last_norm="model.embedding_norm")
    ),
}
