"""How far each context of a decode is split among programs: worked out once a step, on the device.

Every layer's attention reads the plan. It depends on the lengths of all sequences, which the
device has, so a recorded step makes its own. Nothing in it is compiled for a number of
sequences or of splits: those come as arguments, so that a server has all variants when it is
ready.

Import this module only where Triton is to run; ``kernels.dispatch`` decides that.
"""

import triton
import triton.language as tl
from torch import Tensor

from kernels.launching import launch
from kernels.paged_layout import MAX_DECODE_QUERIES, PagedLayout

PROGRAMS = 528
"""Programs that a decode aims at: four for each of an H200's multiprocessors."""
MIN_TILES = 1
"""Tiles of keys a split has at least, where its context has as many."""
_SEQUENCES_AT_ONCE = 128


@triton.jit(do_not_specialize=["num_sequences", "shares", "max_splits"])
def split_plan_kernel(
    plan_ptr,
    starts_ptr,
    lengths_ptr,
    skips_ptr,
    num_sequences,
    shares,
    max_splits,
    SHARED: tl.constexpr,
    WINDOW: tl.constexpr,
    MAX_QUERIES: tl.constexpr,
    BLOCK_N: tl.constexpr,
    PROGRAMS: tl.constexpr,
    MIN_TILES: tl.constexpr,
    BATCH: tl.constexpr,
):
    """[3, sequences] int32: first key, keys of a split, number of splits of each sequence, such
    that all together make about PROGRAMS programs of like size; ``shares`` programs read the
    same keys. A sequence that is no decode has no split. Grid: (1,).

    Keys of a shared prefix are not in it; a window and SHARED exclude each other.
    """
    total = tl.zeros((BATCH,), tl.int32)
    for low in tl.range(0, num_sequences, BATCH):
        rows = low + tl.arange(0, BATCH)
        real = rows < num_sequences
        starts = tl.load(starts_ptr + rows, mask=real, other=0)
        queries = tl.load(starts_ptr + rows + 1, mask=real, other=0) - starts
        first = _first_key(skips_ptr, lengths_ptr, rows, real, queries, SHARED, WINDOW, BLOCK_N)
        keys = tl.load(lengths_ptr + rows, mask=real, other=0) - first
        own = real & (queries > 0) & (queries <= MAX_QUERIES)
        total += tl.where(own, (keys + BLOCK_N - 1) // BLOCK_N, 0)
    wanted = (tl.sum(total, 0) * shares + PROGRAMS - 1) // PROGRAMS
    wanted = tl.maximum(wanted, MIN_TILES)
    for low in tl.range(0, num_sequences, BATCH):
        rows = low + tl.arange(0, BATCH)
        real = rows < num_sequences
        starts = tl.load(starts_ptr + rows, mask=real, other=0)
        queries = tl.load(starts_ptr + rows + 1, mask=real, other=0) - starts
        first = _first_key(skips_ptr, lengths_ptr, rows, real, queries, SHARED, WINDOW, BLOCK_N)
        keys = tl.load(lengths_ptr + rows, mask=real, other=0) - first
        own = real & (queries > 0) & (queries <= MAX_QUERIES)
        tiles = tl.maximum((keys + BLOCK_N - 1) // BLOCK_N, 1)
        splits = tl.minimum((tiles + wanted - 1) // wanted, max_splits)
        each = (tiles + splits - 1) // splits
        tl.store(plan_ptr + rows, first, mask=real)
        tl.store(plan_ptr + num_sequences + rows, each * BLOCK_N, mask=real)
        splits = tl.where(own, (tiles + each - 1) // each, 0)
        tl.store(plan_ptr + 2 * num_sequences + rows, splits, mask=real)


@triton.jit
def _first_key(
    skips_ptr,
    lengths_ptr,
    rows,
    real,
    queries,
    SHARED: tl.constexpr,
    WINDOW: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    """Where the keys begin that a sequence's own splits read."""
    first = tl.zeros_like(queries)
    if SHARED:
        first = tl.load(skips_ptr + rows, mask=real, other=0)
    if WINDOW > 0:
        lengths = tl.load(lengths_ptr + rows, mask=real, other=0)
        first = tl.maximum(lengths - queries - WINDOW + 1, 0) // BLOCK_N * BLOCK_N
    return first


def split_plan(
    layout: PagedLayout, *, shares: int, max_splits: int, tile_keys: int, window: int
) -> Tensor:
    """[3, sequences] int32 on the layout's device: first key, keys of a split, number of splits.

    Args:
        layout: all sequences of the step; it keeps the plan for the next layer.
        shares: programs that read the same keys: kv heads times tiles of query rows.
        max_splits: most splits of any one sequence.
        tile_keys: keys that a program takes at once; splits are multiples of it.
        window: tokens a query sees, itself included; 0 for all.
    """
    key = "splits", shares, max_splits, tile_keys, window
    plan = layout.plans.get(key)
    if plan is None:
        sequences = layout.block_tables.shape[0]
        plan = layout.context_lengths.new_empty((3, sequences))
        shared = layout.shared if not window else None
        launch(split_plan_kernel, (1,))(
            plan,
            layout.query_starts,
            layout.context_lengths,
            layout.context_lengths if shared is None else shared.skips,
            sequences,
            shares,
            max_splits,
            SHARED=shared is not None,
            WINDOW=window,
            MAX_QUERIES=MAX_DECODE_QUERIES,
            BLOCK_N=tile_keys,
            PROGRAMS=PROGRAMS,
            MIN_TILES=MIN_TILES,
            BATCH=_SEQUENCES_AT_ONCE,
        )
        layout.plans[key] = plan
    return plan
