"""The parts a decoder is made of: where weights come from, and linear maps.

A linear map may keep its weight in whatever form multiplies fastest; which one is chosen
when it is made, from the number type and the device.
"""

from collections.abc import Sequence
from typing import Literal, Protocol

import torch
from torch import Tensor
from torch.nn import functional

from kernels.fp8_matmul import Fp8Matrix
from kernels.quant_matmul import GROUP, QuantisedMatrix, quantised_matrix
from kernels.tiled_matrix import TiledMatrix, fits_tiles

WeightBits = Literal[4, 8, 16, "fp8"]
"""16 stands for the model's own dtype, whatever its width; fp8 has 8 bits as well, with an
exponent, and rounds the inputs of products too."""


class WeightSource(Protocol):
    """Hands out a model's weights by their names in the checkpoint."""

    def tensor(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """The named weight in the model's dtype on its device. The caller owns it.

        Raises:
            LoadError: there is no such weight, or it has another shape.
        """
        ...


class Linear(Protocol):
    """``x @ weight.T + bias``."""

    def __call__(self, x: Tensor) -> Tensor:
        """[tokens, inputs] -> [tokens, outputs]."""
        ...

    @property
    def num_bytes(self) -> int:
        """Memory the weight takes: what one call reads at least."""
        ...


class PlainLinear:
    """The weight as it is."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        self._weight = weight
        self._bias = bias
        self.num_bytes = weight.numel() * weight.element_size()

    def __call__(self, x: Tensor) -> Tensor:
        return functional.linear(x, self._weight, self._bias)


class PackedLinear:
    """bfloat16 on a CPU: the weight in oneDNN's blocked layout, laid out once.

    Halves the time of a decode's products over reading the plain layout.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        self.num_bytes = weight.numel() * weight.element_size()
        self._weight = torch.ops.mkldnn._reorder_linear_weight(weight, None)
        self._bias = bias

    def __call__(self, x: Tensor) -> Tensor:
        result: Tensor = torch.ops.mkldnn._linear_pointwise(
            x, self._weight, self._bias, "none", [], ""
        )
        return result


class MatrixLinear:
    """A matrix of ``kernels`` in a layout or a precision of its own."""

    def __init__(self, matrix: QuantisedMatrix, bias: Tensor | None) -> None:
        self.num_bytes = matrix.num_bytes
        self._matrix = matrix
        self._bias = bias

    def __call__(self, x: Tensor) -> Tensor:
        product = self._matrix.multiply(x)
        return product if self._bias is None else product.add_(self._bias)


def make_linear(weight: Tensor, bias: Tensor | None, bits: WeightBits) -> Linear:
    """The fastest form for the weight's dtype and device. ``weight`` [outputs, inputs] is
    taken over; with other ``bits`` than 16 it is quantised, unless its inputs are not a multiple of
    the group that 4 bits need."""
    if bits == "fp8":
        return MatrixLinear(Fp8Matrix(weight), bias)
    if bits == 8 or (bits == 4 and weight.shape[1] % GROUP == 0):
        return MatrixLinear(quantised_matrix(weight, bits), bias)
    if fits_tiles(weight):
        return MatrixLinear(TiledMatrix(weight, bits=16, group=GROUP), bias)
    packable = weight.device.type == "cpu" and weight.dtype == torch.bfloat16
    if packable and torch.ops.mkldnn._is_mkldnn_bf16_supported():
        return PackedLinear(weight, bias)
    return PlainLinear(weight, bias)


def fused_linear(
    source: WeightSource,
    names: Sequence[str],
    outputs: Sequence[int],
    inputs: int,
    *,
    bias: bool,
    bits: WeightBits,
) -> Linear:
    """One map in place of several with the same input; results lie side by side."""
    weights = [
        source.tensor(f"{name}.weight", (size, inputs))
        for name, size in zip(names, outputs, strict=True)
    ]
    biases = [
        source.tensor(f"{name}.bias", (size,))
        for name, size in zip(names, outputs, strict=True)
        if bias
    ]
    return make_linear(torch.cat(weights), torch.cat(biases) if biases else None, bits)
