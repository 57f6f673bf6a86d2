"""Rows of numbers to e4m3 with a scale each, in Triton: what a product in fp8 takes.

What ``kernels.quantised_kv.quantise_fp8`` says, bit by bit, in one launch. Numbers are rounded
by whole-number arithmetic, to the nearest and even.
Import this module only where Triton is to run; ``kernels.dispatch`` decides that.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.launching import launch
from kernels.quantised_kv import FP8

COLUMNS_EACH = 1024

LARGEST = tl.constexpr(448.0)
STEP = tl.constexpr(1 / 448.0)
VANISHING = tl.constexpr(1e-30)


@triton.jit
def not_finite(number):
    """Which float32 numbers are NaN or infinite."""
    return (number.to(tl.int32, bitcast=True) & 0x7F800000) == 0x7F800000


@triton.jit
def e4m3(number):
    """The byte that is nearest to a float32 of at most 448 (even, if two are)."""
    bits = number.to(tl.uint32, bitcast=True)
    size = bits & 0x7FFFFFFF
    # Below 2 ** -6 steps are of 2 ** -9, which are those of a float32 around 2 ** 14.
    around = size.to(tl.float32, bitcast=True) + 16384.0
    small = around.to(tl.uint32, bitcast=True) - (141 << 23)
    normal = (size + ((size >> 20) & 1) + 0x7FFFF - (120 << 23)) >> 20
    byte = tl.where(size < (121 << 23), small, normal) | ((bits >> 24) & 0x80)
    return byte.to(tl.uint8)


@triton.jit(do_not_specialize=["stride"])
def quantise_rows_kernel(
    x_ptr, values_ptr, scales_ptr, stride, SIZE: tl.constexpr, BLOCK: tl.constexpr
):
    """One row. Grid: (rows,)."""
    row = tl.program_id(0).to(tl.int64)
    largest, damaged = 0.0, 0
    for low in tl.range(0, SIZE, BLOCK):
        column = low + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + row * stride + column, mask=column < SIZE, other=0.0).to(tl.float32)
        wrong = not_finite(x)
        damaged = tl.maximum(damaged, tl.max(wrong.to(tl.int32), 0))
        largest = tl.maximum(largest, tl.max(tl.abs(tl.where(wrong, 0.0, x)), 0))
    some = largest > VANISHING
    inverse = tl.where(some, tl.div_rn(LARGEST, tl.where(some, largest, 1.0)), 0.0)
    for low in tl.range(0, SIZE, BLOCK):
        column = low + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + row * stride + column, mask=column < SIZE, other=0.0).to(tl.float32)
        x = tl.where(not_finite(x), 0.0, x)
        tl.store(values_ptr + row * SIZE + column, e4m3(x * inverse), mask=column < SIZE)
    scale = tl.where(damaged > 0, float("nan"), tl.where(some, largest * STEP, 0.0))
    tl.store(scales_ptr + row, scale)


def quantise_fp8(x: Tensor) -> tuple[Tensor, Tensor]:
    """See ``kernels.quantised_kv.quantise_fp8``; ``x`` is [rows, columns], its rows contiguous."""
    rows, columns = x.shape
    values = torch.empty((rows, columns), dtype=torch.uint8, device=x.device)
    scales = torch.empty(rows, dtype=torch.float32, device=x.device)
    launch(quantise_rows_kernel, (rows,))(
        x, values, scales, x.stride(0), SIZE=columns, BLOCK=COLUMNS_EACH, num_warps=4
    )
    return values.view(FP8), scales
