"""Causal convolution over the last few tokens of each sequence, channel by channel (LFM2).

What lies before a step's tokens is in the sequence's window, the inputs of the ``taps - 1`` tokens
before its first one, oldest first, zeros where there are none. Windows are in float32, or in
float64 for a float64 model, and sums are never narrower.

Always true: each output is one sum in the order of the taps, so where a step begins changes no bit.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from kernels.dispatch import triton_kernels
from kernels.native_arguments import ShortConvArgs
from kernels.native_library import native_library
from kernels.upload import upload


@dataclass(frozen=True, slots=True, kw_only=True)
class ConvWeights:
    """Weights of one layer, in the dtype of windows."""

    taps: Tensor
    """[taps, channels], for the oldest token first."""
    bias: Tensor | None
    """[channels]"""


@dataclass(frozen=True, kw_only=True)
class ConvRows:
    """Which tokens of a step belong together: S sequences, T tokens."""

    slots: Tensor
    """[S] int64: where in the windows each one's is."""
    starts: npt.NDArray[np.int64]
    """[S + 1] where each one's tokens begin."""
    taps: int
    there: tuple[Tensor, Tensor] | None = None
    """``starts_there`` and ``sequence_of``, where they are on the device already."""

    @property
    def device(self) -> torch.device:
        return self.slots.device

    @cached_property
    def starts_there(self) -> Tensor:
        """[S + 1] int64"""
        return upload(self.starts, self.device) if self.there is None else self.there[0]

    @cached_property
    def sequence_of(self) -> Tensor:
        """[T] int64"""
        if self.there is not None:
            return self.there[1]
        counts = np.diff(self.starts)
        return upload(np.repeat(np.arange(len(counts)), counts), self.device)

    @cached_property
    def behind_windows(self) -> Tensor:
        """[T] int64: where each token is when every sequence's window lies before its tokens."""
        counts = np.diff(self.starts)
        moved = np.repeat(np.arange(1, len(counts) + 1) * (self.taps - 1), counts)
        return upload(np.arange(self.starts[-1]) + moved, self.device)

    @cached_property
    def in_windows(self) -> Tensor:
        """[S * (taps - 1)] int64: where the windows are then."""
        before = self.taps - 1
        firsts = self.starts[:-1] + np.arange(len(self.starts) - 1) * before
        return upload((firsts[:, None] + np.arange(before)).ravel(), self.device)


def short_conv_reference(
    inputs: Tensor, weights: ConvWeights, windows: Tensor, rows: ConvRows
) -> Tensor:
    """Token by token.

    Args:
        inputs: [T, channels].
        windows: [slots, taps - 1, channels]; not changed.

    Returns:
        New tensor [T, channels], dtype of ``inputs``.
    """
    output = torch.empty_like(inputs)
    for sequence, slot in enumerate(rows.slots.tolist()):
        window = windows[slot]
        for token in range(*rows.starts[sequence : sequence + 2].tolist()):
            seen = torch.cat((window, inputs[token : token + 1].to(window.dtype)))
            total = torch.zeros_like(seen[0]) if weights.bias is None else weights.bias.clone()
            for tap in range(rows.taps):
                total += seen[tap] * weights.taps[tap]
            output[token], window = total, seen[1:]
    return output


def short_conv(inputs: Tensor, weights: ConvWeights, windows: Tensor, rows: ConvRows) -> Tensor:
    """See ``short_conv_reference``."""
    gpu = triton_kernels("short_conv", inputs) if windows.dtype == torch.float32 else None
    if gpu is not None:
        mixed: Tensor = gpu.short_conv(inputs, weights, windows, rows)
        return mixed
    library = native_library(inputs.dtype) if inputs.device.type == "cpu" else None
    if library is None or windows.dtype != torch.float32:
        return short_conv_chunked(inputs, weights, windows, rows)
    output = torch.empty_like(inputs)
    inputs, bias = inputs.contiguous(), weights.bias
    library.short_conv(
        ShortConvArgs(
            inputs=inputs.data_ptr(),
            weight=weights.taps.data_ptr(),
            bias=None if bias is None else bias.data_ptr(),
            windows=windows.data_ptr(),
            slots=rows.slots.data_ptr(),
            starts=rows.starts_there.data_ptr(),
            sequence_of=rows.sequence_of.data_ptr(),
            output=output.data_ptr(),
            tokens=inputs.shape[0],
            channels=inputs.shape[1],
            taps=rows.taps,
            window_stride=windows.stride(0),
        )
    )
    return output


def short_conv_chunked(
    inputs: Tensor, weights: ConvWeights, windows: Tensor, rows: ConvRows
) -> Tensor:
    """``short_conv_reference`` for all tokens at once."""
    tokens, channels = inputs.shape
    places, before = rows.behind_windows, rows.taps - 1
    seen = windows.new_empty(tokens + len(rows.slots) * before, channels)
    seen[rows.in_windows] = windows[rows.slots].flatten(0, 1)
    seen[places] = inputs.to(seen.dtype)
    total = seen.new_zeros(tokens, channels)
    if weights.bias is not None:
        total += weights.bias
    for tap in range(rows.taps):
        total += seen[places - (before - tap)] * weights.taps[tap]
    return total.to(inputs.dtype)
