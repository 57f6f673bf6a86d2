"""MiMo V2 Flash: from its ``config.json`` to layers.

What a checkpoint leaves out gets the default that ``transformers`` has for it.
"""

from dataclasses import replace

from runtime.model.config import Attention, Experts, Gated, Layer, ModelConfig
from runtime.model.config_fields import Fields
from runtime.model.family import (
    SWITCHED,
    Family,
    TensorNames,
    read_activation,
    read_corrected_router,
    read_decoder,
    read_listed,
    rotated_dimensions,
)
from runtime.model.rope_config import RopeConfig
from runtime.model.rope_fields import rope_object, rope_of


def _read_mimo_v2_flash(fields: Fields, _: int | None) -> ModelConfig:
    """Layers with a window have heads of keys of their own number and sinks; values are shorter
    than keys; sigmoids with a correction, the first layer has one MLP."""
    count = fields.size("num_hidden_layers")
    fields.whole("attention_projection_layout", "split", "split: queries, keys and values apart")
    fields.whole("scoring_func", "sigmoid", "sigmoid")
    fields.whole("topk_method", "noaux_tc", "noaux_tc: experts are chosen with a correction")
    full, sliding, context = _read_mixers(fields)
    activation = read_activation(fields)
    experts = Experts(
        router=read_corrected_router(fields, experts=256),
        each=Gated(size=fields.size("moe_intermediate_size", 2048), activation=activation),
    )
    mlp = Gated(size=fields.size("intermediate_size", 16384), activation=activation)
    layers = [
        Layer(mixer=sliding if windowed else full, feed_forward=experts if sparse else mlp)
        for windowed, sparse in zip(
            _read_windowed(fields, count), _read_sparse(fields, count), strict=True
        )
    ]
    epsilon = "layernorm_epsilon" if "layernorm_epsilon" in fields else "rms_norm_eps"
    return read_decoder(fields, layers, context, norm_eps=1e-5, eps_field=epsilon)


def _read_mixers(fields: Fields) -> tuple[Attention, Attention, int]:
    """Attention without a window and with one, and the context."""
    biased, scale = fields.flag("attention_bias", False), 1.0
    if fields.get("attention_value_scale") is not None or "attention_value_scale" not in fields:
        scale = fields.number("attention_value_scale", 0.707)
    heads, kv_heads = fields.size("num_attention_heads"), fields.size("num_key_value_heads", 4)
    head_dim, value_dim = fields.size("head_dim", 192), fields.size("v_head_dim", 128)
    rope, context = _read_rope(fields, "full_attention", head_dim)
    full = Attention(
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        rope=rope,
        bias=biased,
        sinks=fields.flag("add_full_attention_sink_bias", False),
        value_dim=None if value_dim == head_dim else value_dim,
        value_scale=scale,
    )
    head_dim = fields.size("swa_head_dim", head_dim)
    value_dim = fields.size("swa_v_head_dim", value_dim)
    sliding = replace(
        full,
        heads=fields.size("swa_num_attention_heads", heads),
        kv_heads=fields.size("swa_num_key_value_heads", 2 * kv_heads),
        head_dim=head_dim,
        rope=_read_rope(fields, "sliding_attention", head_dim)[0],
        window=_read_window(fields),
        sinks=fields.flag("add_swa_attention_sink_bias", True),
        value_dim=None if value_dim == head_dim else value_dim,
    )
    return full, sliding, context


def _read_window(fields: Fields) -> int:
    """Tokens that a query sees, itself included; the published field counts those before it."""
    fields.whole("hybrid_block_size", None, "absent: layers are listed one by one")
    before = fields.get("sliding_window_size")
    own = fields.size("sliding_window", 129)
    chunk = fields.get("attention_chunk_size")
    if chunk is not None and chunk != before:
        raise fields.error("attention_chunk_size", chunk, "sliding_window_size, or absent")
    return own if before is None else fields.size("sliding_window_size") + 1


def _read_rope(fields: Fields, kind: str, head_dim: int) -> tuple[RopeConfig, int]:
    """Positions of layers of one kind, and the context."""
    thetas = {
        "full_attention": fields.number("rope_theta", 5000000.0),
        "sliding_attention": fields.number("swa_rope_theta", 10000.0),
    }
    spelled = rope_object(fields)
    share, own = spelled, spelled.within(kind)
    if own is not None:
        share = spelled = own
    elif kind == "sliding_attention":
        spelled = Fields(fields.path, {}, prefix="swa_rope_theta.")
    rotated = rotated_dimensions(fields, share, head_dim, 0.334)
    return rope_of(fields, spelled, theta=thetas[kind], rotated=rotated)


def _read_windowed(fields: Fields, count: int) -> list[bool]:
    """Which layers have a window: as published, or as ``transformers`` spells it."""
    if fields.get("hybrid_layer_pattern") is not None:
        return read_listed(fields, "hybrid_layer_pattern", SWITCHED, count)
    if fields.get("layer_types") is None:
        return [each != 0 and (each + 1) % 6 != 0 for each in range(count)]
    kinds = {"full_attention": False, "sliding_attention": True}
    return read_listed(fields, "layer_types", kinds, count)


def _read_sparse(fields: Fields, count: int) -> list[bool]:
    """Which layers have experts, likewise."""
    if fields.get("moe_layer_freq") is not None:
        return read_listed(fields, "moe_layer_freq", SWITCHED, count)
    if fields.get("mlp_layer_types") is None:
        return [each > 0 for each in range(count)]
    return read_listed(fields, "mlp_layer_types", {"dense": False, "sparse": True}, count)


MIMO_FAMILIES = {
    "mimo_v2_flash": Family(
        read=_read_mimo_v2_flash,
        names=TensorNames(
            replaced=(("self_attn.sinks", "self_attn.attention_sink_bias"),), predicts_more=True
        ),
    ),
}
