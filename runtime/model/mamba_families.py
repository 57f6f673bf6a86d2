"""Families whose recurrent layers are Mamba-2: from their ``config.json`` to layers.

What a family's checkpoints leave out gets the default that ``transformers`` has for it.
"""

import math

from runtime.model.config import Experts, Gated, Layer, ModelConfig, Plain, Router
from runtime.model.config_fields import Fields
from runtime.model.family import (
    Family,
    TensorNames,
    read_activation,
    read_attention,
    read_corrected_router,
    read_decoder,
)
from runtime.model.recurrent import Mamba2
from runtime.model.rope_config import RopeConfig
from runtime.model.rope_fields import read_rope

_KINDS = {
    "attention": True,
    "full_attention": True,
    "mamba": False,
    "linear_attention": False,
}


def _read_granite_hybrid(fields: Fields, _: int | None) -> ModelConfig:
    """Granite's four multipliers; positions in few of them."""
    rope, context = _positions(fields)
    biased = fields.flag("attention_bias", False)
    attention = read_attention(
        fields,
        rope=rope,
        bias=biased,
        output_bias=biased,
        scale=fields.number("attention_multiplier", 1.0),
    )
    mamba = _read_mamba2(fields)
    feed_forward = _read_experts(fields)
    layers = [
        Layer(
            mixer=attention if attends else mamba,
            feed_forward=feed_forward,
            residual_scale=fields.number("residual_multiplier", 1.0),
        )
        for attends in _attending(fields, fields.size("num_hidden_layers"))
    ]
    return read_decoder(
        fields,
        layers,
        context,
        embedding_scale=fields.number("embedding_multiplier", 1.0),
        logit_divisor=fields.number("logits_scaling", 1.0),
    )


def _positions(fields: Fields) -> tuple[RopeConfig | None, int]:
    """The rotation, which most have none of, and the longest context."""
    rope, context = read_rope(fields)
    kinds = {"rope": True, "nope": False}
    return (rope if fields.one_of("position_embedding_type", kinds, "nope") else None), context


def _read_mamba2(fields: Fields) -> Mamba2:
    hidden, heads = fields.size("hidden_size"), fields.size("mamba_n_heads", 128)
    inner = fields.size("mamba_expand", 2) * hidden
    head_dim = fields.get("mamba_d_head")
    if head_dim in (None, "auto"):
        head_dim = inner // heads
    if not isinstance(head_dim, int) or head_dim * heads != inner:
        raise fields.error("mamba_d_head", head_dim, f"{inner} over mamba_n_heads, {heads}")
    least, most = _step_limits(fields)
    return Mamba2(
        heads=heads,
        head_dim=head_dim,
        groups=fields.size("mamba_n_groups", 1),
        state_dim=fields.size("mamba_d_state", 256),
        taps=fields.size("mamba_d_conv", 4),
        conv_bias=fields.flag("mamba_conv_bias", True),
        bias=fields.flag("mamba_proj_bias", False),
        least_step=least,
        most_step=most,
    )


def _step_limits(fields: Fields) -> tuple[float, float]:
    """Two numbers, of which the second may be infinite: there is more than one way to write it."""
    limits = fields.get("time_step_limit")
    if limits is None:
        return 0.0, math.inf
    found = [
        math.inf if each == {"__float__": "Infinity"} else each
        for each in (limits if isinstance(limits, list) else [])
    ]
    if len(found) != 2 or any(type(each) not in (int, float) for each in found):
        raise fields.error("time_step_limit", limits, "two numbers")
    try:
        return float(found[0]), float(found[1])
    except OverflowError:
        raise fields.error("time_step_limit", limits, "two numbers of a float's range") from None


def _read_experts(fields: Fields) -> Gated | Experts:
    """The MLP that every token takes, and experts beside it where there are any."""
    activation = read_activation(fields)
    shared = Gated(size=fields.size("shared_intermediate_size", 1024), activation=activation)
    count = fields.number("num_local_experts", 8)
    if not count:
        return shared
    return Experts(
        router=Router(
            num_experts=fields.size("num_local_experts", 8),
            per_token=fields.size("num_experts_per_tok", 2),
            normalise=True,
        ),
        each=Gated(size=fields.size("intermediate_size", 11008), activation=activation),
        shared=shared,
    )


def _attending(fields: Fields, count: int) -> list[bool]:
    """Which layers are of attention; none where nothing is said."""
    kinds = fields.get("layer_types")
    if kinds is None:
        kinds = fields.get("layers_block_type")
    if kinds is None:
        return [False] * count
    right = isinstance(kinds, list) and len(kinds) == count
    if not right or not all(isinstance(kind, str) and kind in _KINDS for kind in kinds):
        raise fields.error("layer_types", kinds, f"{count} of {', '.join(_KINDS)}")
    return [_KINDS[kind] for kind in kinds]


# Nemotron-H


_BLOCKS = {"M": "mamba", "*": "attention", "E": "moe", "-": "mlp"}
_ALIASES = {"linear_attention": "mamba", "full_attention": "attention"}


