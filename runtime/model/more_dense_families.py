"""Seed-OSS, GLM-4, Arcee, ERNIE 4.5 and IQuest-Coder, of one MLP in each layer: from
``config.json`` to layers.

What a family's checkpoints leave out gets the default that ``transformers`` has for it.
"""

from dataclasses import replace

from runtime.model.config import Layer, ModelConfig, Plain
from runtime.model.config_fields import Fields
from runtime.model.family import (
    Family,
    TensorNames,
    read_activation,
    read_attention,
    read_decoder,
    read_mlp,
    rotated_dimensions,
)
from runtime.model.rope_fields import read_rope, rope_object, rope_of


def _read_seed_oss(fields: Fields, _: int | None) -> ModelConfig:
    """Llama with biases on queries, keys and values."""
    rope, context = read_rope(fields)
    layer = Layer(
        mixer=read_attention(
            fields,
            128,
            rope=rope,
            bias=fields.flag("attention_bias", True),
            output_bias=fields.flag("attention_out_bias", False),
        ),
        feed_forward=read_mlp(
            fields, activation=read_activation(fields), bias=fields.flag("mlp_bias", False)
        ),
    )
    return read_decoder(fields, (layer,) * fields.size("num_hidden_layers"), context)


def _read_glm4(fields: Fields, _: int | None) -> ModelConfig:
    """Neighbours of a half of each head rotated; norms on both sides of each half."""
    mixer = read_attention(fields, 128, bias=fields.flag("attention_bias", True), interleaved=True)
    spelled = rope_object(fields)
    rotated = rotated_dimensions(fields, spelled, mixer.head_dim, 0.5)
    theta = fields.number("rope_theta", 10000.0)
    rope, context = rope_of(fields, spelled, theta=theta, rotated=rotated)
    layer = Layer(
        mixer=replace(mixer, rope=rope),
        feed_forward=read_mlp(fields, activation=read_activation(fields)),
        norms="both",
    )
    layers = (layer,) * fields.size("num_hidden_layers")
    return read_decoder(fields, layers, context, norm_eps=1.5625e-7)


def _read_arcee(fields: Fields, _: int | None) -> ModelConfig:
    """Llama whose MLPs have no gate and square what is above 0."""
    biased = fields.flag("attention_bias", False)
    rope, context = read_rope(fields)
    fields.one_of("hidden_act", {"relu2": True}, "relu2")
    layer = Layer(
        mixer=read_attention(fields, rope=rope, bias=biased, output_bias=biased),
        feed_forward=Plain(
            size=fields.size("intermediate_size", 18432), bias=fields.flag("mlp_bias", False)
        ),
    )
    layers = (layer,) * fields.size("num_hidden_layers")
    return read_decoder(fields, layers, context, norm_eps=1e-5)


def _read_ernie4_5(fields: Fields, _: int | None) -> ModelConfig:
    """Neighbours are rotated; one flag for biases of all maps."""
    biased = fields.flag("use_bias", False)
    rope, context = read_rope(fields, theta=500000.0)
    layer = Layer(
        mixer=read_attention(
            fields, 128, rope=rope, interleaved=True, bias=biased, output_bias=biased
        ),
        feed_forward=read_mlp(fields, activation=read_activation(fields), bias=biased),
    )
    layers = (layer,) * fields.size("num_hidden_layers")
    return read_decoder(fields, layers, context, norm_eps=1e-5, tied=True)


def _read_iquestcoder(fields: Fields, _: int | None) -> ModelConfig:
    """Llama of other defaults, whose folders speak of windows that no checkpoint has."""
    fields.whole("use_sliding_window", False, "false: this model type has no windows")
    fields.whole("loop_num", 1, "1: this model type goes through its layers once")
    fields = fields.with_defaults({"num_key_value_heads": 8, "head_dim": 128})
    biased = fields.flag("attention_bias", False)
    rope, context = read_rope(fields)
    layer = Layer(
        mixer=read_attention(fields, rope=rope, bias=biased, output_bias=biased),
        feed_forward=read_mlp(
            fields, activation=read_activation(fields), bias=fields.flag("mlp_bias", False)
        ),
    )
    layers = (layer,) * fields.size("num_hidden_layers")
    return read_decoder(fields, layers, context, norm_eps=1e-5)


_GLM4 = TensorNames(
    replaced=(
        ("after_mixer_norm", "post_self_attn_layernorm"),
        ("after_mlp_norm", "post_mlp_layernorm"),
    ),
    fused=(("mlp.gate_up_proj", ("mlp.gate_proj", "mlp.up_proj")),),
)
MORE_DENSE_FAMILIES = {
    "seed_oss": Family(read=_read_seed_oss),
    "glm4": Family(read=_read_glm4, names=_GLM4),
    "arcee": Family(read=_read_arcee),
    "ernie4_5": Family(read=_read_ernie4_5),
    "iquestcoder": Family(read=_read_iquestcoder),
}
