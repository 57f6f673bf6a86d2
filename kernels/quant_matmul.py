"""Products with weight-only quantised matrices: 8 bits by row, 4 bits by group.

Symmetric rounding without calibration. 8 bits: one scale per output, the largest magnitude
becomes 127. 4 bits: one scale per ``group`` inputs of an output; the value of the largest
magnitude becomes -8, so that all sixteen levels are in use (as llama.cpp's Q4_0 does).

A matrix keeps the quantised weights alone. Few rows multiply with them as they are; many
rows first widen the weights, which then costs less than it saves.
"""

from typing import Literal, Protocol

import torch
from torch import Tensor
from torch.nn import functional

from kernels.tiled_matrix import TiledMatrix, fits_tiles

GROUP = 32
"""Inputs that share a scale in 4 bits."""

Bits = Literal[4, 8]


def quantise_reference(weight: Tensor, bits: Bits) -> tuple[Tensor, Tensor]:
    """Round a matrix to 8 or 4 bits.

    Args:
        weight: [outputs, inputs], any float dtype; for 4 bits inputs is a multiple of GROUP.
        bits: 8 or 4.

    Returns:
        (values, scales): int8 [outputs, inputs] in -127..127 or -8..7, and float32
        [outputs, groups], groups being 1 or inputs / GROUP. ``weight`` is about
        ``values * scales`` with each scale applied to its group.

    Raises:
        ValueError: inputs is not a multiple of GROUP.
    """
    outputs, inputs = weight.shape
    if bits == 8:
        scales = weight.float().abs().amax(1, keepdim=True).clamp(min=1e-12) / 127
        return (weight.float() / scales).round().to(torch.int8), scales
    if inputs % GROUP:
        raise ValueError(f"{inputs} inputs are not a multiple of {GROUP}, which 4 bits need")
    grouped = weight.float().view(outputs, -1, GROUP)
    largest = grouped.gather(2, grouped.abs().argmax(2, keepdim=True))
    scales = torch.where(largest == 0, torch.ones_like(largest), largest / -8)
    values = (grouped / scales).round().clamp(-8, 7).to(torch.int8)
    return values.view(outputs, inputs), scales[:, :, 0]


def widen_reference(values: Tensor, scales: Tensor, dtype: torch.dtype) -> Tensor:
    """The matrix [outputs, inputs] that ``quantise_reference`` rounded to, in ``dtype``."""
    outputs, inputs = values.shape
    grouped = values.view(outputs, scales.shape[1], -1).float() * scales[:, :, None]
    return grouped.view(outputs, inputs).to(dtype)


def quant_matmul_reference(x: Tensor, values: Tensor, scales: Tensor) -> Tensor:
    """``x`` [rows, inputs] times the transposed matrix, in float32, rounded to x's dtype."""
    return (x.float() @ widen_reference(values, scales, torch.float32).T).to(x.dtype)


class QuantisedMatrix(Protocol):
    """A matrix [outputs, inputs] in few bits."""

    num_bytes: int
    """Memory it takes, scales included."""

    def multiply(self, x: Tensor) -> Tensor:
        """``quant_matmul_reference`` of ``x`` [rows, inputs] -> [rows, outputs]."""
        ...

    def widened(self, dtype: torch.dtype) -> Tensor:
        """The matrix in ``dtype``, as products see it."""
        ...


def quantised_matrix(
    weight: Tensor, bits: Bits, *, widened_from: int | None = None
) -> QuantisedMatrix:
    """Quantise a matrix into the form that multiplies fastest where it is; see ``TiledMatrix``
    for ``widened_from``.

    Raises:
        ValueError: see ``quantise_reference``.
    """
    if fits_tiles(weight):
        return TiledMatrix(weight, bits=bits, group=GROUP, widened_from=widened_from)
    return _PlainMatrix(*quantise_reference(weight, bits))


class _PlainMatrix:
    """Weights widened for each product; where nothing better is at hand."""

    def __init__(self, values: Tensor, scales: Tensor) -> None:
        self._values = values
        self._scales = scales
        self.num_bytes = values.numel() + scales.numel() * scales.element_size()

    def multiply(self, x: Tensor) -> Tensor:
        return functional.linear(x, self.widened(x.dtype))

    def widened(self, dtype: torch.dtype) -> Tensor:
        return widen_reference(self._values, self._scales, dtype)
