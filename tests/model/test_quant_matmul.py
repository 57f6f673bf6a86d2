"""Quantised matrices: how far rounding goes, and every way of multiplying."""

import pytest
import torch

import kernels.quant_matmul
from kernels.quant_matmul import (
    GROUP,
    quant_matmul_reference,
    quantise_reference,
    quantised_matrix,
    widen_reference,
)


@pytest.mark.parametrize(("bits", "levels"), [(8, 127), (4, 8)])
def test_rounding_is_at_most_half_a_step(bits, levels: int) -> None:
    weight = torch.randn(40, 96)
    values, scales = quantise_reference(weight, bits)
    assert values.min() >= -levels
    assert values.max() <= levels
    error = (widen_reference(values, scales, torch.float32) - weight).view(40, scales.shape[1], -1)
    step = scales.abs()[:, :, None]
    # The positive end of four bits is 7: a value beyond it is off by up to one step.
    assert (error.abs() <= step * (0.5001 if bits == 8 else 1.0001)).all()
    assert (error.abs() <= 0.5001 * step).float().mean() > 0.95


def test_zeros_stay_zero() -> None:
    for bits in (8, 4):
        values, scales = quantise_reference(torch.zeros(3, 64), bits)
        assert (widen_reference(values, scales, torch.float32) == 0).all()


def test_four_bits_need_whole_groups() -> None:
    with pytest.raises(ValueError, match=f"50 inputs are not a multiple of {GROUP}"):
        quantise_reference(torch.zeros(3, 50), 4)


@pytest.mark.parametrize("bits", [8, 4])
@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize("outputs", [16, 70, 129])
def test_every_way_agrees_with_the_reference(
    bits, compiled: bool, outputs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not compiled:
        monkeypatch.setattr(kernels.quant_matmul, "fits_tiles", lambda _: False)
    weight = torch.randn(outputs, 160).to(torch.bfloat16)
    matrix = quantised_matrix(weight, bits)
    values, scales = quantise_reference(weight, bits)
    for rows in (1, 2, 3, 7, 8, 13, 32, 33, 90):
        x = torch.randn(rows, 160).to(torch.bfloat16)
        expected = quant_matmul_reference(x, values, scales)
        assert torch.allclose(matrix.multiply(x), expected, rtol=2e-2, atol=0.1)
    share = matrix.num_bytes / (outputs * 160)
    padded = -(-outputs // 16) * 16 / outputs
    assert share <= (1.1 if bits == 8 else 1.2) * padded


@pytest.mark.parametrize("bits", [8, 4])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_other_number_types_widen_exactly(bits, dtype: torch.dtype) -> None:
    weight, x = torch.randn(10, 64).to(dtype), torch.randn(5, 64).to(dtype)
    widened = widen_reference(*quantise_reference(weight, bits), dtype)
    assert torch.allclose(quantised_matrix(weight, bits).multiply(x), x @ widened.T, atol=1e-5)
