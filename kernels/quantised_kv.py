"""Keys and values in 8 bits: a row per token and head, its scale behind it.

A row is [head_dim + 4] int8: the values, then the float32 scale that brings them back. The
largest magnitude of a row becomes 127. So a block is one piece of memory as any other, and
whoever moves blocks need not know what is in them.
"""

import torch
from torch import Tensor

SCALE_BYTES = 4


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


def widened(blocks: Tensor, dtype: torch.dtype) -> Tensor:
    """Rows in ``dtype``, whichever of the two forms they have."""
    return widen_rows(blocks, dtype) if blocks.dtype == torch.int8 else blocks.to(dtype)


def row_size(head_dim: int, dtype: torch.dtype) -> int:
    """Elements of a row that is kept in ``dtype``."""
    return head_dim + SCALE_BYTES if dtype == torch.int8 else head_dim
