"""How far each context of a decode is split among programs: worked out once a step, on the device.

A decode is a list of items, pieces of like size of its contexts, and every layer's attention
takes one item a program. The list depends on the lengths of all sequences, which the device
has, so a recorded step makes its own; how long it may be depends on shapes alone. Nothing in it
is compiled for a number of sequences, of splits or of items: those come as arguments, so that a
server has all variants when it is ready.

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
SEQUENCES_AT_ONCE = 128
"""Sequences, and items, that the plan's one program works out together."""
FIELDS = 8
"""Numbers in a row of the plan: one sector of memory."""
_FIELDS = tl.constexpr(FIELDS)


@triton.jit
def plan_item(plan_ptr, item):
    """(sequence, first key, key behind its last, its sequence's first query row, number of query
    tokens and length, whether it goes straight to the output) of an item; the sequence is -1,
    and the rest anything, where there is no such item. The loads do not wait for each other."""
    plan_ptr += item * _FIELDS
    sequence = tl.load(plan_ptr)
    low, high = tl.load(plan_ptr + 1), tl.load(plan_ptr + 2)
    first_row, num_queries = tl.load(plan_ptr + 3), tl.load(plan_ptr + 4)
    length, whole = tl.load(plan_ptr + 5), tl.load(plan_ptr + 6)
    return sequence, low, high, first_row, num_queries, length, whole != 0


@triton.jit
def plan_sequence(plan_ptr, items, sequence):
    """(first item, number of items that leave a part, first key that they read, first query row,
    number of query tokens) of a sequence. Those items follow each other; there are none where the
    sequence is no decode, or its one item goes straight to the output."""
    plan_ptr += (items + sequence) * _FIELDS
    first_item, parts, first = tl.load(plan_ptr), tl.load(plan_ptr + 1), tl.load(plan_ptr + 2)
    return first_item, parts, first, tl.load(plan_ptr + 3), tl.load(plan_ptr + 4)


@triton.jit(do_not_specialize=["num_sequences", "shares", "items"])
def split_plan_kernel(
    plan_ptr,
    starts_ptr,
    lengths_ptr,
    skips_ptr,
    num_sequences,
    shares,
    items,
    SHARED: tl.constexpr,
    WINDOW: tl.constexpr,
    MAX_QUERIES: tl.constexpr,
    BLOCK_N: tl.constexpr,
    PROGRAMS: tl.constexpr,
    MIN_TILES: tl.constexpr,
    BATCH: tl.constexpr,
):
    """[items + sequences, FIELDS] int32, see ``split_plan``, such that all items together make
    about PROGRAMS programs of like size; ``shares`` programs read the same keys. Grid: (1,).

    Items of sequences in several pieces come first: they are the long ones, and what starts late
    should be short. Keys of a shared prefix are in no item; a window and SHARED exclude each other.
    """
    lanes = tl.arange(0, BATCH)
    inputs = (starts_ptr, lengths_ptr, skips_ptr)
    total = tl.zeros((BATCH,), tl.int32)
    for low in tl.range(0, num_sequences, BATCH):
        rows = low + lanes
        real = rows < num_sequences
        context = _contexts(inputs, rows, real, SHARED, WINDOW, MAX_QUERIES, BLOCK_N)
        total += context[4]
    wanted = (tl.sum(total, 0) * shares + PROGRAMS - 1) // PROGRAMS
    wanted = tl.maximum(wanted, MIN_TILES)
    used = 0
    for low in tl.range(0, num_sequences, BATCH):
        rows = low + lanes
        real = rows < num_sequences
        context = _contexts(inputs, rows, real, SHARED, WINDOW, MAX_QUERIES, BLOCK_N)
        _, splits = _pieces(context[4], wanted)
        splits = tl.where(splits > 1, splits, 0)
        ends = used + tl.cumsum(splits, 0)
        parts = tl.minimum(splits, items - (ends - splits))
        _write_sequences(plan_ptr, items + rows, splits > 0, ends - splits, parts, context)
        end = tl.minimum(used + tl.sum(splits, 0), items)
        for at in tl.range(used, end, BATCH):
            item = at + lanes
            over = ends[:, None] <= item[None, :]
            index = low + tl.sum(over.to(tl.int32), 0)
            begin = tl.max(tl.where(over, ends[:, None], used), 0)
            live = item < end
            context = _contexts(inputs, index, live, SHARED, WINDOW, MAX_QUERIES, BLOCK_N)
            _write_items(
                plan_ptr, item, live, index, item - begin, context, wanted, SHARED, BLOCK_N
            )
        used = end
    for low in tl.range(0, num_sequences, BATCH):
        rows = low + lanes
        real = rows < num_sequences
        context = _contexts(inputs, rows, real, SHARED, WINDOW, MAX_QUERIES, BLOCK_N)
        _, splits = _pieces(context[4], wanted)
        item = used + tl.cumsum((splits == 1).to(tl.int32), 0) - 1
        live = (splits == 1) & (item < items)
        parts = (live & (context[3] > 0)).to(tl.int32) if SHARED else tl.zeros_like(rows)
        _write_sequences(plan_ptr, items + rows, real & (splits <= 1), item, parts, context)
        _write_items(plan_ptr, item, live, rows, 0, context, wanted, SHARED, BLOCK_N)
        used += tl.sum((splits == 1).to(tl.int32), 0)
    for at in tl.range(used, items, BATCH):
        item = at + lanes
        tl.store(plan_ptr + item * _FIELDS, tl.full((BATCH,), -1, tl.int32), mask=item < items)


