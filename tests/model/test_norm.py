"""RMSNorm against its definition, and every way of computing it against the reference."""

import pytest
import torch

import kernels.norm
from kernels.norm import (
    add_rms_norm,
    add_rms_norm_reference,
    mean_square,
    norm_by,
    rms_norm,
    rms_norm_reference,
)

DTYPES = [torch.float64, torch.float32, torch.bfloat16]
TOLERANCE = {torch.float64: 1e-12, torch.float32: 2e-6, torch.bfloat16: 2e-2}


def test_the_reference_has_mean_square_one_before_the_weight() -> None:
    x = torch.randn(5, 64, dtype=torch.float64) * 7
    normed = rms_norm_reference(x, torch.ones(64, dtype=torch.float64), 0.0)
    assert torch.allclose(normed.square().mean(-1), torch.ones(5, dtype=torch.float64))
    assert torch.allclose(normed / x, (normed / x)[:, :1].expand(-1, 64))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(1, 8), (3, 100), (70, 768)])
@pytest.mark.parametrize("compiled", [True, False])
def test_every_way_agrees_with_the_reference(
    dtype: torch.dtype,
    shape: tuple[int, int],
    compiled: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if not compiled:
        monkeypatch.setattr(kernels.norm, "native_library", lambda _: None)
    x, residual = torch.randn(2, *shape).to(dtype).unbind()
    weight = torch.randn(shape[1]).to(dtype)
    expected, expected_sum = add_rms_norm_reference(x, residual, weight, 1e-6)

    normed, total = add_rms_norm(x, residual, weight, 1e-6)
    assert torch.equal(total, expected_sum)
    assert torch.allclose(normed, expected, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype])
    alone = rms_norm(expected_sum, weight, 1e-6)
    assert torch.allclose(alone, expected, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype])


@pytest.mark.parametrize("dtype", DTYPES)
def test_parts_that_are_normed_by_the_whole_rows_are_parts_of_the_whole(dtype: torch.dtype) -> None:
    x, weight = (torch.randn(7, 48) * 3).to(dtype), torch.randn(48).to(dtype)
    parts = list(zip(x.split(12, dim=1), weight.split(12), strict=True))
    mean = torch.stack([mean_square(part) for part, _ in parts]).mean(0)
    assert mean.dtype == torch.promote_types(dtype, torch.float32)
    found = torch.cat([norm_by(part, mean, own, 1e-6) for part, own in parts], dim=1)
    expected = rms_norm_reference(x, weight, 1e-6)
    assert found.dtype == dtype
    assert torch.allclose(found, expected, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype])


def test_a_weight_per_head_scales_each_head_by_its_own() -> None:
    x, weight = torch.randn(4, 3, 16), torch.randn(3, 16)
    expected = torch.stack([rms_norm_reference(x[:, h], weight[h], 1e-6) for h in range(3)], 1)
    assert torch.allclose(rms_norm(x, weight, 1e-6), expected, atol=1e-6)


@pytest.mark.parametrize("dtype", DTYPES)
def test_without_a_weight_rows_are_brought_to_mean_square_one(dtype: torch.dtype) -> None:
    x = (torch.randn(4, 5, 48) * 3).to(dtype)[:, 2:]
    expected = rms_norm_reference(x, torch.ones(48, dtype=dtype), 1e-6)
    found = rms_norm(x, None, 1e-6)
    assert torch.allclose(found, expected, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype])


def test_nan_stays_nan() -> None:
    x = torch.ones(2, 32)
    x[1, 5] = torch.nan
    normed, _ = add_rms_norm(x, torch.zeros(2, 32), torch.ones(32), 1e-6)
    assert normed[0].isfinite().all()
    assert normed[1].isnan().all()
