"""Rows of the embedding by token ids, in whatever form it is kept.

An embedding in few bits stays so: what is looked up is widened, row by row.
"""

import torch
from torch import Tensor

from kernels.codes import Codes, widen_codes


class Embedding:
    """Looks up the rows of tokens."""

    def __init__(self, weight: Tensor | Codes, dtype: torch.dtype) -> None:
        """
        Args:
            weight: [tokens, hidden].
            dtype: of what is looked up.
        """
        self.weight = weight
        self._dtype = dtype

    def __call__(self, token_ids: Tensor) -> Tensor:
        """[T] -> [T, hidden]."""
        if isinstance(self.weight, Tensor):
            return torch.embedding(self.weight, token_ids)
        return widen_codes(self.weight.rows(token_ids), self._dtype)
