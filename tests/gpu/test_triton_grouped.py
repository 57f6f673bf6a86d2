"""Triton's product by expert against the reference; what belongs to nobody is poisoned."""

import pytest
import torch

from kernels.dispatch import triton_kernels
from kernels.grouped_matmul import grouped_matmul_reference, sorted_by_expert

TOLERANCE = {torch.float32: 1e-5, torch.float16: 4e-3}


@pytest.fixture(autouse=True)
def _triton_everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kernels.dispatch.SETTING", "triton")


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize(
    ("tokens", "experts", "per_token", "inputs", "outputs"),
    [(1, 8, 2, 32, 40), (5, 5, 1, 70, 64), (40, 3, 2, 48, 130), (150, 2, 1, 64, 20)],
)
def test_every_pick_is_multiplied_with_its_own_experts_matrix(
    dtype: torch.dtype,
    tokens: int,
    experts: int,
    per_token: int,
    inputs: int,
    outputs: int,
    device: torch.device,
) -> None:
    """Of the experts, the last is taken by nobody."""
    generator = torch.Generator().manual_seed(tokens)
    x = torch.randn(tokens, inputs, generator=generator).to(dtype)
    matrices = (torch.randn(experts, outputs, inputs, generator=generator) / inputs**0.5).to(dtype)
    matrices[-1] = torch.nan
    chosen = torch.randint(0, experts - 1, (tokens * per_token,), generator=generator)
    order, starts = sorted_by_expert(chosen, experts)
    rows = order // per_token
    kernels = triton_kernels("grouped", x)
    assert kernels is not None
    bias = torch.randn(experts, outputs, generator=generator).to(dtype)
    bias[-1] = torch.nan
    found = kernels.grouped_matmul(
        x.to(device), matrices.to(device), rows.to(device), starts.to(device), bias=bias.to(device)
    )
    expected = grouped_matmul_reference(
        x.float(), matrices.float(), rows, starts, bias=bias.float()
    ).to(dtype)
    limit = TOLERANCE[dtype]
    assert expected.isfinite().all()
    assert torch.allclose(found.cpu(), expected, rtol=limit, atol=limit)
    given = x[rows].to(device), matrices.to(device), None, starts.to(device)
    again = kernels.grouped_matmul(*given)
    expected = (expected.float() - bias.float()[chosen[order]]).to(dtype)
    assert torch.allclose(again.cpu(), expected, rtol=limit, atol=2 * limit)


def test_no_picks_are_no_rows(device: torch.device) -> None:
    x = torch.randn(3, 16, device=device)
    kernels = triton_kernels("grouped", x)
    assert kernels is not None
    none = torch.zeros(0, dtype=torch.int64, device=device)
    starts = torch.zeros(3, dtype=torch.int64, device=device)
    matrices = torch.randn(2, 8, 16, device=device)
    assert kernels.grouped_matmul(x, matrices, none, starts).shape == (0, 8)
