"""Linear maps of heads: each head's numbers by a matrix of its own."""

import torch
from torch import Tensor

from kernels.cpu_attention import dtype_of_products


def per_head_reference(x: Tensor, weights: Tensor) -> Tensor:
    """Multiply each head's rows with its matrix.

    Args:
        x: [tokens, heads, inputs].
        weights: [heads, inputs, outputs], of the same float dtype.

    Returns:
        New tensor [tokens, heads, outputs].
    """
    return torch.einsum("thi,hio->tho", x, weights)


class HeadMaps:
    """Matrices of heads, kept in the dtype in which products are made where they are: on
    processors without units for bfloat16 that is float32."""

    def __init__(self, weights: Tensor) -> None:
        """``weights`` [heads, inputs, outputs]."""
        self.weights = weights.to(dtype_of_products(weights)).contiguous()
        self.num_bytes = self.weights.nbytes

    def __call__(self, x: Tensor) -> Tensor:
        """See ``per_head_reference``; the result is [tokens, heads, outputs] in ``x``'s dtype, not
        contiguous."""
        wide = x.to(self.weights.dtype).transpose(0, 1)
        return torch.bmm(wide, self.weights).transpose(0, 1).to(x.dtype)

    def into(self, x: Tensor, output: Tensor) -> None:
        """The same into ``output`` [tokens, heads, outputs], of ``x``'s dtype, in any layout."""
        if self.weights.dtype == output.dtype:
            torch.bmm(x.transpose(0, 1), self.weights, out=output.transpose(0, 1))
        else:
            output.copy_(self(x))
