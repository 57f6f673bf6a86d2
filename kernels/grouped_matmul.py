"""Products of rows with the matrices of the experts they were sent to."""

import torch
from torch import Tensor
from torch.nn import functional

from kernels.dispatch import triton_kernels


def grouped_matmul_reference(
    x: Tensor, matrices: Tensor, rows: Tensor | None, starts: Tensor, *, bias: Tensor | None = None
) -> Tensor:
    """Multiply picked rows, sorted by expert, each with its expert's transposed matrix.

    Args:
        x: [tokens, inputs].
        matrices: [experts, outputs, inputs].
        rows: [picks] int64: which row of ``x`` each pick is; None: it has a row for each.
        starts: [experts + 1] int64: expert e has picks starts[e] .. starts[e + 1] - 1.
        bias: [experts, outputs], added.

    Returns:
        [picks, outputs] in x's dtype; picks of none of these experts are not written.
    """
    output = x.new_empty(len(x) if rows is None else len(rows), matrices.shape[1])
    edges = starts.tolist()
    for expert, matrix in enumerate(matrices):
        own = slice(edges[expert], edges[expert + 1])
        added = None if bias is None else bias[expert]
        output[own] = functional.linear(x[own if rows is None else rows[own]], matrix, added)
    return output


def grouped_matmul(
    x: Tensor, matrices: Tensor, rows: Tensor | None, starts: Tensor, *, bias: Tensor | None = None
) -> Tensor:
    """See ``grouped_matmul_reference``; on a GPU the host does not wait for ``starts``."""
    gpu = triton_kernels("grouped", x)
    if gpu is None:
        return grouped_matmul_reference(x, matrices, rows, starts, bias=bias)
    output: Tensor = gpu.grouped_matmul(x, matrices, rows, starts, bias=bias)
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
