"""Solar Open: from its ``config.json`` to layers.

What a checkpoint leaves out gets the default that ``transformers`` has for it.
"""

from runtime.model.config import Experts, Gated, Layer, ModelConfig, Router
from runtime.model.config_fields import Fields
from runtime.model.expert_families import SHARED_EXPERTS
from runtime.model.family import (
    Family,
    TensorNames,
    read_activation,
    read_attention,
    read_decoder,
)
from runtime.model.rope_fields import read_rope


def _read_solar_open(fields: Fields, _: int | None) -> ModelConfig:
    """Experts in every layer: sigmoids with a correction and groups, shared experts in one."""
    rope, context = read_rope(fields, theta=1000000.0)
    fields.whole("scoring_func", "sigmoid", "sigmoid")
    fields = fields.with_defaults({"num_key_value_heads": 8})
    mixer = read_attention(fields, 128, rope=rope, bias=fields.flag("attention_bias", False))
    size, activation = fields.size("moe_intermediate_size", 1280), read_activation(fields)
    experts = Experts(
        router=Router(
            num_experts=fields.size("n_routed_experts", 128),
            per_token=fields.size("num_experts_per_tok", 8),
            scores="sigmoid",
            normalise=fields.flag("norm_topk_prob", True),
            correction=True,
            groups=fields.size("n_group", 1),
            chosen_groups=fields.size("topk_group", 1),
            scale=fields.number("routed_scaling_factor", 1.0),
        ),
        each=Gated(size=size, activation=activation),
        shared=Gated(size=size * fields.size("n_shared_experts", 1), activation=activation),
    )
    layers = (Layer(mixer=mixer, feed_forward=experts),) * fields.size("num_hidden_layers")
    return read_decoder(fields, layers, context, norm_eps=1e-5)


SOLAR_FAMILIES = {
    "solar_open": Family(read=_read_solar_open, names=TensorNames(replaced=SHARED_EXPERTS)),
}
