"""Families with recurrent layers among those of attention: from their ``config.json`` to layers.

What a family's checkpoints leave out gets the default that ``transformers`` has for it.
"""

from runtime.model.config import (
    Experts,
    Gated,
    Layer,
    ModelConfig,
    Router,
)
from runtime.model.config_fields import Fields
from runtime.model.family import Family, TensorNames, read_attention, read_decoder
from runtime.model.recurrent import ShortConv
from runtime.model.rope_fields import read_rope

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

HYBRID_FAMILIES = {
    "lfm2": Family(
        read=_read_lfm2, names=TensorNames(replaced=_LFM2, last_norm="model.embedding_norm")
    ),
    "lfm2_moe": Family(
        read=_read_lfm2_moe, names=TensorNames(replaced=_LFM2, last_norm="model.embedding_norm")
    ),
}
