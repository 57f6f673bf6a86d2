"""Products of rows with their experts' matrices of codes, in Triton: ``kernels.grouped_codes``.

One launch for all experts, as in ``kernels.triton_grouped``; a program widens the codes of its
outputs as it goes along the inputs, as in ``kernels.triton_coded``.

Import this module only where Triton is to run; ``kernels.dispatch`` decides that.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.codes import Codes
from kernels.launching import launch
from kernels.triton_coded import INPUTS_EACH, KINDS, NARROW_KINDS, OUTPUTS_EACH, coded_weights
from kernels.triton_grouped import own_picks, rows_each


@triton.jit
def grouped_coded_kernel(
    x_ptr,
    values_ptr,
    scales_ptr,
    zeros_ptr,
    rows_ptr,
    starts_ptr,
    bias_ptr,
    out_ptr,
    OUTPUTS: tl.constexpr,
    INPUTS: tl.constexpr,
    GROUP: tl.constexpr,
    GROUPS: tl.constexpr,
    KIND: tl.constexpr,
    NARROW: tl.constexpr,
    HAS_ZEROS: tl.constexpr,
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
    output = expert.to(tl.int64) * OUTPUTS + column
    acc = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for start in tl.range(0, INPUTS, BLOCK_K):
        at = start + tl.arange(0, BLOCK_K)
        x = tl.load(
            x_ptr + row[:, None] * INPUTS + at[None, :],
            mask=known[:, None] & (at < INPUTS)[None, :],
            other=0.0,
        )
        there = (column < OUTPUTS)[None, :] & (at < INPUTS)[:, None]
        weight = coded_weights(
            values_ptr,
            scales_ptr,
            zeros_ptr,
            output,
            at,
            there,
            INPUTS,
            GROUP,
            GROUPS,
            KIND,
            NARROW,
            HAS_ZEROS,
        ).to(x.dtype)
        acc = tl.dot(x, weight, acc, input_precision="ieee")
    if HAS_BIAS:
        own = expert * OUTPUTS + column
        acc += tl.load(bias_ptr + own, mask=column < OUTPUTS, other=0.0).to(tl.float32)[None, :]
    place = pick.to(tl.int64)[:, None] * OUTPUTS + column[None, :]
    stored = known[:, None] & (column < OUTPUTS)[None, :]
    tl.store(out_ptr + place, acc.to(out_ptr.dtype.element_ty), mask=stored)


def grouped_coded_matmul(
    x: Tensor,
    codes: Codes,
    experts: int,
    rows: Tensor | None,
    starts: Tensor,
    *,
    bias: Tensor | None = None,
) -> Tensor:
    """See ``kernels.grouped_codes.grouped_coded_matmul_reference``; weights are rounded to x's
    dtype."""
    picks = len(x) if rows is None else len(rows)
    outputs = codes.outputs // experts
    output = torch.empty(picks, outputs, dtype=x.dtype, device=x.device)
    if picks == 0:
        return output
    block = rows_each(picks, experts)
    grid = picks // block + min(experts, picks), triton.cdiv(outputs, OUTPUTS_EACH)
    launch(grouped_coded_kernel, grid)(
        x.contiguous(),
        codes.values,
        codes.scales,
        codes.scales if codes.zeros is None else codes.zeros,
        starts if rows is None else rows,
        starts,
        starts if bias is None else bias,
        output,
        OUTPUTS=outputs,
        INPUTS=codes.inputs,
        GROUP=codes.group,
        GROUPS=codes.scales.shape[1],
        KIND=KINDS[codes.kind],
        NARROW=codes.kind in NARROW_KINDS,
        HAS_ZEROS=codes.zeros is not None,
        EXPERTS=experts,
        PADDED=triton.next_power_of_2(experts),
        SORTED=rows is None,
        HAS_BIAS=bias is not None,
        BLOCK_M=block,
        BLOCK_N=OUTPUTS_EACH,
        BLOCK_K=INPUTS_EACH,
        num_warps=4,
        num_stages=3,
    )
    return output
