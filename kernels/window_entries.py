"""Entries that stand for windows of tokens (DeepSeek-V4): mixtures of these, number by number.

How much of each token is in a number of the entry says a softmax over the tokens' gates of it.
A sum is made token by token, so neither other windows nor their number change an entry's bits.
"""

import torch
from torch import Tensor


def window_entries_reference(values: Tensor, gates: Tensor, bias: Tensor) -> Tensor:
    """Mix each window's tokens, number by number.

    Args:
        values: [windows, tokens, size].
        gates: likewise; where they are -inf, a token gives nothing.
        bias: [tokens, size] float32 (float64 for float64 values), added to the gates.

    Returns:
        New tensor [windows, size], in the values' dtype.
    """
    weights = (gates.to(bias.dtype) + bias).softmax(1)
    return torch.einsum("wts,wts->ws", values.to(bias.dtype), weights).to(values.dtype)


def window_entries(values: Tensor, gates: Tensor, bias: Tensor) -> Tensor:
    """See ``window_entries_reference``."""
    weights = (gates.to(bias.dtype) + bias).softmax(1)
    total = torch.zeros_like(weights[:, 0])
    for token in range(values.shape[1]):
        total += values[:, token] * weights[:, token]
    return total.to(values.dtype)
