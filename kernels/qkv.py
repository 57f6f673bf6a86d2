"""The steps between the fused QKV projection and attention, in one pass over it.

Queries and keys are normed (if the model does so) and rotated, keys and values are stored
in their slots, queries returned. The parts are ``kernels.norm``, ``kernels.rope`` and
``kernels.kv_write``.
"""

import torch
from torch import Tensor

from kernels.dispatch import triton_kernels
from kernels.kv_write import write_kv
from kernels.native_library import native_library
from kernels.norm import rms_norm, rms_norm_reference
from kernels.quantised_kv import FP8
from kernels.rope import apply_rope, apply_rope_reference


def norm_rope_write_reference(
    qkv: Tensor,
    *,
    norm_weight: Tensor | None,
    eps: float,
    rotation: tuple[Tensor, Tensor],
    blocks: tuple[Tensor, Tensor],
    slots: Tensor,
) -> Tensor:
    """Norm and rotate queries and keys, store keys and values.

    Args:
        qkv: [tokens, heads + 2 * kv_heads, head_dim], contiguous.
        norm_weight: [heads + kv_heads, head_dim] for RMSNorm over head_dim, or None.
        eps: of that norm.
        rotation: (cosines, sines), each [tokens, head_dim / 2].
        blocks: (keys, values), each [blocks, kv_heads, block_size, head_dim]; written. See
            ``kernels.kv_write`` for int8 and fp8.
        slots: [tokens] int64: where each token's key and value go.

    Returns:
        Queries [tokens, heads, head_dim]; may share memory with ``qkv``.
    """
    kv_heads = blocks[0].shape[1]
    rotated, values = qkv[:, :-kv_heads], qkv[:, -kv_heads:]
    if norm_weight is not None:
        rotated = rms_norm_reference(rotated, norm_weight, eps)
    rotated = apply_rope_reference(rotated, *rotation)
    write_kv(rotated[:, -kv_heads:], values, *blocks, slots)
    return rotated[:, :-kv_heads]


def norm_rope_write(
    qkv: Tensor,
    *,
    norm_weight: Tensor | None,
    eps: float,
    rotation: tuple[Tensor, Tensor],
    blocks: tuple[Tensor, Tensor],
    slots: Tensor,
) -> Tensor:
    """See ``norm_rope_write_reference``."""
    gpu = triton_kernels("kv", qkv)
    if gpu is not None:
        queries: Tensor = gpu.norm_rope_write(
            qkv, norm_weight=norm_weight, eps=eps, rotation=rotation, blocks=blocks, slots=slots
        )
        return queries
    native = qkv.device.type == "cpu" and blocks[0].dtype != FP8
    library = native_library(qkv.dtype) if native else None
    if library is not None and blocks[0].dtype == torch.int8:
        return library.norm_rope_write_int8(
            qkv, norm_weight=norm_weight, eps=eps, rotation=rotation, blocks=blocks, slots=slots
        )
    if library is not None:
        return library.norm_rope_write(
            qkv, norm_weight=norm_weight, eps=eps, rotation=rotation, blocks=blocks, slots=slots
        )
    kv_heads = blocks[0].shape[1]
    rotated, values = qkv[:, :-kv_heads], qkv[:, -kv_heads:]
    if norm_weight is not None:
        rotated = rms_norm(rotated, norm_weight, eps)
    rotated = apply_rope(rotated, *rotation)
    write_kv(rotated[:, -kv_heads:], values, *blocks, slots)
    return rotated[:, :-kv_heads]
