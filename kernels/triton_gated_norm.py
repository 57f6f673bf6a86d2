"""RMS norms with a gate, behind the norm (gated delta nets) or before it (Mamba-2), in Triton.

What ``kernels.gated_norm`` says, in one launch.
Import this module only where Triton is to run; ``kernels.dispatch`` decides that.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.launching import launch
from kernels.triton_elementwise import sigmoid


@triton.jit
def gated_norm_kernel(
    mixed_ptr,
    values_ptr,
    skip_ptr,
    gates_ptr,
    weight_ptr,
    output_ptr,
    gate_stride,
    weight_stride,
    eps,
    SIZE: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK: tl.constexpr,
    GATE_FIRST: tl.constexpr,
    BY_SIGMOID: tl.constexpr,
):
    """SIZE numbers of one token that are normed together. Grid: (tokens, groups)."""
    token, group = tl.program_id(0).to(tl.int64), tl.program_id(1)
    column = tl.arange(0, BLOCK)
    known = column < SIZE
    own = group * SIZE + column
    place = token * tl.num_programs(1) * SIZE + own
    x = tl.load(mixed_ptr + place, mask=known, other=0.0)
    gate = tl.load(gates_ptr + token * gate_stride + own, mask=known, other=0.0).to(tl.float32)
    gate = sigmoid(gate) if BY_SIGMOID else gate * sigmoid(gate)
    if GATE_FIRST:
        skip = tl.load(skip_ptr + own // HEAD_DIM, mask=known, other=0.0)
        x = (x + tl.load(values_ptr + place, mask=known, other=0.0) * skip) * gate
    x = x * tl.rsqrt(tl.sum(x * x, 0) / SIZE + eps)
    x = x * tl.load(weight_ptr + group * weight_stride + column, mask=known, other=0.0)
    if not GATE_FIRST:
        x = x * gate
    tl.store(output_ptr + place, x.to(output_ptr.dtype.element_ty), mask=known)


def warps_of(block: int) -> int:
    """Warps of a program that norms ``block`` numbers together."""
    return max(1, min(8, block // 256))


def gated_norm(
    mixed: Tensor, gates: Tensor, weight: Tensor, eps: float, *, by_sigmoid: bool
) -> Tensor:
    """See ``kernels.gated_norm.gated_norm_reference``; in float32."""
    tokens, heads, size = mixed.shape
    output = torch.empty(gates.shape, dtype=gates.dtype, device=gates.device)
    gates = gates if gates.stride(1) == 1 else gates.contiguous()
    block = triton.next_power_of_2(size)
    if tokens:
        launch(gated_norm_kernel, (tokens, heads))(
            mixed.contiguous(),
            mixed,
            weight,
            gates,
            weight,
            output,
            gates.stride(0),
            0,
            eps,
            SIZE=size,
            HEAD_DIM=size,
            BLOCK=block,
            GATE_FIRST=False,
            BY_SIGMOID=by_sigmoid,
            num_warps=warps_of(block),
        )
    return output


def skipped_group_norm(
    mixed: Tensor,
    values: Tensor,
    skip: Tensor,
    gates: Tensor,
    weight: Tensor,
    *,
    groups: int,
    eps: float,
) -> Tensor:
    """See ``kernels.gated_norm.skipped_group_norm_reference``; in float32."""
    tokens, heads, head_dim = mixed.shape
    output = torch.empty(tokens, heads * head_dim, dtype=gates.dtype, device=gates.device)
    gates = gates if gates.stride(1) == 1 else gates.contiguous()
    size = heads * head_dim // groups
    block = triton.next_power_of_2(size)
    if tokens:
        launch(gated_norm_kernel, (tokens, groups))(
            mixed.contiguous(),
            values.contiguous(),
            skip,
            gates,
            weight,
            output,
            gates.stride(0),
            size,
            eps,
            SIZE=size,
            HEAD_DIM=head_dim,
            BLOCK=block,
            GATE_FIRST=True,
            BY_SIGMOID=False,
            num_warps=warps_of(block),
        )
    return output
