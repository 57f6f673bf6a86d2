"""Triton's short convolution against its reference."""

import numpy as np
import pytest
import torch

from kernels.short_conv import ConvRows, ConvWeights, short_conv, short_conv_reference

TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 3e-2}


@pytest.fixture(autouse=True)
def _triton_everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kernels.dispatch.SETTING", "triton")


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize(("taps", "channels"), [(3, 64), (4, 700)])
def test_outputs_agree_with_the_reference_whatever_lies_before_a_step(
    taps: int, channels: int, bias: bool, dtype: torch.dtype, device: torch.device
) -> None:
    torch.manual_seed(taps)
    slots = torch.tensor([2, 0, 3])
    rows = ConvRows(slots=slots.to(device), starts=np.array([0, 1, 3, 9]), taps=taps)
    inputs = torch.randn(9, channels).to(dtype)
    weights = ConvWeights(
        taps=torch.randn(taps, channels), bias=torch.randn(channels) if bias else None
    )
    whole = torch.randn(4, 2, taps - 1, channels)
    on_device = ConvWeights(
        taps=weights.taps.to(device),
        bias=None if weights.bias is None else weights.bias.to(device),
    )
    found = short_conv(inputs.to(device), on_device, whole.to(device)[:, 1], rows)
    there = ConvRows(slots=slots, starts=rows.starts, taps=taps)
    wanted = short_conv_reference(inputs, weights, whole[:, 1], there)
    limit = TOLERANCE[dtype]
    assert torch.allclose(found.cpu().float(), wanted.float(), rtol=limit, atol=limit)
