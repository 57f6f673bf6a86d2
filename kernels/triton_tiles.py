"""The loop that all paged attention on a GPU is made of: tiles of keys into a running softmax.

Softmax runs over tiles with a running maximum (Dao et al. 2022, arXiv:2205.14135), in base 2
and float32. Keys and values are read where they lie in the pool: as numbers, or in 8 bits
with a scale for each token and head (``kernels.quantised_kv``), which then weighs scores and
weights instead of every key and value. A GPU makes float16 of 8 bits in one instruction, bfloat16
in several, so parts of queries in bfloat16 are computed in float16, each row by its largest.

What a kernel is compiled for comes in powers of two, and not for the values of other numbers,
so that a server soon has all variants.

Always true: slots past a context and table entries past its blocks are never read.
Import this module only where Triton is to run; ``kernels.dispatch`` decides that.
"""

import math
from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.quantised_kv import FP8, SCALE_BYTES

_SCALE_BYTES = tl.constexpr(SCALE_BYTES)
LOG2_E = tl.constexpr(math.log2(math.e))
VALUE_UNIT = tl.constexpr(64.0)
"""Weights times scales of values in 8 bits are this much larger while they are multiplied: in
float16 they lose less than bfloat16 would for values of 2e-4 up to 4e5."""
MOST_WHOLE = 256
_LEAST_PEAK = tl.constexpr(1e-30)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tiling:
    """How a kernel is compiled."""

    rows: int
    """Query rows of a program: query tokens x heads that share a kv head."""
    keys: int
    """Keys of a step of its loop."""
    num_warps: int
    num_stages: int


WIDE_TILING = Tiling(rows=16, keys=64, num_warps=8, num_stages=3)
"""Tile sizes for float32, whose exact products tensor cores do not know: what registers hold."""


LATENT_TILING = Tiling(rows=16, keys=32, num_warps=8, num_stages=2)
LATENT_WIDE_TILING = Tiling(rows=16, keys=16, num_warps=8, num_stages=1)
"""For rows of the pool that are latents, keys and values at once, and for float32."""


def decode_tiling(rows: int, element_size: int, head_dim: int, *, scaled: bool) -> Tiling:
    """For sequences of up to ``rows`` query rows for each kv head; ``scaled``: keys and values
    in 8 bits, which take registers until they are widened."""
    if element_size > 2:
        return WIDE_TILING if head_dim <= 256 else LATENT_WIDE_TILING
    if head_dim > 256:
        return LATENT_TILING
    fitting = next((size for size in (16, 32) if rows <= size), 64)
    if head_dim > 128:
        stages = 3 if fitting == 16 else 2
        return Tiling(rows=min(fitting, 32), keys=32, num_warps=8, num_stages=stages)
    if scaled and fitting < 64:
        keys, num_stages = (64, 2) if fitting == 16 else (32, 5)
        return Tiling(rows=fitting, keys=keys, num_warps=8, num_stages=num_stages)
    return Tiling(rows=fitting, keys=64, num_warps=4, num_stages=2 if fitting == 16 else 3)


def shared_sizes(queries: Tensor, k_blocks: Tensor, window: int | None) -> dict[str, int]:
    """The constants that all kernels of attention share. Of heads of more than MOST_WHOLE
    dimensions the first BLOCK_D have values, the rest takes part in scores alone."""
    head_dim = queries.shape[2]
    block = max(16, triton.next_power_of_2(head_dim))
    if head_dim > MOST_WHOLE:
        block = 1 << (head_dim.bit_length() - 1)
    return {
        "HEADS": queries.shape[1],
        "KV_HEADS": k_blocks.shape[1],
        "HEAD_DIM": head_dim,
        "BLOCK_D": block,
        "BLOCK_SIZE": k_blocks.shape[2],
        "SCALED": k_blocks.dtype == FP8,
        "WINDOW": window or 0,
    }


def room_for_parts(queries: Tensor, *shape: int) -> tuple[Tensor, Tensor]:
    """Room for means [*shape, head_dim] and their masses' logarithms [*shape]."""
    head_dim = queries.shape[2]
    return (
        queries.new_empty((*shape, head_dim), dtype=torch.float32),
        queries.new_empty(shape, dtype=torch.float32),
    )


@triton.jit
def load_queries(q_ptr, place, known, HEAD_DIM: tl.constexpr, BLOCK_D: tl.constexpr):
    """Of query rows that begin at ``place`` the first BLOCK_D dimensions, and those behind, or,
    where there are none, the same again; zeros where a row is not ``known``."""
    dims = tl.arange(0, BLOCK_D)
    mask = known[:, None] & (dims < HEAD_DIM)[None, :]
    q = tl.load(q_ptr + place[:, None] + dims[None, :], mask=mask, other=0.0)
    q_rest = q
    if HEAD_DIM > BLOCK_D:
        more = BLOCK_D + tl.arange(0, HEAD_DIM - BLOCK_D)
        q_rest = tl.load(q_ptr + place[:, None] + more[None, :], mask=known[:, None], other=0.0)
    return q, q_rest


