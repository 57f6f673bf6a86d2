"""Steps of few tokens by the gated delta rule and by Mamba-2, and matrices taken on, in Triton.

What ``kernels.gated_delta`` says, token by token: a program has some columns of one head's matrix
in registers, takes them on by what the ring has for them, writes them back, and goes on with the
step's tokens, whose matrices nobody writes. So a decode reads and writes each matrix once, and a
step that begins where the matrix stands only reads it. Longer steps: ``triton_delta_chunks``.
Import this module only where Triton is to run; ``kernels.dispatch`` decides that.
"""

from typing import Any, Final

import triton
import triton.language as tl
from torch import Tensor

from kernels.delta_rows import DeltaPlaces, DeltaSpans
from kernels.gated_delta import DeltaDue, DeltaInputs, DeltaOutputs, DeltaRings
from kernels.launching import launch

COLUMNS_EACH: Final = 32
WARPS: Final = 4


@triton.jit
def _decay_of(decays_ptr, of_head, k, KEY_DIM: tl.constexpr, BY_CHANNEL: tl.constexpr):
    """The decay of a token's head, or those of all numbers of its key, as a column."""
    if BY_CHANNEL:
        decay = tl.load(decays_ptr + of_head * KEY_DIM + k, mask=k < KEY_DIM, other=0.0)[:, None]
    else:
        decay = tl.load(decays_ptr + of_head)
    return decay


@triton.jit
def _taken_on(
    state,
    keys_ptr,
    corrected_ptr,
    decays_ptr,
    committed,
    count,
    head,
    k,
    v,
    RING: tl.constexpr,
    KEY_HEADS: tl.constexpr,
    VALUE_HEADS: tl.constexpr,
    KEY_DIM: tl.constexpr,
    VALUE_DIM: tl.constexpr,
    BY_CHANNEL: tl.constexpr,
):
    """Columns ``v`` of a head's matrix behind ``count`` tokens of its ring."""
    key_head = head // (VALUE_HEADS // KEY_HEADS)
    for index in range(count):
        place = (committed + index) % RING
        decay = _decay_of(decays_ptr, place * VALUE_HEADS + head, k, KEY_DIM, BY_CHANNEL)
        key = tl.load(
            keys_ptr + (place * KEY_HEADS + key_head) * KEY_DIM + k, mask=k < KEY_DIM, other=0.0
        )
        added = tl.load(
            corrected_ptr + (place * VALUE_HEADS + head) * VALUE_DIM + v,
            mask=v < VALUE_DIM,
            other=0.0,
        )
        state = state * tl.exp(decay) + key[:, None] * added[None, :]
    return state


@triton.jit
def delta_few_kernel(
    queries_ptr,
    keys_ptr,
    values_ptr,
    decays_ptr,
    betas_ptr,
    matrices_ptr,
    slots_ptr,
    starts_ptr,
    ends_ptr,
    mixed_ptr,
    corrected_ptr,
    ring_keys_ptr,
    ring_corrected_ptr,
    ring_decays_ptr,
    rings_ptr,
    committed_ptr,
    counts_ptr,
    matrix_stride,
    ring_keys_stride,
    ring_corrected_stride,
    ring_decays_stride,
    RING: tl.constexpr,
    KEY_HEADS: tl.constexpr,
    VALUE_HEADS: tl.constexpr,
    KEY_DIM: tl.constexpr,
    VALUE_DIM: tl.constexpr,
    BLOCK_K: tl.constexpr,
    BLOCK_V: tl.constexpr,
    BY_CHANNEL: tl.constexpr,
    CORRECTS: tl.constexpr,
    DUE: tl.constexpr,
):
    """One sequence, one head, BLOCK_V columns. Grid: (sequences, heads, tiles of columns)."""
    sequence, head = tl.program_id(0), tl.program_id(1)
    key_head = head // (VALUE_HEADS // KEY_HEADS)
    k = tl.arange(0, BLOCK_K)
    v = tl.program_id(2) * BLOCK_V + tl.arange(0, BLOCK_V)
    known = (k < KEY_DIM)[:, None] & (v < VALUE_DIM)[None, :]
    slot = tl.load(slots_ptr + sequence)
    place = slot * matrix_stride + head * KEY_DIM * VALUE_DIM
    cells = matrices_ptr + place + k[:, None] * VALUE_DIM + v[None, :]
    state = tl.load(cells, mask=known, other=0.0)
    if DUE:
        count = tl.load(counts_ptr + sequence)
        ring = tl.load(rings_ptr + sequence)
        state = _taken_on(
            state,
            ring_keys_ptr + ring * ring_keys_stride,
            ring_corrected_ptr + ring * ring_corrected_stride,
            ring_decays_ptr + ring * ring_decays_stride,
            tl.load(committed_ptr + sequence),
            count,
            head,
            k,
            v,
            RING,
            KEY_HEADS,
            VALUE_HEADS,
            KEY_DIM,
            VALUE_DIM,
            BY_CHANNEL,
        )
        tl.store(cells, state, mask=known & (count > 0))
    for token in range(tl.load(starts_ptr + sequence), tl.load(ends_ptr + sequence)):
        of_key = (token * KEY_HEADS + key_head) * KEY_DIM + k
        of_value = (token * VALUE_HEADS + head) * VALUE_DIM + v
        key = tl.load(keys_ptr + of_key, mask=k < KEY_DIM, other=0.0)
        query = tl.load(queries_ptr + of_key, mask=k < KEY_DIM, other=0.0)
        added = tl.load(values_ptr + of_value, mask=v < VALUE_DIM, other=0.0)
        of_head = token * VALUE_HEADS + head
        state = state * tl.exp(_decay_of(decays_ptr, of_head, k, KEY_DIM, BY_CHANNEL))
        if CORRECTS:
            there = tl.sum(state * key[:, None], 0)
            added = (added - there) * tl.load(betas_ptr + token * VALUE_HEADS + head)
        state = state + key[:, None] * added[None, :]
        tl.store(corrected_ptr + of_value, added, mask=v < VALUE_DIM)
        tl.store(mixed_ptr + of_value, tl.sum(state * query[:, None], 0), mask=v < VALUE_DIM)


