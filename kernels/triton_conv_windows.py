"""The windows of short convolutions, moved on by what rings have, in Triton.

What ``kernels.conv_windows`` says, of all layers in one launch.
Import this module only where Triton is to run; ``kernels.dispatch`` decides that.
"""

from typing import Final

import triton
import triton.language as tl
from torch import Tensor

from kernels.delta_rows import DeltaSpans
from kernels.launching import launch

CHANNELS_EACH: Final = 512
"""Channels of one program."""


@triton.jit
def move_windows_kernel(
    windows_ptr,
    rings_ptr,
    slots_ptr,
    ring_of_ptr,
    committed_ptr,
    counts_ptr,
    channels,
    window_stride,
    ring_stride,
    BEFORE: tl.constexpr,
    RING: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """BLOCK channels of one sequence and layer, oldest token first, so that no number is written
    before it was read. Grid: (sequences, layers, tiles of channels)."""
    sequence, layer = tl.program_id(0), tl.program_id(1)
    count = tl.load(counts_ptr + sequence)
    if count > 0:
        column = tl.program_id(2) * BLOCK + tl.arange(0, BLOCK)
        known = column < channels
        committed = tl.load(committed_ptr + sequence)
        window = windows_ptr + tl.load(slots_ptr + sequence) * window_stride
        window += layer * BEFORE * channels + column
        ring = rings_ptr + tl.load(ring_of_ptr + sequence) * ring_stride
        ring += layer * RING * channels + column
        for tap in tl.static_range(BEFORE):
            behind = count - BEFORE + tap
            new = behind >= 0
            place = (committed + tl.maximum(behind, 0)) % RING
            added = tl.load(ring + place * channels, mask=known & new, other=0.0)
            older = tl.where(new, 0, count + tap)
            kept = tl.load(window + older * channels, mask=known & (not new), other=0.0)
            kind = windows_ptr.dtype.element_ty
            tl.store(window + tap * channels, tl.where(new, added.to(kind), kept), mask=known)


def move_windows(windows: Tensor, rings: Tensor, spans: DeltaSpans) -> None:
    """See ``kernels.conv_windows.move_windows_reference``; what lies past windows and rings is not
    looked for."""
    if not len(spans.slots):
        return
    _, layers, before, channels = windows.shape
    grid = len(spans.slots), layers, triton.cdiv(channels, CHANNELS_EACH)
    launch(move_windows_kernel, grid)(
        windows,
        rings,
        *spans.on(windows.device),
        channels,
        windows.stride(0),
        rings.stride(0),
        BEFORE=before,
        RING=rings.shape[2],
        BLOCK=CHANNELS_EACH,
        num_warps=4,
    )
