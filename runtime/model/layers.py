"""The parts a decoder is made of: where weights come from, and linear maps.

A linear map may keep its weight in whatever layout multiplies fastest; which one follows from
the number type, the device and the choice made for the model (``product_choice``).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal, Protocol

import torch
from torch import Tensor
from torch.nn import functional

from kernels.coded_matrix import coded_matrix
from kernels.codes import Codes, joined
from kernels.fp8_matmul import Fp8Matrix
from kernels.native_layers import TiledProduct
from kernels.quant_matmul import GROUP, quantised_matrix
from kernels.tiled_matrix import NEVER, TiledMatrix, fits_tiles
from runtime.model.adapters import AdaptedPart, AdapterSet, PlacesMaps
from runtime.model.product_choice import RANK, Layout, ProductChoice

WeightBits = Literal[4, 8, 16, "fp8"]
"""16 stands for the model's own dtype, whatever its width; fp8 has 8 bits as well, with an
exponent, and rounds the inputs of products too."""


Matrix = Tensor | Codes
"""A weight [outputs, inputs], in the model's dtype or as a checkpoint keeps it in few bits."""


class WeightSource(Protocol):
    """Hands out a model's weights by their names in the checkpoint."""

    def tensor(self, name: str, shape: tuple[int, ...], *, wide: bool = False) -> Tensor:
        """The named weight in the model's dtype on its device; ``wide``: in float32, or in float64
        for a float64 model. The caller owns it.

        Raises:
            LoadError: there is no such weight, or it has another shape.
        """
        ...

    def matrix(self, name: str, shape: tuple[int, int]) -> Matrix:
        """The weight of a linear map, [outputs, inputs]: likewise, or as the checkpoint keeps it in
        few bits."""
        ...


class PlacedWeights(WeightSource, PlacesMaps, Protocol):
    """Weights whose places in a checkpoint are known."""


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
    """A linear map with its weight as the checkpoint has it."""

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


class Product(Protocol):
    """A matrix of ``kernels`` in a layout or a precision of its own."""

    num_bytes: int

    def multiply(self, x: Tensor) -> Tensor: ...


class MatrixLinear:
    """Multiplies with such a matrix, then adds the bias."""

    def __init__(self, matrix: Product, bias: Tensor | None) -> None:
        self.num_bytes = matrix.num_bytes
        self._matrix = matrix
        self._bias = bias

    def __call__(self, x: Tensor) -> Tensor:
        product = self._matrix.multiply(x)
        return product if self._bias is None else product.add_(self._bias)

    def in_tiles(self) -> TiledProduct | None:
        """The map as ``kernels.native_layers`` takes it; None where it has no tiles."""
        if not isinstance(self._matrix, TiledMatrix):
            return None
        return TiledProduct(
            weights=self._matrix.weights, bias=self._bias, most_rows=self._matrix.most_rows
        )


class LinearByRows:
    """Two copies of the weight: one for few rows, one for many."""

    def __init__(self, few: Linear, many: Linear, from_rows: int) -> None:
        self.few = few
        self.from_rows = from_rows
        """Products of so many rows and more are made with the other copy."""
        self._many = many
        self.num_bytes = min(few.num_bytes, many.num_bytes)

    def __call__(self, x: Tensor) -> Tensor:
        return self._many(x) if x.shape[0] >= self.from_rows else self.few(x)


class LinearSideBySide:
    """Several maps of the same input that cannot be one; results lie side by side."""

    def __init__(self, maps: Sequence[Linear], bias: Tensor | None) -> None:
        self._maps = maps
        self._bias = bias
        self.num_bytes = sum(each.num_bytes for each in maps)

    def __call__(self, x: Tensor) -> Tensor:
        product = torch.cat([each(x) for each in self._maps], dim=1)
        return product if self._bias is None else product.add_(self._bias)


class AdaptedLinear:
    """A map and what adapters add to it, in the rows of a step that have one."""

    def __init__(self, plain: Linear, part: AdaptedPart) -> None:
        self.plain = plain
        self._part = part
        self.num_bytes = plain.num_bytes

    def __call__(self, x: Tensor) -> Tensor:
        result = self.plain(x)
        self._part.add(result, x)
        return result


def in_tiles(linear: Linear) -> TiledProduct | None:
    """A map as ``kernels.native_layers`` takes it, without what adapters add; None where it has no
    tiles."""
    if isinstance(linear, AdaptedLinear):
        return in_tiles(linear.plain)
    if isinstance(linear, LinearByRows):
        few = in_tiles(linear.few)
        most = linear.from_rows - 1
        return None if few is None else replace(few, most_rows=min(few.most_rows, most))
    return linear.in_tiles() if isinstance(linear, MatrixLinear) else None


