"""Products of rows with their experts' matrices, in Triton: ``kernels.grouped_matmul``.

One launch for all experts. How many rows an expert has is known on the device alone: the grid
has room for the worst case, and each program finds the tile that is its own from where the
experts' rows begin.

Import this module only where Triton is to run; ``kernels.dispatch`` decides that.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.launching import launch

COLUMNS_EACH = 64
INPUTS_EACH = 64
FEW_ROWS = 16
MANY_ROWS = 64


@triton.jit
def own_picks(starts_ptr, own, EXPERTS: tl.constexpr, PADDED: tl.constexpr, BLOCK_M: tl.constexpr):
    """(expert, picks [BLOCK_M], end) of the tile of that number; the expert is EXPERTS or more
    where there are fewer tiles. Picks from ``end`` on are another's."""
    each = tl.arange(0, PADDED)
    low = tl.load(starts_ptr + each, mask=each < EXPERTS, other=0)
    high = tl.load(starts_ptr + each + 1, mask=each < EXPERTS, other=0)
    tiles = (high - low + BLOCK_M - 1) // BLOCK_M
    upto = tl.cumsum(tiles, 0)
    expert = tl.sum((upto <= own).to(tl.int32), 0)
    mine = each == expert
    first = own - tl.sum(tl.where(mine, upto - tiles, 0), 0)
    end = tl.sum(tl.where(mine, high, 0), 0)
    pick = tl.sum(tl.where(mine, low, 0), 0) + first * BLOCK_M + tl.arange(0, BLOCK_M)
    return expert, pick, end


@triton.jit
def grouped_matmul_kernel(
    x_ptr,
    matrices_ptr,
    rows_ptr,
    starts_ptr,
    bias_ptr,
    out_ptr,
    OUTPUTS: tl.constexpr,
    INPUTS: tl.constexpr,
    EXPERTS: tl.constexpr,
    PADDED: tl.constexpr,
    SORTED: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    """BLOCK_M picks of one expert by BLOCK_N outputs. Grid: (tiles of picks, of outputs).
    ``rows_ptr`` is not read with SORTED, ``bias_ptr`` with HAS_BIAS only."""
    expert, pick, end = own_picks(starts_ptr, tl.program_id(0), EXPERTS, PADDED, BLOCK_M)
    if expert >= EXPERTS:
        return
    known = pick < end
    row = pick if SORTED else tl.load(rows_ptr + pick, mask=known, other=0)
    column = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    matrix = matrices_ptr + expert.to(tl.int64) * OUTPUTS * INPUTS
    acc = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for start in tl.range(0, INPUTS, BLOCK_K):
        at = start + tl.arange(0, BLOCK_K)
        x = tl.load(
            x_ptr + row[:, None] * INPUTS + at[None, :],
            mask=known[:, None] & (at < INPUTS)[None, :],
            other=0.0,
        )
        weight = tl.load(
            matrix + column[None, :].to(tl.int64) * INPUTS + at[:, None],
            mask=(column < OUTPUTS)[None, :] & (at < INPUTS)[:, None],
            other=0.0,
        )
        acc = tl.dot(x, weight, acc, input_precision="ieee")
    if HAS_BIAS:
        own = expert * OUTPUTS + column
        acc += tl.load(bias_ptr + own, mask=column < OUTPUTS, other=0.0).to(tl.float32)[None, :]
    place = pick.to(tl.int64)[:, None] * OUTPUTS + column[None, :]
    stored = known[:, None] & (column < OUTPUTS)[None, :]
    tl.store(out_ptr + place, acc.to(out_ptr.dtype.element_ty), mask=stored)


def rows_each(picks: int, experts: int) -> int:
    """Picks of a program: few where an expert has few."""
    return FEW_ROWS if picks <= FEW_ROWS * experts else MANY_ROWS


def grouped_matmul(
    x: Tensor, matrices: Tensor, rows: Tensor | None, starts: Tensor, *, bias: Tensor | None = None
) -> Tensor:
    """See ``kernels.grouped_matmul.grouped_matmul_reference``."""
    experts, outputs, inputs = matrices.shape
    picks = len(x) if rows is None else len(rows)
    output = torch.empty(picks, outputs, dtype=x.dtype, device=x.device)
    if picks == 0:
        return output
    block = rows_each(picks, experts)
    grid = picks // block + min(experts, picks), triton.cdiv(outputs, COLUMNS_EACH)
    launch(grouped_matmul_kernel, grid)(
        x.contiguous(),
        matrices,
        starts if rows is None else rows,
        starts,
        starts if bias is None else bias,
        output,
        OUTPUTS=outputs,
        INPUTS=inputs,
        EXPERTS=experts,
        PADDED=triton.next_power_of_2(experts),
        SORTED=rows is None,
        HAS_BIAS=bias is not None,
        BLOCK_M=block,
        BLOCK_N=COLUMNS_EACH,
        BLOCK_K=INPUTS_EACH,
        num_warps=4,
        num_stages=3,
    )
    return output
