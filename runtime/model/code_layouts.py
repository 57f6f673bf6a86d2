"""Tensors of the published formats -> ``kernels.codes.Codes``, format by format.

Bits are moved, no number is changed; of a format that is widened, ``nvfp4_weight`` says which
numbers there are. Shapes are those that ``runtime.model.quantised_tensors`` has checked.
"""

import torch
from torch import Tensor

from kernels.codes import Codes, widen_codes

_AWQ_ORDER = (0, 4, 1, 5, 2, 6, 3, 7)
"""Which four bits of a word are those of each of eight outputs."""


def packed_codes(
    words: Tensor, scales: Tensor, zeros: Tensor | None, *, bits: int, inputs: int
) -> Codes:
    """``pack-quantized``.

    Args:
        words: [outputs, inputs * bits / 32] int32, the first input in the lowest bits, more by half
            of what there is than the number.
        scales: [outputs, groups] of any float dtype.
        zeros: [outputs * bits / 32, groups] int32, packed likewise along the outputs; None: none.
        bits: 4 or 8.
        inputs: of the matrix.
    """
    values = _bytes(words)
    middle = None
    if zeros is not None:
        by_group = _bytes(zeros.T.contiguous())  # [groups, outputs * bits / 8]
        middle = _unpacked(by_group, bits)[:, : scales.shape[0]].T
    return _integers(values, scales, middle, bits=bits, inputs=inputs)


def gptq_codes(
    words: Tensor, scales: Tensor, zeros: Tensor, *, bits: int, first_version: bool
) -> Codes:
    """GPTQ.

    Args:
        words: [inputs * bits / 32, outputs] int32, the first input in the lowest bits.
        scales: [groups, outputs] of any float dtype.
        zeros: [groups, outputs * bits / 32] int32, the first output in the lowest bits.
        bits: 4 or 8.
        first_version: zero points are kept less 1.
    """
    outputs = words.shape[1]
    values = _bytes(words.T.contiguous())
    middle = _unpacked(_bytes(zeros), bits)[:, :outputs].T + int(first_version)
    return _integers(values, scales.T, middle, bits=bits, inputs=words.shape[0] * 32 // bits)


def awq_codes(words: Tensor, scales: Tensor, zeros: Tensor | None) -> Codes:
    """AWQ, 4 bits.

    Args:
        words: [inputs, outputs / 8] int32, eight outputs in ``_AWQ_ORDER``.
        scales: [groups, outputs] of any float dtype.
        zeros: [groups, outputs / 8] int32, likewise; None: the middle.
    """
    codes = _awq_unpacked(words).T
    middle = None if zeros is None else _awq_unpacked(zeros).T.short()
    packed = codes[:, 0::2] | codes[:, 1::2] << 4
    return _integers(packed, scales.T, middle, bits=4, inputs=words.shape[0])


def _awq_unpacked(words: Tensor) -> Tensor:
    """[rows, outputs] uint8."""
    nibbles = _unpacked(_bytes(words), 4).to(torch.uint8)
    return nibbles.view(len(words), -1, 8)[:, :, list(_AWQ_ORDER)].flatten(1)


def signed_codes(values: Tensor, scales: Tensor, zeros: Tensor | None) -> Codes:
    """int8 as it is: [outputs, inputs], scales and zero points [outputs, groups]."""
    groups = scales.shape[1]
    return Codes(
        kind="int8",
        values=values.view(torch.uint8),
        scales=scales.float(),
        zeros=None if zeros is None else zeros.to(torch.int8),
        group=-(-values.shape[1] // groups),
    )


def e4m3_codes(values: Tensor, scales: Tensor, block: tuple[int, int]) -> Codes:
    """FP8.

    Args:
        values: [outputs, inputs] e4m3.
        scales: [blocks of outputs, blocks of inputs] float32.
        block: outputs and inputs of a block; the last ones may be smaller.
    """
    by_output = scales.repeat_interleave(block[0], dim=0)[: len(values)]
    return Codes(kind="e4m3", values=values.view(torch.uint8), scales=by_output, group=block[1])


def mxfp4_codes(blocks: Tensor, exponents: Tensor) -> Codes:
    """MXFP4: [outputs, inputs / 2] uint8, the first input in the lower half, and [outputs, groups]
    uint8."""
    return Codes(kind="e2m1", values=blocks, scales=exponents, group=32)


def nvfp4_weight(values: Tensor, scales: Tensor) -> Tensor:
    """NVFP4 in float32: e2m1 codes as above, and [outputs, inputs / 16] float32."""
    one = torch.full(scales.shape, 127, dtype=torch.uint8)
    plain = widen_codes(Codes(kind="e2m1", values=values, scales=one, group=16), torch.float32)
    return plain * scales.repeat_interleave(16, dim=1)


def _integers(
    values: Tensor, scales: Tensor, zeros: Tensor | None, *, bits: int, inputs: int
) -> Codes:
    """``zeros`` and the bytes of ``values`` are counted from 0; of 8 bits they become signed."""
    if bits == 8:
        values = values ^ 0x80
        zeros = None if zeros is None else zeros - 128
    return Codes(
        kind="int4" if bits == 4 else "int8",
        values=values,
        scales=scales.float(),
        zeros=None if zeros is None else zeros.to(torch.int8),
        group=-(-inputs // scales.shape[1]),
    )


def _bytes(words: Tensor) -> Tensor:
    """[rows, columns] int32 to [rows, 4 * columns] uint8, the lowest bits first."""
    return words.contiguous().view(torch.uint8)


def _unpacked(packed: Tensor, bits: int) -> Tensor:
    """int16: a number each, the lowest bits first."""
    if bits == 8:
        return packed.short()
    return torch.stack((packed & 15, packed >> 4), dim=-1).flatten(-2).short()
