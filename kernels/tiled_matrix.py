"""Matrices in the layout of the compiled CPU products: tiles of 16 outputs.

16, 8 or 4 bits a weight. Few rows multiply with the tiles as they lie, at the speed of the
memory, and so do many rows where that is as fast: in 16 bits anywhere, a matrix unit (AMX) wants
them so. Else many rows have the matrix laid out again for the ordinary product, which takes time
of its own.
``kernels/native/linear.h`` says how a tile lies.
"""

import sys
from typing import Literal

import torch
from torch import Tensor

from kernels.coded_tiles import tiled_codes
from kernels.codes import Codes
from kernels.native_arguments import TiledWeights
from kernels.native_library import NativeLibrary, native_library

Bits = Literal[4, 8, 16]

NEVER = sys.maxsize
"""As ``widened_from``."""
_WIDENED_FROM = 41
_INPUTS = 32
"""Inputs must be a multiple of this."""


def fits_tiles(weight: Tensor) -> bool:
    """Whether ``TiledMatrix`` can be made from a matrix [outputs, inputs] of this kind here."""
    if weight.device.type != "cpu" or weight.shape[1] % _INPUTS:
        return False
    library = native_library(weight.dtype)
    return library is not None and library.has_linear


class TiledMatrix:
    """A matrix [outputs, inputs] for products with bfloat16 rows."""

    def __init__(
        self, weight: Tensor, *, bits: Bits, group: int, widened_from: int | None = None
    ) -> None:
        """Lay out a bfloat16 matrix for which ``fits_tiles`` holds.

        Args:
            weight: [outputs, inputs].
            bits: 16 keeps it as it is; 8 and 4 round it as ``kernels.quant_matmul`` says.
            group: inputs that share a scale in 4 bits.
            widened_from: products of so many rows and more have the matrix laid out again; None:
                as is usual on processors like this one.
        """
        library = native_library(weight.dtype)
        assert library is not None, "fits_tiles() was not asked"
        weights = library.pack(weight, bits, group)
        if widened_from is None:
            widened_from = _usually_widened_from(library, weights)
        self._take(library, weights, widened_from)

    def _take(self, library: NativeLibrary, weights: TiledWeights, widened_from: int) -> None:
        self._library = library
        self._widened_from = widened_from
        self.weights = weights
        parts = [
            weights.values,
            weights.scales,
            *([] if weights.zeros is None else [weights.zeros]),
        ]
        self.num_bytes = sum(part.numel() * part.element_size() for part in parts)

    @classmethod
    def from_codes(cls, codes: Codes) -> "TiledMatrix":
        """Lay out what a checkpoint holds, for inputs that ``fits_tiles`` and codes that do."""
        library = native_library(torch.bfloat16)
        assert library is not None, "fits_tiles() was not asked"
        weights = tiled_codes(library, codes)
        made = cls.__new__(cls)
        made._take(library, weights, _usually_widened_from(library, weights))
        return made

    @property
    def most_rows(self) -> int:
        """Products of so many rows and fewer multiply with the tiles as they lie."""
        return self._widened_from - 1

    def multiply(self, x: Tensor) -> Tensor:
        """[rows, inputs] bfloat16 -> [rows, outputs]."""
        if x.shape[0] >= self._widened_from:
            return self._library.linear_of_many(x, self.weights)
        return self._library.linear(x, self.weights)

    def widened(self, dtype: torch.dtype) -> Tensor:
        """The matrix in ``dtype``, as products see it."""
        return self._library.widened(self.weights).to(dtype)


def _usually_widened_from(library: NativeLibrary, weights: TiledWeights) -> int:
    return NEVER if weights.kind in library.kinds_for_many_rows else _WIDENED_FROM
