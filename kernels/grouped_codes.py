"""Products of rows with the matrices of codes of the experts they were sent to.

The experts' matrices lie one below the other in one matrix of codes (``kernels.codes``), all of
them of one form.
"""

from torch import Tensor

from kernels.codes import Codes, widen_codes
from kernels.dispatch import triton_kernels


def grouped_coded_matmul_reference(
    x: Tensor, codes: Codes, experts: int, rows: Tensor, starts: Tensor
) -> Tensor:
    """Multiply picked rows, sorted by expert, each with its expert's transposed matrix.

    Args:
        x: [tokens, inputs].
        codes: [experts * outputs, inputs].
        experts: of which the matrix is made.
        rows: [picks] int64: which row of ``x`` each pick is.
        starts: [experts + 1] int64: expert e has picks starts[e] .. starts[e + 1] - 1.

    Returns:
        [picks, outputs] in x's dtype, weights rounded to it.
    """
    outputs = codes.outputs // experts
    output = x.new_empty(len(rows), outputs)
    edges = starts.tolist()
    for expert in range(experts):
        own = slice(edges[expert], edges[expert + 1])
        if own.start < own.stop:
            matrix = codes.rows(slice(expert * outputs, (expert + 1) * outputs))
            output[own] = x[rows[own]] @ widen_codes(matrix, x.dtype).T
    return output


def grouped_coded_matmul(
    x: Tensor, codes: Codes, experts: int, rows: Tensor, starts: Tensor
) -> Tensor:
    """See ``grouped_coded_matmul_reference``; on a GPU the host does not wait for ``starts``."""
    gpu = triton_kernels("grouped_coded", x)
    if gpu is None:
        return grouped_coded_matmul_reference(x, codes, experts, rows, starts)
    output: Tensor = gpu.grouped_coded_matmul(x, codes, experts, rows, starts)
    return output
