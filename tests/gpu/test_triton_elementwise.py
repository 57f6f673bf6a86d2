"""Triton's norm and gate against their references."""

import pytest
import torch

from kernels.activation import silu_mul_reference, squared_relu_reference
from kernels.dispatch import triton_kernels
from kernels.norm import add_rms_norm_reference

TOLERANCE = {torch.float32: 1e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}


@pytest.fixture(autouse=True)
def _triton_everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kernels.dispatch.SETTING", "triton")


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize(("tokens", "size"), [(1, 64), (5, 96), (3, 1500), (0, 64)])
def test_the_norm_after_an_add_agrees_with_the_reference(
    dtype: torch.dtype, tokens: int, size: int, device: torch.device
) -> None:
    torch.manual_seed(size)
    x, residual = torch.randn(2, tokens, size).to(dtype)
    weight = torch.randn(size).to(dtype)
    kernels = triton_kernels("elementwise", x)
    assert kernels is not None
    actual = kernels.add_rms_norm(x.to(device), residual.to(device), weight.to(device), 1e-5)
    limit = TOLERANCE[dtype]
    for found, wanted in zip(
        actual, add_rms_norm_reference(x, residual, weight, 1e-5), strict=True
    ):
        assert torch.allclose(found.cpu(), wanted, rtol=limit, atol=limit)


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize(("tokens", "size"), [(1, 64), (4, 100), (2, 1100)])
def test_the_gate_agrees_with_the_reference(
    dtype: torch.dtype, tokens: int, size: int, device: torch.device
) -> None:
    gate_up = (8 * torch.randn(tokens, 2 * size)).to(dtype)
    kernels = triton_kernels("elementwise", gate_up)
    assert kernels is not None
    limit = TOLERANCE[dtype]
    assert torch.allclose(
        kernels.silu_mul(gate_up.to(device)).cpu(),
        silu_mul_reference(gate_up),
        rtol=limit,
        atol=limit,
    )


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize(("tokens", "size"), [(1, 64), (4, 100), (3, 1100), (0, 8)])
def test_what_is_below_0_is_squared_to_0(
    dtype: torch.dtype, tokens: int, size: int, device: torch.device
) -> None:
    x = (4 * torch.randn(tokens, size)).to(dtype)
    if tokens:
        x[-1, -1] = torch.nan
    kernels = triton_kernels("elementwise", x)
    assert kernels is not None
    found, wanted = kernels.squared_relu(x.to(device)).cpu(), squared_relu_reference(x)
    limit = TOLERANCE[dtype]
    assert torch.allclose(found, wanted, rtol=limit, atol=limit, equal_nan=True)
