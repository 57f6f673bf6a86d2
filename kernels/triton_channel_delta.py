"""Prompts by the gated delta rule with decays by channel, chunk by chunk, in Triton.

What ``kernels.channel_delta`` says, in three kernels. Two do what asks for no matrix, for all
chunks of a step beside each other. The first goes through a chunk's tokens: it holds each key with
what the tokens behind it have left of it, number by number, so that all factors are at most 1 and
no digits are lost in differences of logarithms; what queries see of keys and the inverse of the
chunk's triangular system come of it row by row. The second multiplies keys and values by that
inverse, and leaves queries as they find the matrix before the chunk and keys as they are behind it.
The third has some columns of one head's matrix in registers and goes from chunk to chunk with
products alone, once for the corrected values and once for what queries find.

A token lies in its chunk where its position does, so that a step cut at multiples of ``CHUNK`` has
the bits of one that was not. Import this module only where Triton is to run; ``kernels.dispatch``
decides that.
"""

from typing import Any, Final, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.delta_rows import CHUNK, DeltaPlaces
from kernels.gated_delta import DeltaInputs, DeltaOutputs
from kernels.launching import launch
from kernels.triton_delta import sizes_of, tiles_of
from kernels.triton_delta_chunks import (
    CHUNK_STAGES,
    CHUNK_WARPS,
    PRECISION,
    WITHIN_WARPS,
    block_of,
    columns_of,
    part_of,
    some_of,
    store_columns,
)

COUNTED_EACH: Final = 32
"""Numbers of keys and of values that a program of ``channel_turned_kernel`` has."""


@triton.jit
def channel_within_kernel(
    queries_ptr,
    keys_ptr,
    decays_ptr,
    betas_ptr,
    firsts_ptr,
    lows_ptr,
    highs_ptr,
    seen_ptr,
    solved_ptr,
    KEY_HEADS: tl.constexpr,
    VALUE_HEADS: tl.constexpr,
    KEY_DIM: tl.constexpr,
    BLOCK_K: tl.constexpr,
    CHUNK: tl.constexpr,
):
    """One chunk and head: how much each query sees of each key before it, q_i diag(what is left at
    i of token j) k_j, and the inverse of I + tril(beta_i k_i diag(the same) k_j, -1). Rows of
    tokens that are not of the step stay as they are. Grid: (chunks, heads)."""
    chunk, head = tl.program_id(0), tl.program_id(1)
    key_head = head // (VALUE_HEADS // KEY_HEADS)
    low, high = tl.load(lows_ptr + chunk), tl.load(highs_ptr + chunk)
    if low == high:  # one that a recording has room for, and this step has not
        return
    r = tl.arange(0, CHUNK)
    k = tl.arange(0, BLOCK_K)
    first = tl.load(firsts_ptr + chunk)
    place = (chunk.to(tl.int64) * VALUE_HEADS + head) * CHUNK * CHUNK
    held = tl.zeros((CHUNK, BLOCK_K), tl.float32)
    inverse = tl.where(r[:, None] == r[None, :], 1.0, 0.0)
    for row in range(low, high):
        token = first + row
        of_head = token * VALUE_HEADS + head
        of_key = (token * KEY_HEADS + key_head) * KEY_DIM + k
        key = tl.load(keys_ptr + of_key, mask=k < KEY_DIM, other=0.0)
        query = tl.load(queries_ptr + of_key, mask=k < KEY_DIM, other=0.0)
        decay = tl.load(decays_ptr + of_head * KEY_DIM + k, mask=k < KEY_DIM, other=0.0)
        chosen = (r == row)[:, None]
        held = tl.where(chosen, key[None, :], held * tl.exp(decay)[None, :])
        tl.store(seen_ptr + place + row * CHUNK + r, tl.sum(held * query[None, :], 1))
        alike = tl.where(r < row, tl.sum(held * key[None, :], 1), 0.0)
        weights = alike * tl.load(betas_ptr + of_head)
        taken = tl.sum(weights[:, None] * inverse, 0)
        inverse = tl.where(chosen, inverse - taken[None, :], inverse)
    tl.store(solved_ptr + place + r[:, None] * CHUNK + r[None, :], inverse)


