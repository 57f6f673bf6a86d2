"""RMS norm of each head, scaled, and weighed number by number by SiLU of a gate.

Computed in the dtype of what is normed, rounded once to that of the gates.
"""

import torch
from torch import Tensor
from torch.nn import functional

from kernels.native_arguments import GatedNormArgs
from kernels.native_library import native_library


def gated_norm_reference(mixed: Tensor, gates: Tensor, weight: Tensor, eps: float) -> Tensor:
    """In torch.

    Args:
        mixed: [T, V, size], never narrower than ``gates``.
        gates: [T, V * size]; rows may lie apart.
        weight: [size], dtype of ``mixed``.

    Returns:
        New tensor [T, V * size], dtype of ``gates``.
    """
    normed = mixed * torch.rsqrt(mixed.square().mean(-1, keepdim=True) + eps)
    weights = functional.silu(gates.to(mixed.dtype)).reshape(mixed.shape)
    return (normed * weight * weights).flatten(1).to(gates.dtype)


def gated_norm(mixed: Tensor, gates: Tensor, weight: Tensor, eps: float) -> Tensor:
    """See ``gated_norm_reference``."""
    library = native_library(gates.dtype) if gates.device.type == "cpu" else None
    if library is None or mixed.dtype != torch.float32 or gates.stride(1) != 1:
        return gated_norm_reference(mixed, gates, weight, eps)
    mixed, output = mixed.contiguous(), gates.new_empty(gates.shape)
    tokens, heads, size = mixed.shape
    library.gated_norm(
        GatedNormArgs(
            mixed=mixed.data_ptr(),
            gates=gates.data_ptr(),
            weight=weight.data_ptr(),
            output=output.data_ptr(),
            tokens=tokens,
            heads=heads,
            size=size,
            gate_stride=gates.stride(0),
            eps=eps,
        )
    )
    return output
