"""Products of rows with the matrices of codes of the experts they were sent to.

The experts' matrices lie one below the other in one matrix of codes (``kernels.codes``), all of
them of one form.
"""

from torch import Tensor
from torch.nn import functional

from kernels.codes import Codes, widen_codes
from kernels.dispatch import triton_kernels


def grouped_coded_matmul_reference(
    x: Tensor,
    codes: Codes,
    experts: int,
    rows: Tensor | None,
    starts: Tensor,
    *,
    bias: Tensor | None = None,
) -> Tensor:
    """Multiply picked rows, sorted by expert, each with its expert's transposed matrix.

    Args:
        x: [tokens, inputs].
        codes: [experts * outputs, inputs].
        experts: of which the matrix is made.
        rows, starts, bias: see ``kernels.grouped_matmul.grouped_matmul_reference``.

    Returns:
        [picks, outputs] in x's dtype, weights rounded to it.
    """
    outputs = codes.outputs // experts
    output = x.new_empty(len(x) if rows is None else len(rows), outputs)
    edges = starts.tolist()
    for expert in range(experts):
        own = slice(edges[expert], edges[expert + 1])
        if own.start < own.stop:
            matrix = codes.rows(slice(expert * outputs, (expert + 1) * outputs))
            added = None if bias is None else bias[expert]
            picked = x[own if rows is None else rows[own]]
            output[own] = functional.linear(picked, widen_codes(matrix, x.dtype), added)
    return output


def grouped_coded_matmul(
    x: Tensor,
    codes: Codes,
    experts: int,
    rows: Tensor | None,
    starts: Tensor,
    *,
    bias: Tensor | None = None,
) -> Tensor:
    """See ``grouped_coded_matmul_reference``; on a GPU the host does not wait for ``starts``."""
    gpu = triton_kernels("grouped_coded", x)
    if gpu is None:
        return grouped_coded_matmul_reference(x, codes, experts, rows, starts, bias=bias)
    output: Tensor = gpu.grouped_coded_matmul(x, codes, experts, rows, starts, bias=bias)
    return output
