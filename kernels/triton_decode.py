"""Attention of few query tokens (decode, drafts) over long paged contexts, in Triton.

A context is split among programs, and a second kernel joins their parts (flash decoding).
The query heads that share a kv head are rows of one product, so a key is read once for all
of them. Prefixes that several sequences share are ``kernels.triton_prefix``'s; the join takes
their parts as well.

How far a sequence is split says ``kernels.triton_split_plan``, on the device: a list of items,
each some keys of one sequence, as long as it may get for any lengths, so that the grid depends
on shapes alone. Sequences of many query tokens are left alone; so are padded ones, which have
none.

Always true: slots past a context and table entries past its blocks are never read.
Import this module only where Triton is to run; ``kernels.dispatch`` decides that.
"""

import math

import triton
import triton.language as tl
from torch import Tensor

from kernels.launching import launch
from kernels.paged_layout import PagedLayout, decode_width
from kernels.side_stream import joined
from kernels.triton_prefix import attend_prefixes
from kernels.triton_split_plan import most_items, plan_item, plan_sequence, split_plan
from kernels.triton_tiles import (
    LOG2_E,
    attend_part,
    decode_tiling,
    load_queries,
    room_for_parts,
    shared_sizes,
)

SPLITS_AT_ONCE = 64
"""Parts that a join takes together."""
JOIN_WARPS = 4
"""Warps of a program that joins parts, for each 128 dimensions of a head."""


