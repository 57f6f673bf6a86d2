"""RMS norms with a gate: of each head, weighed behind the norm by SiLU or the sigmoid of the gate
(gated delta nets, Kimi's), or of groups of heads, weighed before it (Mamba-2).

Computed in the dtype of what is normed, rounded once to that of the gates.
"""

import torch
from torch import Tensor
from torch.nn import functional

from kernels.dispatch import triton_kernels
from kernels.native_arguments import GatedNormArgs
from kernels.native_library import native_library


def gated_norm_reference(
    mixed: Tensor, gates: Tensor, weight: Tensor, eps: float, *, by_sigmoid: bool = False
) -> Tensor:
    """In torch.

    Args:
        mixed: [T, V, size], never narrower than ``gates``.
        gates: [T, V * size]; rows may lie apart.
        weight: [size], dtype of ``mixed``.
        by_sigmoid: gates weigh by their sigmoid; else by their SiLU.

    Returns:
        New tensor [T, V * size], dtype of ``gates``.
    """
    normed = mixed * torch.rsqrt(mixed.square().mean(-1, keepdim=True) + eps)
    weigh = torch.sigmoid if by_sigmoid else functional.silu
    weights = weigh(gates.to(mixed.dtype)).reshape(mixed.shape)
    return (normed * weight * weights).flatten(1).to(gates.dtype)


def gated_norm(
    mixed: Tensor, gates: Tensor, weight: Tensor, eps: float, *, by_sigmoid: bool = False
) -> Tensor:
    """See ``gated_norm_reference``."""
    gpu = triton_kernels("gated_norm", mixed) if mixed.dtype == torch.float32 else None
    if gpu is not None:
        normed: Tensor = gpu.gated_norm(mixed, gates, weight, eps, by_sigmoid=by_sigmoid)
        return normed
    library = native_library(gates.dtype) if gates.device.type == "cpu" else None
    if library is None or mixed.dtype != torch.float32 or gates.stride(1) != 1:
        return gated_norm_reference(mixed, gates, weight, eps, by_sigmoid=by_sigmoid)
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
            by_sigmoid=by_sigmoid,
        )
    )
    return output


def skipped_group_norm_reference(
    mixed: Tensor,
    values: Tensor,
    skip: Tensor,
    gates: Tensor,
    weight: Tensor,
    *,
    groups: int,
    eps: float,
) -> Tensor:
    """In torch.

    Args:
        mixed: [T, heads, head_dim], never narrower than ``gates``.
        values: [T, heads, head_dim], dtype of ``mixed``: added to it, times ``skip``.
        skip: [heads], dtype of ``mixed``.
        gates: [T, heads * head_dim]; rows may lie apart.
        weight: [heads * head_dim], dtype of ``mixed``.
        groups: into which the numbers of a token fall, each normed by itself.

    Returns:
        New tensor [T, heads * head_dim], dtype of ``gates``.
    """
    weighed = skipped_and_weighed(mixed, values, skip, gates)
    by_group = weighed.view(len(weighed), groups, -1)
    normed = by_group * torch.rsqrt(by_group.square().mean(-1, keepdim=True) + eps)
    return (normed.flatten(1) * weight).to(gates.dtype)


def skipped_and_weighed(mixed: Tensor, values: Tensor, skip: Tensor, gates: Tensor) -> Tensor:
    """[T, heads * head_dim], dtype of ``mixed``: what ``skipped_group_norm_reference`` norms."""
    whole = (mixed + values * skip[:, None]).flatten(1)
    return whole * functional.silu(gates.to(mixed.dtype))


def skipped_group_norm(
    mixed: Tensor,
    values: Tensor,
    skip: Tensor,
    gates: Tensor,
    weight: Tensor,
    *,
    groups: int,
    eps: float,
) -> Tensor:
    """See ``skipped_group_norm_reference``."""
    gpu = triton_kernels("gated_norm", mixed) if mixed.dtype == torch.float32 else None
    norm = skipped_group_norm_reference if gpu is None else gpu.skipped_group_norm
    normed: Tensor = norm(mixed, values, skip, gates, weight, groups=groups, eps=eps)
    return normed
