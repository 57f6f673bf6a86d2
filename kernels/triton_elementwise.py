"""Residual add with RMSNorm, and the MLP's gate, in Triton.

What ``kernels.norm`` and ``kernels.activation`` say.
Import this module only where Triton is to run; ``kernels.dispatch`` decides that.
"""

import math

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.activation import SWISH_GAIN
from kernels.launching import launch

COLUMNS_EACH = 1024
"""Columns of a program of the gate."""
GATES = {"silu": 0, "gelu_tanh": 1, "clamped": 2}

GELU_TANH = tl.constexpr(1)
CLAMPED = tl.constexpr(2)
GAIN = tl.constexpr(SWISH_GAIN)
SQRT_8_OVER_PI = tl.constexpr(math.sqrt(8 / math.pi))
GELU_CUBE = tl.constexpr(0.044715)


@triton.jit
def sigmoid(x):
    """1 / (1 + e^-x), of float32, without a number that is too large on the way."""
    faded = tl.exp(-tl.abs(x))
    return tl.where(x >= 0, 1.0, faded) / (1.0 + faded)


@triton.jit
def add_rms_norm_kernel(
    x_ptr,
    residual_ptr,
    weight_ptr,
    normed_ptr,
    total_ptr,
    eps,
    SIZE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """One row. The norm is of the sum as it is stored, rounded to the dtype."""
    column = tl.arange(0, BLOCK)
    known = column < SIZE
    place = tl.program_id(0).to(tl.int64) * SIZE + column
    x = tl.load(x_ptr + place, mask=known, other=0.0).to(tl.float32)
    residual = tl.load(residual_ptr + place, mask=known, other=0.0).to(tl.float32)
    kind = total_ptr.dtype.element_ty
    total = (x + residual).to(kind)
    tl.store(total_ptr + place, total, mask=known)
    wide = total.to(tl.float32)
    scale = tl.rsqrt(tl.sum(wide * wide, 0) / SIZE + eps)
    weight = tl.load(weight_ptr + column, mask=known, other=0.0).to(tl.float32)
    tl.store(normed_ptr + place, (wide * scale * weight).to(kind), mask=known)


@triton.jit
def gate_kernel(
    gate_up_ptr, out_ptr, limit, SIZE: tl.constexpr, KIND: tl.constexpr, BLOCK: tl.constexpr
):
    """BLOCK columns of one row. Grid: (rows, tiles of columns). ``limit`` counts for CLAMPED."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    known = column < SIZE
    gate = tl.load(gate_up_ptr + row * 2 * SIZE + column, mask=known, other=0.0).to(tl.float32)
    up = tl.load(gate_up_ptr + row * 2 * SIZE + SIZE + column, mask=known, other=0.0)
    up = up.to(tl.float32)
    if KIND == GELU_TANH:
        # tanh(z) is 2 sigmoid(2 z) - 1.
        inner = SQRT_8_OVER_PI * (gate + GELU_CUBE * gate * gate * gate)
        gated = gate * sigmoid(inner) * up
    elif KIND == CLAMPED:
        gate = tl.where(gate > limit, limit, gate)
        up = tl.where(up > limit, limit, tl.where(up < -limit, -limit, up))
        gated = (up + 1.0) * (gate * sigmoid(gate * GAIN))
    else:
        gated = gate * sigmoid(gate) * up
    place = row * SIZE + column
    tl.store(out_ptr + place, gated.to(out_ptr.dtype.element_ty), mask=known)


@triton.jit
def squared_relu_kernel(x_ptr, out_ptr, count, BLOCK: tl.constexpr):
    """BLOCK numbers, wherever they stand. Grid: (tiles,)."""
    place = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + place, mask=place < count, other=0.0).to(tl.float32)
    x = tl.where(x < 0, 0.0, x)
    tl.store(out_ptr + place, (x * x).to(out_ptr.dtype.element_ty), mask=place < count)


def add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """See ``kernels.norm.add_rms_norm_reference``."""
    x, residual = x.contiguous(), residual.contiguous()
    normed, total = torch.empty_like(x), torch.empty_like(x)
    size = x.shape[-1]
    rows = x.numel() // size
    if rows == 0:
        return normed, total
    block = triton.next_power_of_2(size)
    launch(add_rms_norm_kernel, (rows,))(
        x, residual, weight, normed, total, eps, SIZE=size, BLOCK=block, num_warps=norm_warps(block)
    )
    return normed, total


def norm_warps(block: int) -> int:
    """Warps for a row of ``block`` columns."""
    return min(16, max(4, block // 1024))


def silu_mul(gate_up: Tensor) -> Tensor:
    """See ``kernels.activation.silu_mul_reference``."""
    return _gated(gate_up, "silu")


def gelu_tanh_mul(gate_up: Tensor) -> Tensor:
    """See ``kernels.activation.gelu_tanh_mul_reference``."""
    return _gated(gate_up, "gelu_tanh")


def clamped_swiglu(gate_up: Tensor, limit: float) -> Tensor:
    """See ``kernels.activation.clamped_swiglu_reference``."""
    return _gated(gate_up, "clamped", limit)


def _gated(gate_up: Tensor, kind: str, limit: float = 0.0) -> Tensor:
    rows, size = gate_up.shape[0], gate_up.shape[1] // 2
    output = torch.empty(rows, size, dtype=gate_up.dtype, device=gate_up.device)
    if rows == 0:
        return output
    launch(gate_kernel, (rows, triton.cdiv(size, COLUMNS_EACH)))(
        gate_up.contiguous(),
        output,
        float(limit),
        SIZE=size,
        KIND=GATES[kind],
        BLOCK=COLUMNS_EACH,
        num_warps=4,
    )
    return output


def squared_relu(x: Tensor) -> Tensor:
    """See ``kernels.activation.squared_relu_reference``."""
    x = x.contiguous()
    output = torch.empty_like(x)
    if x.numel() == 0:
        return output
    launch(squared_relu_kernel, (triton.cdiv(x.numel(), COLUMNS_EACH),))(
        x, output, x.numel(), BLOCK=COLUMNS_EACH, num_warps=4
    )
    return output