@triton.jit
def _contexts(
    inputs,
    rows,
    real,
    SHARED: tl.constexpr,
    WINDOW: tl.constexpr,
    MAX_QUERIES: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    """(first query row, query tokens, length, first key and tiles of keys that its own items
    read) of each of the sequences ``rows``. One that is no decode has no tiles; a decode has one
    at least, though it may be empty."""
    starts_ptr, lengths_ptr, skips_ptr = inputs
    start = tl.load(starts_ptr + rows, mask=real, other=0)
    queries = tl.load(starts_ptr + rows + 1, mask=real, other=0) - start
    length = tl.load(lengths_ptr + rows, mask=real, other=0)
    first = tl.zeros_like(length)
    if SHARED:
        first = tl.load(skips_ptr + rows, mask=real, other=0)
    if WINDOW > 0:
        first = tl.maximum(length - queries - WINDOW + 1, 0) // BLOCK_N * BLOCK_N
    tiles = tl.maximum((length - first + BLOCK_N - 1) // BLOCK_N, 1)
    own = (queries > 0) & (queries <= MAX_QUERIES)
    return start, queries, length, first, tl.where(own, tiles, 0)


@triton.jit
def _pieces(tiles, wanted):
    """(tiles of a piece, pieces), of like size and of ``wanted`` tiles at most."""
    splits = (tiles + wanted - 1) // wanted
    each = tl.maximum((tiles + splits - 1) // tl.maximum(splits, 1), 1)
    return each, (tiles + each - 1) // each


@triton.jit
def _write_sequences(plan_ptr, at, live, first_item, parts, context):
    start, queries, _, first, _ = context
    plan_ptr += at * _FIELDS
    tl.store(plan_ptr, first_item, mask=live)
    tl.store(plan_ptr + 1, parts, mask=live)
    tl.store(plan_ptr + 2, first, mask=live)
    tl.store(plan_ptr + 3, start, mask=live)
    tl.store(plan_ptr + 4, queries, mask=live)


@triton.jit
def _write_items(
    plan_ptr,
    item,
    live,
    sequence,
    split,
    context,
    wanted,
    SHARED: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    start, queries, length, first, tiles = context
    each, splits = _pieces(tiles, wanted)
    whole = splits == 1
    if SHARED:
        whole = whole & (first == 0)
    low = first + split * each * BLOCK_N
    plan_ptr += item * _FIELDS
    tl.store(plan_ptr, sequence, mask=live)
    tl.store(plan_ptr + 1, low, mask=live)
    tl.store(plan_ptr + 2, tl.minimum(low + each * BLOCK_N, length), mask=live)
    tl.store(plan_ptr + 3, start, mask=live)
    tl.store(plan_ptr + 4, queries, mask=live)
    tl.store(plan_ptr + 5, length, mask=live)
    tl.store(plan_ptr + 6, whole.to(tl.int32), mask=live)


def most_items(num_sequences: int, *, shares: int, max_keys: int, tile_keys: int) -> int:
    """Items that a plan has at most, whatever the lengths are.

    Let sequence i have t(i) tiles, all of them t, and let w be the tiles that an item should
    have: the least integer that is no less than t * shares / PROGRAMS, nor than MIN_TILES. The
    plan splits a sequence into at most ceil(t(i) / w) < t(i) / w + 1 items. The sum of these is
    less than t / w + sequences <= PROGRAMS / shares + sequences; being an integer, it is at most
    ceil(PROGRAMS / shares) + sequences - 1. A sequence alone has at most ceil(PROGRAMS / shares).
    Since w is no less than MIN_TILES, and what a sequence does not read itself is whole tiles, no
    sequence has more than ceil(max_keys / (tile_keys * MIN_TILES)) either. So no sequence is
    split where the answer is ``num_sequences``: one of the two factors is 1 then.

    Args:
        num_sequences: of the step, padded ones included.
        shares: programs that read the same keys: kv heads times tiles of query rows.
        max_keys: room of a block table, at least 1.
        tile_keys: keys that a program takes at once.
    """
    most_of_one: int = triton.cdiv(max_keys, tile_keys * MIN_TILES)
    most_alone: int = triton.cdiv(PROGRAMS, shares)
    return min(most_alone + num_sequences - 1, num_sequences * most_of_one)


def split_plan(
    layout: PagedLayout, *, shares: int, items: int, tile_keys: int, window: int
) -> Tensor:
    """[items + sequences, FIELDS] int32 on the layout's device: a row for each item that there
    may be, which ``plan_item`` reads, then one for each sequence, which ``plan_sequence`` reads.

    An item is keys of one sequence: whole tiles, but for the last of a context. The items of a
    sequence follow each other. Items that there are not are behind those that there are. Of a
    sequence that is no decode there is none.

    Args:
        layout: all sequences of the step; it keeps the plan for the next layer.
        shares: programs that read the same keys: kv heads times tiles of query rows.
        items: room for so many; with ``most_items`` of these sequences no key is left out.
        tile_keys: keys that a program takes at once; items begin at multiples of it.
        window: tokens a query sees, itself included; 0 for all.
    """
    key = "splits", shares, items, tile_keys, window
    plan = layout.plans.get(key)
    if plan is None:
        sequences = layout.block_tables.shape[0]
        plan = layout.context_lengths.new_empty((items + sequences, FIELDS))
        shared = layout.shared if not window else None
        launch(split_plan_kernel, (1,))(
            plan,
            layout.query_starts,
            layout.context_lengths,
            layout.context_lengths if shared is None else shared.skips,
            sequences,
            shares,
            items,
            SHARED=shared is not None,
            WINDOW=window,
            MAX_QUERIES=MAX_DECODE_QUERIES,
            BLOCK_N=tile_keys,
            PROGRAMS=PROGRAMS,
            MIN_TILES=MIN_TILES,
            BATCH=SEQUENCES_AT_ONCE,
        )
        layout.plans[key] = plan
    return plan
