"""Families whose recurrent layers are gated delta nets: from their ``config.json`` to layers.

What a family's checkpoints leave out gets the default that ``transformers`` has for it. Positions
of text are the same in all sections of ``mrope``, so those are not looked at.
"""

from runtime.model.config import Attention, Experts, Gated, Layer, ModelConfig, Router
from runtime.model.config_fields import Fields
from runtime.model.expert_families import sparse_layers
from runtime.model.family import (
    Family,
    TensorNames,
    read_activation,
    read_attention,
    read_decoder,
    read_mlp,
    rotated_dimensions,
)
from runtime.model.recurrent import GatedDelta
from runtime.model.rope_config import RopeConfig
from runtime.model.rope_fields import read_rope, rope_object, rope_of

_KINDS = {"full_attention": True, "linear_attention": False}


def _read_qwen3_5(fields: Fields, _: int | None) -> ModelConfig:
    """The configuration of a family with one MLP in each layer."""
    mlp = read_mlp(fields, activation=read_activation(fields))
    return _decoder(fields, [mlp] * fields.size("num_hidden_layers"))


def _read_qwen3_5_moe(fields: Fields, _: int | None) -> ModelConfig:
    """The configuration of a family with experts in each layer."""
    experts = _experts(fields, num_experts=256, per_token=8, normalise=True)
    return _decoder(fields, [experts] * fields.size("num_hidden_layers"))


def _read_qwen3_next(fields: Fields, _: int | None) -> ModelConfig:
    """The configuration of a family with experts in most layers."""
    count, normalise = fields.size("num_hidden_layers"), fields.flag("norm_topk_prob", True)
    experts = _experts(fields, num_experts=512, per_token=10, normalise=normalise)
    size = fields.size("intermediate_size", 5632)
    mlp = Gated(size=size, activation=read_activation(fields))
    return _decoder(fields, [experts if sparse else mlp for sparse in sparse_layers(fields, count)])


def _read_olmo_hybrid(fields: Fields, _: int | None) -> ModelConfig:
    """Attention normed as OLMo 2's is, and gated delta nets normed before; matrices may turn what
    they know around."""
    count, heads = fields.size("num_hidden_layers"), fields.size("num_attention_heads")
    hidden, biased = fields.size("hidden_size"), fields.flag("attention_bias", False)
    rope, context = _rope_or_none(fields)
    attention = read_attention(fields, rope=rope, bias=biased, output_bias=biased, norm="all")
    fields.whole("linear_use_gate", True, "true: this model type has gates behind the rule")
    key_heads = fields.size("linear_num_key_heads", heads)
    key_dim = fields.size("linear_key_head_dim", max(1, int(0.75 * hidden / key_heads)))
    delta = GatedDelta(
        key_heads=key_heads,
        value_heads=fields.size("linear_num_value_heads", heads),
        key_dim=key_dim,
        value_dim=fields.size("linear_value_head_dim", 2 * key_dim),
        taps=fields.size("linear_conv_kernel_dim", 4),
        most_beta=2.0 if fields.flag("linear_allow_neg_eigval", True) else 1.0,
        norm_eps=1e-5,
    )
    attending = _attending(fields, count)
    if fields.get("layer_types") is None and not any(attending):
        attending[-1] = True
    mlp = read_mlp(fields, activation=read_activation(fields))
    layers = [
        Layer(mixer=attention, feed_forward=mlp, norms="after")
        if attends
        else Layer(mixer=delta, feed_forward=mlp)
        for attends in attending
    ]
    return read_decoder(fields, layers, context)


def _rope_or_none(fields: Fields) -> tuple[RopeConfig | None, int]:
    """Positions, which a folder has or says that it has not; and the context."""
    spelled = rope_object(fields)
    said = "rope_theta" in spelled or "rope_theta" in fields
    if not said:
        wanted = "a number, or null in rope_parameters for a model without positions"
        raise fields.error("rope_theta", None, wanted)
    theta = spelled.get("rope_theta", fields.get("rope_theta"))
    if theta is None:
        kind = spelled.get("rope_type", spelled.get("type", "default"))
        if kind != "default":
            raise spelled.error("rope_type", kind, "default: there are no positions")
        return None, fields.size("max_position_embeddings")
    return read_rope(fields)


def _experts(fields: Fields, *, num_experts: int, per_token: int, normalise: bool) -> Experts:
    activation = read_activation(fields)
    return Experts(
        router=Router(
            num_experts=fields.size("num_experts", num_experts),
            per_token=fields.size("num_experts_per_tok", per_token),
            normalise=normalise,
        ),
        each=Gated(size=fields.size("moe_intermediate_size", 512), activation=activation),
        shared=Gated(
            size=fields.size("shared_expert_intermediate_size", 512), activation=activation
        ),
        shared_gate=True,
    )


