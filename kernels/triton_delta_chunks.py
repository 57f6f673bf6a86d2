"""Prompts by the gated delta rule and by Mamba-2, chunk by chunk, in Triton.

What ``kernels.gated_delta.gated_delta_chunked`` says, in three kernels. Two do what asks for no
matrix, for all chunks of a step beside each other: what queries see of keys, the inverse of each
chunk's triangular system, row by row (forward substitution: powers of a system whose keys are alike
grow beyond single precision before they vanish), and keys and values times that. The third has some
columns of one head's matrix in registers and goes from chunk to chunk with products alone, once for
the corrected values and once for what queries find: both at a time want more registers than there
are.

A token lies in its chunk where its position does, whether the step begins there or before, so that
a step cut at multiples of ``CHUNK`` has the bits of one that was not. Import this module only where
Triton is to run; ``kernels.dispatch`` decides that.
"""

from typing import Any, Final

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.delta_rows import CHUNK, DeltaPlaces
from kernels.gated_delta import DeltaInputs, DeltaOutputs
from kernels.launching import launch
from kernels.triton_delta import sizes_of, tiles_of

LEAST: Final = 16
"""The shortest side of a product of tiles."""
PRECISION = tl.constexpr("tf32x3")
"""Of products: three of halves of the numbers on matrix units, which is nearly float32's."""
WITHIN_WARPS: Final = 8
TURNED_EACH: Final = 64
"""Numbers of keys and of values that a program multiplies by an inverse."""
CHUNK_WARPS: Final = 4
CHUNK_STAGES: Final = 1
"""Loads ahead of the products would need the registers that matrices are in."""


@triton.jit
def part_of(ptr, rows, here, k, KEY_DIM: tl.constexpr):
    """Numbers ``k`` of the keys or queries of a chunk, one row each."""
    wanted = here[:, None] & (k < KEY_DIM)[None, :]
    return tl.load(ptr + rows[:, None] + k[None, :], mask=wanted, other=0.0)


@triton.jit
def _alike(
    left_ptr,
    right_ptr,
    rows,
    here,
    KEY_DIM: tl.constexpr,
    BLOCK_K: tl.constexpr,
    SPLIT: tl.constexpr,
):
    """Products of each key or query of a chunk with each of another kind, or of the same."""
    k = tl.arange(0, BLOCK_K)
    left = part_of(left_ptr, rows, here, k, KEY_DIM)
    right = part_of(right_ptr, rows, here, k, KEY_DIM)
    alike = tl.dot(left, tl.trans(right), input_precision=PRECISION)
    if SPLIT:
        left = part_of(left_ptr, rows, here, BLOCK_K + k, KEY_DIM)
        right = part_of(right_ptr, rows, here, BLOCK_K + k, KEY_DIM)
        alike += tl.dot(left, tl.trans(right), input_precision=PRECISION)
    return alike


@triton.jit
def _between(reach, here, apart):
    """How much of each token of a chunk is left at each other: exp(reach_i - reach_j) where they
    are ``here`` and as far ``apart`` as it counts, else 0."""
    counts = apart & here[:, None] & here[None, :]
    return tl.where(counts, tl.exp(tl.where(counts, reach[:, None] - reach[None, :], 0.0)), 0.0)


@triton.jit
def delta_within_kernel(
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
    SPLIT: tl.constexpr,
    CHUNK: tl.constexpr,
    CORRECTS: tl.constexpr,
):
    """One chunk and head: how much each query sees of each key before it, exp(reach_i - reach_j)
    q_i k_j, and the inverse of I + tril(beta_i exp(reach_i - reach_j) k_i k_j, -1).
    Grid: (chunks, heads)."""
    chunk, head = tl.program_id(0), tl.program_id(1)
    key_head = head // (VALUE_HEADS // KEY_HEADS)
    low, high = tl.load(lows_ptr + chunk), tl.load(highs_ptr + chunk)
    if low == high:  # one that a recording has room for, and this step has not
        return
    r = tl.arange(0, CHUNK)
    here = (r >= low) & (r < high)
    tokens = tl.load(firsts_ptr + chunk) + r
    rows = (tokens * KEY_HEADS + key_head) * KEY_DIM
    of_head = tokens * VALUE_HEADS + head
    reach = tl.cumsum(tl.load(decays_ptr + of_head, mask=here, other=0.0), 0)
    place = (chunk.to(tl.int64) * VALUE_HEADS + head) * CHUNK * CHUNK
    cells = place + r[:, None] * CHUNK + r[None, :]
    seen = _alike(queries_ptr, keys_ptr, rows, here, KEY_DIM, BLOCK_K, SPLIT)
    tl.store(seen_ptr + cells, seen * _between(reach, here, r[:, None] >= r[None, :]))
    if CORRECTS:
        betas = tl.load(betas_ptr + of_head, mask=here, other=0.0)
        alike = _alike(keys_ptr, keys_ptr, rows, here, KEY_DIM, BLOCK_K, SPLIT)
        system = betas[:, None] * _between(reach, here, r[:, None] > r[None, :]) * alike
        inverse = tl.where(r[:, None] == r[None, :], 1.0, 0.0)
        for row in range(low + 1, high):
            chosen = (r == row)[:, None]
            weights = tl.sum(tl.where(chosen, system, 0.0), 0)
            taken = tl.sum(weights[:, None] * inverse, 0)
            inverse = tl.where(chosen, inverse - taken[None, :], inverse)
        tl.store(solved_ptr + cells, inverse)


