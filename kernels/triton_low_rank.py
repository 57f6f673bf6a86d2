"""Parts of low rank of any mix of adapters, in Triton: ``kernels.low_rank``.

Two launches for a map, whatever adapters a step has: into the ranks, and out of them. A program has
16 tokens and goes through the adapters among them, which in most tiles is one. Nothing of a step
waits for the host, so that it can be recorded.
Import this module only where Triton is to run; ``kernels.dispatch`` decides that.
"""

from typing import Final

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.launching import launch
from kernels.low_rank import OUTPUTS_EACH, StackedLowRank

TOKENS_EACH: Final = 16
INPUTS_EACH: Final = 128
RANKS_EACH: Final = 16


@triton.jit
def low_rank_down_kernel(
    x_ptr,
    down_ptr,
    adapters_ptr,
    inner_ptr,
    tokens,
    x_stride,
    INPUTS: tl.constexpr,
    RANKS: tl.constexpr,
    PRECISION: tl.constexpr,
    BLOCK_T: tl.constexpr,
    BLOCK_I: tl.constexpr,
    BLOCK_R: tl.constexpr,
):
    """BLOCK_T tokens' products with BLOCK_R rows of their adapters' matrices [RANKS, INPUTS]; of a
    token whose adapter is below 0 zeros. Grid: (tiles of tokens, tiles of ranks)."""
    token = tl.program_id(0) * BLOCK_T + tl.arange(0, BLOCK_T)
    rank = tl.program_id(1) * BLOCK_R + tl.arange(0, BLOCK_R)
    row = token.to(tl.int64)
    adapter = tl.load(adapters_ptr + token, mask=token < tokens, other=-1)
    sums = tl.zeros((BLOCK_T, BLOCK_R), tl.float32)
    current = tl.max(adapter, 0)
    while current >= 0:
        mine = adapter == current
        own = tl.zeros((BLOCK_T, BLOCK_R), tl.float32)
        matrix = down_ptr + (current.to(tl.int64) * RANKS + rank)[None, :] * INPUTS
        for first in range(0, INPUTS, BLOCK_I):
            column = first + tl.arange(0, BLOCK_I)
            there = column < INPUTS
            inputs = tl.load(
                x_ptr + row[:, None] * x_stride + column[None, :],
                mask=mine[:, None] & there[None, :],
                other=0.0,
            )
            weights = tl.load(
                matrix + column[:, None],
                mask=(rank < RANKS)[None, :] & there[:, None],
                other=0.0,
            )
            own += tl.dot(inputs, weights, input_precision=PRECISION)
        sums = tl.where(mine[:, None], own, sums)
        adapter = tl.where(mine, -1, adapter)
        current = tl.max(adapter, 0)
    tl.store(
        inner_ptr + row[:, None] * RANKS + rank[None, :],
        sums,
        mask=(token < tokens)[:, None] & (rank < RANKS)[None, :],
    )


@triton.jit
def low_rank_up_kernel(
    inner_ptr,
    up_ptr,
    tiles_ptr,
    adapters_ptr,
    result_ptr,
    tokens,
    result_stride,
    OUTPUTS: tl.constexpr,
    RANKS: tl.constexpr,
    RANK: tl.constexpr,
    PRECISION: tl.constexpr,
    BLOCK_T: tl.constexpr,
    BLOCK_O: tl.constexpr,
    BLOCK_R: tl.constexpr,
):
    """Add to BLOCK_T tokens' outputs of one tile what their adapters' matrices [OUTPUTS, RANK] make
    of their ranks. Grid: (tiles of tokens, tiles of outputs, each with its first output, the one
    behind its last, and its first rank)."""
    token = tl.program_id(0) * BLOCK_T + tl.arange(0, BLOCK_T)
    tile = tiles_ptr + tl.program_id(1) * 3
    first, end, first_rank = tl.load(tile), tl.load(tile + 1), tl.load(tile + 2)
    output = first + tl.arange(0, BLOCK_O)
    row = token.to(tl.int64)
    adapter = tl.load(adapters_ptr + token, mask=token < tokens, other=-1)
    wanted = (adapter >= 0)[:, None] & (output < end)[None, :]
    place = result_ptr + row[:, None] * result_stride + output[None, :]
    sums = tl.zeros((BLOCK_T, BLOCK_O), tl.float32)
    current = tl.max(adapter, 0)
    while current >= 0:
        mine = adapter == current
        own = tl.zeros((BLOCK_T, BLOCK_O), tl.float32)
        matrix = up_ptr + (current.to(tl.int64) * OUTPUTS + output)[None, :] * RANK
        for low in range(0, RANK, BLOCK_R):
            rank = low + tl.arange(0, BLOCK_R)
            there = rank < RANK
            inner = tl.load(
                inner_ptr + row[:, None] * RANKS + first_rank + rank[None, :],
                mask=mine[:, None] & there[None, :],
                other=0.0,
            )
            weights = tl.load(
                matrix + rank[:, None],
                mask=(output < end)[None, :] & there[:, None],
                other=0.0,
            )
            own += tl.dot(inner, weights.to(tl.float32), input_precision=PRECISION)
        sums = tl.where(mine[:, None], own, sums)
        adapter = tl.where(mine, -1, adapter)
        current = tl.max(adapter, 0)
    before = tl.load(place, mask=wanted, other=0.0).to(tl.float32)
    tl.store(place, (before + sums).to(result_ptr.dtype.element_ty), mask=wanted)


def add_low_rank(result: Tensor, x: Tensor, maps: StackedLowRank, adapters: Tensor) -> None:
    """Add to ``result`` [T, outputs] what adapters make of ``x`` [T, inputs], in place.

    Args:
        adapters: [T] int32, on the device: each token's, below 0 for none.
    """
    tokens, ranks = len(adapters), maps.down.shape[1]
    if not tokens:
        return
    inner = torch.empty(tokens, ranks, dtype=torch.float32, device=x.device)
    outputs, rank = maps.up.shape[1:]
    tiles = triton.cdiv(tokens, TOKENS_EACH)
    launch(low_rank_down_kernel, (tiles, triton.cdiv(ranks, RANKS_EACH)))(
        x,
        maps.down,
        adapters,
        inner,
        tokens,
        x.stride(0),
        INPUTS=x.shape[1],
        RANKS=ranks,
        PRECISION="ieee",
        BLOCK_T=TOKENS_EACH,
        BLOCK_I=INPUTS_EACH,
        BLOCK_R=RANKS_EACH,
        num_warps=4,
    )
    launch(low_rank_up_kernel, (tiles, len(maps.tiles)))(
        inner,
        maps.up,
        maps.tiles,
        adapters,
        result,
        tokens,
        result.stride(0),
        OUTPUTS=outputs,
        RANKS=ranks,
        RANK=rank,
        PRECISION="ieee" if x.dtype == torch.float32 else "tf32",
        BLOCK_T=TOKENS_EACH,
        BLOCK_O=OUTPUTS_EACH,
        BLOCK_R=RANKS_EACH,
        num_warps=4,
    )
