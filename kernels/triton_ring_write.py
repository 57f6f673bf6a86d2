"""Rows of some tokens to their places in rings, in Triton.

What ``kernels.ring_write`` says, for up to three kinds of rows in one launch.
Import this module only where Triton is to run; ``kernels.dispatch`` decides that.
"""

import math
from typing import Final

import triton
import triton.language as tl
from torch import Tensor

from kernels.launching import launch
from kernels.ring_write import MOST_PAIRS, RingPlaces

NUMBERS_EACH: Final = 1024
"""Numbers of a row that a program copies."""


@triton.jit
def _copied(rows_ptr, rings_ptr, token, place, tile, SIZE: tl.constexpr, BLOCK: tl.constexpr):
    column = tile * BLOCK + tl.arange(0, BLOCK)
    row = tl.load(rows_ptr + token * SIZE + column, mask=column < SIZE, other=0.0)
    kind = rings_ptr.dtype.element_ty
    tl.store(rings_ptr + place + column, row.to(kind), mask=column < SIZE)


@triton.jit
def ring_write_kernel(
    first_rows_ptr,
    first_rings_ptr,
    second_rows_ptr,
    second_rings_ptr,
    third_rows_ptr,
    third_rings_ptr,
    rings_ptr,
    places_ptr,
    tokens_ptr,
    first_stride,
    second_stride,
    third_stride,
    FIRST: tl.constexpr,
    SECOND: tl.constexpr,
    THIRD: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """BLOCK numbers of one of a token's rows, which have FIRST, SECOND and THIRD; nothing where the
    ring is below 0. Grid: (places, tiles of the three one behind the other)."""
    number, tile = tl.program_id(0), tl.program_id(1)
    ring = tl.load(rings_ptr + number)
    if ring >= 0:
        place, token = tl.load(places_ptr + number), tl.load(tokens_ptr + number)
        behind_first = tl.cdiv(FIRST, BLOCK)
        behind_second = behind_first + tl.cdiv(SECOND, BLOCK)
        if tile < behind_first:
            there = ring * first_stride + place * FIRST
            _copied(first_rows_ptr, first_rings_ptr, token, there, tile, FIRST, BLOCK)
        elif tile < behind_second:
            tile -= behind_first
            there = ring * second_stride + place * SECOND
            _copied(second_rows_ptr, second_rings_ptr, token, there, tile, SECOND, BLOCK)
        else:
            tile -= behind_second
            there = ring * third_stride + place * THIRD
            _copied(third_rows_ptr, third_rings_ptr, token, there, tile, THIRD, BLOCK)


def ring_write(layer: int, places: RingPlaces, *pairs: tuple[Tensor, Tensor]) -> None:
    """See ``kernels.ring_write.ring_write_reference``. Nothing is written where a ring is below 0;
    what lies past rings, places or rows is not looked for.

    Raises:
        ValueError: there are more than ``MOST_PAIRS``.
    """
    if not pairs or len(pairs) > MOST_PAIRS:
        raise ValueError(f"{len(pairs)} kinds of rows are none or more than {MOST_PAIRS}")
    ring, place, token = places
    if not len(ring):
        return
    given = [(rows.contiguous(), rings[:, layer]) for rings, rows in pairs]
    sizes = [math.prod(rows.shape[1:]) for rows, _ in given]
    tiles = sum(triton.cdiv(size, NUMBERS_EACH) for size in sizes)
    missing = MOST_PAIRS - len(given)
    given += given[:1] * missing
    sizes += [0] * missing
    launch(ring_write_kernel, (len(ring), tiles))(
        *(each for pair in given for each in pair),
        ring,
        place,
        token,
        *(rings.stride(0) for _, rings in given),
        FIRST=sizes[0],
        SECOND=sizes[1],
        THIRD=sizes[2],
        BLOCK=NUMBERS_EACH,
        num_warps=4,
    )
