"""Keys and values in 8 bits, with a scale for each token and head.

int8, for a CPU: a row is [head_dim + 4] int8, the values, then the float32 scale that brings
them back. The largest magnitude of a row becomes 127.

fp8 (e4m3), for a GPU: a head's block has all its values first, [block_size, head_dim], and
their scales behind them, so that values lie as a GPU likes to load them. The largest magnitude
of a row becomes 448. A block is shaped [block_size, head_dim + 4] here as well.

So a block is one piece of memory as any other, and whoever moves blocks need not know what is
in them.
"""

import torch
from torch import Tensor

FP8 = torch.float8_e4m3fn
SCALE_BYTES = 4
_LARGEST = 448.0
_VANISHING = 1e-30
"""A row whose largest magnitude is no more than this is kept as zeros."""


def quantise_rows(rows: Tensor) -> Tensor:
    """[..., head_dim] in any float dtype -> [..., head_dim + 4] int8. A NaN or an infinity
    makes its whole row come back as NaN."""
    wide = rows.float()
    scales = wide.abs().amax(-1, keepdim=True) / 127
    scales = torch.where(scales.isfinite(), scales, torch.nan)
    values = (wide / torch.where(scales > 0, scales, 1)).round().to(torch.int8)
    return torch.cat((values, scales.view(torch.int8)), dim=-1)


def widen_rows(rows: Tensor, dtype: torch.dtype) -> Tensor:
    """[..., head_dim + 4] int8 -> [..., head_dim] in ``dtype``."""
    scales = rows[..., -SCALE_BYTES:].contiguous().view(torch.float32)
    wide = rows[..., :-SCALE_BYTES].float() * scales
    return wide.to(dtype)


def quantise_fp8(rows: Tensor) -> tuple[Tensor, Tensor]:
    """[..., head_dim] in any float dtype -> e4m3 values [..., head_dim] and float32 scales
    [...]. A NaN or an infinity makes its whole row come back as NaN."""
    wide = rows.float()
    largest = wide.abs().amax(-1)
    # One division, rounded once: torch takes a number by a tensor for a product.
    inverse = torch.full_like(largest, _LARGEST) / largest
    inverse = torch.where(largest > _VANISHING, inverse, 0)
    values = (wide * inverse[..., None]).to(FP8)
    scales = torch.where(largest > _VANISHING, largest * (1 / _LARGEST), 0)
    return values, torch.where(largest.isfinite(), scales, torch.nan)


def fp8_parts(blocks: Tensor) -> tuple[Tensor, Tensor]:
    """Views of contiguous fp8 blocks [..., block_size, head_dim + 4]: values
    [..., block_size, head_dim] and float32 scales [..., block_size]."""
    block_size, row = blocks.shape[-2:]
    flat = blocks.flatten(-2)
    values = flat[..., : block_size * (row - SCALE_BYTES)]
    scales = flat[..., block_size * (row - SCALE_BYTES) :]
    return values.view(*values.shape[:-1], block_size, -1), scales.view(torch.float32)


def widened(blocks: Tensor, dtype: torch.dtype) -> Tensor:
    """Blocks [..., block_size, row] as [..., block_size, head_dim] in ``dtype``, whichever of
    the three forms they have; fp8 ones are contiguous."""
    if blocks.dtype == FP8:
        values, scales = fp8_parts(blocks)
        return (values.float() * scales[..., None]).to(dtype)
    return widen_rows(blocks, dtype) if blocks.dtype == torch.int8 else blocks.to(dtype)


def row_size(head_dim: int, dtype: torch.dtype) -> int:
    """Elements of a row that is kept in ``dtype``."""
    return head_dim + SCALE_BYTES if dtype in (torch.int8, FP8) else head_dim
