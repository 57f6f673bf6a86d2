"""Families with one MLP in each layer: from their ``config.json`` to layers.

What a family's checkpoints leave out gets the default that ``transformers`` has for it.
"""

from dataclasses import replace

from runtime.model.config import Gated, Layer, ModelConfig
from runtime.model.config_fields import Fields
from runtime.model.family import (
    Family,
    TensorNames,
    read_activation,
    read_attention,
    read_decoder,
    read_layer_types,
    read_mlp,
    rotated_dimensions,
)
from runtime.model.rope_config import RopeConfig
from runtime.model.rope_fields import (
    longrope_of,
    read_growing_rope,
    read_rope,
    rope_object,
    rope_of,
)


def _read_llama(fields: Fields, _: int | None) -> ModelConfig:
    return _read_plain(fields, windows=None)


def _read_mistral(fields: Fields, _: int | None) -> ModelConfig:
    return _read_plain(fields, windows=_every_window(fields, default=4096))


def _read_qwen2(fields: Fields, _: int | None) -> ModelConfig:
    return _read_plain(fields, windows=qwen_windows(fields), bias=True, output_bias=False)


def _read_qwen3(fields: Fields, _: int | None) -> ModelConfig:
    return _read_plain(fields, windows=qwen_windows(fields), head_dim=128, norm="each")


def _read_plain(
    fields: Fields,
    *,
    windows: tuple[int | None, ...] | None,
    head_dim: int | None = None,
    **own: object,
) -> ModelConfig:
    """Llama and what differs from it in a few values; ``windows``: of each layer, None for none."""
    count, biased = fields.size("num_hidden_layers"), fields.flag("attention_bias", False)
    rope, context = read_rope(fields)
    own = {"bias": biased, "output_bias": biased} | own
    mixer = read_attention(fields, head_dim, rope=rope, **own)
    mlp = read_mlp(fields, activation=read_activation(fields), bias=fields.flag("mlp_bias", False))
    layers = [
        Layer(mixer=replace(mixer, window=window), feed_forward=mlp)
        for window in windows or (None,) * count
    ]
    return read_decoder(fields, layers, context)


def _every_window(fields: Fields, default: int | None) -> tuple[int | None, ...] | None:
    """Windows of families whose layers all have one, unless ``layer_types`` says otherwise. A
    window that is null is none; one that is absent is the ``default``."""
    given = fields.get("sliding_window", None if "sliding_window" in fields else default)
    if given is None:
        return None
    window = fields.size("sliding_window", default)
    every = (True,) * fields.size("num_hidden_layers")
    return tuple(window if has else None for has in read_layer_types(fields, every))


def qwen_windows(fields: Fields, *, every: bool = False) -> tuple[int | None, ...] | None:
    """Windows of each layer from ``max_window_layers`` on, or of ``every`` one."""
    if not fields.flag("use_sliding_window", False):
        return None
    window, count = fields.size("sliding_window", 4096), fields.size("num_hidden_layers")
    full = 0 if every else fields.number("max_window_layers", 28)
    from_there_on = tuple(layer >= full for layer in range(count))
    return tuple(window if has else None for has in read_layer_types(fields, from_there_on))


def _read_smollm3(fields: Fields, _: int | None) -> ModelConfig:
    """Every fourth layer has no positions, and those may have a window."""
    count, biased = fields.size("num_hidden_layers"), fields.flag("attention_bias", False)
    rope, context = read_rope(fields, theta=2000000.0)
    every = fields.size("no_rope_layer_interval", 4)
    turned = fields.get("no_rope_layers", [int((each + 1) % every != 0) for each in range(count)])
    right = isinstance(turned, list) and len(turned) >= count
    if not right or not all(type(each) is int and each in (0, 1) for each in turned):
        raise fields.error("no_rope_layers", turned, f"{count} of 0 and 1")
    windowed: tuple[bool, ...] = (False,) * count
    if fields.flag("use_sliding_window", False) and fields.get("sliding_window") is not None:
        windowed = tuple(not each for each in turned[:count])
    windowed = read_layer_types(fields, windowed)
    window = fields.size("sliding_window") if any(windowed) else None
    mixer = read_attention(fields, rope=rope, bias=biased, output_bias=biased)
    mlp = read_mlp(fields, activation=read_activation(fields), bias=fields.flag("mlp_bias", False))
    layers = [
        Layer(
            mixer=replace(mixer, rope=rope if turns else None, window=window if has else None),
            feed_forward=mlp,
        )
        for turns, has in zip(turned[:count], windowed, strict=True)
    ]
    return read_decoder(fields, layers, context, tied=True)