@triton.jit
def _left_behind(decays_ptr, of_head, r, low, high, n, VALUE_HEADS: tl.constexpr, KEY_DIM):
    """Shares that are left of numbers ``n``: of the keys of a chunk's tokens ``low`` to ``high``
    behind all of them, and of a matrix. Sums are of the tokens behind alone, the last one's of
    none: nothing is subtracted."""
    known = (r >= low)[:, None] & (n < KEY_DIM)[None, :]
    cells = (of_head * KEY_DIM)[:, None] + n[None, :]
    own = tl.load(decays_ptr + cells, mask=known & (r < high)[:, None], other=0.0)
    later = known & (r + 1 < high)[:, None]
    behind = tl.load(decays_ptr + VALUE_HEADS * KEY_DIM + cells, mask=later, other=0.0)
    return tl.exp(tl.cumsum(behind, 0, reverse=True)), tl.exp(tl.sum(own, 0))


@triton.jit
def channel_turned_kernel(
    queries_ptr,
    keys_ptr,
    values_ptr,
    decays_ptr,
    betas_ptr,
    firsts_ptr,
    lows_ptr,
    highs_ptr,
    solved_ptr,
    turned_keys_ptr,
    turned_values_ptr,
    asking_ptr,
    behind_ptr,
    left_ptr,
    KEY_HEADS: tl.constexpr,
    VALUE_HEADS: tl.constexpr,
    KEY_DIM: tl.constexpr,
    VALUE_DIM: tl.constexpr,
    BLOCK: tl.constexpr,
    CHUNK: tl.constexpr,
):
    """BLOCK numbers of a chunk for one head: keys and values times the inverse (W and U of
    u = U - W S, with which tokens correct a matrix S), queries as they ask the matrix before the
    chunk, keys as they are behind it, and what is left of the matrix.
    Grid: (chunks, heads, tiles of the longer of keys and values)."""
    chunk, head = tl.program_id(0), tl.program_id(1)
    key_head = head // (VALUE_HEADS // KEY_HEADS)
    low, high = tl.load(lows_ptr + chunk), tl.load(highs_ptr + chunk)
    if low == high:
        return
    r = tl.arange(0, CHUNK)
    n = tl.program_id(2) * BLOCK + tl.arange(0, BLOCK)
    here = (r >= low) & (r < high)
    tokens = tl.load(firsts_ptr + chunk) + r
    rows = (tokens * KEY_HEADS + key_head) * KEY_DIM
    of_head = tokens * VALUE_HEADS + head
    betas = tl.load(betas_ptr + of_head, mask=here, other=0.0)[:, None]
    place = (chunk.to(tl.int64) * VALUE_HEADS + head) * CHUNK * CHUNK
    solved = tl.load(solved_ptr + place + r[:, None] * CHUNK + r[None, :])
    values = part_of(values_ptr, of_head * VALUE_DIM, here, n, VALUE_DIM)
    values = tl.dot(solved, values * betas, input_precision=PRECISION)
    cells = (of_head * VALUE_DIM)[:, None] + n[None, :]
    tl.store(turned_values_ptr + cells, values, mask=here[:, None] & (n < VALUE_DIM)[None, :])
    cells = (of_head * KEY_DIM)[:, None] + n[None, :]
    wanted = here[:, None] & (n < KEY_DIM)[None, :]
    reach = tl.exp(tl.cumsum(part_of(decays_ptr, of_head * KEY_DIM, here, n, KEY_DIM), 0))
    keys = part_of(keys_ptr, rows, here, n, KEY_DIM)
    turned = tl.dot(solved, keys * betas * reach, input_precision=PRECISION)
    tl.store(turned_keys_ptr + cells, turned, mask=wanted)
    queries = part_of(queries_ptr, rows, here, n, KEY_DIM)
    tl.store(asking_ptr + cells, queries * reach, mask=wanted)
    kept, left = _left_behind(decays_ptr, of_head, r, low, high, n, VALUE_HEADS, KEY_DIM)
    tl.store(behind_ptr + cells, keys * kept, mask=wanted)
    tl.store(left_ptr + (chunk * VALUE_HEADS + head) * KEY_DIM + n, left, mask=n < KEY_DIM)