def make_linear(
    weight: Tensor, bias: Tensor | None, bits: WeightBits, choice: ProductChoice | None = None
) -> Linear:
    """The fastest form for the weight's dtype and device. ``weight`` [outputs, inputs] is
    taken over; with other ``bits`` than 16 it is quantised, unless its inputs are not a multiple of
    the group that 4 bits need.

    Args:
        choice: for bfloat16 on a CPU; in fewer bits only what it says of many rows. None: the
            first layout of ``RANK`` that the weight can have.
    """
    if bits == "fp8":
        return MatrixLinear(Fp8Matrix(weight), bias)
    widened_from = None if choice is None else NEVER
    if choice is not None and choice.many == "widened":
        widened_from = choice.from_rows
    first: Linear
    kept: Layout | None = None
    if bits == 8 or (bits == 4 and weight.shape[1] % GROUP == 0):
        matrix = quantised_matrix(weight, bits, widened_from=widened_from)
        first = MatrixLinear(matrix, bias)
        if choice is not None and choice.many == "packed":
            weight = matrix.widened(weight.dtype)
    else:
        kept = _layout(weight, RANK[0] if choice is None else choice.few)
        first = _in_layout(weight, bias, kept, widened_from)
    if choice is None or choice.many is None or choice.many == "widened":
        return first
    many = _layout(weight, choice.many)
    if many == kept:
        return first
    return LinearByRows(first, _in_layout(weight, bias, many, NEVER), choice.from_rows)


def packs(weight: Tensor) -> bool:
    """Whether ``PackedLinear`` can be made from a matrix of this kind here."""
    there = weight.device.type == "cpu" and weight.dtype == torch.bfloat16
    return there and bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


def _layout(weight: Tensor, wanted: Layout) -> Layout:
    """The first that the matrix can have, from the one wanted on."""
    for layout in RANK[RANK.index(wanted) :]:
        if layout == "tiles" and fits_tiles(weight):
            return layout
        if layout == "packed" and packs(weight):
            return layout
    return "plain"


def _in_layout(
    weight: Tensor, bias: Tensor | None, layout: Layout, widened_from: int | None
) -> Linear:
    if layout == "tiles":
        tiled = TiledMatrix(weight, bits=16, group=GROUP, widened_from=widened_from)
        return MatrixLinear(tiled, bias)
    return PackedLinear(weight, bias) if layout == "packed" else PlainLinear(weight, bias)


@dataclass(frozen=True, slots=True, kw_only=True)
class MapLoader:
    """Takes linear maps from where weights come from into the form in which they are kept."""

    source: WeightSource
    bits: WeightBits = 16
    choice: ProductChoice | None = None
    dtype: torch.dtype = torch.float32
    """The dtype of the rows that maps are given; only matrices in few bits ask."""
    rank_sum: Callable[[Tensor], Tensor] | None = None
    """Of a model that several ranks compute: from what this one has computed of a layer's half,
    [tokens, hidden], to the sum of all ranks', the same on each."""
    adapters: AdapterSet | None = None
    """Take part in maps of all of a step's tokens."""

    @property
    def without_adapters(self) -> "MapLoader":
        """For maps that have some of a step's tokens, or tokens in another order."""
        return self if self.adapters is None else replace(self, adapters=None)

    def linear(
        self, names: Sequence[str], outputs: Sequence[int], inputs: int, *, bias: bool
    ) -> Linear:
        """One map in place of several with the same input; results lie side by side."""
        weights = matrices_of(self.source, names, outputs, inputs)
        made = self.made(weights, biases_of(self.source, names, outputs) if bias else None)
        return self.adapted(made, names, outputs, inputs)

    def adapted(
        self,
        linear: Linear,
        names: Sequence[str],
        outputs: Sequence[int],
        inputs: int,
        orders: Sequence[Tensor | None] | None = None,
    ) -> Linear:
        """The map that was made of these with what adapters add; see ``AdapterSet.part``."""
        if self.adapters is None:
            return linear
        part = self.adapters.part(names, outputs, inputs, orders)
        return linear if part is None else AdaptedLinear(linear, part)

    def made(self, weights: Sequence[Matrix], bias: Tensor | None) -> Linear:
        """One map of several matrices, one below the other; see ``make_linear``."""
        plain = [each for each in weights if isinstance(each, Tensor)]
        if len(plain) == len(weights):
            weight = plain[0] if len(plain) == 1 else torch.cat(plain)
            return make_linear(weight, bias, self.bits, self.choice)
        coded = [each for each in weights if isinstance(each, Codes)]
        whole = joined(coded) if not plain else None
        if whole is not None:
            return MatrixLinear(coded_matrix(whole, self.dtype), bias)
        return LinearSideBySide([self.made([each], None) for each in weights], bias)


def matrices_of(
    source: WeightSource, names: Sequence[str], outputs: Sequence[int], inputs: int
) -> list[Matrix]:
    """The weights of several maps of the same input."""
    return [
        source.matrix(f"{name}.weight", (size, inputs))
        for name, size in zip(names, outputs, strict=True)
    ]


def weights_of(
    source: WeightSource, names: Sequence[str], outputs: Sequence[int], inputs: int
) -> Tensor:
    """[outputs, inputs]: the weights of several maps of the same input, one below the other."""
    parts = [
        source.tensor(f"{name}.weight", (size, inputs))
        for name, size in zip(names, outputs, strict=True)
    ]
    return torch.cat(parts)


def biases_of(source: WeightSource, names: Sequence[str], outputs: Sequence[int]) -> Tensor:
    """[outputs]: the biases of the same."""
    parts = [
        source.tensor(f"{name}.bias", (size,)) for name, size in zip(names, outputs, strict=True)
    ]
    return torch.cat(parts)
