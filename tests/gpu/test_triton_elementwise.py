"""Triton's norm and gate against their references."""

from collections.abc import Callable

import pytest
import torch

from kernels.activation import (
    clamped_swiglu_reference,
    gelu_tanh_mul_reference,
    silu_mul_reference,
    squared_relu_reference,
)
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


GATES: dict[str, tuple[Callable[..., torch.Tensor], tuple[float, ...]]] = {
    "silu_mul": (silu_mul_reference, ()),
    "gelu_tanh_mul": (gelu_tanh_mul_reference, ()),
    "clamped_swiglu": (clamped_swiglu_reference, (7.0,)),
}


@pytest.mark.parametrize("name", GATES)
@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize(("tokens", "size"), [(1, 64), (4, 100), (2, 1100), (0, 8)])
def test_the_gate_agrees_with_the_reference(
    name: str, dtype: torch.dtype, tokens: int, size: int, device: torch.device
) -> None:
    reference, limits = GATES[name]
    gate_up = (8 * torch.randn(tokens, 2 * size)).to(dtype)
    if tokens:
        gate_up[0, 0], gate_up[0, -1] = torch.nan, torch.nan
        gate_up[-1, 1], gate_up[-1, 2] = 90.0, -90.0
    kernels = triton_kernels("elementwise", gate_up)
    assert kernels is not None
    found = getattr(kernels, name)(gate_up.to(device), *limits).cpu()
    wanted, limit = reference(gate_up.float(), *limits), TOLERANCE[dtype]
    wanted = wanted.to(dtype)
    assert torch.allclose(found, wanted, rtol=limit, atol=limit, equal_nan=True)


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
