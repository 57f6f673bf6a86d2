"""Matrices as checkpoints hold them: codes of 4 or 8 bits, and what they stand for.

A weight is (value of its code - zero point of its group) x scale of its group, computed in single
precision. Groups are of neighbouring inputs of an output, the last of them may be shorter.

Knows no file and no name: ``runtime.model`` brings the codes of all formats into this one form.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

CodeKind = Literal["int4", "int8", "e2m1", "e4m3"]
"""Meaning of a code: 0 to 15, -128 to 127, or a number with an exponent of 2 or of 4 bits."""

E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
"""Values of the 4-bit float codes whose highest bit, the sign, is 0."""
MIDDLE = 8
"""Zero point of 4-bit integers that have none of their own."""
_LEAST_GROUP = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class Codes:
    """A matrix [outputs, inputs] in few bits."""

    kind: CodeKind
    values: Tensor
    """uint8: [outputs, inputs / 2], the earlier input in the lower half, or [outputs, inputs]."""
    scales: Tensor
    """[outputs, groups] float32; of e2m1 uint8, the exponents of powers of two, plus 127."""
    zeros: Tensor | None = None
    """[outputs, groups] int8, of integers; None: ``MIDDLE`` of those of 4 bits, else 0."""
    group: int
    """Inputs that share a scale."""

    def __post_init__(self) -> None:
        groups = -(-self.inputs // self.group)
        for tensor in (self.scales, *([] if self.zeros is None else [self.zeros])):
            if tensor.shape != (self.outputs, groups):
                raise ValueError(f"{list(tensor.shape)} for {self.outputs} x {groups} groups")

    @property
    def outputs(self) -> int:
        return self.values.shape[0]

    @property
    def inputs(self) -> int:
        """The width of the matrix, whatever a code takes of a byte."""
        return self.values.shape[1] * (1 if self.kind in ("int8", "e4m3") else 2)

    @property
    def fits_tiles(self) -> bool:
        """Whether groups are such as ``TiledMatrix`` takes."""
        return self.group % _LEAST_GROUP == 0 or self.group >= self.inputs

    @property
    def num_bytes(self) -> int:
        """Bytes of all parts of a coded matrix."""
        parts = self.values, self.scales, self.zeros
        return sum(part.nbytes for part in parts if part is not None)

    def rows(self, chosen: slice | Tensor) -> "Codes":
        """The matrix of some outputs; an index may be on any device."""
        if isinstance(chosen, Tensor):
            chosen = chosen.to(self.values.device)
        zeros = None if self.zeros is None else self.zeros[chosen]
        return replace(self, values=self.values[chosen], scales=self.scales[chosen], zeros=zeros)

    def columns(self, low: int, size: int) -> "Codes":
        """The matrix of the inputs ``low`` to ``low + size``; what lies in a group that is cut has
        its scale.

        Raises:
            ValueError: a byte of two codes would be cut.
        """
        each = 2 * self.values.shape[1] // self.inputs  # codes of two bytes
        if each * low % 2 or each * size % 2:
            raise ValueError(f"{size} inputs from {low} on: two of 4 bits share a byte")
        group = min(size, self.group)
        if low % self.group or size % group:
            group = math.gcd(low, size, self.group)
        chosen = torch.arange(low, low + size, group, device=self.values.device) // self.group
        return replace(
            self,
            values=self.values[:, each * low // 2 : each * (low + size) // 2],
            scales=self.scales[:, chosen],
            zeros=None if self.zeros is None else self.zeros[:, chosen],
            group=group,
        )

    def to(self, device: torch.device) -> "Codes":
        """A copy that the caller owns."""
        zeros = None if self.zeros is None else self.zeros.to(device, copy=True)
        return replace(
            self,
            values=self.values.to(device, copy=True).contiguous(),
            scales=self.scales.to(device, copy=True).contiguous(),
            zeros=None if zeros is None else zeros.contiguous(),
        )


def joined(parts: Sequence[Codes]) -> Codes | None:
    """One matrix below the other; None: they are not of the same form."""
    first = parts[0]
    form = first.kind, first.group, first.inputs, first.zeros is None
    if any((each.kind, each.group, each.inputs, each.zeros is None) != form for each in parts):
        return None
    zeros = [each.zeros for each in parts if each.zeros is not None]
    return replace(
        first,
        values=torch.cat([each.values for each in parts]),
        scales=torch.cat([each.scales for each in parts]),
        zeros=torch.cat(zeros) if zeros else None,
    )


def unpacked(codes: Codes) -> Tensor:
    """[outputs, inputs] uint8: a code each."""
    if codes.kind in ("int8", "e4m3"):
        return codes.values
    return torch.stack((codes.values & 15, codes.values >> 4), dim=2).flatten(1)


def widen_codes(codes: Codes, dtype: torch.dtype) -> Tensor:
    """The matrix [outputs, inputs], exact in float32 but for one rounding, in ``dtype``."""
    values = unpacked(codes)
    if codes.kind == "e4m3":
        wide = values.view(torch.float8_e4m3fn).float()
    elif codes.kind == "e2m1":
        table = torch.tensor([*E2M1, *(-size for size in E2M1)], device=values.device)
        wide = table[values.int()]
    else:
        wide = (values.view(torch.int8) if codes.kind == "int8" else values).float()
        if codes.zeros is not None:
            wide = wide - _spread(codes.zeros.float(), codes)
        elif codes.kind == "int4":
            wide = wide - MIDDLE
    return (wide * _spread(float_scales(codes), codes)).to(dtype)


def float_scales(codes: Codes) -> Tensor:
    """[outputs, groups] float32."""
    if codes.kind != "e2m1":
        return codes.scales
    bits = (codes.scales.int() << 23).clamp(min=1 << 22)  # the least is half of the one after
    return bits.view(torch.float32)


def _spread(by_group: Tensor, codes: Codes) -> Tensor:
    return by_group.repeat_interleave(codes.group, dim=1)[:, : codes.inputs]
