"""dots.llm1: from its ``config.json`` to layers, whose heads are normed one by one and whose
experts are DeepSeek V3's.

What is left out gets the default that ``transformers`` has for it; of experts how many there are,
how many a token takes and how many all take has to be said.
"""

from dataclasses import replace

from runtime.model.config import Experts, Gated, Layer, ModelConfig, Router
from runtime.model.config_fields import Fields
from runtime.model.expert_families import SHARED_EXPERTS
from runtime.model.family import (
    Family,
    TensorNames,
    read_activation,
    read_attention,
    read_decoder,
    read_layer_types,
)
from runtime.model.rope_fields import read_rope

_SCORES = {"sigmoid": "sigmoid", "noaux_tc": "sigmoid"}
"""Folders name the way of choosing here as well, which is one of sigmoids."""


def _read_dots1(fields: Fields, _: int | None) -> ModelConfig:
    """Sigmoids with a correction and shared experts in one; the first layers have one MLP."""
    count, biased = fields.size("num_hidden_layers"), fields.flag("attention_bias", False)
    rope, context = read_rope(fields)
    mixer = read_attention(fields, rope=rope, bias=biased, output_bias=biased, norm="each")
    activation = read_activation(fields)
    mlp = Gated(size=fields.size("intermediate_size", 10944), activation=activation)
    experts, dense = _read_experts(fields), fields.number("first_k_dense_replace", 0)
    layers = [
        Layer(mixer=replace(mixer, window=window), feed_forward=mlp if each < dense else experts)
        for each, window in enumerate(_read_windows(fields, count))
    ]
    return read_decoder(fields, layers, context)


def _read_windows(fields: Fields, count: int) -> list[int | None]:
    """Layers have a window from ``max_window_layers`` on, or where they are listed."""
    stated = "sliding_window" not in fields or fields.get("sliding_window") is not None
    full = fields.number("max_window_layers", 62)
    windowed = read_layer_types(fields, [stated and each >= full for each in range(count)])
    if not any(windowed):
        fields.flag("use_sliding_window", False)
        return [None] * count
    if not stated:
        raise fields.error("sliding_window", None, "a number: layers with a window are listed")
    fields.whole("use_sliding_window", True, "true: there are layers with a window")
    window = fields.size("sliding_window", 4096)
    return [window if has else None for has in windowed]


def _read_experts(fields: Fields) -> Experts:
    fields.whole("topk_method", "noaux_tc", "noaux_tc: experts are chosen with a correction")
    fields.whole("mlp_bias", False, "false")
    fields.whole("moe_layer_freq", 1, "1: every layer behind the first has experts")
    size, activation = fields.size("moe_intermediate_size", 1408), read_activation(fields)
    router = Router(
        num_experts=fields.size("n_routed_experts"),
        per_token=fields.size("num_experts_per_tok"),
        scores=fields.one_of("scoring_func", _SCORES, "sigmoid"),
        normalise=fields.flag("norm_topk_prob", False),
        correction=True,
        groups=fields.size("n_group", 1),
        chosen_groups=fields.size("topk_group", 1),
        scale=fields.number("routed_scaling_factor", 1.0),
        least_sum=1e-20,
    )
    return Experts(
        router=router,
        each=Gated(size=size, activation=activation),
        shared=Gated(size=size * fields.size("n_shared_experts"), activation=activation),
    )


DOTS_FAMILIES = {"dots1": Family(read=_read_dots1, names=TensorNames(replaced=SHARED_EXPERTS))}
