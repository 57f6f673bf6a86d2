"""Norm, rotation and KV write in one pass over the fused projection, in Triton.

What ``kernels.qkv`` says, with everything between load and store in float32.
Import this module only where Triton is to run; ``kernels.dispatch`` decides that.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

HEADS_EACH = 8
"""Heads of a program: what makes its loads long enough."""


@triton.jit
def norm_rope_write_kernel(
    qkv_ptr,
    weight_ptr,
    cos_ptr,
    sin_ptr,
    slots_ptr,
    q_ptr,
    k_ptr,
    v_ptr,
    eps,
    HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    NORM: tl.constexpr,
    BLOCK_H: tl.constexpr,
    BLOCK_HALF: tl.constexpr,
):
    """BLOCK_H heads of one token. Grid: (tokens, tiles of heads). ``weight_ptr`` is read
    with NORM only."""
    HALF: tl.constexpr = HEAD_DIM // 2
    ALL: tl.constexpr = HEADS + 2 * KV_HEADS
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1) * BLOCK_H + tl.arange(0, BLOCK_H)
    dims = tl.arange(0, BLOCK_HALF)
    known = (head < ALL)[:, None] & (dims < HALF)[None, :]
    place = (token * ALL + head[:, None]) * HEAD_DIM + dims[None, :]
    raw_low = tl.load(qkv_ptr + place, mask=known, other=0.0)
    raw_high = tl.load(qkv_ptr + place + HALF, mask=known, other=0.0)
    low, high = raw_low.to(tl.float32), raw_high.to(tl.float32)
    rotated = head < HEADS + KV_HEADS
    if NORM:
        scale = tl.rsqrt(tl.sum(low * low + high * high, 1) / HEAD_DIM + eps)
        own = rotated[:, None] & (dims < HALF)[None, :]
        at = head[:, None] * HEAD_DIM + dims[None, :]
        low *= scale[:, None] * tl.load(weight_ptr + at, mask=own, other=0.0).to(tl.float32)
        high *= scale[:, None] * tl.load(weight_ptr + at + HALF, mask=own, other=0.0).to(tl.float32)
    angle = token * HALF + dims
    cos = tl.load(cos_ptr + angle, mask=dims < HALF, other=0.0).to(tl.float32)[None, :]
    sin = tl.load(sin_ptr + angle, mask=dims < HALF, other=0.0).to(tl.float32)[None, :]
    kind = q_ptr.dtype.element_ty
    new_low, new_high = (low * cos - high * sin).to(kind), (high * cos + low * sin).to(kind)
    query = known & (head < HEADS)[:, None]
    place = (token * HEADS + head[:, None]) * HEAD_DIM + dims[None, :]
    tl.store(q_ptr + place, new_low, mask=query)
    tl.store(q_ptr + place + HALF, new_high, mask=query)
    slot = tl.load(slots_ptr + token)
    stored = known & (slot >= 0)
    key_head = head - HEADS
    key = stored & (key_head >= 0)[:, None] & rotated[:, None]
    place = _slot_place(slot, key_head, dims, KV_HEADS, BLOCK_SIZE, HEAD_DIM)
    tl.store(k_ptr + place, new_low, mask=key)
    tl.store(k_ptr + place + HALF, new_high, mask=key)
    value = stored & (head >= HEADS + KV_HEADS)[:, None]
    place = _slot_place(slot, key_head - KV_HEADS, dims, KV_HEADS, BLOCK_SIZE, HEAD_DIM)
    tl.store(v_ptr + place, raw_low, mask=value)
    tl.store(v_ptr + place + HALF, raw_high, mask=value)


@triton.jit
def _slot_place(
    slot,
    head,
    dims,
    KV_HEADS: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    HEAD_DIM: tl.constexpr,
):
    row = (slot // BLOCK_SIZE * KV_HEADS + head) * BLOCK_SIZE + slot % BLOCK_SIZE
    return row[:, None] * HEAD_DIM + dims[None, :]


def norm_rope_write(
    qkv: Tensor,
    *,
    norm_weight: Tensor | None,
    eps: float,
    rotation: tuple[Tensor, Tensor],
    blocks: tuple[Tensor, Tensor],
    slots: Tensor,
) -> Tensor:
    """See ``kernels.qkv.norm_rope_write_reference``. A token whose slot is below zero is
    padding: nothing of it is stored.

    Raises:
        ValueError: the pool is not contiguous.
    """
    if not (blocks[0].is_contiguous() and blocks[1].is_contiguous()):
        raise ValueError("blocks of keys and values must be contiguous")
    tokens, all_heads, head_dim = qkv.shape
    _, kv_heads, block_size, _ = blocks[0].shape
    heads = all_heads - 2 * kv_heads
    queries = torch.empty(tokens, heads, head_dim, dtype=qkv.dtype, device=qkv.device)
    cos, sin = (part.contiguous() for part in rotation)
    norm_rope_write_kernel[tokens, triton.cdiv(all_heads, HEADS_EACH)](
        qkv.contiguous(),
        qkv if norm_weight is None else norm_weight.contiguous(),
        cos,
        sin,
        slots,
        queries,
        *blocks,
        eps,
        HEADS=heads,
        KV_HEADS=kv_heads,
        HEAD_DIM=head_dim,
        BLOCK_SIZE=block_size,
        NORM=norm_weight is not None,
        BLOCK_H=HEADS_EACH,
        BLOCK_HALF=triton.next_power_of_2(head_dim // 2),
        num_warps=4,
    )
    return queries
