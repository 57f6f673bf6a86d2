"""Products with matrices as checkpoints hold them (``kernels.codes``): nothing is rounded anew when
a matrix is taken over.

Few rows multiply the weights that the checkpoint says, and sum up in single precision. Products of
many rows do so too, but where a matrix unit (AMX) is faster with weights rounded to bfloat16 first.
"""

from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional

from kernels.codes import Codes, widen_codes
from kernels.dispatch import triton_kernels
from kernels.tiled_matrix import TiledMatrix, fits_tiles


def coded_matmul_reference(x: Tensor, codes: Codes) -> Tensor:
    """``x`` [rows, inputs] times the transposed matrix, in float32, rounded to x's dtype."""
    return (x.float() @ widen_codes(codes, torch.float32).T).to(x.dtype)


class CodedProduct(Protocol):
    """A matrix in the form that multiplies fastest where it is."""

    num_bytes: int

    def multiply(self, x: Tensor) -> Tensor:
        """``coded_matmul_reference``; weights may be rounded to the dtype of many rows."""
        ...

    def widened(self, dtype: torch.dtype) -> Tensor:
        """The matrix in ``dtype``, as products of many rows see it."""
        ...


def coded_matrix(codes: Codes, dtype: torch.dtype) -> CodedProduct:
    """A coded matrix for products with rows of ``dtype``; takes the codes over."""
    sample = torch.empty(1, codes.inputs, dtype=dtype, device=codes.values.device)
    if codes.fits_tiles and fits_tiles(sample):
        return TiledMatrix.from_codes(codes)
    return PlainCodes(codes)


class PlainCodes:
    """Codes as they came, widened for each product; on a GPU widened within it."""

    def __init__(self, codes: Codes) -> None:
        self.codes = codes
        self.num_bytes = codes.num_bytes

    def multiply(self, x: Tensor) -> Tensor:
        """See ``CodedProduct``."""
        gpu = triton_kernels("coded", x)
        if gpu is None:
            return functional.linear(x, self.widened(x.dtype))
        product: Tensor = gpu.coded_matmul(x, self.codes)
        return product

    def widened(self, dtype: torch.dtype) -> Tensor:
        """See ``CodedProduct``."""
        return widen_codes(self.codes, dtype)
