"""What a decoder's description refuses, and what it adds up to."""

from dataclasses import replace
from typing import Any

import pytest

from runtime.model.config import (
    Attention,
    Experts,
    Gated,
    Layer,
    ModelConfig,
    Router,
)
from runtime.model.rope_config import RopeConfig
from tests.support.model_shapes import changed

SMALL = ModelConfig(
    model_type="qwen3",
    vocab_size=100,
    hidden_size=12,
    layers=(Layer(mixer=Attention(heads=4, kv_heads=2, head_dim=6), feed_forward=Gated(size=20)),)
    * 2,
    max_context_tokens=64,
)
ROUTER = Router(num_experts=4, per_token=2, normalise=True)
EXPERTS = Experts(router=ROUTER, each=Gated(size=10))
LONGROPE = RopeConfig(kind="longrope", factors=(1.0, 2.0))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"layers": ()}, "without layers"),
        ({"count": 1, "hidden_size": 0}, "hidden_size is 0, at least 1"),
        ({"logit_divisor": 0}, "logits divided by 0"),
        ({"mixer": {"kv_heads": 3}}, "num_heads 4 is not a multiple of num_kv_heads 3"),
        ({"mixer": {"heads": 0}}, "heads is 0, at least 1"),
        ({"mixer": {"head_dim": 5}}, "head_dim 5 is odd"),
        ({"mixer": {"window": 0}}, "at least 1 is needed"),
        ({"mixer": {"rope": RopeConfig(rotated=8)}}, "rope over 8 of 6 dimensions"),
        ({"mixer": {"rope": LONGROPE}}, "2 factors of longrope for 3 pairs"),
        ({"mlp": {"size": 0}}, "intermediate_size is 0"),
        ({"mlp": {"activation": "clamped_swiglu"}}, "clamped_swiglu within 0"),
        ({"mlp": {"activation": "clamped_silu"}}, "clamped_silu within 0"),
        ({"mlp": {"activation": "clamped_after_silu"}}, "clamped_after_silu within 0"),
        ({"mlp": {"limit": 1.0}}, r"silu within 1\.0"),
        ({"mixer": {"gate_function": "softplus"}}, "gates by softplus, and nothing is gated"),
    ],
)
def test_what_cannot_be_built_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        changed(SMALL, **changes)


def test_parameters_add_up() -> None:
    attention = 12 * (24 + 2 * 12) + 24 * 12
    layer = attention + 3 * 12 * 20 + 2 * 12
    assert SMALL.num_parameters == 2 * layer + 2 * 100 * 12 + 12
    biased = changed(
        SMALL,
        mixer={"bias": True, "output_bias": True, "norm": "each"},
        mlp={"bias": True},
        tie_embeddings=True,
    )
    extra = 48 + 12 + 2 * 20 + 12 + 2 * 6
    assert biased.num_parameters == 2 * (layer + extra) + 100 * 12 + 12
    others = changed(SMALL, mixer={"norm": "all", "sinks": True})
    both = replace(others, layers=tuple(replace(each, norms="both") for each in others.layers))
    assert both.num_parameters == SMALL.num_parameters + 2 * (24 + 12 + 4 + 2 * 12)
    around = replace(
        SMALL, layers=tuple(replace(each, norms="around_mlp") for each in SMALL.layers)
    )
    assert around.num_parameters == SMALL.num_parameters + 2 * 12


def test_experts_count_all_though_a_token_takes_few() -> None:
    layers = replace(SMALL.layers[0], feed_forward=EXPERTS), SMALL.layers[1]
    config = replace(SMALL, layers=layers)
    assert config.has_experts
    assert not SMALL.has_experts
    more = 4 * 3 * 12 * 10 + 4 * 12 - 3 * 12 * 20
    assert config.num_parameters == SMALL.num_parameters + more
    corrected = replace(EXPERTS, router=replace(ROUTER, bias=True, correction=True))
    corrected = replace(corrected, shared=Gated(size=5), shared_gate=True)
    assert corrected.num_parameters(12) == EXPERTS.num_parameters(12) + 8 + 3 * 12 * 5 + 12


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"per_token": 0}, "0 of 4 experts"),
        ({"per_token": 5}, "5 of 4 experts"),
        ({"groups": 3}, "4 experts are not in 3 equal groups"),
        ({"groups": 4}, "groups of 1 experts"),
        ({"groups": 2, "chosen_groups": 3}, "3 of 2 groups"),
        ({"logit_cap": 0.0}, "experts' logits capped at 0"),
        ({"groups": 2, "per_token": 3}, "3 experts per token of 2"),
    ],
)
def test_experts_that_cannot_be_chosen_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        replace(ROUTER, **changes)
