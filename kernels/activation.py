"""The gate of the MLP (Shazeer 2020, arXiv:2002.05202): one half of the columns gates the other.

Beside it the square of ReLU of an MLP without a gate (So et al. 2021, arXiv:2109.08668). On a GPU
each is one kernel, on a CPU SiLU(gate) * up has one.
"""

import torch
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


def gelu_tanh(x: Tensor) -> Tensor:
    """GELU in its approximation by tanh (Hendrycks and Gimpel 2016, arXiv:1606.08415), a new tensor
    in x's dtype."""
    return functional.gelu(x, approximate="tanh")


def gelu_tanh_mul_reference(gate_up: Tensor) -> Tensor:
    """``silu_mul`` with GELU in its approximation by tanh (Gemma) in the place of SiLU."""
    gate, up = gate_up.chunk(2, dim=-1)
    return functional.gelu(gate, approximate="tanh").mul_(up)


def gelu_tanh_mul(gate_up: Tensor) -> Tensor:
    """See ``gelu_tanh_mul_reference``."""
    gpu = triton_kernels("elementwise", gate_up)
    if gpu is None:
        return gelu_tanh_mul_reference(gate_up)
    gated: Tensor = gpu.gelu_tanh_mul(gate_up)
    return gated


SWISH_GAIN = 1.702
"""Constants of ``clamped_swiglu``: x * sigmoid(1.702 x) is near GELU."""


def clamped_swiglu_reference(gate_up: Tensor, limit: float) -> Tensor:
    """(up + 1) * gate * sigmoid(1.702 gate), gates held below ``limit``, ups within it on both
    sides (gpt-oss)."""
    gate, up = gate_up.chunk(2, dim=-1)
    gate, up = gate.clamp(max=limit), up.clamp(-limit, limit)
    return (up + 1).mul_(gate * torch.sigmoid(gate * SWISH_GAIN))


def clamped_swiglu(gate_up: Tensor, limit: float) -> Tensor:
    """See ``clamped_swiglu_reference``."""
    gpu = triton_kernels("elementwise", gate_up)
    if gpu is None:
        return clamped_swiglu_reference(gate_up, limit)
    gated: Tensor = gpu.clamped_swiglu(gate_up, limit)
    return gated


def clamped_silu(gate_up: Tensor, limit: float) -> Tensor:
    """``silu_mul`` of gates held below ``limit`` and ups within it on both sides (DeepSeek-V4), by
    torch everywhere: a new tensor."""
    gate, up = gate_up.chunk(2, dim=-1)
    return functional.silu(gate.clamp(max=limit)).mul_(up.clamp(-limit, limit))


def clamped_after_silu(gate_up: Tensor, limit: float) -> Tensor:
    """Likewise, of gates that are held below ``limit`` behind SiLU (Step 3.5)."""
    gate, up = gate_up.chunk(2, dim=-1)
    return functional.silu(gate).clamp_(max=limit).mul_(up.clamp(-limit, limit))


def squared_relu_reference(x: Tensor) -> Tensor:
    """max(x, 0) ** 2, a new tensor in x's dtype."""
    return functional.relu(x).square()


def squared_relu(x: Tensor) -> Tensor:
    """See ``squared_relu_reference``."""
    gpu = triton_kernels("elementwise", x)
    if gpu is None:
        return functional.relu(x).square_()
    squared: Tensor = gpu.squared_relu(x)
    return squared
