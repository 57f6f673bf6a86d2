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


def turn_tail_reference(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate the last dimensions of each head, whose pairs are neighbours (DeepSeek-V4).

    Args:
        x: [tokens, heads, head_dim].
        cos: [tokens, rotated / 2], dtype of ``x``; ``rotated`` is at most ``head_dim``.
        sin: likewise.

    Returns:
        New tensor like ``x``.
    """
    rotated = 2 * cos.shape[-1]
    plain, turning = torch.split(x, [x.shape[-1] - rotated, rotated], dim=-1)
    first, second = turning[..., 0::2], turning[..., 1::2]
    cos, sin = cos.unsqueeze(1), sin.unsqueeze(1)
    turned = torch.stack((first * cos - second * sin, second * cos + first * sin), dim=-1)
    return torch.cat((plain, turned.flatten(-2)), dim=-1)


def turn_tail(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """See ``turn_tail_reference``."""
    return turn_tail_reference(x, cos, sin)
