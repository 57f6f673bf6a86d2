"""Triton's product by expert with codes against the reference; what is nobody's is poisoned."""

import pytest
import torch

from kernels.codes import CodeKind
from kernels.dispatch import triton_kernels
from kernels.grouped_codes import grouped_coded_matmul_reference
from kernels.grouped_matmul import sorted_by_expert
from tests.support.coded import KINDS, random_codes

TOLERANCE = {torch.float32: 1e-5, torch.float16: 4e-3}


@pytest.fixture(autouse=True)
def _triton_everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kernels.dispatch.SETTING", "triton")


@pytest.mark.parametrize("zeros", [False, True])
@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("tokens", "experts", "per_token", "inputs", "outputs", "group"),
    [(1, 8, 2, 64, 40, 32), (5, 5, 1, 96, 64, 96), (60, 3, 2, 72, 70, 24), (150, 2, 1, 64, 20, 64)],
)
def test_every_pick_is_multiplied_with_its_own_experts_codes(
    zeros: bool,
    dtype: torch.dtype,
    kind: CodeKind,
    tokens: int,
    experts: int,
    per_token: int,
    inputs: int,
    outputs: int,
    group: int,
    device: torch.device,
) -> None:
    """Of the experts, the last is taken by nobody."""
    generator = torch.Generator().manual_seed(tokens)
    x = torch.randn(tokens, inputs, generator=generator).to(dtype)
    codes = random_codes(kind, experts * outputs, inputs, group, zeros=zeros, seed=tokens)
    if kind != "e2m1":
        codes.scales.mul_(0.02)
        codes.scales[-outputs:] = torch.nan
    chosen = torch.randint(0, experts - 1, (tokens * per_token,), generator=generator)
    order, starts = sorted_by_expert(chosen, experts)
    rows = order // per_token
    kernels = triton_kernels("grouped_coded", x)
    assert kernels is not None
    bias = torch.randn(experts, outputs, generator=generator).to(dtype)
    found = kernels.grouped_coded_matmul(
        x.to(device),
        codes.to(device),
        experts,
        rows.to(device),
        starts.to(device),
        bias=bias.to(device),
    )
    wide = bias.float()
    expected = grouped_coded_matmul_reference(x.float(), codes, experts, rows, starts, bias=wide)
    sizes = grouped_coded_matmul_reference(x.float().abs(), codes, experts, rows, starts).abs()
    allowed = TOLERANCE[dtype] * (10 + sizes + expected.abs().amax())
    assert expected.isfinite().all()
    assert bool(((found.cpu().float() - expected).abs() <= allowed).all())
    given = x[rows].to(device), codes.to(device), experts, None, starts.to(device)
    again = kernels.grouped_coded_matmul(*given).cpu().float() + wide[chosen[order]]
    assert bool(((again - expected).abs() <= 2 * allowed).all())


def test_no_picks_are_no_rows(device: torch.device) -> None:
    x = torch.randn(3, 32, device=device)
    kernels = triton_kernels("grouped_coded", x)
    assert kernels is not None
    none = torch.zeros(0, dtype=torch.int64, device=device)
    starts = torch.zeros(3, dtype=torch.int64, device=device)
    codes = random_codes("int4", 16, 32, 32, seed=0).to(device)
    assert kernels.grouped_coded_matmul(x, codes, 2, none, starts).shape == (0, 8)
