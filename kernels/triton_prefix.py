"""Prefixes that several sequences of a decode have in the same blocks, read once for all of them.

Their queries are rows of one product over the prefix; ``kernels.triton_decode`` joins the
parts with those of each sequence's own context.

Always true: of a group the first member's block table is read, as far as the prefix goes.
Import this module only where Triton is to run; ``kernels.dispatch`` decides that.
"""

import math

import triton
import triton.language as tl
from torch import Tensor

from kernels.launching import launch
from kernels.paged_layout import PREFIX_UNIT, PagedLayout, SharedPrefixes
from kernels.side_stream import beside
from kernels.triton_tiles import (
    attend_part,
    decode_tiling,
    load_queries,
    room_for_parts,
    shared_sizes,
)

SPLITS = 16
"""Splits of every prefix, however many there are: a recorded step does not know. A join takes them
together."""
WIDE_SPLITS = 8
"""Where many rows make a tile of 64: there are programs enough, and each leaves parts to join."""
_WIDE_ROWS = 64


@triton.jit(do_not_specialize=["table_stride", "num_members"])
def shared_prefix_kernel(
    q_ptr,
    k_ptr,
    v_ptr,
    part_ptr,
    peak_ptr,
    starts_ptr,
    tables_ptr,
    members_ptr,
    prefixes_ptr,
    table_stride,
    num_members,
    scale_log2,
    HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    SCALED: tl.constexpr,
    QUERIES: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    """One split of one group's prefix, for one kv head and one tile of the members' rows.

    Grid: (tiles of rows * KV_HEADS, splits, groups). A prefix is whole tiles of keys, and every
    row sees all of it. Parts of [sequences, QUERIES, HEADS, splits]; an empty split's has no mass.
    """
    GROUP: tl.constexpr = HEADS // KV_HEADS
    kv_head = tl.program_id(0) % KV_HEADS
    row = tl.program_id(0) // KV_HEADS * BLOCK_M + tl.arange(0, BLOCK_M)
    split, splits = tl.program_id(1), tl.num_programs(1)
    members_ptr += tl.program_id(2) * num_members
    member = row // (GROUP * QUERIES)
    query, head = row // GROUP % QUERIES, kv_head * GROUP + row % GROUP
    sequence = tl.load(members_ptr + member, mask=member < num_members, other=-1)
    if tl.max(sequence, 0) < 0:
        return
    real = sequence >= 0
    first_row = tl.load(starts_ptr + sequence, mask=real, other=0)
    num_queries = tl.load(starts_ptr + sequence + 1, mask=real, other=0) - first_row
    dims = tl.arange(0, BLOCK_D)
    known = (real & (query < num_queries))[:, None] & (dims < HEAD_DIM)[None, :]
    place = (first_row + query).to(tl.int64) * HEADS + head
    row_known = real & (query < num_queries)
    q = load_queries(q_ptr, place * HEAD_DIM, row_known, HEAD_DIM, BLOCK_D)
    length = tl.load(prefixes_ptr + tl.program_id(2))
    per_split = (length // BLOCK_N + splits - 1) // splits * BLOCK_N
    low = split * per_split
    mean, peak = attend_part(
        q,
        k_ptr,
        v_ptr,
        tables_ptr + tl.load(members_ptr).to(tl.int64) * table_stride,
        query,
        low,
        tl.minimum(low + per_split, length),
        kv_head,
        scale_log2,
        KV_HEADS,
        HEAD_DIM,
        BLOCK_D,
        BLOCK_SIZE,
        SCALED,
        0,
        BLOCK_M,
        BLOCK_N,
        False,
    )
    part = (sequence.to(tl.int64) * QUERIES + query) * HEADS + head
    part = part * splits + split
    tl.store(part_ptr + part[:, None] * HEAD_DIM + dims[None, :], mean, mask=known)
    tl.store(peak_ptr + part, peak, mask=real & (query < num_queries))


def attend_prefixes(
    tensors: tuple[Tensor, Tensor, Tensor, Tensor],
    layout: PagedLayout,
    shared: SharedPrefixes,
    width: int,
    scale: float,
) -> tuple[Tensor, Tensor]:
    """Parts of every member's rows over its group's prefix; other rows' hold anything. They are
    computed beside what follows, and there when it is ``joined`` (``kernels.side_stream``).
    ``width``: room for query tokens of each, a power of two."""
    queries, k_blocks, v_blocks, _ = tensors
    sizes = shared_sizes(queries, k_blocks, None)
    heads, kv_heads = sizes["HEADS"], sizes["KV_HEADS"]
    del sizes["WINDOW"]
    groups, members = shared.members.shape
    rows = members * width * heads // kv_heads
    tiling = decode_tiling(
        rows, queries.element_size(), sizes["HEAD_DIM"], scaled=bool(sizes["SCALED"])
    )
    row_tiles = triton.cdiv(rows, tiling.rows)
    splits = WIDE_SPLITS if tiling.rows >= _WIDE_ROWS else SPLITS
    parts = room_for_parts(queries, layout.block_tables.shape[0], width, heads, splits)
    with beside(queries.device):
        launch(shared_prefix_kernel, (kv_heads * row_tiles, splits, groups))(
            queries,
            k_blocks,
            v_blocks,
            *parts,
            layout.query_starts,
            layout.block_tables,
            shared.members,
            shared.lengths,
            layout.block_tables.stride(0),
            members,
            scale / math.log(2),
            **sizes,
            QUERIES=width,
            BLOCK_M=tiling.rows,
            BLOCK_N=min(tiling.keys, PREFIX_UNIT),
            num_warps=tiling.num_warps,
            num_stages=tiling.num_stages,
        )
    return parts
