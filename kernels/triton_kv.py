"""Norm, rotation and KV write in one pass over the fused projection, in Triton.

What ``kernels.qkv`` says, with everything between load and store in float32. Where the pool
keeps 8 bits, numbers are rounded as ``kernels.triton_fp8`` rounds them.
Import this module only where Triton is to run; ``kernels.dispatch`` decides that.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.launching import launch
from kernels.quantised_kv import FP8, SCALE_BYTES
from kernels.triton_fp8 import LARGEST, STEP, VANISHING, e4m3, not_finite

HEADS_EACH = 8
"""Heads of a program: what makes its loads long enough."""

_SCALE_BYTES = tl.constexpr(SCALE_BYTES)


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
    SCALED: tl.constexpr,
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
    value = stored & (head >= HEADS + KV_HEADS)[:, None]
    value_head = key_head - KV_HEADS
    if SCALED:
        low, high = new_low.to(tl.float32), new_high.to(tl.float32)
        _store_fp8(k_ptr, low, high, slot, key_head, dims, key, KV_HEADS, BLOCK_SIZE, HEAD_DIM)
        low, high = raw_low.to(tl.float32), raw_high.to(tl.float32)
        _store_fp8(v_ptr, low, high, slot, value_head, dims, value, KV_HEADS, BLOCK_SIZE, HEAD_DIM)
    else:
        place = _slot_place(slot, key_head, dims, KV_HEADS, BLOCK_SIZE, HEAD_DIM)
        tl.store(k_ptr + place, new_low, mask=key)
        tl.store(k_ptr + place + HALF, new_high, mask=key)
        place = _slot_place(slot, value_head, dims, KV_HEADS, BLOCK_SIZE, HEAD_DIM)
        tl.store(v_ptr + place, raw_low, mask=value)
        tl.store(v_ptr + place + HALF, raw_high, mask=value)


@triton.jit
def _store_fp8(
    ptr,
    low,
    high,
    slot,
    head,
    dims,
    keep,
    KV_HEADS: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    HEAD_DIM: tl.constexpr,
):
    """``kernels.quantised_kv.quantise_fp8`` of the rows of ``keep``, into fp8 blocks."""
    HALF: tl.constexpr = HEAD_DIM // 2
    damaged = not_finite(low) | not_finite(high)
    low, high = tl.where(damaged, 0.0, low), tl.where(damaged, 0.0, high)
    damaged = tl.max(damaged.to(tl.int32), 1) > 0
    largest = tl.max(tl.maximum(tl.abs(low), tl.abs(high)), 1)
    some = largest > VANISHING
    inverse = tl.where(some, tl.div_rn(LARGEST, tl.where(some, largest, 1.0)), 0.0)
    scale = tl.where(damaged, float("nan"), tl.where(some, largest * STEP, 0.0))
    start = (slot // BLOCK_SIZE * KV_HEADS + head) * (BLOCK_SIZE * (HEAD_DIM + _SCALE_BYTES))
    place = (start + slot % BLOCK_SIZE * HEAD_DIM)[:, None] + dims[None, :]
    values = ptr.to(tl.pointer_type(tl.uint8))
    tl.store(values + place, e4m3(low * inverse[:, None]), mask=keep)
    tl.store(values + place + HALF, e4m3(high * inverse[:, None]), mask=keep)
    scales = ptr.to(tl.pointer_type(tl.float32))
    place = (start + BLOCK_SIZE * HEAD_DIM) // _SCALE_BYTES + slot % BLOCK_SIZE
    tl.store(scales + place, scale, mask=tl.max(keep.to(tl.int32), 1) > 0)


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
        ValueError: the pool is not contiguous, or its 8 bits do not fit the head size.
    """
    if not (blocks[0].is_contiguous() and blocks[1].is_contiguous()):
        raise ValueError("blocks of keys and values must be contiguous")
    tokens, all_heads, head_dim = qkv.shape
    _, kv_heads, block_size, _ = blocks[0].shape
    if blocks[0].dtype == FP8 and head_dim % SCALE_BYTES:
        raise ValueError(f"head_dim {head_dim} is not a multiple of {SCALE_BYTES}, as fp8 needs")
    heads = all_heads - 2 * kv_heads
    queries = torch.empty(tokens, heads, head_dim, dtype=qkv.dtype, device=qkv.device)
    cos, sin = (part.contiguous() for part in rotation)
    launch(norm_rope_write_kernel, (tokens, triton.cdiv(all_heads, HEADS_EACH)))(
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
        SCALED=blocks[0].dtype == FP8,
        NORM=norm_weight is not None,
        BLOCK_H=HEADS_EACH,
        BLOCK_HALF=triton.next_power_of_2(head_dim // 2),
        num_warps=4,
    )
    return queries
