"""What a decoder's description refuses, and what it adds up to."""

import dataclasses
from typing import Any

import pytest

from runtime.model.config import ExpertsConfig, ModelConfig, RopeConfig

SMALL = ModelConfig(
    model_type="qwen3",
    vocab_size=100,
    hidden_size=12,
    num_layers=2,
    num_heads=4,
    num_kv_heads=2,
    head_dim=6,
    intermediate_size=20,
    max_context_tokens=64,
)

EXPERTS = ExpertsConfig(
    num_experts=4, per_token=2, intermediate_size=10, normalise=True, layers=(True, False)
)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_layers": 0}, "num_layers is 0, at least 1"),
        ({"num_kv_heads": 3}, "num_heads 4 is not a multiple of num_kv_heads 3"),
        ({"head_dim": 5}, "head_dim 5 is odd"),
        ({"windows": (1,)}, "1 windows for 2 layers"),
        ({"windows": (4, 0)}, "at least 1 is needed"),
        ({"experts": dataclasses.replace(EXPERTS, layers=())}, "0 experts.layers for 2"),
    ],
)
def test_what_cannot_be_built_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        dataclasses.replace(SMALL, **changes)


@pytest.mark.parametrize(
    "rope",
    [{"theta": 0}, {"factor": 0.5}, {"kind": "llama3", "factor": 8.0}, {"kind": "yarn"}],
)
def test_rope_without_what_it_needs_is_refused(rope: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="rope"):
        RopeConfig(**rope)


def test_parameters_add_up() -> None:
    attention = 12 * (24 + 2 * 12) + 24 * 12
    layer = attention + 3 * 12 * 20 + 2 * 12
    assert SMALL.num_parameters == 2 * layer + 2 * 100 * 12 + 12
    biased = dataclasses.replace(
        SMALL, qkv_bias=True, output_bias=True, mlp_bias=True, qk_norm=True, tie_embeddings=True
    )
    extra = 48 + 12 + 2 * 20 + 12 + 2 * 6
    assert biased.num_parameters == 2 * (layer + extra) + 100 * 12 + 12


def test_layers_without_windows_see_everything() -> None:
    assert SMALL.window(1) is None
    assert dataclasses.replace(SMALL, windows=(None, 8)).window(1) == 8


def test_experts_count_all_though_a_token_takes_few() -> None:
    config = dataclasses.replace(SMALL, experts=EXPERTS)
    assert config.experts_of(0) is EXPERTS
    assert config.experts_of(1) is None
    more = 4 * 3 * 12 * 10 + 4 * 12 - 3 * 12 * 20
    assert config.num_parameters == SMALL.num_parameters + more


@pytest.mark.parametrize("changes", [{"per_token": 0}, {"per_token": 5}, {"intermediate_size": 0}])
def test_experts_that_cannot_be_chosen_are_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="experts"):
        dataclasses.replace(EXPERTS, **changes)
