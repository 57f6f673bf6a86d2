"""Codes of a checkpoint laid out for the compiled CPU products, as ``kernels/native/linear.h`` and
``coded_linear.cpp`` say.

Always true: what is laid out stands for the same numbers. Codes whose law is that of the weights
that ``kernels.quant_matmul`` rounds are laid out as those are.
"""

import torch
from torch import Tensor

from kernels.codes import MIDDLE, Codes, unpacked
from kernels.native_arguments import TiledWeights, WeightKind
from kernels.native_library import NativeLibrary

_TILE = 16


def tiled_codes(library: NativeLibrary, codes: Codes) -> TiledWeights:
    """Lay out codes for which ``fits_tiles`` holds."""
    kind, zeros = _law(codes), codes.zeros
    if kind == "int4" and zeros is None:
        zeros = torch.full(codes.scales.shape, MIDDLE, dtype=torch.int8)
    tiles = _by_tiles(unpacked(codes))
    narrow = codes.kind in ("int4", "e2m1")
    values = library.room(tiles.numel() // 2 if narrow else tiles.numel())
    values.copy_((_nibbles(tiles) if narrow else tiles.transpose(1, 2)).flatten())
    return TiledWeights(
        kind=kind,
        values=values,
        scales=_groups_first(codes.scales),
        zeros=None if zeros is None else _groups_first(zeros),
        outputs=codes.outputs,
        inputs=codes.inputs,
        group=min(codes.group, codes.inputs),
    )


def _law(codes: Codes) -> WeightKind:
    """The fastest kind of product that knows these numbers."""
    if codes.zeros is None and codes.kind == "int4" and codes.inputs % codes.group == 0:
        return "4"
    whole = codes.zeros is None and codes.kind == "int8" and codes.group >= codes.inputs
    return "8" if whole else codes.kind


def _by_tiles(rows: Tensor) -> Tensor:
    """[tiles, 16, ...], the last tile filled up with zeros."""
    missing = -rows.shape[0] % _TILE
    if missing:
        rows = torch.cat((rows, rows.new_zeros(missing, *rows.shape[1:])))
    return rows.reshape(-1, _TILE, *rows.shape[1:])


def _groups_first(values: Tensor) -> Tensor:
    """[outputs, groups] to [tiles, groups, 16]."""
    return _by_tiles(values).transpose(1, 2).contiguous()


def _nibbles(tiles: Tensor) -> Tensor:
    """[tiles, 16, inputs] to [tiles, inputs / 8, 16, 2, 2] bytes: of eight inputs the even ones in
    one 16-bit lane, the odd ones in the next."""
    eights = tiles.reshape(*tiles.shape[:2], -1, 4, 2)
    low = eights[..., 0, :] | eights[..., 1, :] << 4
    high = eights[..., 2, :] | eights[..., 3, :] << 4
    return torch.stack((low, high), dim=4).transpose(1, 2)
