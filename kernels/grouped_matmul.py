"""Products of rows with the matrices of the experts they were sent to."""

import torch
from torch import Tensor

from kernels.dispatch import triton_kernels


def grouped_matmul_reference(x: Tensor, matrices: Tensor, rows: Tensor, starts: Tensor) -> Tensor:
    """Multiply picked rows, sorted by expert, each with its expert's transposed matrix.

    Args:
        x: [tokens, inputs].
        matrices: [experts, outputs, inputs].
        rows: [picks] int64: which row of ``x`` each pick is.
        starts: [experts + 1] int64: expert e has picks starts[e] .. starts[e + 1] - 1.

    Returns:
        [picks, outputs] in x's dtype.
    """
    output = x.new_empty(len(rows), matrices.shape[1])
    edges = starts.tolist()
    for expert, matrix in enumerate(matrices):
        own = slice(edges[expert], edges[expert + 1])
        output[own] = x[rows[own]] @ matrix.T
    return output


def grouped_matmul(x: Tensor, matrices: Tensor, rows: Tensor, starts: Tensor) -> Tensor:
    """See ``grouped_matmul_reference``; on a GPU the host does not wait for ``starts``."""
    gpu = triton_kernels("grouped", x)
    if gpu is None:
        return grouped_matmul_reference(x, matrices, rows, starts)
    output: Tensor = gpu.grouped_matmul(x, matrices, rows, starts)
    return output


def multiplies_grouped(like: Tensor) -> bool:
    """Whether matrices of this dtype and device are better stacked for ``grouped_matmul``."""
    return triton_kernels("grouped", like) is not None


def sorted_by_expert(chosen: Tensor, num_experts: int) -> tuple[Tensor, Tensor]:
    """(order, starts): places of ``chosen`` [picks] sorted by expert, those of one expert in
    their order, and where each expert's begin, as above. Without a look at the device."""
    ranked = chosen.sort(stable=True)
    edges = torch.arange(num_experts + 1, device=chosen.device)
    return ranked.indices, torch.searchsorted(ranked.values.contiguous(), edges)
