"""Attention of few query tokens (decode, drafts) over long paged contexts, in Triton.

A context is split among programs, and a second kernel joins their parts (flash decoding).
The query heads that share a kv head are rows of one product, so a key is read once for all
of them. Prefixes that several sequences share are ``kernels.triton_prefix``'s; the join takes
their parts as well.

How far a sequence is split says ``kernels.triton_split_plan``, on the device, so the grid
depends on shapes alone. Sequences of many query tokens are left alone; so are padded ones,
which have none.

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
from kernels.triton_split_plan import MIN_TILES, split_plan
from kernels.triton_tiles import attend_part, decode_tiling, room_for_parts, shared_sizes

_GRID_PROGRAMS = 2112
"""Programs that a decode's grid allows for, so that one long context can still be split."""
_MAX_SPLITS = 128
SPLITS_AT_ONCE = 64
"""Parts that a join takes together."""
JOIN_WARPS = 4
"""For each 128 dimensions of a head."""


@triton.jit(do_not_specialize=["num_sequences", "table_stride"])
def decode_split_kernel(
    q_ptr,
    k_ptr,
    v_ptr,
    out_ptr,
    part_ptr,
    peak_ptr,
    starts_ptr,
    lengths_ptr,
    plan_ptr,
    tables_ptr,
    num_sequences,
    table_stride,
    scale_log2,
    HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    SCALED: tl.constexpr,
    WINDOW: tl.constexpr,
    SHARED: tl.constexpr,
    ROW_TILES: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    """One split of one sequence's context, for one kv head and one tile of its query rows.

    Grid: (KV_HEADS * ROW_TILES, most splits, sequences). A sequence in one piece goes
    straight to the output; otherwise a split leaves its mean and log2 of its mass.
    """
    GROUP: tl.constexpr = HEADS // KV_HEADS
    kv_head = tl.program_id(0) // ROW_TILES
    row_tile = tl.program_id(0) % ROW_TILES
    split = tl.program_id(1)
    sequence = tl.program_id(2)
    splits = tl.load(plan_ptr + 2 * num_sequences + sequence)
    if split >= splits:
        return
    first_row = tl.load(starts_ptr + sequence)
    num_queries = tl.load(starts_ptr + sequence + 1) - first_row
    if row_tile * BLOCK_M >= num_queries * GROUP:
        return
    length = tl.load(lengths_ptr + sequence)
    first = tl.load(plan_ptr + sequence)
    per_split = tl.load(plan_ptr + num_sequences + sequence)
    row = row_tile * BLOCK_M + tl.arange(0, BLOCK_M)
    query, head = row // GROUP, kv_head * GROUP + row % GROUP
    dims = tl.arange(0, BLOCK_D)
    known = (query < num_queries)[:, None] & (dims < HEAD_DIM)[None, :]
    place = (first_row + query).to(tl.int64) * HEADS + head
    place = place[:, None] * HEAD_DIM + dims[None, :]
    q = tl.load(q_ptr + place, mask=known, other=0.0)
    low = first + split * per_split
    mean, peak = attend_part(
        q,
        k_ptr,
        v_ptr,
        tables_ptr + sequence.to(tl.int64) * table_stride,
        length - num_queries + query,
        low,
        tl.minimum(low + per_split, length),
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
    whole = splits == 1
    if SHARED:
        whole = whole & (first == 0)
    if whole:
        tl.store(out_ptr + place, mean.to(out_ptr.dtype.element_ty), mask=known)
    else:
        part = sequence.to(tl.int64) * KV_HEADS * ROW_TILES + tl.program_id(0)
        part = part * tl.num_programs(1)
        part = (part + split) * BLOCK_M + tl.arange(0, BLOCK_M)
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


@triton.jit(do_not_specialize=["num_sequences", "max_splits"])
def decode_join_kernel(
    part_ptr,
    peak_ptr,
    prefix_part_ptr,
    prefix_peak_ptr,
    out_ptr,
    starts_ptr,
    plan_ptr,
    num_sequences,
    max_splits,
    HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_D: tl.constexpr,
    SHARED: tl.constexpr,
    ROW_TILES: tl.constexpr,
    BLOCK_M: tl.constexpr,
    SPLITS_AT_ONCE: tl.constexpr,
    PREFIX_SPLITS: tl.constexpr,
):
    """The mean of a query row's splits, those of a shared prefix among them, each weighed by
    its mass. Grid: (HEADS, queries, sequences)."""
    GROUP: tl.constexpr = HEADS // KV_HEADS
    head, query, sequence = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    splits = tl.load(plan_ptr + 2 * num_sequences + sequence)
    first_row = tl.load(starts_ptr + sequence)
    num_queries = tl.load(starts_ptr + sequence + 1) - first_row
    skip = tl.load(plan_ptr + sequence) if SHARED else 0
    if (query >= num_queries) | (splits == 0) | ((splits == 1) & (skip == 0)):
        return
    row = query * GROUP + head % GROUP
    tile = (sequence.to(tl.int64) * KV_HEADS + head // GROUP) * ROW_TILES + row // BLOCK_M
    base = tile * max_splits * BLOCK_M + row % BLOCK_M
    dims = tl.arange(0, BLOCK_D)
    acc = tl.zeros((BLOCK_D,), tl.float32)
    top, total = float("-inf"), 0.0
    for low in tl.range(0, splits, SPLITS_AT_ONCE):
        some = low + tl.arange(0, SPLITS_AT_ONCE)
        acc, top, total = _join(
            acc,
            top,
            total,
            part_ptr,
            peak_ptr,
            base + some * BLOCK_M,
            some < splits,
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
    place = ((first_row + query).to(tl.int64) * HEADS + head) * HEAD_DIM + dims
    tl.store(out_ptr + place, (acc / total).to(out_ptr.dtype.element_ty), mask=dims < HEAD_DIM)


def decode(
    tensors: tuple[Tensor, Tensor, Tensor, Tensor],
    layout: PagedLayout,
    scale: float,
    window: int | None,
) -> None:
    """Attention of the sequences with at most MAX_DECODE_QUERIES query tokens.

    Args:
        tensors: queries, keys, values as in ``kernels.attention``, all contiguous, and the
            output, of which these sequences' rows are written.
        layout: all sequences of the step.
        scale: multiplies the scores.
        window: tokens a query sees, itself included; None for all.
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
    splits = min(
        _MAX_SPLITS,
        triton.cdiv(_GRID_PROGRAMS, num_sequences * shares),
        triton.cdiv(max_blocks * sizes["BLOCK_SIZE"], tiling.keys * MIN_TILES),
    )
    plan = split_plan(
        layout, shares=shares, max_splits=splits, tile_keys=tiling.keys, window=sizes["WINDOW"]
    )
    shared = layout.shared if window is None else None
    own = {"SHARED": shared is not None, "ROW_TILES": row_tiles, "BLOCK_M": tiling.rows}
    parts = room_for_parts(queries, num_sequences, shares, splits, tiling.rows)
    prefix_parts, prefix_splits = parts, 1
    if shared is not None:
        prefix_parts = attend_prefixes(tensors, layout, shared, width, scale)
        prefix_splits = prefix_parts[1].shape[-1]
    launch(decode_split_kernel, (shares, splits, num_sequences))(
        *tensors,
        *parts,
        layout.query_starts,
        layout.context_lengths,
        plan,
        layout.block_tables,
        num_sequences,
        layout.block_tables.stride(0),
        scale / math.log(2),
        **sizes,
        **own,
        BLOCK_N=tiling.keys,
        num_warps=tiling.num_warps,
        num_stages=tiling.num_stages,
    )
    if shared is not None:
        joined(queries.device)
    if splits > 1 or shared is not None:
        names = ("HEADS", "KV_HEADS", "HEAD_DIM", "BLOCK_D")
        launch(decode_join_kernel, (sizes["HEADS"], width, num_sequences))(
            *parts,
            *prefix_parts,
            output,
            layout.query_starts,
            plan,
            num_sequences,
            splits,
            **{name: sizes[name] for name in names},
            **own,
            SPLITS_AT_ONCE=SPLITS_AT_ONCE,
            PREFIX_SPLITS=prefix_splits,
            num_warps=JOIN_WARPS * triton.cdiv(sizes["BLOCK_D"], 128),
        )
