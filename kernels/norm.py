"""RMSNorm (Zhang and Sennrich 2019, arXiv:1910.07467), alone and after a residual add.

The mean square is taken in float32, or in float64 for float64 input.
"""

import torch
from torch import Tensor
from torch.nn import functional

from kernels.dispatch import triton_kernels
from kernels.native_library import native_library


def rms_norm_reference(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Scale each row of ``x`` to mean square one, then by ``weight``.

    Args:
        x: [..., size], any float dtype.
        weight: [size] or broadcastable to ``x``, dtype of ``x``.
        eps: added to the mean square.

    Returns:
        New tensor, shape and dtype of ``x``.
    """
    return norm_by(x, mean_square(x), weight, eps)


def mean_square(x: Tensor) -> Tensor:
    """[..., 1] of the rows of ``x``, in float32, or in float64 for float64 input."""
    wide = x if x.dtype == torch.float64 else x.float()
    return wide.square().mean(-1, keepdim=True)


def norm_by(x: Tensor, mean: Tensor, weight: Tensor, eps: float) -> Tensor:
    """``rms_norm_reference`` of rows of which ``x`` has a part, by the whole rows' mean square,
    [..., 1]."""
    wide = x if x.dtype == torch.float64 else x.float()
    return weight * (wide * torch.rsqrt(mean + eps)).to(x.dtype)


def add_rms_norm_reference(
    x: Tensor, residual: Tensor, weight: Tensor, eps: float
) -> tuple[Tensor, Tensor]:
    """``residual + x`` and its RMSNorm.

    Args:
        x: [tokens, size].
        residual: like ``x``.
        weight: [size].
        eps: added to the mean square.

    Returns:
        (normed, sum), both shape and dtype of ``x``; the inputs are not changed.
    """
    total = residual + x
    return rms_norm_reference(total, weight, eps), total


def rms_norm(x: Tensor, weight: Tensor | None, eps: float) -> Tensor:
    """See ``rms_norm_reference``; ``weight`` may have more dimensions than one. None: rows are
    brought to mean square one, and that is all."""
    if weight is None:
        return functional.rms_norm(x, x.shape[-1:], None, eps)
    if weight.dim() == 1:
        return functional.rms_norm(x, weight.shape, weight, eps)
    return functional.rms_norm(x, x.shape[-1:], None, eps) * weight


def add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """See ``add_rms_norm_reference``."""
    gpu = triton_kernels("elementwise", x)
    if gpu is not None:
        both: tuple[Tensor, Tensor] = gpu.add_rms_norm(x, residual, weight, eps)
        return both
    library = native_library(x.dtype) if x.device.type == "cpu" else None
    if library is not None:
        return library.add_rms_norm(x, residual, weight, eps)
    total = residual + x
    return rms_norm(total, weight, eps), total