def _decoder(fields: Fields, feed_forwards: list[Gated | Experts]) -> ModelConfig:
    attention, context = _attention(fields)
    delta = GatedDelta(
        key_heads=fields.size("linear_num_key_heads", 16),
        value_heads=fields.size("linear_num_value_heads", 32),
        key_dim=fields.size("linear_key_head_dim", 128),
        value_dim=fields.size("linear_value_head_dim", 128),
        taps=fields.size("linear_conv_kernel_dim", 4),
    )
    layers = [
        Layer(mixer=attention if attends else delta, feed_forward=feed_forward)
        for attends, feed_forward in zip(
            _attending(fields, len(feed_forwards)), feed_forwards, strict=True
        )
    ]
    return read_decoder(fields, layers, context)


def _attention(fields: Fields) -> tuple[Attention, int]:
    """Heads of which a quarter is rotated, and what they give weighed."""
    fields.whole("attn_output_gate", True, "true: this model type has gates behind attention")
    biased = fields.flag("attention_bias", False)
    head_dim, spelled = fields.size("head_dim", 256), rope_object(fields)
    rotated = rotated_dimensions(fields, spelled, head_dim, 0.25)
    theta = fields.number("rope_theta", 10000.0)
    rope, context = rope_of(fields, spelled, theta=theta, rotated=rotated)
    attention = read_attention(
        fields, head_dim, rope=rope, bias=biased, output_bias=biased, norm="each", gated=True
    )
    return attention, context


def _attending(fields: Fields, count: int) -> list[bool]:
    """Which layers are of attention; every fourth where nothing is said."""
    kinds = fields.get("layer_types")
    if kinds is None:
        every = fields.size("full_attention_interval", 4)
        return [(each + 1) % every == 0 for each in range(count)]
    right = isinstance(kinds, list) and len(kinds) == count
    if not right or not all(isinstance(kind, str) and kind in _KINDS for kind in kinds):
        raise fields.error("layer_types", kinds, f"{count} of {', '.join(_KINDS)}")
    return [_KINDS[kind] for kind in kinds]


def _shared(whole: str, *parts: str) -> tuple[str, tuple[str, ...]]:
    name = "linear_attn.in_proj_"
    return name + whole, tuple(name + part for part in parts)


_GATED_NORM = (("linear_attn.gated_norm.scale", "linear_attn.norm.weight"),)
_QWEN3_5 = TensorNames(
    replaced=_GATED_NORM,
    fused=(_shared("qkv", "q", "k", "v"),),
    stacked_experts="outputs first",
    norms_from_zero=True,
)
_QWEN3_NEXT = TensorNames(
    replaced=_GATED_NORM,
    by_head=(_shared("qkvz", "q", "k", "v", "z"), _shared("ba", "b", "a")),
    norms_from_zero=True,
)

_OLMO_HYBRID = TensorNames(
    replaced=(
        ("linear_attn.gated_norm.scale", "linear_attn.o_norm.weight"),
        ("linear_attn.out_proj", "linear_attn.o_proj"),
        ("linear_attn.in_proj_z", "linear_attn.g_proj"),
        ("post_attention_layernorm", "feedforward_layer_norm"),
        ("input_layernorm", "attention_layer_norm"),
        ("after_mixer_norm", "post_attention_layernorm"),
        ("after_mlp_norm", "post_feedforward_layernorm"),
    ),
    patterns=((r"linear_attn\.in_proj_([qkvab])", r"linear_attn.\1_proj"),),
    either=(("post_attention_layernorm", "feedforward_layer_norm"),),
    piled=(
        (
            "linear_attn.conv1d.weight",
            tuple(f"linear_attn.{part}_conv1d.weight" for part in "qkv"),
        ),
    ),
)
"""``transformers`` saves the norm behind attention under the name of another layer's, and the
convolution in three equal parts."""

DELTA_FAMILIES = {
    "qwen3_next": Family(read=_read_qwen3_next, names=_QWEN3_NEXT),
    "qwen3_5": Family(read=_read_qwen3_5, names=_QWEN3_5),
    "qwen3_5_text": Family(read=_read_qwen3_5, names=_QWEN3_5),
    "qwen3_5_moe": Family(read=_read_qwen3_5_moe, names=_QWEN3_5),
    "qwen3_5_moe_text": Family(read=_read_qwen3_5_moe, names=_QWEN3_5),
    "olmo_hybrid": Family(read=_read_olmo_hybrid, names=_OLMO_HYBRID),
}
