"""What Mamba-2 is given: each number as the formula has it, each row for itself."""

import math

import pytest
import torch

from kernels.mamba_shaping import MambaShape, mamba_shaping

HEADS, GROUPS, HEAD_DIM, STATE_DIM = 4, 2, 3, 5
INNER = HEADS * HEAD_DIM


def shape_of(dtype: torch.dtype) -> MambaShape:
    return MambaShape(
        heads=HEADS,
        groups=GROUPS,
        head_dim=HEAD_DIM,
        state_dim=STATE_DIM,
        pace=-torch.arange(1.0, HEADS + 1, dtype=dtype),
        step_bias=torch.linspace(-1, 1, HEADS, dtype=dtype),
        least_step=0.5,
        most_step=2.0,
    )


def silu(x: float) -> float:
    return x / (1 + math.exp(-x))


def test_every_number_is_what_the_formula_says() -> None:
    shape = shape_of(torch.float64)
    convolved = torch.randn(2, INNER + 2 * GROUPS * STATE_DIM, dtype=torch.float64)
    steps = torch.tensor([[-3.0, 0.1, 0.4, 5.0], [0.0, 0.0, 0.0, 0.0]], dtype=torch.float64)
    inputs, values = mamba_shaping(convolved, steps, shape)
    for token, head in ((0, 0), (0, 3), (1, 2)):
        said = float(steps[token, head] + shape.step_bias[head])
        step = min(max(math.log1p(math.exp(said)), 0.5), 2.0)
        value = silu(float(convolved[token, head * HEAD_DIM + 1]))
        assert values[token, head, 1].item() == pytest.approx(value, rel=1e-12)
        assert inputs.values[token, head, 1].item() == pytest.approx(value * step, rel=1e-12)
        assert inputs.decays[token, head].item() == pytest.approx(-step * (head + 1), rel=1e-12)
    key = silu(float(convolved[1, INNER + STATE_DIM + 2]))
    query = silu(float(convolved[1, INNER + GROUPS * STATE_DIM + 4]))
    assert inputs.keys[1, 1, 2].item() == pytest.approx(key, rel=1e-12)
    assert inputs.queries[1, 0, 4].item() == pytest.approx(query, rel=1e-12)
    assert inputs.betas is None


def test_rows_in_bfloat16_are_shaped_in_the_dtype_of_states() -> None:
    shape = shape_of(torch.float32)
    convolved = torch.randn(5, INNER + 2 * GROUPS * STATE_DIM).bfloat16()
    steps = torch.randn(5, HEADS).bfloat16()
    inputs, values = mamba_shaping(convolved, steps, shape)
    alone, _ = mamba_shaping(convolved[3:4], steps[3:4], shape)
    assert values.dtype == inputs.keys.dtype == inputs.decays.dtype == torch.float32
    assert torch.equal(alone.values, inputs.values[3:4])
    assert torch.equal(alone.decays, inputs.decays[3:4])