def _read_granite(fields: Fields, _: int | None) -> ModelConfig:
    """Llama with four multipliers."""
    biased = fields.flag("attention_bias", False)
    rope, context = read_rope(fields)
    layer = Layer(
        mixer=read_attention(
            fields,
            rope=rope,
            bias=biased,
            output_bias=biased,
            scale=fields.number("attention_multiplier", 1.0),
        ),
        feed_forward=read_mlp(
            fields, activation=read_activation(fields), bias=fields.flag("mlp_bias", False)
        ),
        residual_scale=fields.number("residual_multiplier", 1.0),
    )
    return read_decoder(
        fields,
        (layer,) * fields.size("num_hidden_layers"),
        context,
        embedding_scale=fields.number("embedding_multiplier", 1.0),
        logit_divisor=fields.number("logits_scaling", 1.0),
    )


def _read_olmo2(fields: Fields, _: int | None) -> ModelConfig:
    rope, context = read_rope(fields)
    count = fields.size("num_hidden_layers")
    return _normed_after(fields, [rope] * count, [None] * count, context)


def _read_olmo3(fields: Fields, _: int | None) -> ModelConfig:
    """OLMo 2 with windows; layers that have one are rotated without stretching."""
    count = fields.size("num_hidden_layers")
    windowed = read_layer_types(fields, [each % 4 != 3 for each in range(count)])
    window = fields.size("sliding_window", 4096)
    theta = fields.number("rope_theta", 500000.0)
    sliding, full, context = _two_ropes(fields, theta, theta)
    ropes = [sliding if has else full for has in windowed]
    return _normed_after(fields, ropes, [window if has else None for has in windowed], context)


def _two_ropes(
    fields: Fields, sliding_theta: float, full_theta: float
) -> tuple[RopeConfig, RopeConfig, int]:
    """Positions of layers with and without a window, and the context. What is spelled for all
    layers is stretched in those without a window only."""
    rope = rope_object(fields)
    sliding, full = rope.within("sliding_attention"), rope.within("full_attention")
    full_rope, context = rope_of(fields, full or rope, theta=full_theta)
    if sliding is None:
        return RopeConfig(theta=sliding_theta), full_rope, context
    sliding_rope, _ = rope_of(fields, sliding, theta=sliding_theta)
    return sliding_rope, full_rope, context


def _normed_after(
    fields: Fields, ropes: list[RopeConfig], windows: list[int | None], context: int
) -> ModelConfig:
    biased = fields.flag("attention_bias", False)
    mixer = read_attention(fields, bias=biased, output_bias=biased, norm="all")
    mlp = read_mlp(fields, activation=read_activation(fields))
    layers = [
        Layer(mixer=replace(mixer, rope=rope, window=window), feed_forward=mlp, norms="after")
        for rope, window in zip(ropes, windows, strict=True)
    ]
    return read_decoder(fields, layers, context, norm_eps=1e-5)


_OLMO_NAMES = TensorNames(
    replaced=(
        ("after_mixer_norm", "post_attention_layernorm"),
        ("after_mlp_norm", "post_feedforward_layernorm"),
    )
)


def _read_phi3(fields: Fields, serves: int | None) -> ModelConfig:
    count, rope = fields.size("num_hidden_layers"), rope_object(fields)
    mixer = read_attention(fields)
    rotated = rotated_dimensions(fields, rope, mixer.head_dim, 1.0)
    theta = fields.number("rope_theta", 10000.0)
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind in ("longrope", "su", "yarn"):  # its old names
        found = longrope_of(fields, rope, theta=theta, rotated=rotated, serves=serves)
    elif kind == "default":
        found = rope_of(fields, rope, theta=theta, rotated=rotated)
    else:
        raise rope.error("rope_type", kind, "default or longrope")
    mlp = read_mlp(fields, activation=read_activation(fields))
    windows = _every_window(fields, default=None) or (None,) * count
    layers = [
        Layer(mixer=replace(mixer, rope=found[0], window=window), feed_forward=mlp)
        for window in windows
    ]
    return read_decoder(fields, layers, found[1], norm_eps=1e-5)


