"""Paged causal attention on a GPU, in Triton: what ``kernels.attention`` says, in two ways.

Few query tokens (decode, drafts): the context is split among programs, and a second kernel
joins their parts (flash decoding). Many (prefill chunks): one program for each tile of query
rows. In both, the query heads that share a kv head are rows of one product, so a key is read
once for all of them. Softmax runs over tiles with a running maximum (Dao et al. 2022,
arXiv:2205.14135), in base 2 and float32.

A launch covers all sequences of a step; programs of sequences that are the other kernel's
return at once. How far a sequence is split is decided on the device from the lengths of all,
so the grid depends on shapes alone. Padded sequences have no queries.

Always true: slots past a context and table entries past its blocks are never read.
Import this module only where Triton is to run; ``kernels.dispatch`` decides that.
"""

import math
from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.paged_layout import PagedLayout

MAX_DECODE_QUERIES = 32
"""Sequences of up to this many query tokens have their context split."""
_PROGRAMS = 528
"""Programs that a decode aims at: four for each of an H200's multiprocessors."""
_GRID_PROGRAMS = 2112
"""Programs that a decode's grid allows for, so that one long context can still be split."""
_MAX_SPLITS = 128
_MIN_TILES = 4
"""Tiles of keys a split has at least, where its context has as many."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tiling:
    """How a kernel is compiled."""

    rows: int
    """Query rows of a program: query tokens x heads that share a kv head."""
    keys: int
    """Keys of a step of its loop."""
    num_warps: int
    num_stages: int


_WIDE = Tiling(rows=16, keys=64, num_warps=8, num_stages=3)
"""For float32, whose exact products tensor cores do not know: what registers hold."""


def decode_tiling(rows: int, element_size: int) -> Tiling:
    """For sequences of up to ``rows`` query rows for each kv head."""
    if element_size > 2:
        return _WIDE
    fitting = next((size for size in (16, 32) if rows <= size), 64)
    return Tiling(rows=fitting, keys=64, num_warps=4, num_stages=3)


def extend_tiling(element_size: int, head_dim: int) -> Tiling:
    """For prefill chunks."""
    if element_size > 2:
        return _WIDE
    if head_dim > 128:
        return Tiling(rows=64, keys=32, num_warps=4, num_stages=2)
    return Tiling(rows=128, keys=64, num_warps=8, num_stages=3)


@triton.jit
def _attend_tiles(
    q,
    acc,
    top,
    mass,
    k_ptr,
    v_ptr,
    table_ptr,
    query_at,
    low,
    high,
    kv_head,
    scale_log2,
    KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    WINDOW: tl.constexpr,
    BLOCK_N: tl.constexpr,
    MASKED: tl.constexpr,
):
    """Take keys ``low`` .. ``high`` - 1 into the running softmax. Without MASKED every row
    sees all of them, and their number is a multiple of BLOCK_N."""
    dims = tl.arange(0, BLOCK_D)
    for start in tl.range(low, high, BLOCK_N):
        at = start + tl.arange(0, BLOCK_N)
        inside = at < high
        page = tl.load(table_ptr + at // BLOCK_SIZE, mask=inside, other=0).to(tl.int64)
        row = ((page * KV_HEADS + kv_head) * BLOCK_SIZE + at % BLOCK_SIZE) * HEAD_DIM
        known = inside[:, None] & (dims < HEAD_DIM)[None, :]
        k = tl.load(
            k_ptr + row[None, :] + dims[:, None],
            mask=inside[None, :] & (dims < HEAD_DIM)[:, None],
            other=0.0,
        )
        v = tl.load(v_ptr + row[:, None] + dims[None, :], mask=known, other=0.0)
        scores = tl.dot(q, k, input_precision="ieee") * scale_log2
        if MASKED:
            visible = inside[None, :] & (at[None, :] <= query_at[:, None])
            if WINDOW > 0:
                visible = visible & (at[None, :] > query_at[:, None] - WINDOW)
            scores = tl.where(visible, scores, float("-inf"))
        new_top = tl.maximum(top, tl.max(scores, 1))
        # A row that has seen no key yet has no maximum: keep infinity minus infinity out.
        base = tl.where(new_top == float("-inf"), 0.0, new_top)
        weights = tl.exp2(scores - base[:, None])
        decay = tl.exp2(top - base)
        mass = mass * decay + tl.sum(weights, 1)
        acc = acc * decay[:, None]
        acc = tl.dot(weights.to(v.dtype), v, acc, input_precision="ieee")
        top = new_top
    return acc, top, mass


@triton.jit
def _split_of(
    length,
    num_queries,
    starts_ptr,
    lengths_ptr,
    num_sequences,
    WINDOW: tl.constexpr,
    MAX_QUERIES: tl.constexpr,
    BLOCK_N: tl.constexpr,
    SHARES: tl.constexpr,
    PROGRAMS: tl.constexpr,
    MIN_TILES: tl.constexpr,
    MAX_SPLITS: tl.constexpr,
    BATCH: tl.constexpr,
):
    """(first key, keys of a split, number of splits) of one sequence, such that all
    sequences together make about PROGRAMS programs of like size."""
    rows = tl.arange(0, BATCH)
    real = rows < num_sequences
    starts = tl.load(starts_ptr + rows, mask=real, other=0)
    ends = tl.load(starts_ptr + rows + 1, mask=real, other=0)
    lengths = tl.load(lengths_ptr + rows, mask=real, other=0)
    own = (ends > starts) & (ends - starts <= MAX_QUERIES)
    first = 0
    if WINDOW > 0:
        lengths = tl.minimum(lengths, WINDOW + ends - starts)
        first = tl.maximum(length - num_queries - WINDOW + 1, 0) // BLOCK_N * BLOCK_N
    total = tl.sum(tl.where(own, (lengths + BLOCK_N - 1) // BLOCK_N, 0), 0)
    wanted = tl.maximum((total * SHARES + PROGRAMS - 1) // PROGRAMS, MIN_TILES)
    tiles = (length - first + BLOCK_N - 1) // BLOCK_N
    splits = tl.minimum((tiles + wanted - 1) // wanted, MAX_SPLITS)
    per_split = (tiles + splits - 1) // splits
    return first, per_split * BLOCK_N, (tiles + per_split - 1) // per_split


@triton.jit
def decode_split_kernel(
    q_ptr,
    k_ptr,
    v_ptr,
    out_ptr,
    part_ptr,
    peak_ptr,
    starts_ptr,
    lengths_ptr,
    tables_ptr,
    num_sequences,
    table_stride,
    scale_log2,
    HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    WINDOW: tl.constexpr,
    MAX_QUERIES: tl.constexpr,
    ROW_TILES: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    PROGRAMS: tl.constexpr,
    MIN_TILES: tl.constexpr,
    MAX_SPLITS: tl.constexpr,
    BATCH: tl.constexpr,
):
    """One split of one sequence's context, for one kv head and one tile of its query rows.

    Grid: (KV_HEADS * ROW_TILES, MAX_SPLITS, sequences). A sequence in one piece goes
    straight to the output; otherwise a split leaves its mean and log2 of its mass.
    """
    GROUP: tl.constexpr = HEADS // KV_HEADS
    kv_head = tl.program_id(0) // ROW_TILES
    row_tile = tl.program_id(0) % ROW_TILES
    split = tl.program_id(1)
    sequence = tl.program_id(2)
    first_row = tl.load(starts_ptr + sequence)
    num_queries = tl.load(starts_ptr + sequence + 1) - first_row
    if (num_queries > MAX_QUERIES) | (row_tile * BLOCK_M >= num_queries * GROUP):
        return
    length = tl.load(lengths_ptr + sequence)
    first, per_split, splits = _split_of(
        length,
        num_queries,
        starts_ptr,
        lengths_ptr,
        num_sequences,
        WINDOW,
        MAX_QUERIES,
        BLOCK_N,
        KV_HEADS * ROW_TILES,
        PROGRAMS,
        MIN_TILES,
        MAX_SPLITS,
        BATCH,
    )
    if split >= splits:
        return
    row = row_tile * BLOCK_M + tl.arange(0, BLOCK_M)
    query, head = row // GROUP, kv_head * GROUP + row % GROUP
    dims = tl.arange(0, BLOCK_D)
    known = (query < num_queries)[:, None] & (dims < HEAD_DIM)[None, :]
    place = (first_row + query).to(tl.int64) * HEADS + head
    place = place[:, None] * HEAD_DIM + dims[None, :]
    q = tl.load(q_ptr + place, mask=known, other=0.0)
    low = first + split * per_split
    acc, top, mass = _attend_tiles(
        q,
        tl.zeros((BLOCK_M, BLOCK_D), tl.float32),
        tl.full((BLOCK_M,), float("-inf"), tl.float32),
        tl.zeros((BLOCK_M,), tl.float32),
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
        WINDOW,
        BLOCK_N,
        True,
    )
    mean = acc / tl.where(mass == 0, 1.0, mass)[:, None]
    if splits == 1:
        tl.store(out_ptr + place, mean.to(out_ptr.dtype.element_ty), mask=known)
    else:
        part = (sequence.to(tl.int64) * KV_HEADS * ROW_TILES + tl.program_id(0)) * MAX_SPLITS
        part = (part + split) * BLOCK_M + tl.arange(0, BLOCK_M)
        tl.store(part_ptr + part[:, None] * HEAD_DIM + dims[None, :], mean, mask=known)
        tl.store(peak_ptr + part, top + tl.log2(mass), mask=query < num_queries)


@triton.jit
def decode_join_kernel(
    part_ptr,
    peak_ptr,
    out_ptr,
    starts_ptr,
    lengths_ptr,
    num_sequences,
    HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_D: tl.constexpr,
    WINDOW: tl.constexpr,
    MAX_QUERIES: tl.constexpr,
    ROW_TILES: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    PROGRAMS: tl.constexpr,
    MIN_TILES: tl.constexpr,
    MAX_SPLITS: tl.constexpr,
    BATCH: tl.constexpr,
    STEP: tl.constexpr,
):
    """The mean of a query row's splits, each weighed by its mass. Grid: (HEADS, queries,
    sequences)."""
    GROUP: tl.constexpr = HEADS // KV_HEADS
    head, query, sequence = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    first_row = tl.load(starts_ptr + sequence)
    num_queries = tl.load(starts_ptr + sequence + 1) - first_row
    if (num_queries > MAX_QUERIES) | (query >= num_queries):
        return
    _, _, splits = _split_of(
        tl.load(lengths_ptr + sequence),
        num_queries,
        starts_ptr,
        lengths_ptr,
        num_sequences,
        WINDOW,
        MAX_QUERIES,
        BLOCK_N,
        KV_HEADS * ROW_TILES,
        PROGRAMS,
        MIN_TILES,
        MAX_SPLITS,
        BATCH,
    )
    if splits == 1:
        return
    row = query * GROUP + head % GROUP
    tile = (sequence.to(tl.int64) * KV_HEADS + head // GROUP) * ROW_TILES + row // BLOCK_M
    base = tile * MAX_SPLITS * BLOCK_M + row % BLOCK_M
    every = tl.arange(0, MAX_SPLITS)
    peaks = tl.load(peak_ptr + base + every * BLOCK_M, mask=every < splits, other=float("-inf"))
    top = tl.max(peaks, 0)
    total = tl.sum(tl.exp2(peaks - top), 0)
    dims = tl.arange(0, BLOCK_D)
    acc = tl.zeros((BLOCK_D,), tl.float32)
    for low in tl.range(0, splits, STEP):
        some = low + tl.arange(0, STEP)
        place = base + some * BLOCK_M
        peak = tl.load(peak_ptr + place, mask=some < splits, other=float("-inf"))
        mean = tl.load(
            part_ptr + place[:, None] * HEAD_DIM + dims[None, :],
            mask=(some < splits)[:, None] & (dims < HEAD_DIM)[None, :],
            other=0.0,
        )
        acc += tl.sum(mean * tl.exp2(peak - top)[:, None], 0)
    place = ((first_row + query).to(tl.int64) * HEADS + head) * HEAD_DIM + dims
    tl.store(out_ptr + place, (acc / total).to(out_ptr.dtype.element_ty), mask=dims < HEAD_DIM)


@triton.jit
def extend_kernel(
    q_ptr,
    k_ptr,
    v_ptr,
    out_ptr,
    starts_ptr,
    lengths_ptr,
    tables_ptr,
    table_stride,
    scale_log2,
    HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    WINDOW: tl.constexpr,
    MIN_QUERIES: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    """One tile of a chunk's query rows over the context up to its last query.

    Grid: (tiles, KV_HEADS, sequences). The last tiles, which see most, start first.
    """
    GROUP: tl.constexpr = HEADS // KV_HEADS
    tile = tl.num_programs(0) - 1 - tl.program_id(0)
    kv_head = tl.program_id(1)
    sequence = tl.program_id(2)
    first_row = tl.load(starts_ptr + sequence)
    num_queries = tl.load(starts_ptr + sequence + 1) - first_row
    if (num_queries < MIN_QUERIES) | (tile * BLOCK_M >= num_queries * GROUP):
        return
    start_at = tl.load(lengths_ptr + sequence) - num_queries
    row = tile * BLOCK_M + tl.arange(0, BLOCK_M)
    query, head = row // GROUP, kv_head * GROUP + row % GROUP
    dims = tl.arange(0, BLOCK_D)
    known = (query < num_queries)[:, None] & (dims < HEAD_DIM)[None, :]
    place = (first_row + query).to(tl.int64) * HEADS + head
    place = place[:, None] * HEAD_DIM + dims[None, :]
    q = tl.load(q_ptr + place, mask=known, other=0.0)
    query_at = start_at + query
    first_at = start_at + tile * BLOCK_M // GROUP
    last_at = start_at + tl.minimum((tile * BLOCK_M + BLOCK_M - 1) // GROUP, num_queries - 1)
    table = tables_ptr + sequence.to(tl.int64) * table_stride
    acc = tl.zeros((BLOCK_M, BLOCK_D), tl.float32)
    top = tl.full((BLOCK_M,), float("-inf"), tl.float32)
    mass = tl.zeros((BLOCK_M,), tl.float32)
    if WINDOW > 0:
        seen_by_all = tl.maximum(first_at - WINDOW + 1, 0) // BLOCK_N * BLOCK_N
    else:
        seen_by_all = (first_at + 1) // BLOCK_N * BLOCK_N
        acc, top, mass = _attend_tiles(
            q,
            acc,
            top,
            mass,
            k_ptr,
            v_ptr,
            table,
            query_at,
            0,
            seen_by_all,
            kv_head,
            scale_log2,
            KV_HEADS,
            HEAD_DIM,
            BLOCK_D,
            BLOCK_SIZE,
            WINDOW,
            BLOCK_N,
            False,
        )
    acc, top, mass = _attend_tiles(
        q,
        acc,
        top,
        mass,
        k_ptr,
        v_ptr,
        table,
        query_at,
        seen_by_all,
        last_at + 1,
        kv_head,
        scale_log2,
        KV_HEADS,
        HEAD_DIM,
        BLOCK_D,
        BLOCK_SIZE,
        WINDOW,
        BLOCK_N,
        True,
    )
    mean = acc / tl.where(mass == 0, 1.0, mass)[:, None]
    tl.store(out_ptr + place, mean.to(out_ptr.dtype.element_ty), mask=known)


def paged_attention(
    queries: Tensor,
    k_blocks: Tensor,
    v_blocks: Tensor,
    layout: PagedLayout,
    *,
    scale: float,
    window: int | None,
) -> Tensor:
    """See ``kernels.attention.paged_attention_reference``; float64 is not for this.

    Raises:
        ValueError: the pool is not contiguous.
    """
    if not (k_blocks.is_contiguous() and v_blocks.is_contiguous()):
        raise ValueError("blocks of keys and values must be contiguous")
    queries = queries.contiguous()
    output = torch.empty_like(queries)
    counts = [layout.max_query_tokens]
    if layout.max_query_tokens > MAX_DECODE_QUERIES:
        counts = [span.num_queries for span in layout.spans]
    short = [count for count in counts if count <= MAX_DECODE_QUERIES]
    tensors = queries, k_blocks, v_blocks, output
    if short:
        _decode(tensors, layout, max(short), scale, window)
    if layout.max_query_tokens > MAX_DECODE_QUERIES:
        _extend(tensors, layout, scale, window)
    return output


def _sizes(queries: Tensor, k_blocks: Tensor, window: int | None) -> dict[str, int]:
    """The constants that all kernels here share."""
    head_dim = queries.shape[2]
    return {
        "HEADS": queries.shape[1],
        "KV_HEADS": k_blocks.shape[1],
        "HEAD_DIM": head_dim,
        "BLOCK_D": max(16, triton.next_power_of_2(head_dim)),
        "WINDOW": window or 0,
    }


def _decode(
    tensors: tuple[Tensor, Tensor, Tensor, Tensor],
    layout: PagedLayout,
    max_queries: int,
    scale: float,
    window: int | None,
) -> None:
    queries, k_blocks, _, output = tensors
    sizes = _sizes(queries, k_blocks, window)
    group, block_size = sizes["HEADS"] // sizes["KV_HEADS"], k_blocks.shape[2]
    num_sequences, max_blocks = layout.block_tables.shape
    tiling = decode_tiling(max_queries * group, queries.element_size())
    row_tiles = triton.cdiv(max_queries * group, tiling.rows)
    shares = sizes["KV_HEADS"] * row_tiles
    splits = min(
        _MAX_SPLITS,
        triton.cdiv(_GRID_PROGRAMS, num_sequences * shares),
        triton.cdiv(max_blocks * block_size, tiling.keys * _MIN_TILES),
    )
    sizes |= {
        "MAX_QUERIES": MAX_DECODE_QUERIES,
        "ROW_TILES": row_tiles,
        "BLOCK_M": tiling.rows,
        "BLOCK_N": tiling.keys,
        "PROGRAMS": _PROGRAMS,
        "MIN_TILES": _MIN_TILES,
        "MAX_SPLITS": triton.next_power_of_2(splits),
        "BATCH": triton.next_power_of_2(num_sequences),
    }
    peaks = queries.new_empty(
        (num_sequences, shares, sizes["MAX_SPLITS"], tiling.rows), dtype=torch.float32
    )
    parts = queries.new_empty((*peaks.shape, sizes["HEAD_DIM"]), dtype=torch.float32)
    decode_split_kernel[shares, sizes["MAX_SPLITS"], num_sequences](
        *tensors,
        parts,
        peaks,
        layout.query_starts,
        layout.context_lengths,
        layout.block_tables,
        num_sequences,
        layout.block_tables.stride(0),
        scale / math.log(2),
        **sizes,
        BLOCK_SIZE=block_size,
        num_warps=tiling.num_warps,
        num_stages=tiling.num_stages,
    )
    if sizes["MAX_SPLITS"] > 1:
        decode_join_kernel[sizes["HEADS"], max_queries, num_sequences](
            parts,
            peaks,
            output,
            layout.query_starts,
            layout.context_lengths,
            num_sequences,
            **sizes,
            STEP=min(8, sizes["MAX_SPLITS"]),
            num_warps=4,
        )


def _extend(
    tensors: tuple[Tensor, Tensor, Tensor, Tensor],
    layout: PagedLayout,
    scale: float,
    window: int | None,
) -> None:
    queries, k_blocks, _, _ = tensors
    sizes = _sizes(queries, k_blocks, window)
    tiling = extend_tiling(queries.element_size(), sizes["HEAD_DIM"])
    rows = layout.max_query_tokens * (sizes["HEADS"] // sizes["KV_HEADS"])
    grid = triton.cdiv(rows, tiling.rows), sizes["KV_HEADS"], layout.block_tables.shape[0]
    extend_kernel[grid](
        *tensors,
        layout.query_starts,
        layout.context_lengths,
        layout.block_tables,
        layout.block_tables.stride(0),
        scale / math.log(2),
        **sizes,
        BLOCK_SIZE=k_blocks.shape[2],
        MIN_QUERIES=MAX_DECODE_QUERIES + 1,
        BLOCK_M=tiling.rows,
        BLOCK_N=tiling.keys,
        num_warps=tiling.num_warps,
        num_stages=tiling.num_stages,
    )
