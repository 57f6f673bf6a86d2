"""Rotary position embedding of queries and keys (Su et al. 2021, arXiv:2104.09864).

Pairs are (i, i + head_dim / 2), the layout of Hugging Face checkpoints.
"""

import torch
from torch import Tensor


def apply_rope_reference(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate each head of each token by its position's angles.

    Args:
        x: [tokens, heads, head_dim].
        cos: [tokens, head_dim / 2], dtype of ``x``.
        sin: likewise.

    Returns:
        New tensor like ``x``.
    """
    first, second = x.chunk(2, dim=-1)
    cos, sin = cos.unsqueeze(1), sin.unsqueeze(1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)


def apply_rope(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """See ``apply_rope_reference``."""
    return apply_rope_reference(x, cos, sin)