@triton.jit
def delta_turned_kernel(
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
    KEY_HEADS: tl.constexpr,
    VALUE_HEADS: tl.constexpr,
    KEY_DIM: tl.constexpr,
    VALUE_DIM: tl.constexpr,
    BLOCK: tl.constexpr,
    CHUNK: tl.constexpr,
):
    """BLOCK numbers of a chunk's keys and values for one head, times the inverse: W and U of
    u = U - W S, with which tokens correct a matrix S.
    Grid: (chunks, heads, tiles of the longer of both)."""
    chunk, head = tl.program_id(0), tl.program_id(1)
    key_head = head // (VALUE_HEADS // KEY_HEADS)
    low, high = tl.load(lows_ptr + chunk), tl.load(highs_ptr + chunk)
    if low == high:
        return
    r = tl.arange(0, CHUNK)
    n = tl.program_id(2) * BLOCK + tl.arange(0, BLOCK)
    here = (r >= low) & (r < high)
    tokens = tl.load(firsts_ptr + chunk) + r
    of_head = tokens * VALUE_HEADS + head
    betas = tl.load(betas_ptr + of_head, mask=here, other=0.0)
    reach = tl.cumsum(tl.load(decays_ptr + of_head, mask=here, other=0.0), 0)
    place = (chunk.to(tl.int64) * VALUE_HEADS + head) * CHUNK * CHUNK
    solved = tl.load(solved_ptr + place + r[:, None] * CHUNK + r[None, :])
    keys = part_of(keys_ptr, (tokens * KEY_HEADS + key_head) * KEY_DIM, here, n, KEY_DIM)
    keys = tl.dot(solved, keys * (betas * tl.exp(reach))[:, None], input_precision=PRECISION)
    cells = (of_head * KEY_DIM)[:, None] + n[None, :]
    tl.store(turned_keys_ptr + cells, keys, mask=here[:, None] & (n < KEY_DIM)[None, :])
    values = part_of(values_ptr, of_head * VALUE_DIM, here, n, VALUE_DIM)
    values = tl.dot(solved, values * betas[:, None], input_precision=PRECISION)
    cells = (of_head * VALUE_DIM)[:, None] + n[None, :]
    tl.store(turned_values_ptr + cells, values, mask=here[:, None] & (n < VALUE_DIM)[None, :])


@triton.jit
def _kept(found, decays, r, low, high):
    """What tokens ``low`` to ``high`` of a chunk add to a matrix by its keys, and how much of it is
    left. The last token's own is all of it, to the bit, however much the others have faded."""
    chosen = (r >= low) & (r < high)
    reach = tl.cumsum(tl.where(chosen, decays, 0.0), 0)
    last = tl.sum(tl.where(r == high - 1, reach, 0.0), 0)
    weights = tl.where(chosen, tl.exp(last - reach), 0.0)
    return found * weights[:, None], tl.exp(last)


@triton.jit
def columns_of(matrix_ptr, k, v, KEY_DIM: tl.constexpr, VALUE_DIM: tl.constexpr):
    known = (k < KEY_DIM)[:, None] & (v < VALUE_DIM)[None, :]
    return tl.load(matrix_ptr + k[:, None] * VALUE_DIM + v[None, :], mask=known, other=0.0)


