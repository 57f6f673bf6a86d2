"""Paged causal attention on a GPU, in Triton: what ``kernels.attention`` says.

Sequences of few query tokens are ``kernels.triton_decode``'s. Here are the others, prefill
chunks: one program for each tile of query rows. A launch covers all sequences of a step;
programs of sequences that are the other kernel's return at once.

Always true: slots past a context and table entries past its blocks are never read.
Import this module only where Triton is to run; ``kernels.dispatch`` decides that.
"""

import math

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.launching import launch
from kernels.paged_layout import MAX_DECODE_QUERIES, PagedLayout
from kernels.triton_decode import decode
from kernels.triton_tiles import (
    LATENT_WIDE_TILING,
    WIDE_TILING,
    Tiling,
    attend_tiles,
    load_queries,
    mean_of,
    shared_sizes,
)


def extend_tiling(element_size: int, head_dim: int) -> Tiling:
    """Tile sizes for chunks of prompts."""
    if element_size > 2:
        return WIDE_TILING if head_dim <= 256 else LATENT_WIDE_TILING
    if head_dim > 256:
        return Tiling(rows=32, keys=32, num_warps=8, num_stages=2)
    if head_dim > 128:
        return Tiling(rows=64, keys=32, num_warps=4, num_stages=2)
    return Tiling(rows=128, keys=64, num_warps=8, num_stages=3)


@triton.jit(do_not_specialize=["table_stride"])
def extend_kernel(
    q_ptr,
    k_ptr,
    v_ptr,
    out_ptr,
    sinks_ptr,
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
    SCALED: tl.constexpr,
    SINKS: tl.constexpr,
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
    q = load_queries(q_ptr, place * HEAD_DIM, query < num_queries, HEAD_DIM, BLOCK_D)
    place = place[:, None] * HEAD_DIM + dims[None, :]
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
        acc, top, mass = attend_tiles(
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
            SCALED,
            WINDOW,
            BLOCK_N,
            False,
        )
    acc, top, mass = attend_tiles(
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
        SCALED,
        WINDOW,
        BLOCK_N,
        True,
    )
    mean = mean_of(acc, top, mass, sinks_ptr, head, SCALED, SINKS)
    tl.store(out_ptr + place, mean.to(out_ptr.dtype.element_ty), mask=known)


def paged_attention(
    queries: Tensor,
    k_blocks: Tensor,
    v_blocks: Tensor,
    layout: PagedLayout,
    *,
    scale: float,
    window: int | None,
    sinks: Tensor | None = None,
) -> Tensor:
    """See ``kernels.attention.paged_attention_reference``; float64 is not for this.

    Raises:
        ValueError: the pool is not contiguous.
    """
    if not (k_blocks.is_contiguous() and v_blocks.is_contiguous()):
        raise ValueError("blocks of keys and values must be contiguous")
    queries = queries.contiguous()
    output = _output(queries, layout)
    tensors = queries, k_blocks, v_blocks, output
    if layout.max_decode_tokens:
        decode(tensors, layout, scale, window, sinks)
    if layout.max_query_tokens > MAX_DECODE_QUERIES:
        _extend(tensors, layout, scale, window, sinks)
    return output


def _output(queries: Tensor, layout: PagedLayout) -> Tensor:
    """Room for the output. Rows of nobody are nobody's to write: they are zeros, made once a step
    and the same in every layer, which is done with them when the next begins."""
    if not layout.has_rows_of_nobody:
        return torch.empty_like(queries)
    if ("output",) not in layout.plans:
        layout.plans["output",] = torch.zeros_like(queries)
    return layout.plans["output",]


def _extend(
    tensors: tuple[Tensor, Tensor, Tensor, Tensor],
    layout: PagedLayout,
    scale: float,
    window: int | None,
    sinks: Tensor | None,
) -> None:
    queries, k_blocks, _, _ = tensors
    sizes = shared_sizes(queries, k_blocks, window)
    tiling = extend_tiling(queries.element_size(), sizes["HEAD_DIM"])
    rows = layout.max_query_tokens * (sizes["HEADS"] // sizes["KV_HEADS"])
    grid = triton.cdiv(rows, tiling.rows), sizes["KV_HEADS"], layout.block_tables.shape[0]
    launch(extend_kernel, grid)(
        *tensors,
        layout.query_starts if sinks is None else sinks,
        layout.query_starts,
        layout.context_lengths,
        layout.block_tables,
        layout.block_tables.stride(0),
        scale / math.log(2),
        **sizes,
        SINKS=sinks is not None,
        MIN_QUERIES=MAX_DECODE_QUERIES + 1,
        BLOCK_M=tiling.rows,
        BLOCK_N=tiling.keys,
        num_warps=tiling.num_warps,
        num_stages=tiling.num_stages,
    )
