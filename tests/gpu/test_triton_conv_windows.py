"""Triton's moves of windows against torch's."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from kernels.conv_windows import move_windows, move_windows_reference
from kernels.delta_rows import DeltaSpans

RING = 8


@pytest.fixture(autouse=True)
def _triton_everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kernels.dispatch.SETTING", "triton")


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize(("before", "channels"), [(2, 5), (3, 700)])
@pytest.mark.parametrize("placed", [True, False])
def test_windows_move_by_less_than_they_hold_and_by_more(
    placed: bool, before: int, channels: int, dtype: torch.dtype, device: torch.device
) -> None:
    """One stays, one moves by a token, one by as many as it holds, one across a ring's end."""
    generator = torch.Generator().manual_seed(channels)
    rows = torch.randn(5, 3 + 2 * before * channels, generator=generator)
    rings = torch.randn(4, 2, RING, channels, generator=generator).to(dtype)
    spans = DeltaSpans(
        slots=np.array([3, 0, 4, 1]),
        rings=np.array([0, 2, 1, 3]),
        committed=np.array([4, 9, 100, 13]),
        counts=np.array([0, 1, before, 6]),
    )
    expected, found = rows.clone(), rows.to(device)

    def windows_of(whole: torch.Tensor) -> torch.Tensor:
        return whole[:, 3:].view(5, 2, before, channels)

    move_windows_reference(windows_of(expected), rings, spans)
    given = replace(spans, there=spans.on(device)) if placed else spans
    move_windows(windows_of(found), rings.to(device), given)
    assert torch.equal(found.cpu(), expected)
