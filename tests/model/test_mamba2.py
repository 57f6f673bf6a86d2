"""Mamba-2 beside its plain form, in whole prompts and cut anywhere."""

import numpy as np
import pytest
import torch

from kernels.delta_rows import DeltaRows
from kernels.gated_delta import gated_delta, gated_delta_chunked
from kernels.mamba2 import Mamba2Inputs, mamba2_reference

LIMITS = {torch.float64: 1e-13, torch.float32: 1e-5}
FORGETS = {"nearly nothing": 1e-4, "some": 0.5, "nearly all": 30.0}
SHAPES = [(1, 1, 5, 7), (2, 6, 16, 12), (1, 4, 128, 64)]
"""Groups, heads, numbers of a state, numbers of a head."""


def drawn(
    shape: tuple[int, int, int, int], tokens: int, forgets: float, dtype: torch.dtype, seed: int
) -> tuple[Mamba2Inputs, torch.Tensor]:
    groups, heads, state_dim, head_dim = shape
    generator = torch.Generator().manual_seed(seed)

    def normal(*size: int) -> torch.Tensor:
        return torch.randn(*size, generator=generator, dtype=torch.float64).to(dtype)

    inputs = Mamba2Inputs(
        values=normal(tokens, heads, head_dim),
        steps=normal(tokens, heads).abs(),
        pace=-forgets * (normal(heads).abs() + 0.1),
        into=normal(tokens, groups, state_dim),
        out_of=normal(tokens, groups, state_dim),
    )
    return inputs, normal(4, heads, state_dim, head_dim)


@pytest.mark.parametrize("dtype", LIMITS)
@pytest.mark.parametrize("forgets", FORGETS)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("way", [gated_delta, gated_delta_chunked])
def test_every_way_gives_what_the_plain_form_gives(
    way: object, shape: tuple[int, int, int, int], forgets: str, dtype: torch.dtype
) -> None:
    inputs, matrices = drawn(shape, 150, FORGETS[forgets], dtype, 0)
    before = matrices.clone()
    rows = DeltaRows(
        slots=np.array([3, 0, 2]),
        starts=np.array([0, 1, 80, 150]),
        positions=np.array([63, 40, 0]),
    )
    expected = mamba2_reference(inputs, matrices, rows)
    found = way(inputs.as_delta(), matrices, rows)  # type: ignore[operator]
    difference = (found.mixed - expected).norm() / expected.norm()
    assert difference < LIMITS[dtype]
    assert torch.equal(matrices, before)


def test_values_are_what_a_matrix_takes_up() -> None:
    inputs, _ = drawn(SHAPES[1], 9, 0.5, torch.float64, 1)
    delta = inputs.as_delta()
    assert delta.betas is None
    assert torch.equal(delta.values, inputs.values * inputs.steps[:, :, None])
    assert torch.equal(delta.decays, inputs.steps * inputs.pace)
