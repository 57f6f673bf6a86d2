"""Matrices in the layout of the compiled CPU products: tiles of 16 outputs.

16, 8 or 4 bits a weight. Few rows multiply with the tiles as they lie, at the speed of the
memory; many rows have the matrix laid out again for the ordinary product, which then costs
little beside it. ``kernels/native/linear.cpp`` says how a tile lies.
"""

from typing import Literal

from torch import Tensor
from torch.nn import functional

from kernels.native_library import native_library

Bits = Literal[4, 8, 16]

_FEW_ROWS = 40
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

    def __init__(self, weight: Tensor, *, bits: Bits, group: int) -> None:
        """Lay out a bfloat16 matrix for which ``fits_tiles`` holds.

        Args:
            weight: [outputs, inputs].
            bits: 16 keeps it as it is; 8 and 4 round it as ``kernels.quant_matmul`` says.
            group: inputs that share a scale in 4 bits.
        """
        library = native_library(weight.dtype)
        assert library is not None, "fits_tiles() was not asked"
        self._library = library
        self._weights = library.pack(weight, bits, group)
        self.num_bytes = self._weights.values.numel() + 4 * self._weights.scales.numel()

    def multiply(self, x: Tensor) -> Tensor:
        """[rows, inputs] bfloat16 -> [rows, outputs]."""
        if x.shape[0] > _FEW_ROWS:
            return functional.linear(x, self._library.widened(self._weights))
        return self._library.linear(x, self._weights)

    def widened(self) -> Tensor:
        """The matrix in bfloat16, as products see it."""
        return self._library.widened(self._weights)