@triton.jit(do_not_specialize=["table_stride"])
def decode_split_kernel(
    q_ptr,
    k_ptr,
    v_ptr,
    out_ptr,
    sinks_ptr,
    part_ptr,
    peak_ptr,
    plan_ptr,
    tables_ptr,
    table_stride,
    scale_log2,
    HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    SCALED: tl.constexpr,
    SINKS: tl.constexpr,
    WINDOW: tl.constexpr,
    ROW_TILES: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    """One item of the plan, keys of one sequence, for one kv head and one tile of its query rows.

    Grid: (KV_HEADS * ROW_TILES, items). A sequence in one piece goes straight to the output;
    otherwise an item leaves its mean and log2 of its mass: parts of [KV_HEADS,
    ROW_TILES * BLOCK_M, items], so that a join reads those of a row one after the other.
    """
    GROUP: tl.constexpr = HEADS // KV_HEADS
    kv_head = tl.program_id(0) // ROW_TILES
    row_tile = tl.program_id(0) % ROW_TILES
    item = tl.program_id(1)
    sequence, low, high, first_row, num_queries, length, whole = plan_item(plan_ptr, item)
    if (sequence < 0) | (row_tile * BLOCK_M >= num_queries * GROUP):
        return
    row = row_tile * BLOCK_M + tl.arange(0, BLOCK_M)
    query, head = row // GROUP, kv_head * GROUP + row % GROUP
    dims = tl.arange(0, BLOCK_D)
    known = (query < num_queries)[:, None] & (dims < HEAD_DIM)[None, :]
    place = (first_row + query).to(tl.int64) * HEADS + head
    q = load_queries(q_ptr, place * HEAD_DIM, query < num_queries, HEAD_DIM, BLOCK_D)
    place = place[:, None] * HEAD_DIM + dims[None, :]
    mean, peak = attend_part(
        q,
        k_ptr,
        v_ptr,
        tables_ptr + sequence.to(tl.int64) * table_stride,
        length - num_queries + query,
        low,
        high,
        kv_head,
        scale_log2,
        KV_HEADS,
        HEAD_DIM,
        BLOCK_D,
        BLOCK_SIZE,
        SCALED,
        WINDOW,
        BLOCK_M,
        BLOCK_N,
        True,
    )
    if whole:
        if SINKS:
            sink = tl.load(sinks_ptr + head) * LOG2_E
            mean = mean / (1.0 + tl.exp2(sink - peak))[:, None]
        tl.store(out_ptr + place, mean.to(out_ptr.dtype.element_ty), mask=known)
    else:
        part = kv_head.to(tl.int64) * ROW_TILES * BLOCK_M + row
        part = part * tl.num_programs(1) + item
        tl.store(part_ptr + part[:, None] * HEAD_DIM + dims[None, :], mean, mask=known)
        tl.store(peak_ptr + part, peak, mask=query < num_queries)


@triton.jit
def _join(acc, top, total, part_ptr, peak_ptr, place, present, HEAD_DIM: tl.constexpr, dims):
    """Take the parts at ``place`` into the mean of one row. The first ones have mass."""
    peak = tl.load(peak_ptr + place, mask=present, other=float("-inf"))
    mean = tl.load(
        part_ptr + place[:, None] * HEAD_DIM + dims[None, :],
        mask=present[:, None] & (dims < HEAD_DIM)[None, :],
        other=0.0,
    )
    new_top = tl.maximum(top, tl.max(peak, 0))
    base = tl.where(new_top == float("-inf"), 0.0, new_top)
    weight = tl.exp2(peak - base)
    decay = tl.exp2(top - base)
    acc = acc * decay + tl.sum(mean * weight[:, None], 0)
    return acc, new_top, total * decay + tl.sum(weight, 0)


@triton.jit(do_not_specialize=["items"])
def decode_join_kernel(
    part_ptr,
    peak_ptr,
    prefix_part_ptr,
    prefix_peak_ptr,
    out_ptr,
    sinks_ptr,
    plan_ptr,
    items,
    HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_D: tl.constexpr,
    SHARED: tl.constexpr,
    SINKS: tl.constexpr,
    ROW_TILES: tl.constexpr,
    BLOCK_M: tl.constexpr,
    SPLITS_AT_ONCE: tl.constexpr,
    PREFIX_SPLITS: tl.constexpr,
):
    """The mean of a query row's splits, those of a shared prefix among them, each weighed by
    its mass. Grid: (HEADS, queries, sequences)."""
    GROUP: tl.constexpr = HEADS // KV_HEADS
    head, query, sequence = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    first_item, parts, skip, first_row, num_queries = plan_sequence(plan_ptr, items, sequence)
    if (query >= num_queries) | (parts <= 0):
        return
    row = (head // GROUP).to(tl.int64) * ROW_TILES * BLOCK_M + query * GROUP + head % GROUP
    base = row * items + first_item
    dims = tl.arange(0, BLOCK_D)
    acc = tl.zeros((BLOCK_D,), tl.float32)
    top, total = float("-inf"), 0.0
    for low in tl.range(0, parts, SPLITS_AT_ONCE):
        some = low + tl.arange(0, SPLITS_AT_ONCE)
        acc, top, total = _join(
            acc,
            top,
            total,
            part_ptr,
            peak_ptr,
            base + some,
            some < parts,
            HEAD_DIM,
            dims,
        )
    if SHARED:  # noqa: SIM102, decided when compiling; the inner one when running
        if skip > 0:
            place = (sequence.to(tl.int64) * tl.num_programs(1) + query) * HEADS + head
            some = tl.arange(0, PREFIX_SPLITS)
            acc, top, total = _join(
                acc,
                top,
                total,
                prefix_part_ptr,
                prefix_peak_ptr,
                place * PREFIX_SPLITS + some,
                some < PREFIX_SPLITS,
                HEAD_DIM,
                dims,
            )
    if SINKS:
        total += tl.exp2(tl.load(sinks_ptr + head) * LOG2_E - top)
    place = ((first_row + query).to(tl.int64) * HEADS + head) * HEAD_DIM + dims
    tl.store(out_ptr + place, (acc / total).to(out_ptr.dtype.element_ty), mask=dims < HEAD_DIM)


def decode(
    tensors: tuple[Tensor, Tensor, Tensor, Tensor],
    layout: PagedLayout,
    scale: float,
    window: int | None,
    sinks: Tensor | None,
) -> None:
    """Attention of the sequences with at most MAX_DECODE_QUERIES query tokens.

    Args:
        tensors: queries, keys, values as in ``kernels.attention``, all contiguous, and the
            output, of which these sequences' rows are written.
        layout: all sequences of the step.
        scale: multiplies the scores.
        window: tokens a query sees, itself included; None for all.
        sinks: see ``kernels.attention``.
    """
    queries, k_blocks, _, output = tensors
    sizes = shared_sizes(queries, k_blocks, window)
    width = decode_width(layout.max_decode_tokens)
    rows = width * (sizes["HEADS"] // sizes["KV_HEADS"])
    num_sequences, max_blocks = layout.block_tables.shape
    tiling = decode_tiling(
        rows, queries.element_size(), sizes["HEAD_DIM"], scaled=bool(sizes["SCALED"])
    )
    row_tiles = triton.cdiv(rows, tiling.rows)
    shares = sizes["KV_HEADS"] * row_tiles
    items = most_items(
        num_sequences,
        shares=shares,
        max_keys=max_blocks * sizes["BLOCK_SIZE"],
        tile_keys=tiling.keys,
    )
    plan = split_plan(
        layout, shares=shares, items=items, tile_keys=tiling.keys, window=sizes["WINDOW"]
    )
    shared = layout.shared if window is None else None
    beside = plan if sinks is None else sinks
    own = {"ROW_TILES": row_tiles, "BLOCK_M": tiling.rows}
    parts = room_for_parts(queries, sizes["KV_HEADS"], row_tiles * tiling.rows, items)
    prefix_parts, prefix_splits = parts, 1
    if shared is not None:
        prefix_parts = attend_prefixes(tensors, layout, shared, width, scale)
        prefix_splits = prefix_parts[1].shape[-1]
    launch(decode_split_kernel, (shares, items))(
        *tensors,
        beside,
        *parts,
        plan,
        layout.block_tables,
        layout.block_tables.stride(0),
        scale / math.log(2),
        **sizes,
        SINKS=sinks is not None,
        **own,
        BLOCK_N=tiling.keys,
        num_warps=tiling.num_warps,
        num_stages=tiling.num_stages,
    )
    if shared is not None:
        joined(queries.device)
    if items > num_sequences or shared is not None:
        names = ("HEADS", "KV_HEADS", "HEAD_DIM", "BLOCK_D")
        launch(decode_join_kernel, (sizes["HEADS"], width, num_sequences))(
            *parts,
            *prefix_parts,
            output,
            beside,
            plan,
            items,
            **{name: sizes[name] for name in names},
            **own,
            SHARED=shared is not None,
            SINKS=sinks is not None,
            SPLITS_AT_ONCE=SPLITS_AT_ONCE,
            PREFIX_SPLITS=prefix_splits,
            num_warps=JOIN_WARPS * triton.cdiv(sizes["BLOCK_D"], 128),
        )
