"""Rows of some tokens to their places in the rings of their sequences.

A ring has what the last tokens of a running sequence left, each in the place of its position; which
ring and place that is, is said by who keeps them (``runtime.model.state_pool``).
"""

import math
from typing import Final

from torch import Tensor

from kernels.dispatch import triton_kernels
from kernels.native_arguments import RingWriteArgs
from kernels.native_library import native_library

RingPlaces = tuple[Tensor, Tensor, Tensor]
"""Rings, places in them, and the tokens that go there; int64 [N], no place twice."""

MOST_PAIRS: Final = 3
"""The kinds of rows that one launch on a GPU writes."""


def ring_write_reference(layer: int, places: RingPlaces, *pairs: tuple[Tensor, Tensor]) -> None:
    """In torch.

    Args:
        layer: of the rings.
        places: what goes where.
        pairs: rings [rings, layers, ring, ...], written, and the rows [T, ...] that go there.
    """
    ring, place, token = places
    for rings, rows in pairs:
        rings[ring, layer, place] = rows[token].to(rings.dtype)


def ring_write(layer: int, places: RingPlaces, *pairs: tuple[Tensor, Tensor]) -> None:
    """See ``ring_write_reference``.

    Raises:
        IndexError: a ring, a place or a token that is not there; not on a GPU.
        ValueError: none, or more than ``MOST_PAIRS`` pairs; on a GPU.
    """
    gpu = triton_kernels("ring_write", pairs[0][0])
    if gpu is not None:
        gpu.ring_write(layer, places, *pairs)
        return None
    ours = all(_are_alike(layer, *pair) for pair in pairs)
    library = native_library(pairs[0][0].dtype) if ours else None
    if library is None:
        return ring_write_reference(layer, places, *pairs)
    whole = [(rings, rows.contiguous()) for rings, rows in pairs]
    writes = (RingWriteArgs * len(whole))(*(_write(layer, places, *pair) for pair in whole))
    if library.ring_write(writes, len(writes)) < len(writes):
        rings, rows = whole[0]
        raise IndexError(f"{places} are not within {rings.shape[:3]} and {len(rows)} tokens")
    return None


def _are_alike(layer: int, rings: Tensor, rows: Tensor) -> bool:
    """Whether rows can be copied to these rings byte by byte."""
    return (
        rings.device.type == "cpu"
        and rings.dtype == rows.dtype
        and rings.is_contiguous()
        and rings.shape[3:] == rows.shape[1:]
        and 0 <= layer < rings.shape[1]
    )


def _write(layer: int, places: RingPlaces, rings: Tensor, rows: Tensor) -> RingWriteArgs:
    ring, place, token = places
    many, _, size = rings.shape[:3]
    itemsize = rings.itemsize
    return RingWriteArgs(
        rows=rows.data_ptr(),
        rings=rings.data_ptr() + layer * rings.stride(1) * itemsize,
        ring_of=ring.data_ptr(),
        place=place.data_ptr(),
        token=token.data_ptr(),
        count=len(ring),
        row_size=math.prod(rows.shape[1:]) * itemsize,
        ring_stride=rings.stride(0) * itemsize,
        place_stride=rings.stride(2) * itemsize,
        tokens=len(rows),
        rings_count=many,
        ring=size,
    )