@triton.jit
def delta_fold_kernel(
    matrices_ptr,
    slots_ptr,
    ring_keys_ptr,
    ring_corrected_ptr,
    ring_decays_ptr,
    rings_ptr,
    committed_ptr,
    counts_ptr,
    matrix_stride,
    LAYERS: tl.constexpr,
    RING: tl.constexpr,
    KEY_HEADS: tl.constexpr,
    VALUE_HEADS: tl.constexpr,
    KEY_DIM: tl.constexpr,
    VALUE_DIM: tl.constexpr,
    BLOCK_K: tl.constexpr,
    BLOCK_V: tl.constexpr,
    BY_CHANNEL: tl.constexpr,
):
    """One sequence, one head of one layer, BLOCK_V columns. Grid: (sequences, layers * heads,
    tiles of columns)."""
    sequence, within = tl.program_id(0), tl.program_id(1)
    layer, head = within // VALUE_HEADS, within % VALUE_HEADS
    k = tl.arange(0, BLOCK_K)
    v = tl.program_id(2) * BLOCK_V + tl.arange(0, BLOCK_V)
    count = tl.load(counts_ptr + sequence)
    known = (k < KEY_DIM)[:, None] & (v < VALUE_DIM)[None, :] & (count > 0)
    place = tl.load(slots_ptr + sequence) * matrix_stride + within * KEY_DIM * VALUE_DIM
    cells = matrices_ptr + place + k[:, None] * VALUE_DIM + v[None, :]
    ring = (tl.load(rings_ptr + sequence) * LAYERS + layer) * RING
    state = _taken_on(
        tl.load(cells, mask=known, other=0.0),
        ring_keys_ptr + ring * KEY_HEADS * KEY_DIM,
        ring_corrected_ptr + ring * VALUE_HEADS * VALUE_DIM,
        ring_decays_ptr + ring * VALUE_HEADS * (KEY_DIM if BY_CHANNEL else 1),
        tl.load(committed_ptr + sequence),
        count,
        head,
        k,
        v,
        RING,
        KEY_HEADS,
        VALUE_HEADS,
        KEY_DIM,
        VALUE_DIM,
        BY_CHANNEL,
    )
    tl.store(cells, state, mask=known)


def few_tokens(
    inputs: DeltaInputs,
    matrices: Tensor,
    places: DeltaPlaces[Tensor],
    due: DeltaDue | None,
    outputs: DeltaOutputs,
) -> None:
    """Compute the sequences that go token by token, and take on the matrices of all by what is
    ``due``. Inputs lie in one piece; see ``kernels.triton_delta_steps``."""
    rings, strides = [matrices] * 3, [0] * 3  # never read where nothing is due
    if due is not None:
        kept = due.rings.keys, due.rings.corrected, due.rings.decays
        rings = [each[:, due.layer] for each in kept]
        strides = [each.stride(0) for each in rings]
    sizes = sizes_of(matrices, inputs.keys.shape[1])
    launch(delta_few_kernel, (len(places.slots), sizes["VALUE_HEADS"], tiles_of(matrices)))(
        inputs.queries,
        inputs.keys,
        inputs.values,
        inputs.decays,
        inputs.decays if inputs.betas is None else inputs.betas,
        matrices,
        places.slots,
        places.starts,
        places.ends,
        outputs.mixed,
        outputs.corrected,
        *rings,
        places.rings,
        places.committed,
        places.counts,
        matrices.stride(0),
        *strides,
        RING=1 if due is None else due.rings.keys.shape[2],
        BY_CHANNEL=inputs.by_channel,
        CORRECTS=inputs.betas is not None,
        DUE=due is not None,
        **sizes,
    )


def fold_rings(matrices: Tensor, rings: DeltaRings, spans: DeltaSpans) -> None:
    """See ``kernels.gated_delta.fold_rings``."""
    if not len(spans.slots):
        return
    sizes = sizes_of(matrices, rings.keys.shape[3])
    slots, *of_rings = spans.on(matrices.device)
    layers = matrices.shape[1]
    grid = len(spans.slots), layers * sizes["VALUE_HEADS"], tiles_of(matrices)
    launch(delta_fold_kernel, grid)(
        matrices,
        slots,
        rings.keys,
        rings.corrected,
        rings.decays,
        *of_rings,
        matrices.stride(0),
        LAYERS=layers,
        RING=rings.keys.shape[2],
        BY_CHANNEL=rings.by_channel,
        **sizes,
    )


def sizes_of(matrices: Tensor, key_heads: int) -> dict[str, Any]:
    """Constants of a kernel for these matrices, [..., V, key_dim, value_dim]."""
    heads, key_dim, value_dim = matrices.shape[-3:]
    return {
        "KEY_HEADS": key_heads,
        "VALUE_HEADS": heads,
        "KEY_DIM": key_dim,
        "VALUE_DIM": value_dim,
        "BLOCK_K": triton.next_power_of_2(key_dim),
        "BLOCK_V": COLUMNS_EACH,
        "num_warps": WARPS,
    }


def tiles_of(matrices: Tensor) -> int:
    """How many programs share the columns of a head's matrix."""
    return int(triton.cdiv(matrices.shape[-1], COLUMNS_EACH))
