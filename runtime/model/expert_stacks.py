"""The matrices of all experts of a layer as one, for one product over all of them.

They are as the checkpoint has them: in the model's dtype, or in few bits, where all are of one form
(``kernels.codes``). With ``--quantization fp8`` they are rounded to codes here, weights alone.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Protocol

import torch
from torch import Tensor

from kernels.codes import Codes, joined
from kernels.grouped_codes import grouped_coded_matmul
from kernels.grouped_matmul import grouped_matmul
from kernels.quantised_kv import quantise_fp8
from runtime.model.layers import Matrix, WeightBits

OneExpert = Callable[[int], Sequence[Matrix]]
"""The matrices of an expert's map, which lie one below the other, by its place in the stack."""


class ExpertStack(Protocol):
    """A linear map of each expert."""

    num_bytes: int
    """Bytes of all of them."""

    def multiply(self, x: Tensor, rows: Tensor | None, starts: Tensor) -> Tensor:
        """Picked rows, sorted by expert, each by its expert's map: see
        ``kernels.grouped_matmul.grouped_matmul_reference``."""
        ...


class PlainStack:
    """In the model's dtype."""

    def __init__(self, matrices: Tensor, bias: Tensor | None) -> None:
        """``matrices`` [experts, outputs, inputs], ``bias`` [experts, outputs]."""
        self._matrices, self._bias = matrices, bias
        self.num_bytes = matrices.numel() * matrices.element_size()

    def multiply(self, x: Tensor, rows: Tensor | None, starts: Tensor) -> Tensor:
        """See ``ExpertStack``."""
        return grouped_matmul(x, self._matrices, rows, starts, bias=self._bias)


class CodedStack:
    """In few bits."""

    def __init__(self, codes: Codes, experts: int, bias: Tensor | None) -> None:
        """``codes`` [experts * outputs, inputs], ``bias`` [experts, outputs]."""
        self._codes, self._experts, self._bias = codes, experts, bias
        self.num_bytes = codes.num_bytes

    def multiply(self, x: Tensor, rows: Tensor | None, starts: Tensor) -> Tensor:
        """See ``ExpertStack``."""
        return grouped_coded_matmul(x, self._codes, self._experts, rows, starts, bias=self._bias)


def stack_of(
    matrices: OneExpert, experts: int, bits: WeightBits, bias: Tensor | None
) -> ExpertStack | None:
    """The maps of so many experts as one; None: they are not of one form.

    Args:
        matrices: taken one after the other and once, so that no more than one expert's are held
            beside the stack.
        bits: 16, or fp8 for matrices that are not in few bits already.
        bias: [experts, outputs], added to what the maps give.
    """
    first = _whole(matrices(0), bits)
    if first is None:
        return None
    if isinstance(first, Tensor):
        plain = first.new_empty(experts, *first.shape)
        for place in range(experts):
            each = first if place == 0 else _whole(matrices(place), bits)
            if not isinstance(each, Tensor):
                return None
            plain[place] = each
        return PlainStack(plain, bias)
    codes = _room(first, experts)
    for place in range(experts):
        each = first if place == 0 else _whole(matrices(place), bits)
        if not isinstance(each, Codes) or _form(each) != _form(first):
            return None
        own = slice(place * first.outputs, (place + 1) * first.outputs)
        codes.values[own], codes.scales[own] = each.values, each.scales
        if codes.zeros is not None and each.zeros is not None:
            codes.zeros[own] = each.zeros
    return CodedStack(codes, experts, bias)


def _whole(matrices: Sequence[Matrix], bits: WeightBits) -> Matrix | None:
    """An expert's matrices as one; None: they cannot be."""
    coded = [each for each in matrices if isinstance(each, Codes)]
    if coded:
        return joined(coded) if len(coded) == len(matrices) else None
    plain = torch.cat([each for each in matrices if isinstance(each, Tensor)])
    return _rounded(plain) if bits == "fp8" else plain


def _rounded(weight: Tensor) -> Codes:
    """e4m3, a scale for each output."""
    values, scales = quantise_fp8(weight)
    return Codes(
        kind="e4m3",
        values=values.view(torch.uint8),
        scales=scales[:, None],
        group=weight.shape[1],
    )


def _form(codes: Codes) -> tuple[object, ...]:
    return codes.kind, codes.group, codes.values.shape, codes.zeros is None


def _room(like: Codes, experts: int) -> Codes:
    """A matrix for so many of these, not filled."""

    def wider(part: Tensor) -> Tensor:
        return part.new_empty(experts * part.shape[0], *part.shape[1:])

    return replace(
        like,
        values=wider(like.values),
        scales=wider(like.scales),
        zeros=None if like.zeros is None else wider(like.zeros),
    )
