"""The gate of the MLP: SiLU(gate) * up (Shazeer 2020, arXiv:2002.05202, SwiGLU)."""

from torch import Tensor
from torch.nn import functional

from kernels.dispatch import triton_kernels
from kernels.native_library import native_library


def silu_mul_reference(gate_up: Tensor) -> Tensor:
    """Gate one half of the columns by the other.

    Args:
        gate_up: [tokens, 2 * size]; columns below ``size`` are the gate.

    Returns:
        New tensor [tokens, size], dtype of ``gate_up``.
    """
    gate, up = gate_up.chunk(2, dim=-1)
    return functional.silu(gate) * up


def silu_mul(gate_up: Tensor) -> Tensor:
    """See ``silu_mul_reference``."""
    gpu = triton_kernels("elementwise", gate_up)
    if gpu is not None:
        gated: Tensor = gpu.silu_mul(gate_up)
        return gated
    library = native_library(gate_up.dtype) if gate_up.device.type == "cpu" else None
    if library is not None:
        return library.silu_mul(gate_up)
    gate, up = gate_up.chunk(2, dim=-1)
    return functional.silu(gate).mul_(up)
