"""The windows of short convolutions, moved on by the inputs of some tokens that rings have.

A window has the inputs of the tokens before a position, oldest first; rings have those of the last
tokens of running sequences, each in the place of its position. See ``runtime.model.state_pool``.
"""

import numpy as np
import torch
from torch import Tensor

from kernels.delta_rows import DeltaSpans
from kernels.dispatch import triton_kernels
from kernels.native_arguments import WindowArgs
from kernels.native_library import native_library
from kernels.upload import upload


def move_windows_reference(windows: Tensor, rings: Tensor, spans: DeltaSpans) -> None:
    """In torch.

    Args:
        windows: [slots, layers, taps - 1, channels], changed; never narrower than ``rings``.
        rings: [rings, layers, ring, channels].
        spans: sequences, none twice: where their windows stand, and by how much they move on.
    """
    device, before, ring = windows.device, windows.shape[2], rings.shape[2]
    wanted = (spans.committed + spans.counts)[:, None] + np.arange(-before, 0)
    in_ring = wanted >= spans.committed[:, None]
    window = np.where(in_ring, 0, wanted - spans.committed[:, None] + before)
    there = upload(spans.slots, device)
    old = windows[there[:, None], :, upload(window, device)]
    place = upload(wanted % ring, device)
    new = rings[upload(spans.rings, device)[:, None], :, place].to(old.dtype)
    chosen = torch.where(upload(in_ring, device)[:, :, None, None], new, old)
    windows[there] = chosen.transpose(1, 2)


def move_windows(windows: Tensor, rings: Tensor, spans: DeltaSpans) -> None:
    """See ``move_windows_reference``.

    Raises:
        IndexError: a slot or a ring that is not there; not on a GPU.
    """
    gpu = triton_kernels("conv_windows", windows)
    if gpu is not None:
        gpu.move_windows(windows, rings, spans)
        return None
    library = native_library(rings.dtype) if windows.device.type == "cpu" else None
    in_one_piece = windows[:1].is_contiguous() and rings.is_contiguous()
    if library is None or windows.dtype != torch.float32 or not in_one_piece:
        return move_windows_reference(windows, rings, spans)
    arguments = WindowArgs(
        windows=windows.data_ptr(),
        rings=rings.data_ptr(),
        slots=spans.slots.ctypes.data,
        ring_of=spans.rings.ctypes.data,
        committed=spans.committed.ctypes.data,
        counts=spans.counts.ctypes.data,
        sequences=len(spans.slots),
        layers=windows.shape[1],
        before=windows.shape[2],
        channels=windows.shape[3],
        ring=rings.shape[2],
        slot_stride=windows.stride(0),
        slots_count=len(windows),
        rings_count=len(rings),
    )
    if not library.move_windows(arguments):
        raise IndexError(f"{spans} are not within {windows.shape} and {rings.shape}")
    return None
