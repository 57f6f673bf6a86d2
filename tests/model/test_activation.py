"""SiLU(gate) * up: every way against the reference."""

import pytest
import torch

import kernels.activation
from kernels.activation import silu_mul, silu_mul_reference


def test_the_reference_is_gate_times_its_logistic_times_up() -> None:
    gate, up = torch.randn(2, 6, 40, dtype=torch.float64).unbind()
    expected = gate / (1 + torch.exp(-gate)) * up
    assert torch.allclose(silu_mul_reference(torch.cat((gate, up), -1)), expected)


@pytest.mark.parametrize(
    ("dtype", "tolerance"),
    [(torch.float64, 1e-12), (torch.float32, 1e-6), (torch.bfloat16, 1e-2)],
)
@pytest.mark.parametrize("compiled", [True, False])
def test_every_way_agrees_with_the_reference(
    dtype: torch.dtype, tolerance: float, compiled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not compiled:
        monkeypatch.setattr(kernels.activation, "native_library", lambda _: None)
    for tokens in (1, 3, 90):
        gate_up = torch.randn(tokens, 2 * 1000).to(dtype) * 5
        expected = silu_mul_reference(gate_up)
        assert torch.allclose(silu_mul(gate_up), expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("value", [-1e4, -90.0, 90.0, 1e4])
def test_extreme_gates_neither_overflow_nor_turn_nan(value: float) -> None:
    gate_up = torch.tensor([[value, 1.0]])
    assert torch.allclose(silu_mul(gate_up), silu_mul_reference(gate_up), atol=1e-30)
