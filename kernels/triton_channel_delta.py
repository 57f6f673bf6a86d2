"""Prompts by the gated delta rule with decays by channel, token by token, in Triton.

What ``kernels.gated_delta.gated_delta_reference`` says of the sequences that have chunks: a program
has some columns of one head's matrix in registers and goes through its tokens one after the other,
so a state has the same bits wherever a step is cut. Chunk by chunk, in products of tiles, this is
not there yet: a step takes as long as its longest sequence has tokens.
Import this module only where Triton is to run; ``kernels.dispatch`` decides that.
"""

import triton
import triton.language as tl
from torch import Tensor

from kernels.delta_rows import DeltaPlaces
from kernels.gated_delta import DeltaInputs, DeltaOutputs
from kernels.launching import launch
from kernels.triton_delta import sizes_of, tiles_of


@triton.jit
def channel_delta_kernel(
    queries_ptr,
    keys_ptr,
    values_ptr,
    decays_ptr,
    betas_ptr,
    matrices_ptr,
    slots_ptr,
    begins_ptr,
    firsts_ptr,
    lows_ptr,
    highs_ptr,
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
    BLOCK_V: tl.constexpr,
):
    """One sequence, one head, BLOCK_V columns. Grid: (sequences, heads, tiles of columns)."""
    sequence, head = tl.program_id(0), tl.program_id(1)
    key_head = head // (VALUE_HEADS // KEY_HEADS)
    begin, end = tl.load(begins_ptr + sequence), tl.load(begins_ptr + sequence + 1)
    if begin == end:
        return
    k = tl.arange(0, BLOCK_K)
    v = tl.program_id(2) * BLOCK_V + tl.arange(0, BLOCK_V)
    known = (k < KEY_DIM)[:, None] & (v < VALUE_DIM)[None, :]
    cells = k[:, None] * VALUE_DIM + v[None, :]
    place = tl.load(slots_ptr + sequence) * matrix_stride + head * KEY_DIM * VALUE_DIM
    state = tl.load(matrices_ptr + place + cells, mask=known, other=0.0)
    handed_in = tl.load(handed_in_ptr + sequence)
    handed_at = tl.load(handed_at_ptr + sequence)
    number = tl.load(handed_to_ptr + sequence) * VALUE_HEADS + head
    out_ptr = handed_ptr + number * KEY_DIM * VALUE_DIM
    for chunk in range(begin, end):
        first = tl.load(firsts_ptr + chunk)
        for row in range(tl.load(lows_ptr + chunk), tl.load(highs_ptr + chunk)):
            token = first + row
            of_key = (token * KEY_HEADS + key_head) * KEY_DIM + k
            of_head = token * VALUE_HEADS + head
            of_value = of_head * VALUE_DIM + v
            key = tl.load(keys_ptr + of_key, mask=k < KEY_DIM, other=0.0)
            query = tl.load(queries_ptr + of_key, mask=k < KEY_DIM, other=0.0)
            added = tl.load(values_ptr + of_value, mask=v < VALUE_DIM, other=0.0)
            decay = tl.load(decays_ptr + of_head * KEY_DIM + k, mask=k < KEY_DIM, other=0.0)
            state = state * tl.exp(decay)[:, None]
            there = tl.sum(state * key[:, None], 0)
            added = (added - there) * tl.load(betas_ptr + of_head)
            state = state + key[:, None] * added[None, :]
            tl.store(corrected_ptr + of_value, added, mask=v < VALUE_DIM)
            tl.store(mixed_ptr + of_value, tl.sum(state * query[:, None], 0), mask=v < VALUE_DIM)
            handed = (chunk == handed_in) & (row + 1 == handed_at)
            tl.store(out_ptr + cells, state, mask=known & handed)


def many_by_channel(
    inputs: DeltaInputs,
    matrices: Tensor,
    places: DeltaPlaces[Tensor],
    outputs: DeltaOutputs,
) -> None:
    """Compute the sequences that have chunks, whose matrices are where the step begins. Inputs lie
    in one piece; see ``kernels.triton_delta_steps``."""
    assert inputs.betas is not None
    sizes = sizes_of(matrices, inputs.keys.shape[1])
    launch(channel_delta_kernel, (len(places.slots), sizes["VALUE_HEADS"], tiles_of(matrices)))(
        inputs.queries,
        inputs.keys,
        inputs.values,
        inputs.decays,
        inputs.betas,
        matrices,
        places.slots,
        places.begins,
        places.firsts,
        places.lows,
        places.highs,
        places.handed_in,
        places.handed_at,
        places.handed_to,
        outputs.mixed,
        outputs.corrected,
        outputs.handed,
        matrices.stride(0),
        **sizes,
    )