_PHI3_NAMES = TensorNames(
    fused=(
        ("self_attn.qkv_proj", ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")),
        ("mlp.gate_up_proj", ("mlp.gate_proj", "mlp.up_proj")),
    )
)


def _read_ministral3(fields: Fields, _: int | None) -> ModelConfig:
    """Mistral whose queries grow with their position."""
    rope, context = read_growing_rope(fields)
    mixer = read_attention(fields, 128, rope=rope)
    mlp = read_mlp(fields, activation=read_activation(fields))
    windows = _every_window(fields, default=None)
    layers = [
        Layer(mixer=replace(mixer, window=window), feed_forward=mlp)
        for window in windows or (None,) * fields.size("num_hidden_layers")
    ]
    return read_decoder(fields, layers, context, norm_eps=1e-5)


_GEMMA3_4B = {
    "vocab_size": 262208,
    "hidden_size": 2304,
    "intermediate_size": 9216,
    "num_hidden_layers": 26,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "max_position_embeddings": 131072,
}
"""Fields that a wrapper's text part leaves out when they have the family's default."""


def _read_gemma3(fields: Fields, _: int | None) -> ModelConfig:
    """Norms on both sides, five layers with a window to one without, each kind rotated its way."""
    fields = fields.with_defaults(_GEMMA3_4B)
    count = fields.size("num_hidden_layers")
    every = fields.size("sliding_window_pattern", 6)
    windowed = read_layer_types(fields, [(each + 1) % every != 0 for each in range(count)])
    window = fields.size("sliding_window", 4096)
    sliding, full, _ = _two_ropes(
        fields,
        fields.number("rope_local_base_freq", 10000.0),
        fields.number("rope_theta", 1000000.0),
    )
    biased, hidden = fields.flag("attention_bias", False), fields.size("hidden_size")
    mixer = read_attention(
        fields,
        256,
        bias=biased,
        output_bias=biased,
        norm="each",
        scale=fields.size("query_pre_attn_scalar", 256) ** -0.5,
    )
    fields.one_of("hidden_activation", {"gelu_pytorch_tanh": True}, "gelu_pytorch_tanh")
    mlp = Gated(size=fields.size("intermediate_size"), activation="gelu_tanh")
    layers = [
        Layer(
            mixer=replace(mixer, rope=sliding if has else full, window=window if has else None),
            feed_forward=mlp,
            norms="both",
        )
        for has in windowed
    ]
    context = fields.size("max_position_embeddings")  # what is stated is stretched already
    return read_decoder(fields, layers, context, tied=True, embedding_scale=hidden**0.5)


_GEMMA_NAMES = TensorNames(
    replaced=(
        ("post_attention_layernorm", "pre_feedforward_layernorm"),
        ("after_mixer_norm", "post_attention_layernorm"),
        ("after_mlp_norm", "post_feedforward_layernorm"),
    ),
    norms_from_zero=True,
)

DENSE_FAMILIES = {
    "llama": Family(read=_read_llama),
    "mistral": Family(read=_read_mistral),
    "ministral3": Family(read=_read_ministral3),
    "qwen2": Family(read=_read_qwen2),
    "qwen3": Family(read=_read_qwen3),
    "smollm3": Family(read=_read_smollm3),
    "granite": Family(read=_read_granite),
    "olmo2": Family(read=_read_olmo2, names=_OLMO_NAMES),
    "olmo3": Family(read=_read_olmo3, names=_OLMO_NAMES),
    "phi3": Family(read=_read_phi3, names=_PHI3_NAMES),
    "gemma3_text": Family(read=_read_gemma3, names=_GEMMA_NAMES),
}
