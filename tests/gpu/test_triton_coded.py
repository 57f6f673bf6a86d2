"""Triton's product with codes against the numbers that they stand for."""

import pytest
import torch

from kernels.codes import CodeKind, Codes, widen_codes
from kernels.dispatch import triton_kernels
from tests.support.coded import KINDS, random_codes

TOLERANCE = {torch.float32: 1e-5, torch.float16: 4e-3}


@pytest.fixture(autouse=True)
def _triton_everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kernels.dispatch.SETTING", "triton")


def product(x: torch.Tensor, codes: Codes, device: torch.device) -> torch.Tensor:
    kernels = triton_kernels("coded", x)
    assert kernels is not None
    found: torch.Tensor = kernels.coded_matmul(x.to(device), codes.to(device))
    return found.cpu()


@pytest.mark.parametrize("zeros", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_a_unit_row_finds_each_weight_to_the_last_bit(
    kind: CodeKind, zeros: bool, device: torch.device
) -> None:
    """Every code there is, the smallest powers and the numbers without a hidden bit among them."""
    codes = random_codes(kind, 70, 64, 32, zeros=zeros, seed=1)
    if kind == "e2m1":
        codes.scales[:, 0], codes.scales[:, 1] = 1, 200
    found = product(torch.eye(64), codes, device)
    assert torch.equal(found.T, widen_codes(codes, torch.float32))


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("rows", "outputs", "inputs", "group"),
    [(1, 40, 64, 32), (5, 64, 160, 128), (16, 130, 96, 96), (70, 20, 128, 64), (3, 16, 72, 24)],
)
def test_products_are_those_of_the_numbers(
    dtype: torch.dtype,
    kind: CodeKind,
    rows: int,
    outputs: int,
    inputs: int,
    group: int,
    device: torch.device,
) -> None:
    codes = random_codes(kind, outputs, inputs, group, zeros=True, seed=rows)
    x = (torch.randn(rows, inputs, generator=torch.Generator().manual_seed(rows))).to(dtype)
    weight = widen_codes(codes, dtype).float()
    expected, sizes = x.float() @ weight.T, x.float().abs() @ weight.abs().T
    allowed = TOLERANCE[dtype] * (sizes + expected.abs())
    assert bool(((product(x, codes, device).float() - expected).abs() <= allowed).all())


def test_no_rows_are_no_rows(device: torch.device) -> None:
    codes = random_codes("int4", 8, 32, 32, seed=0)
    assert product(torch.randn(0, 32), codes, device).shape == (0, 8)
