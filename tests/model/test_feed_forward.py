"""Experts: which are taken, with which weights, and that tokens stay apart."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from runtime.model.config import ExpertsConfig
from runtime.model.feed_forward import FeedForward, load_feed_forward
from runtime.model.layers import WeightBits
from runtime.model.presets import random_model_config
from runtime.model.random_weights import RandomWeights

CPU = torch.device("cpu")
PRESET = random_model_config("qwen3-moe-tiny")


def made(
    experts: ExpertsConfig | None, dtype: torch.dtype = torch.float64, bits: WeightBits = 16
) -> FeedForward:
    config = replace(PRESET, experts=experts)
    return load_feed_forward(config, 1, RandomWeights(0, dtype, CPU), bits)


def experts(**changes: object) -> ExpertsConfig:
    assert PRESET.experts is not None
    return replace(PRESET.experts, **changes)  # type: ignore[arg-type]


def each_by_hand(x: Tensor, config: ExpertsConfig) -> Tensor:
    """Every expert on every token, then all but the taken ones thrown away."""
    source = RandomWeights(0, torch.float64, CPU)
    prefix, hidden, size = "model.layers.1.mlp", PRESET.hidden_size, config.intermediate_size
    likely = (x @ source.tensor(f"{prefix}.gate.weight", (config.num_experts, hidden)).T).softmax(1)
    rows = []
    for row, shares in zip(x, likely, strict=True):
        best = sorted(range(config.num_experts), key=lambda index: -float(shares[index]))
        taken = best[: config.per_token]
        total = sum(float(shares[index]) for index in taken) if config.normalise else 1.0
        mixed = torch.zeros(hidden, dtype=torch.float64)
        for index in taken:
            gate, up, down = (
                source.tensor(f"{prefix}.experts.{index}.{part}_proj.weight", shape)
                for part, shape in (
                    ("gate", (size, hidden)),
                    ("up", (size, hidden)),
                    ("down", (hidden, size)),
                )
            )
            a, b = gate @ row, up @ row
            mixed += float(shares[index]) / total * (down @ (a / (1 + (-a).exp()) * b))
        rows.append(mixed)
    return torch.stack(rows)


@pytest.mark.parametrize("normalise", [True, False])
@pytest.mark.parametrize("per_token", [1, 3, 8])
def test_a_token_gets_the_weighted_sum_of_its_likeliest_experts(
    normalise: bool, per_token: int
) -> None:
    config = experts(normalise=normalise, per_token=per_token)
    x = torch.randn(9, PRESET.hidden_size, dtype=torch.float64)
    assert torch.allclose(made(config)(x), each_by_hand(x, config), rtol=0, atol=1e-12)


@pytest.mark.parametrize("tokens", [0, 1, 2, 50])
def test_a_token_does_not_notice_which_others_meet_it_at_an_expert(tokens: int) -> None:
    mlp = made(experts())
    x = torch.randn(tokens, PRESET.hidden_size, dtype=torch.float64)
    alone = [mlp(row[None]) for row in x]
    together = mlp(x)
    assert together.shape == x.shape
    assert torch.allclose(together, torch.cat([together[:0], *alone]), rtol=0, atol=1e-13)


def test_a_nan_stays_with_its_token() -> None:
    mlp = made(experts())
    x = torch.randn(5, PRESET.hidden_size, dtype=torch.float64)
    expected = mlp(x)
    x[2] = torch.nan
    output = mlp(x)
    others = [0, 1, 3, 4]
    assert output[2].isnan().all()
    assert torch.allclose(output[others], expected[others], rtol=0, atol=1e-13)


@pytest.mark.parametrize(("bits", "bound"), [(8, 0.02), (4, 0.2)])
def test_quantised_experts_stay_near(bits: WeightBits, bound: float) -> None:
    x = torch.randn(40, PRESET.hidden_size)
    plain = made(experts(), torch.float32)(x)
    quantised = made(experts(), torch.float32, bits)(x)
    assert 0 < (quantised - plain).norm() / plain.norm() < bound


def test_a_step_reads_the_router_and_the_experts_of_one_token() -> None:
    hidden, config = PRESET.hidden_size, experts()
    read = config.num_experts + 3 * config.per_token * config.intermediate_size
    assert made(config).step_bytes == 8 * hidden * read
    assert made(None).step_bytes == 8 * hidden * 3 * PRESET.intermediate_size
    assert made(replace(config, layers=(True, False))).step_bytes == made(None).step_bytes
