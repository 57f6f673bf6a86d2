"""Products with matrices of codes, in Triton: ``kernels.coded_matrix``.

A program widens the codes of its outputs as it goes along the inputs, to the dtype of the rows; on
a GPU nothing wider than the codes is in memory. Sums are in float32.

Import this module only where Triton is to run; ``kernels.dispatch`` decides that.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.codes import MIDDLE, Codes
from kernels.launching import launch

OUTPUTS_EACH = 64
INPUTS_EACH = 32
"""No group is smaller that divides them; others may be anything."""
FEW_ROWS = 16
MANY_ROWS = 64
KINDS = {"int4": 0, "int8": 1, "e2m1": 2, "e4m3": 3}
NARROW_KINDS = ("int4", "e2m1")
"""Kinds of codes with 4 bits."""

INT4 = tl.constexpr(0)
INT8 = tl.constexpr(1)
E2M1 = tl.constexpr(2)
E4M3 = tl.constexpr(3)
MIDDLE_OF_4_BITS = tl.constexpr(MIDDLE)


@triton.jit
def e2m1_value(code):
    """float32 of the sixteen codes: 0 and .5 below 1, then half steps doubled twice."""
    size = (code & 7).to(tl.float32)
    size = tl.where(size < 4, size * 0.5, tl.where(size < 6, size - 2.0, size * 2.0 - 8.0))
    return tl.where(code >= 8, -size, size)


@triton.jit
def e4m3_value(code):
    """float32 of a byte that is a number."""
    fraction = (code & 7).to(tl.float32)
    exponent = (code >> 3) & 15
    # Exponents are those of float32 but for 120; those of 0 have no hidden bit.
    power = ((tl.maximum(exponent, 1) + 120) << 23).to(tl.float32, bitcast=True)
    size = power * (fraction * 0.125 + tl.where(exponent > 0, 1.0, 0.0))
    return tl.where(code >= 128, -size, size)


@triton.jit
def power_of_two(exponent):
    """float32 of an exponent with 127 added, the least of which has no hidden bit."""
    return tl.maximum(exponent << 23, 1 << 22).to(tl.float32, bitcast=True)


@triton.jit
def coded_weights(
    values_ptr,
    scales_ptr,
    zeros_ptr,
    output,
    at,
    there,
    INPUTS: tl.constexpr,
    GROUP: tl.constexpr,
    GROUPS: tl.constexpr,
    KIND: tl.constexpr,
    NARROW: tl.constexpr,
    HAS_ZEROS: tl.constexpr,
):
    """float32 [inputs, outputs] of a matrix of codes, 0 where nothing is ``there``; ``output``
    int64 and ``at`` are the places of its columns and rows."""
    place = output[None, :] * GROUPS + (at // GROUP)[:, None]
    scale = tl.load(scales_ptr + place, mask=there, other=0)
    if NARROW:
        byte = output[None, :] * (INPUTS // 2) + (at // 2)[:, None]
        both = tl.load(values_ptr + byte, mask=there, other=0).to(tl.int32)
        code = (both >> ((at % 2) * 4)[:, None]) & 15
    else:
        byte = output[None, :] * INPUTS + at[:, None]
        code = tl.load(values_ptr + byte, mask=there, other=0).to(tl.int32)
    if KIND == E2M1:
        weight = e2m1_value(code) * power_of_two(scale.to(tl.int32))
    elif KIND == E4M3:
        weight = e4m3_value(code) * scale
    else:
        if KIND == INT8:
            code = tl.where(code >= 128, code - 256, code)
        if HAS_ZEROS:
            code -= tl.load(zeros_ptr + place, mask=there, other=0).to(tl.int32)
        elif KIND == INT4:
            code -= MIDDLE_OF_4_BITS
        weight = code.to(tl.float32) * scale
    return tl.where(there, weight, 0.0)


@triton.jit(do_not_specialize=["rows"])
def coded_matmul_kernel(
    x_ptr,
    values_ptr,
    scales_ptr,
    zeros_ptr,
    out_ptr,
    rows,
    OUTPUTS: tl.constexpr,
    INPUTS: tl.constexpr,
    GROUP: tl.constexpr,
    GROUPS: tl.constexpr,
    KIND: tl.constexpr,
    NARROW: tl.constexpr,
    HAS_ZEROS: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    """BLOCK_M rows by BLOCK_N outputs. Grid: (tiles of outputs, tiles of rows)."""
    column = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    row = tl.program_id(1) * BLOCK_M + tl.arange(0, BLOCK_M)
    known = (column < OUTPUTS)[None, :]
    acc = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for start in tl.range(0, INPUTS, BLOCK_K):
        at = start + tl.arange(0, BLOCK_K)
        x = tl.load(
            x_ptr + row[:, None].to(tl.int64) * INPUTS + at[None, :],
            mask=(row < rows)[:, None] & (at < INPUTS)[None, :],
            other=0.0,
        )
        there = known & (at < INPUTS)[:, None]
        weight = coded_weights(
            values_ptr,
            scales_ptr,
            zeros_ptr,
            column.to(tl.int64),
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
    stored = (row < rows)[:, None] & known
    target = out_ptr + row[:, None].to(tl.int64) * OUTPUTS + column[None, :]
    tl.store(target, acc.to(out_ptr.dtype.element_ty), mask=stored)


def coded_matmul(x: Tensor, codes: Codes) -> Tensor:
    """See ``kernels.coded_matrix.coded_matmul_reference``; weights are rounded to x's dtype."""
    rows, inputs = x.shape
    output = torch.empty(rows, codes.outputs, dtype=x.dtype, device=x.device)
    if rows == 0:
        return output
    block = FEW_ROWS if rows <= FEW_ROWS else MANY_ROWS
    grid = triton.cdiv(codes.outputs, OUTPUTS_EACH), triton.cdiv(rows, block)
    launch(coded_matmul_kernel, grid)(
        x.contiguous(),
        codes.values,
        codes.scales,
        codes.scales if codes.zeros is None else codes.zeros,
        output,
        rows,
        OUTPUTS=codes.outputs,
        INPUTS=inputs,
        GROUP=codes.group,
        GROUPS=codes.scales.shape[1],
        KIND=KINDS[codes.kind],
        NARROW=codes.kind in NARROW_KINDS,
        HAS_ZEROS=codes.zeros is not None,
        BLOCK_M=block,
        BLOCK_N=OUTPUTS_EACH,
        BLOCK_K=INPUTS_EACH,
        num_warps=4,
        num_stages=3,
    )
    return output
