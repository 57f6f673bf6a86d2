"""The causal convolution over the last few tokens, in Triton.

What ``kernels.short_conv`` says.
Import this module only where Triton is to run; ``kernels.dispatch`` decides that.
"""

from typing import Final

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.launching import launch
from kernels.short_conv import ConvRows, ConvWeights

CHANNELS_EACH: Final = 512
"""Channels of one program."""


@triton.jit
def short_conv_kernel(
    inputs_ptr,
    taps_ptr,
    bias_ptr,
    windows_ptr,
    slots_ptr,
    starts_ptr,
    sequence_of_ptr,
    output_ptr,
    channels,
    window_stride,
    TAPS: tl.constexpr,
    BIAS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """BLOCK channels of one token. Grid: (tokens, tiles of channels)."""
    token = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    known = column < channels
    sequence = tl.load(sequence_of_ptr + token)
    start = tl.load(starts_ptr + sequence)
    window = windows_ptr + tl.load(slots_ptr + sequence) * window_stride
    total = tl.zeros((BLOCK,), dtype=tl.float32)
    if BIAS:
        total += tl.load(bias_ptr + column, mask=known, other=0.0)
    for tap in tl.static_range(TAPS):
        seen = token - (TAPS - 1 - tap)
        here = seen >= start
        before = (TAPS - 1) + (seen - start)
        own = tl.load(inputs_ptr + seen * channels + column, mask=known & here, other=0.0)
        kept = tl.load(window + before * channels + column, mask=known & (not here), other=0.0)
        weight = tl.load(taps_ptr + tap * channels + column, mask=known, other=0.0)
        total += tl.where(here, own.to(tl.float32), kept) * weight
    place = output_ptr + token * channels + column
    tl.store(place, total.to(output_ptr.dtype.element_ty), mask=known)


def short_conv(inputs: Tensor, weights: ConvWeights, windows: Tensor, rows: ConvRows) -> Tensor:
    """See ``kernels.short_conv.short_conv_reference``; windows are in float32, and each lies in one
    piece."""
    tokens, channels = inputs.shape
    output = torch.empty_like(inputs, memory_format=torch.contiguous_format)
    if not tokens:
        return output
    bias = weights.taps if weights.bias is None else weights.bias
    launch(short_conv_kernel, (tokens, triton.cdiv(channels, CHANNELS_EACH)))(
        inputs.contiguous(),
        weights.taps,
        bias,
        windows,
        rows.slots,
        rows.starts_there,
        rows.sequence_of,
        output,
        channels,
        windows.stride(0),
        TAPS=rows.taps,
        BIAS=weights.bias is not None,
        BLOCK=CHANNELS_EACH,
        num_warps=4,
    )
    return output
