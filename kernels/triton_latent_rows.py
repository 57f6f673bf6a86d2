"""Rotated queries and rows of latents, in Triton: ``kernels.latent_rows``.

One launch. Everything between load and store is in float32.
Import this module only where Triton is to run; ``kernels.dispatch`` decides that.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.launching import launch

HEADS_EACH = 8


@triton.jit
def _turn_queries(
    queries_ptr,
    out_ptr,
    query_stride,
    token,
    tile,
    cos,
    sin,
    dims,
    HEADS: tl.constexpr,
    QUERY_DIM: tl.constexpr,
    RANK: tl.constexpr,
    ROTARY: tl.constexpr,
    BLOCK_H: tl.constexpr,
):
    HALF: tl.constexpr = ROTARY // 2
    WIDE: tl.constexpr = RANK + ROTARY
    head = tile * BLOCK_H + tl.arange(0, BLOCK_H)
    known = (head < HEADS)[:, None] & (dims < HALF)[None, :]
    place = token * query_stride + head[:, None] * QUERY_DIM + QUERY_DIM - ROTARY + dims[None, :]
    low = tl.load(queries_ptr + place, mask=known, other=0.0).to(tl.float32)
    high = tl.load(queries_ptr + place + HALF, mask=known, other=0.0).to(tl.float32)
    cos, sin = cos[None, :], sin[None, :]
    kind = out_ptr.dtype.element_ty
    target = (token * HEADS + head[:, None]) * WIDE + RANK + dims[None, :]
    tl.store(out_ptr + target, (low * cos - high * sin).to(kind), mask=known)
    tl.store(out_ptr + target + HALF, (high * cos + low * sin).to(kind), mask=known)


@triton.jit
def _store_row(
    rows_ptr,
    weight_ptr,
    blocks_ptr,
    row_stride,
    token,
    slot,
    eps,
    cos,
    sin,
    dims,
    RANK: tl.constexpr,
    ROTARY: tl.constexpr,
    BLOCK_R: tl.constexpr,
):
    HALF: tl.constexpr = ROTARY // 2
    column = tl.arange(0, BLOCK_R)
    known = column < RANK
    row = rows_ptr + token * row_stride
    latent = tl.load(row + column, mask=known, other=0.0).to(tl.float32)
    scale = tl.rsqrt(tl.sum(latent * latent, 0) / RANK + eps)
    weight = tl.load(weight_ptr + column, mask=known, other=0.0).to(tl.float32)
    kind = blocks_ptr.dtype.element_ty
    stored = blocks_ptr + slot * (RANK + ROTARY)
    tl.store(stored + column, (latent * scale * weight).to(kind), mask=known)
    half = dims < HALF
    low = tl.load(row + RANK + dims, mask=half, other=0.0).to(tl.float32)
    high = tl.load(row + RANK + HALF + dims, mask=half, other=0.0).to(tl.float32)
    tl.store(stored + RANK + dims, (low * cos - high * sin).to(kind), mask=half)
    tl.store(stored + RANK + HALF + dims, (high * cos + low * sin).to(kind), mask=half)


@triton.jit
def latent_rows_kernel(
    queries_ptr,
    rows_ptr,
    weight_ptr,
    cos_ptr,
    sin_ptr,
    slots_ptr,
    blocks_ptr,
    out_ptr,
    query_stride,
    row_stride,
    eps,
    HEADS: tl.constexpr,
    QUERY_DIM: tl.constexpr,
    RANK: tl.constexpr,
    ROTARY: tl.constexpr,
    BLOCK_H: tl.constexpr,
    BLOCK_R: tl.constexpr,
    BLOCK_HALF: tl.constexpr,
):
    """BLOCK_H heads of one token, or its row where its slot is not below 0. Grid: (tokens, tiles
    of heads and one for the row)."""
    token, tile = tl.program_id(0).to(tl.int64), tl.program_id(1)
    dims = tl.arange(0, BLOCK_HALF)
    angle = token * (ROTARY // 2) + dims
    cos = tl.load(cos_ptr + angle, mask=dims < ROTARY // 2, other=0.0).to(tl.float32)
    sin = tl.load(sin_ptr + angle, mask=dims < ROTARY // 2, other=0.0).to(tl.float32)
    if tile * BLOCK_H < HEADS:
        _turn_queries(
            queries_ptr,
            out_ptr,
            query_stride,
            token,
            tile,
            cos,
            sin,
            dims,
            HEADS,
            QUERY_DIM,
            RANK,
            ROTARY,
            BLOCK_H,
        )
    else:
        slot = tl.load(slots_ptr + token)
        if slot >= 0:
            _store_row(
                rows_ptr,
                weight_ptr,
                blocks_ptr,
                row_stride,
                token,
                slot,
                eps,
                cos,
                sin,
                dims,
                RANK,
                ROTARY,
                BLOCK_R,
            )


def latent_rows(
    queries: Tensor,
    rows: Tensor,
    *,
    norm: tuple[Tensor, float],
    rotation: tuple[Tensor, Tensor],
    blocks: Tensor,
    slots: Tensor,
) -> Tensor:
    """See ``kernels.latent_rows.latent_rows``. A token whose slot is below zero is padding: nothing
    of it is stored.

    Raises:
        ValueError: the pool or a head's numbers are not contiguous.
    """
    weight, eps = norm
    tokens, heads, query_dim = queries.shape
    rank, wide = len(weight), rows.shape[1]
    if not blocks.is_contiguous() or queries.stride()[1:] != (query_dim, 1) or rows.stride(1) != 1:
        raise ValueError("the pool, a head's queries and a token's row have to be contiguous")
    whole = torch.empty(tokens, heads, wide, dtype=queries.dtype, device=queries.device)
    if tokens == 0:
        return whole[:, :, rank:]
    cos, sin = rotation
    launch(latent_rows_kernel, (tokens, triton.cdiv(heads, HEADS_EACH) + 1))(
        queries,
        rows,
        weight,
        cos.contiguous(),
        sin.contiguous(),
        slots,
        blocks,
        whole,
        queries.stride(0),
        rows.stride(0),
        eps,
        HEADS=heads,
        QUERY_DIM=query_dim,
        RANK=rank,
        ROTARY=wide - rank,
        BLOCK_H=HEADS_EACH,
        BLOCK_R=triton.next_power_of_2(rank),
        BLOCK_HALF=triton.next_power_of_2((wide - rank) // 2),
        num_warps=4,
    )
    return whole[:, :, rank:]