@triton.jit
def store_columns(cells_ptr, k, v, state, KEY_DIM: tl.constexpr, VALUE_DIM: tl.constexpr):
    known = (k < KEY_DIM)[:, None] & (v < VALUE_DIM)[None, :]
    tl.store(cells_ptr + k[:, None] * VALUE_DIM + v[None, :], state, mask=known)


@triton.jit
def delta_chunks_kernel(
    queries_ptr,
    keys_ptr,
    values_ptr,
    decays_ptr,
    turned_keys_ptr,
    matrices_ptr,
    slots_ptr,
    begins_ptr,
    firsts_ptr,
    lows_ptr,
    highs_ptr,
    seen_ptr,
    handed_in_ptr,
    handed_at_ptr,
    handed_to_ptr,
    mixed_ptr,
    corrected_ptr,
    handed_ptr,
    matrix_stride,
    KEY_HEADS: tl.constexpr,
    VALUE_HEADS: tl.constexpr,
    KEY_DIM: tl.constexpr,
    VALUE_DIM: tl.constexpr,
    BLOCK_K: tl.constexpr,
    SPLIT: tl.constexpr,
    BLOCK_V: tl.constexpr,
    CHUNK: tl.constexpr,
    CORRECTS: tl.constexpr,
    MIXES: tl.constexpr,
):
    """One sequence, one head, BLOCK_V columns: corrected values and matrices that are handed out,
    or, behind that, what queries find. Grid: (sequences, heads, tiles of columns)."""
    sequence, head = tl.program_id(0), tl.program_id(1)
    key_head = head // (VALUE_HEADS // KEY_HEADS)
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
        rows = (tokens * KEY_HEADS + key_head) * KEY_DIM
        of_head = tokens * VALUE_HEADS + head
        of_value = of_head[:, None] * VALUE_DIM + v[None, :]
        value_here = here[:, None] & (v < VALUE_DIM)[None, :]
        found = tl.load(values_ptr + of_value, mask=value_here, other=0.0)
        decays = tl.load(decays_ptr + of_head, mask=here, other=0.0)
        before = tl.exp(tl.cumsum(decays, 0))[:, None]
        cells = (chunk * VALUE_HEADS + head) * CHUNK * CHUNK + r[:, None] * CHUNK + r[None, :]
        if CORRECTS:
            turned = part_of(turned_keys_ptr, of_head * KEY_DIM, here, k, KEY_DIM)
            found -= tl.dot(turned, state, input_precision=PRECISION)
            if SPLIT:
                turned = part_of(turned_keys_ptr, of_head * KEY_DIM, here, BLOCK_K + k, KEY_DIM)
                found -= tl.dot(turned, below, input_precision=PRECISION)
        if MIXES:
            queries = part_of(queries_ptr, rows, here, k, KEY_DIM)
            mixed = tl.dot(queries, state, input_precision=PRECISION)
            if SPLIT:
                queries = part_of(queries_ptr, rows, here, BLOCK_K + k, KEY_DIM)
                mixed += tl.dot(queries, below, input_precision=PRECISION)
            mixed = mixed * before
            mixed += tl.dot(tl.load(seen_ptr + cells), found, input_precision=PRECISION)
            tl.store(mixed_ptr + of_value, mixed, mask=value_here)
        else:
            tl.store(corrected_ptr + of_value, found, mask=value_here)
            if chunk == handed_in:
                added, left = _kept(found, decays, r, low, tl.load(handed_at_ptr + sequence))
                number = tl.load(handed_to_ptr + sequence) * VALUE_HEADS + head
                out_ptr = handed_ptr + number * KEY_DIM * VALUE_DIM
                columns = tl.trans(part_of(keys_ptr, rows, here, k, KEY_DIM))
                out = state * left + tl.dot(columns, added, input_precision=PRECISION)
                store_columns(out_ptr, k, v, out, KEY_DIM, VALUE_DIM)
                if SPLIT:
                    columns = tl.trans(part_of(keys_ptr, rows, here, BLOCK_K + k, KEY_DIM))
                    out = below * left + tl.dot(columns, added, input_precision=PRECISION)
                    store_columns(out_ptr, BLOCK_K + k, v, out, KEY_DIM, VALUE_DIM)
        added, left = _kept(found, decays, r, low, high)
        columns = tl.trans(part_of(keys_ptr, rows, here, k, KEY_DIM))
        state = state * left + tl.dot(columns, added, input_precision=PRECISION)
        if SPLIT:
            columns = tl.trans(part_of(keys_ptr, rows, here, BLOCK_K + k, KEY_DIM))
            below = below * left + tl.dot(columns, added, input_precision=PRECISION)