@triton.jit
def attend_tiles(
    queries,
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
    SCALED: tl.constexpr,
    WINDOW: tl.constexpr,
    BLOCK_N: tl.constexpr,
    MASKED: tl.constexpr,
):
    """Take keys ``low`` .. ``high`` - 1 into the running softmax. Without MASKED every row
    sees all of them, and their number is a multiple of BLOCK_N. ``scale_log2``: a number, or one
    for each row. With SCALED ``acc`` is VALUE_UNIT times as large. ``queries``: see
    ``load_queries``."""
    q, q_rest = queries
    dims = tl.arange(0, BLOCK_D)
    for start in tl.range(low, high, BLOCK_N):
        at = start + tl.arange(0, BLOCK_N)
        inside = at < high
        page = tl.load(table_ptr + at // BLOCK_SIZE, mask=inside, other=0).to(tl.int64)
        block = page * KV_HEADS + kv_head
        if SCALED:
            head = BLOCK_SIZE * HEAD_DIM
            size = BLOCK_SIZE * (HEAD_DIM + _SCALE_BYTES)
            row = block * size + at % BLOCK_SIZE * HEAD_DIM
            scale_at = (block * size + head) // _SCALE_BYTES + at % BLOCK_SIZE
            k_scales = k_ptr.to(tl.pointer_type(tl.float32))
            v_scales = v_ptr.to(tl.pointer_type(tl.float32))
            k_scale = tl.load(k_scales + scale_at, mask=inside, other=0.0)
            v_scale = tl.load(v_scales + scale_at, mask=inside, other=0.0)
        else:
            row = (block * BLOCK_SIZE + at % BLOCK_SIZE) * HEAD_DIM
        k = tl.load(
            k_ptr + row[None, :] + dims[:, None],
            mask=inside[None, :] & (dims < HEAD_DIM)[:, None],
            other=0.0,
        ).to(q.dtype)
        known = inside[:, None] & (dims < HEAD_DIM)[None, :]
        v = tl.load(v_ptr + row[:, None] + dims[None, :], mask=known, other=0.0).to(q.dtype)
        scores = tl.dot(q, k, input_precision="ieee")
        if HEAD_DIM > BLOCK_D:
            more = BLOCK_D + tl.arange(0, HEAD_DIM - BLOCK_D)
            k_rest = tl.load(
                k_ptr + row[None, :] + more[:, None], mask=inside[None, :], other=0.0
            ).to(q.dtype)
            scores = tl.dot(q_rest, k_rest, scores, input_precision="ieee")
        scores = scores * scale_log2
        if SCALED:
            scores = scores * k_scale[None, :]
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
        if SCALED:
            weights = weights * (v_scale * VALUE_UNIT)[None, :]
        acc = acc * decay[:, None]
        acc = tl.dot(weights.to(v.dtype), v, acc, input_precision="ieee")
        top = new_top
    return acc, top, mass


@triton.jit
def attend_part(
    queries,
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
    SCALED: tl.constexpr,
    WINDOW: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    MASKED: tl.constexpr,
):
    """(mean, log2 of its mass) of BLOCK_M rows over keys ``low`` .. ``high`` - 1 alone; a row
    that sees none has mean 0 and the logarithm minus infinity."""
    if SCALED:  # noqa: SIM102, both are decided when compiling
        if queries[0].dtype == tl.bfloat16:
            wide, wide_rest = queries[0].to(tl.float32), queries[1].to(tl.float32)
            peak = tl.maximum(tl.max(tl.abs(wide), 1), tl.max(tl.abs(wide_rest), 1))
            peak = tl.maximum(peak, _LEAST_PEAK)[:, None]
            queries = (wide / peak).to(tl.float16), (wide_rest / peak).to(tl.float16)
            scale_log2 = scale_log2 * peak
    acc, top, mass = attend_tiles(
        queries,
        tl.zeros((BLOCK_M, BLOCK_D), tl.float32),
        tl.full((BLOCK_M,), float("-inf"), tl.float32),
        tl.zeros((BLOCK_M,), tl.float32),
        k_ptr,
        v_ptr,
        table_ptr,
        query_at,
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
        BLOCK_N,
        MASKED,
    )
    some_mass = tl.where(mass == 0, 1.0, mass)
    mean = acc / some_mass[:, None]
    if SCALED:
        mean = mean / VALUE_UNIT
    return mean, top + tl.log2(some_mass)


@triton.jit
def mean_of(acc, top, mass, sinks_ptr, head, SCALED: tl.constexpr, SINKS: tl.constexpr):
    """The mean of rows that have seen all they see, a row's sink (``sinks_ptr`` + ``head``)
    included; of rows that see nothing 0."""
    if SINKS:
        sink = tl.load(sinks_ptr + head) * LOG2_E
        mass += tl.exp2(sink - tl.where(top == float("-inf"), sink, top))
    mean = acc / tl.where(mass == 0, 1.0, mass)[:, None]
    if SCALED:
        mean = mean / VALUE_UNIT
    return mean
