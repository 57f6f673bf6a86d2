"""What a step's tokens give attention over latents: rotated queries, and rows in the pool
(``kernels.latent_attention``)."""

import torch
from torch import Tensor

from kernels.dispatch import triton_kernels
from kernels.kv_write import write_rows
from kernels.norm import rms_norm
from kernels.rope import apply_rope


def latent_rows_reference(
    queries: Tensor,
    rows: Tensor,
    *,
    norm: tuple[Tensor, float],
    rotation: tuple[Tensor, Tensor],
    blocks: Tensor,
    slots: Tensor,
) -> Tensor:
    """Rotate the parts that turn, norm latents, and store a row of each token.

    Args:
        queries: [tokens, heads, plain_dim + rotary_dim].
        rows: [tokens, rank + rotary_dim], a latent and behind it the part of the keys that turns.
        norm: weight [rank] and epsilon of the RMSNorm of latents.
        rotation: cosines and sines of the tokens' positions, [tokens, rotary_dim / 2].
        blocks: [blocks, 1, block_size, rank + rotary_dim], written; int8 ones are those of
            ``kernels.quantised_kv``. May be the first numbers of longer rows.
        slots: [tokens] int64, where each token's row goes; see ``kernels.kv_write``.

    Returns:
        [tokens, heads, rotary_dim], the rotated part of the queries.
    """
    weight, eps = norm
    rank = len(weight)
    latent, shared = rows[:, :rank], rows[:, None, rank:]
    if rows.shape[1] == rank:
        write_rows(rms_norm(latent, weight, eps)[:, None], blocks, slots)
        return queries.new_empty(*queries.shape[:2], 0)
    turning = queries[:, :, queries.shape[2] - shared.shape[2] :]
    turned = apply_rope(torch.cat((turning, shared), dim=1), *rotation)
    latent = rms_norm(latent.contiguous(), weight, eps)
    write_rows(torch.cat((latent[:, None], turned[:, -1:]), dim=2), blocks, slots)
    return turned[:, :-1]


def latent_rows(
    queries: Tensor,
    rows: Tensor,
    *,
    norm: tuple[Tensor, float],
    rotation: tuple[Tensor, Tensor],
    blocks: Tensor,
    slots: Tensor,
) -> Tensor:
    """See ``latent_rows_reference``. On a GPU the result lies behind room for as many numbers of
    each head as a latent has, in one tensor that ``whole_queries`` gives."""
    gpu = triton_kernels("latent_rows", queries)
    unfit = blocks.dtype != queries.dtype or not blocks.is_contiguous()
    if gpu is None or unfit or rows.shape[1] == len(norm[0]):
        return latent_rows_reference(
            queries, rows, norm=norm, rotation=rotation, blocks=blocks, slots=slots
        )
    turned: Tensor = gpu.latent_rows(
        queries, rows, norm=norm, rotation=rotation, blocks=blocks, slots=slots
    )
    return turned


def whole_queries(turned: Tensor, rank: int) -> Tensor | None:
    """[tokens, heads, rank + rotary_dim], of which ``turned`` is the end and the rest is to be
    filled; None: there is no such room."""
    tokens, heads, width = turned.shape
    whole = rank + width
    if turned.storage_offset() != rank or turned.stride() != (heads * whole, whole, 1):
        return None
    return turned.as_strided((tokens, heads, whole), (heads * whole, whole, 1), 0)
