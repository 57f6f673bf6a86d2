"""Storing new keys and values in the paged KV pool.

The slot arithmetic is that of PagedAttention (Kwon et al. 2023, arXiv:2309.06180).
"""

import torch
from torch import Tensor

from kernels.quantised_kv import FP8, fp8_parts, quantise_fp8, quantise_rows, row_size


def write_kv_reference(
    keys: Tensor, values: Tensor, k_blocks: Tensor, v_blocks: Tensor, slots: Tensor
) -> None:
    """Store each token's key and value at its slot, in place.

    Args:
        keys: [tokens, kv_heads, head_dim].
        values: same shape as ``keys``.
        k_blocks: [blocks, kv_heads, block_size, head_dim], contiguous; written. int8
            and fp8 blocks are those of ``kernels.quantised_kv``.
        v_blocks: likewise.
        slots: [tokens] int64, ``block_id * block_size + offset_in_block``, each slot at
            most once.

    Raises:
        ValueError: the shapes do not fit together. Slot values are trusted: checking them
            would make a GPU wait for the host.
    """
    row = (keys.shape[1], row_size(keys.shape[2], k_blocks.dtype))
    if keys.shape != values.shape or row != (k_blocks.shape[1], k_blocks.shape[3]):
        raise ValueError(
            f"keys {tuple(keys.shape)} and values {tuple(values.shape)} "
            f"do not fit blocks {tuple(k_blocks.shape)}"
        )
    block_size = k_blocks.shape[2]
    blocks, offsets = slots // block_size, slots % block_size
    for rows, pool in ((keys, k_blocks), (values, v_blocks)):
        _put(rows, pool, blocks, offsets)


def _put(rows: Tensor, pool: Tensor, blocks: Tensor, offsets: Tensor) -> None:
    if pool.dtype == FP8:
        for part, new in zip(fp8_parts(pool), quantise_fp8(rows), strict=True):
            part[blocks, :, offsets] = new
        return
    pool[blocks, :, offsets] = quantise_rows(rows) if pool.dtype == torch.int8 else rows


def write_kv(
    keys: Tensor, values: Tensor, k_blocks: Tensor, v_blocks: Tensor, slots: Tensor
) -> None:
    """See ``write_kv_reference``."""
    write_kv_reference(keys, values, k_blocks, v_blocks, slots)


def write_rows(rows: Tensor, blocks: Tensor, slots: Tensor) -> None:
    """Store one row of each token, that is its key and its value, at its slot, in place.

    Args:
        rows: [tokens, kv_heads, head_dim].
        blocks: [blocks, kv_heads, block_size, head_dim]; written. See ``write_kv_reference``.
        slots: likewise.

    Raises:
        ValueError: the shapes do not fit together.
    """
    if (rows.shape[1], row_size(rows.shape[2], blocks.dtype)) != (blocks.shape[1], blocks.shape[3]):
        raise ValueError(f"rows {tuple(rows.shape)} do not fit blocks {tuple(blocks.shape)}")
    block_size = blocks.shape[2]
    _put(rows, blocks, slots // block_size, slots % block_size)