@triton.jit
def _taken_on(
    state,
    found,
    behind_ptr,
    left_ptr,
    of_head,
    of_chunk,
    here,
    k,
    KEY_DIM: tl.constexpr,
):
    """Rows ``k`` of a matrix behind a chunk whose corrected values are ``found``."""
    left = tl.load(left_ptr + of_chunk * KEY_DIM + k, mask=k < KEY_DIM, other=0.0)
    keys = tl.trans(part_of(behind_ptr, of_head * KEY_DIM, here, k, KEY_DIM))
    return state * left[:, None] + tl.dot(keys, found, input_precision=PRECISION)


@triton.jit
def channel_chunks_kernel(
    values_ptr,
    turned_keys_ptr,
    asking_ptr,
    behind_ptr,
    left_ptr,
    matrices_ptr,
    slots_ptr,
    begins_ptr,
    firsts_ptr,
    lows_ptr,
    highs_ptr,
    seen_ptr,
    handed_in_ptr,
    handed_to_ptr,
    mixed_ptr,
    corrected_ptr,
    handed_ptr,
    matrix_stride,
    VALUE_HEADS: tl.constexpr,
    KEY_DIM: tl.constexpr,
    VALUE_DIM: tl.constexpr,
    BLOCK_K: tl.constexpr,
    SPLIT: tl.constexpr,
    BLOCK_V: tl.constexpr,
    CHUNK: tl.constexpr,
    MIXES: tl.constexpr,
):
    """One sequence, one head, BLOCK_V columns: corrected values, and the matrix before the chunk
    within which it is handed out; or, behind that, what queries find.
    Grid: (sequences, heads, tiles of columns)."""
    sequence, head = tl.program_id(0), tl.program_id(1)
    k = tl.arange(0, BLOCK_K)
    v = tl.program_id(2) * BLOCK_V + tl.arange(0, BLOCK_V)
    r = tl.arange(0, CHUNK)
    if tl.load(begins_ptr + sequence) == tl.load(begins_ptr + sequence + 1):
        return
    place = tl.load(slots_ptr + sequence) * matrix_stride + head * KEY_DIM * VALUE_DIM
    state = columns_of(matrices_ptr + place, k, v, KEY_DIM, VALUE_DIM)
    below = state
    if SPLIT:
        below = columns_of(matrices_ptr + place, BLOCK_K + k, v, KEY_DIM, VALUE_DIM)
    handed_in = tl.load(handed_in_ptr + sequence)
    for chunk in range(tl.load(begins_ptr + sequence), tl.load(begins_ptr + sequence + 1)):
        low, high = tl.load(lows_ptr + chunk), tl.load(highs_ptr + chunk)
        here = (r >= low) & (r < high)
        tokens = tl.load(firsts_ptr + chunk) + r
        of_head = tokens * VALUE_HEADS + head
        of_chunk = chunk * VALUE_HEADS + head
        of_value = of_head[:, None] * VALUE_DIM + v[None, :]
        value_here = here[:, None] & (v < VALUE_DIM)[None, :]
        found = tl.load(values_ptr + of_value, mask=value_here, other=0.0)
        if MIXES:
            asking = part_of(asking_ptr, of_head * KEY_DIM, here, k, KEY_DIM)
            mixed = tl.dot(asking, state, input_precision=PRECISION)
            if SPLIT:
                asking = part_of(asking_ptr, of_head * KEY_DIM, here, BLOCK_K + k, KEY_DIM)
                mixed += tl.dot(asking, below, input_precision=PRECISION)
            cells = of_chunk * CHUNK * CHUNK + r[:, None] * CHUNK + r[None, :]
            seen = tl.load(seen_ptr + cells, mask=here[:, None], other=0.0)
            mixed += tl.dot(seen, found, input_precision=PRECISION)
            tl.store(mixed_ptr + of_value, mixed, mask=value_here)
        else:
            turned = part_of(turned_keys_ptr, of_head * KEY_DIM, here, k, KEY_DIM)
            found -= tl.dot(turned, state, input_precision=PRECISION)
            if SPLIT:
                turned = part_of(turned_keys_ptr, of_head * KEY_DIM, here, BLOCK_K + k, KEY_DIM)
                found -= tl.dot(turned, below, input_precision=PRECISION)
            tl.store(corrected_ptr + of_value, found, mask=value_here)
            if chunk == handed_in:
                number = tl.load(handed_to_ptr + sequence) * VALUE_HEADS + head
                out_ptr = handed_ptr + number * KEY_DIM * VALUE_DIM
                store_columns(out_ptr, k, v, state, KEY_DIM, VALUE_DIM)
                if SPLIT:
                    store_columns(out_ptr, BLOCK_K + k, v, below, KEY_DIM, VALUE_DIM)
        state = _taken_on(state, found, behind_ptr, left_ptr, of_head, of_chunk, here, k, KEY_DIM)
        if SPLIT:
            below = _taken_on(
                below, found, behind_ptr, left_ptr, of_head, of_chunk, here, BLOCK_K + k, KEY_DIM
            )