def _read_nemotron_h(fields: Fields, _: int | None) -> ModelConfig:
    """Each layer is one thing: a state space, attention without positions, an MLP or experts."""
    attention = read_attention(fields, fields.size("head_dim", 128), rope=None)
    mlp = Plain(size=fields.size("intermediate_size", 21504), bias=fields.flag("mlp_bias", False))
    fields.whole("mlp_hidden_act", "relu2", "relu2: this model type's MLPs square what is above 0")
    kinds = _blocks(fields)
    layers = {
        "mamba": lambda: Layer(mixer=_nemotron_mamba(fields), feed_forward=None),
        "attention": lambda: Layer(mixer=attention, feed_forward=None),
        "mlp": lambda: Layer(mixer=None, feed_forward=mlp),
        "moe": lambda: Layer(mixer=None, feed_forward=_nemotron_experts(fields)),
    }
    return read_decoder(
        fields,
        [layers[kind]() for kind in kinds],
        fields.size("max_position_embeddings", 4096),
        norm_eps=1e-5,
        eps_field="layer_norm_epsilon",
    )


def _blocks(fields: Fields) -> list[str]:
    """What each layer is, from a list or from a letter for each."""
    pattern = fields.get("hybrid_override_pattern")
    kinds = fields.get("layers_block_type")
    if kinds is None:
        kinds = fields.get("layer_types")
    if kinds is None and isinstance(pattern, str):
        kinds = [_BLOCKS.get(letter, letter) for letter in pattern]
    known = isinstance(kinds, list) and all(isinstance(kind, str) for kind in kinds)
    found = [_ALIASES.get(kind, kind) for kind in kinds] if known else []
    if not found or any(kind not in _BLOCKS.values() for kind in found):
        raise fields.error("layers_block_type", kinds, f"a list of {', '.join(_BLOCKS.values())}")
    return found


def _nemotron_mamba(fields: Fields) -> Mamba2:
    fields.whole("mamba_hidden_act", "silu", "silu: this model type computes with nothing else")
    return Mamba2(
        heads=fields.size("mamba_num_heads", 128),
        head_dim=fields.size("mamba_head_dim", 64),
        groups=fields.size("n_groups", 8),
        state_dim=fields.size("ssm_state_size", 128),
        taps=fields.size("conv_kernel", 4),
        conv_bias=fields.flag("use_conv_bias", True),
        bias=fields.flag("use_bias", False),
        least_step=fields.number("time_step_min", 0.001),
    )


def _nemotron_experts(fields: Fields) -> Experts:
    if fields.get("moe_latent_size") is not None:
        latent = fields.get("moe_latent_size")
        raise fields.error("moe_latent_size", latent, "null: experts have the width of the model")
    fields.whole("n_shared_experts", 1, "1: this model type has one that every token takes")
    bias = fields.flag("mlp_bias", False)
    return Experts(
        router=read_corrected_router(fields, experts=8, per_token=2, least_sum=1e-20),
        each=Plain(size=fields.size("moe_intermediate_size", 7688)),
        shared=Plain(size=fields.size("moe_shared_expert_intermediate_size", 7688), bias=bias),
    )


_NEMOTRON_H = TensorNames(
    replaced=(
        ("mamba.gated_norm.scale", "mixer.norm.weight"),
        ("mamba.skip", "mixer.D"),
        ("mamba.", "mixer."),
        ("self_attn.", "mixer."),
        ("mlp.shared_expert.", "mixer.shared_experts."),
        ("mlp.", "mixer."),
        ("input_layernorm", "norm"),
        ("post_attention_layernorm", "norm"),
    ),
    embedding="model.embeddings",
    last_norm="model.norm_f",
    predicts_more=True,
)
_GRANITE_HYBRID = TensorNames(
    replaced=(
        ("mamba.gated_norm.scale", "mamba.norm.weight"),
        ("mamba.skip", "mamba.D"),
        ("mlp.experts.gate_up_proj", "block_sparse_moe.input_linear.weight"),
        ("mlp.experts.down_proj", "block_sparse_moe.output_linear.weight"),
        ("mlp.gate.", "block_sparse_moe.router.layer."),
        ("mlp.shared_expert.down_proj", "shared_mlp.output_linear"),
        ("mlp.shared_expert.gate_up", "shared_mlp.input_linear"),
        ("mlp.down_proj", "shared_mlp.output_linear"),
        ("mlp.gate_up", "shared_mlp.input_linear"),
    ),
    fused=(
        ("mlp.gate_up", ("mlp.gate_proj", "mlp.up_proj")),
        (
            "mlp.shared_expert.gate_up",
            ("mlp.shared_expert.gate_proj", "mlp.shared_expert.up_proj"),
        ),
    ),
    stacked_experts="outputs first",
)

MAMBA_FAMILIES = {
    "granitemoehybrid": Family(read=_read_granite_hybrid, names=_GRANITE_HYBRID),
    "nemotron_h": Family(read=_read_nemotron_h, names=_NEMOTRON_H),
}
