"""Rows rounded to e4m3 in one launch: the reference's bytes and scales, and no others."""

import pytest
import torch

from kernels.dispatch import triton_kernels
from kernels.quantised_kv import quantise_fp8


@pytest.fixture(autouse=True)
def _triton_everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kernels.dispatch.SETTING", "triton")


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("columns", [16, 1000, 1024, 2500])
def test_rows_are_rounded_as_the_reference_rounds_them(
    columns: int, dtype: torch.dtype, device: torch.device
) -> None:
    torch.manual_seed(columns)
    x = (torch.randn(9, columns) * torch.logspace(-4, 3, 9)[:, None]).to(dtype)
    x[2], x[3, -1], x[4, 0], x[5, 1:] = 0, torch.inf, torch.nan, 1e-4
    kernels = triton_kernels("fp8", x)
    assert kernels is not None
    values, scales = (part.cpu() for part in kernels.quantise_fp8(x.to(device)))
    expected, expected_scales = quantise_fp8(x)
    whole = ~expected_scales.isnan()
    assert whole.sum() == 7
    assert torch.equal(scales.nan_to_num(7), expected_scales.nan_to_num(7))
    assert torch.equal(values.view(torch.uint8)[whole], expected.view(torch.uint8)[whole])


def test_rows_may_be_part_of_wider_ones(device: torch.device) -> None:
    x = torch.randn(4, 96)[:, :64]
    kernels = triton_kernels("fp8", x)
    assert kernels is not None
    values, scales = (part.cpu() for part in kernels.quantise_fp8(x.to(device)))
    expected, expected_scales = quantise_fp8(x)
    assert torch.equal(scales, expected_scales)
    assert torch.equal(values.view(torch.uint8), expected.view(torch.uint8))