def block_of(key_dim: int) -> dict[str, Any]:
    """Constants of how many numbers of a key are looked at together: all, or one half and then the
    other, so that what products take apart fits into registers."""
    whole = max(LEAST, triton.next_power_of_2(key_dim))
    split = whole >= 2 * LEAST
    return {"BLOCK_K": whole // 2 if split else whole, "SPLIT": split}


def many_tokens(
    inputs: DeltaInputs,
    matrices: Tensor,
    places: DeltaPlaces[Tensor],
    outputs: DeltaOutputs,
) -> None:
    """Compute the sequences that have chunks, whose matrices are where the step begins. Inputs lie
    in one piece; see ``kernels.triton_delta_steps``. Takes memory of its own for as long: 8 * CHUNK
    * V * CHUNK bytes a chunk, and up to 4 * V * (key_dim + value_dim) bytes a token of the step."""
    corrects = inputs.betas is not None
    sizes = sizes_of(matrices, inputs.keys.shape[1]) | block_of(inputs.keys.shape[2])
    seen, solved = _within(inputs, places, sizes)
    before, turned_keys = inputs.values, inputs.keys
    if corrects:
        turned_keys, before = _turned(inputs, places, solved, sizes)
    grid = len(places.slots), inputs.values.shape[1], tiles_of(matrices)
    through = launch(delta_chunks_kernel, grid)
    sizes |= {"num_warps": CHUNK_WARPS, "num_stages": CHUNK_STAGES}
    for found, mixes in ((before, False), (outputs.corrected, True)):
        through(
            inputs.queries,
            inputs.keys,
            found,
            inputs.decays,
            turned_keys,
            matrices,
            places.slots,
            places.begins,
            places.firsts,
            places.lows,
            places.highs,
            seen,
            places.handed_in,
            places.handed_at,
            places.handed_to,
            outputs.mixed,
            outputs.corrected,
            outputs.handed,
            matrices.stride(0),
            CHUNK=CHUNK,
            CORRECTS=corrects and not mixes,
            MIXES=mixes,
            **sizes,
        )


def _within(
    inputs: DeltaInputs, places: DeltaPlaces[Tensor], sizes: dict[str, Any]
) -> tuple[Tensor, Tensor]:
    """What queries see of keys, and each chunk's inverse: [C, V, CHUNK, CHUNK] both; where nothing
    is corrected the second is never read."""
    decays, corrects = inputs.decays, inputs.betas is not None
    seen = decays.new_empty(len(places.firsts), decays.shape[1], CHUNK, CHUNK)
    solved = torch.empty_like(seen) if corrects else seen
    launch(delta_within_kernel, seen.shape[:2])(
        inputs.queries,
        inputs.keys,
        decays,
        decays if inputs.betas is None else inputs.betas,
        places.firsts,
        places.lows,
        places.highs,
        seen,
        solved,
        **some_of(sizes, "KEY_HEADS", "VALUE_HEADS", "KEY_DIM", "BLOCK_K", "SPLIT"),
        CHUNK=CHUNK,
        CORRECTS=corrects,
        num_warps=WITHIN_WARPS,
    )
    return seen, solved


def _turned(
    inputs: DeltaInputs, places: DeltaPlaces[Tensor], solved: Tensor, sizes: dict[str, Any]
) -> tuple[Tensor, Tensor]:
    """Keys [T, V, key_dim] and values [T, V, value_dim] by which tokens correct a matrix; those of
    sequences without chunks are never read."""
    assert inputs.betas is not None
    keys, values = inputs.keys, inputs.values
    turned_keys = keys.new_empty(*values.shape[:2], keys.shape[2])
    turned_values = torch.empty_like(values)
    tiles = triton.cdiv(max(keys.shape[2], values.shape[2]), TURNED_EACH)
    launch(delta_turned_kernel, (*solved.shape[:2], tiles))(
        keys,
        values,
        inputs.decays,
        inputs.betas,
        places.firsts,
        places.lows,
        places.highs,
        solved,
        turned_keys,
        turned_values,
        **some_of(sizes, "KEY_HEADS", "VALUE_HEADS", "KEY_DIM", "VALUE_DIM"),
        BLOCK=TURNED_EACH,
        CHUNK=CHUNK,
        num_warps=WITHIN_WARPS,
    )
    return turned_keys, turned_values


def some_of(sizes: dict[str, Any], *names: str) -> dict[str, Any]:
    return {name: sizes[name] for name in names}