@triton.jit
def channel_handed_kernel(
    keys_ptr,
    decays_ptr,
    begins_ptr,
    firsts_ptr,
    lows_ptr,
    handed_in_ptr,
    handed_at_ptr,
    handed_to_ptr,
    corrected_ptr,
    handed_ptr,
    KEY_HEADS: tl.constexpr,
    VALUE_HEADS: tl.constexpr,
    KEY_DIM: tl.constexpr,
    VALUE_DIM: tl.constexpr,
    BLOCK: tl.constexpr,
    BLOCK_V: tl.constexpr,
    CHUNK: tl.constexpr,
):
    """A matrix that is handed out, from before its chunk to behind the tokens that count: BLOCK
    rows and BLOCK_V columns, as many as ``channel_chunks_kernel`` multiplies at once, so that both
    give the same bits behind a whole chunk. Grid: (sequences, heads, tiles of rows and columns)."""
    sequence, head = tl.program_id(0), tl.program_id(1)
    chunk = tl.load(handed_in_ptr + sequence)
    nothing = tl.load(begins_ptr + sequence) == tl.load(begins_ptr + sequence + 1)
    if nothing | (chunk < 0):
        return
    tiles = (VALUE_DIM + BLOCK_V - 1) // BLOCK_V
    k = tl.program_id(2) // tiles * BLOCK + tl.arange(0, BLOCK)
    v = tl.program_id(2) % tiles * BLOCK_V + tl.arange(0, BLOCK_V)
    r = tl.arange(0, CHUNK)
    low, at = tl.load(lows_ptr + chunk), tl.load(handed_at_ptr + sequence)
    here = (r >= low) & (r < at)
    tokens = tl.load(firsts_ptr + chunk) + r
    of_head = tokens * VALUE_HEADS + head
    kept, left = _left_behind(decays_ptr, of_head, r, low, at, k, VALUE_HEADS, KEY_DIM)
    rows = (tokens * KEY_HEADS + head // (VALUE_HEADS // KEY_HEADS)) * KEY_DIM
    keys = part_of(keys_ptr, rows, here, k, KEY_DIM) * kept
    found = part_of(corrected_ptr, of_head * VALUE_DIM, here, v, VALUE_DIM)
    number = tl.load(handed_to_ptr + sequence) * VALUE_HEADS + head
    out_ptr = handed_ptr + number * KEY_DIM * VALUE_DIM
    state = columns_of(out_ptr, k, v, KEY_DIM, VALUE_DIM) * left[:, None]
    state += tl.dot(tl.trans(keys), found, input_precision=PRECISION)
    store_columns(out_ptr, k, v, state, KEY_DIM, VALUE_DIM)


class _Turned(NamedTuple):
    """See ``channel_turned_kernel``; rows of sequences without chunks are never read."""

    keys: Tensor
    """[T, V, key_dim]"""
    values: Tensor
    """[T, V, value_dim]"""
    asking: Tensor
    """[T, V, key_dim] queries."""
    behind: Tensor
    """[T, V, key_dim] keys."""
    left: Tensor
    """[C, V, key_dim]"""


def many_by_channel(
    inputs: DeltaInputs,
    matrices: Tensor,
    places: DeltaPlaces[Tensor],
    outputs: DeltaOutputs,
) -> None:
    """Compute the sequences that have chunks, whose matrices are where the step begins. Inputs lie
    in one piece; see ``kernels.triton_delta_steps``. Takes memory of its own for as long: 8 * CHUNK
    * V * CHUNK bytes a chunk, and 4 * V * (3 * key_dim + value_dim) bytes a token of the step."""
    sizes = sizes_of(matrices, inputs.keys.shape[1])
    seen, solved = _within(inputs, places, sizes)
    turned = _turned(inputs, places, solved, sizes)
    grid = len(places.slots), inputs.values.shape[1], tiles_of(matrices)
    through = launch(channel_chunks_kernel, grid)
    constants = some_of(sizes, "VALUE_HEADS", "KEY_DIM", "VALUE_DIM", "BLOCK_V")
    constants |= block_of(inputs.keys.shape[2])
    constants |= {"num_warps": CHUNK_WARPS, "num_stages": CHUNK_STAGES}
    for found, mixes in ((turned.values, False), (outputs.corrected, True)):
        through(
            found,
            turned.keys,
            turned.asking,
            turned.behind,
            turned.left,
            matrices,
            places.slots,
            places.begins,
            places.firsts,
            places.lows,
            places.highs,
            seen,
            places.handed_in,
            places.handed_to,
            outputs.mixed,
            outputs.corrected,
            outputs.handed,
            matrices.stride(0),
            CHUNK=CHUNK,
            MIXES=mixes,
            **constants,
        )
    if len(outputs.handed):
        _hand_out(inputs, places, outputs, sizes)


def _hand_out(
    inputs: DeltaInputs, places: DeltaPlaces[Tensor], outputs: DeltaOutputs, sizes: dict[str, Any]
) -> None:
    """Take matrices that are handed out from before their chunks to where they are."""
    rows = block_of(inputs.keys.shape[2])["BLOCK_K"]
    tiles = triton.cdiv(inputs.keys.shape[2], rows) * tiles_of(outputs.handed)
    grid = len(places.slots), inputs.values.shape[1], tiles
    launch(channel_handed_kernel, grid)(
        inputs.keys,
        inputs.decays,
        places.begins,
        places.firsts,
        places.lows,
        places.handed_in,
        places.handed_at,
        places.handed_to,
        outputs.corrected,
        outputs.handed,
        **some_of(sizes, "KEY_HEADS", "VALUE_HEADS", "KEY_DIM", "VALUE_DIM", "BLOCK_V"),
        BLOCK=rows,
        CHUNK=CHUNK,
        num_warps=CHUNK_WARPS,
    )


def _within(
    inputs: DeltaInputs, places: DeltaPlaces[Tensor], sizes: dict[str, Any]
) -> tuple[Tensor, Tensor]:
    """What queries see of keys, and each chunk's inverse: [C, V, CHUNK, CHUNK] both."""
    assert inputs.betas is not None
    heads = inputs.values.shape[1]
    seen = inputs.decays.new_empty(len(places.firsts), heads, CHUNK, CHUNK)
    solved = torch.empty_like(seen)
    launch(channel_within_kernel, seen.shape[:2])(
        inputs.queries,
        inputs.keys,
        inputs.decays,
        inputs.betas,
        places.firsts,
        places.lows,
        places.highs,
        seen,
        solved,
        **some_of(sizes, "KEY_HEADS", "VALUE_HEADS", "KEY_DIM", "BLOCK_K"),
        CHUNK=CHUNK,
        num_warps=WITHIN_WARPS,
    )
    return seen, solved


def _turned(
    inputs: DeltaInputs, places: DeltaPlaces[Tensor], solved: Tensor, sizes: dict[str, Any]
) -> _Turned:
    assert inputs.betas is not None
    decays, values = inputs.decays, inputs.values
    turned = _Turned(
        keys=torch.empty_like(decays),
        values=torch.empty_like(values),
        asking=torch.empty_like(decays),
        behind=torch.empty_like(decays),
        left=decays.new_empty(len(solved), *decays.shape[1:]),
    )
    tiles = triton.cdiv(max(decays.shape[2], values.shape[2]), COUNTED_EACH)
    launch(channel_turned_kernel, (*solved.shape[:2], tiles))(
        inputs.queries,
        inputs.keys,
        values,
        decays,
        inputs.betas,
        places.firsts,
        places.lows,
        places.highs,
        solved,
        *turned,
        **some_of(sizes, "KEY_HEADS", "VALUE_HEADS", "KEY_DIM", "VALUE_DIM"),
        BLOCK=COUNTED_EACH,
        CHUNK=CHUNK,
        num_warps=WITHIN_WARPS,
    )
    return turned
