"""Windows of convolutions moved on: compiled beside torch, for any number of tokens."""

import numpy as np
import pytest
import torch
from torch import Tensor

import kernels.conv_windows
from kernels.conv_windows import move_windows, move_windows_reference
from kernels.delta_rows import DeltaSpans
from kernels.native_library import native_library, own_threads

DTYPES = [torch.bfloat16, torch.float32, torch.float64]
compiled_here = pytest.mark.skipif(
    native_library(torch.float32) is None, reason="no C++ compiler here"
)


def drawn_windows(
    dtype: torch.dtype, taps: int, channels: int
) -> tuple[Tensor, Tensor, DeltaSpans]:
    """Windows within seven longer slots, of which five move on, by 0 to 32 tokens of four layers,
    from anywhere; each has a ring of its own."""
    numbers = 4 * (taps - 1) * channels
    windows = torch.randn(7, numbers + 9, dtype=torch.promote_types(dtype, torch.float32))[
        :, :numbers
    ]
    rings = torch.randn(5, 4, 32, channels).to(dtype)
    spans = DeltaSpans(
        slots=torch.randperm(7)[:5].numpy(),
        rings=torch.randperm(5).numpy(),
        committed=torch.randint(0, 1000, (5,)).numpy(),
        counts=np.array([0, 1, 2, *torch.randint(1, 33, (2,)).tolist()]),
    )
    return windows.view(7, 4, taps - 1, channels), rings, spans


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("taps", "channels"), [(2, 5), (3, 96), (4, 1536), (7, 40)])
def test_windows_move_on_as_by_the_reference(
    taps: int, channels: int, dtype: torch.dtype, threads: int
) -> None:
    own_threads(threads)
    for _ in range(5):
        windows, rings, spans = drawn_windows(dtype, taps, channels)
        expected = windows.clone()
        move_windows_reference(expected, rings, spans)
        move_windows(windows, rings, spans)
        assert torch.equal(windows, expected), spans


@compiled_here
@pytest.mark.parametrize("wrong", ["slots", "rings", "committed", "counts"])
def test_a_window_or_a_ring_that_is_not_there_is_refused(wrong: str) -> None:
    windows, rings, spans = drawn_windows(torch.float32, 4, 8)
    before = windows.clone()
    getattr(spans, wrong)[-1] = -1
    with pytest.raises(IndexError, match="not within"):
        move_windows(windows, rings, spans)
    assert torch.equal(windows, before)


@compiled_here
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_the_compiled_one_is_taken_where_it_is(
    dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("torch does it")

    given = drawn_windows(dtype, 4, 8)
    monkeypatch.setattr(kernels.conv_windows, "move_windows_reference", refuse)
    move_windows(*given)
    monkeypatch.setattr(kernels.conv_windows, "native_library", lambda _: None)
    with pytest.raises(AssertionError, match="torch does it"):
        move_windows(*given)
