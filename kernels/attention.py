"""Paged causal attention: prefill chunks, decodes and draft verification are one call.

A sequence's query tokens are the last ones of its context; their keys and values are in
the pool already. Each query sees the context up to and including itself, or the last
``window`` tokens of that.

The ways to do this fast are ``kernels.cpu_attention`` and ``kernels.triton_attention``. Heads that
the latter's tiles have no room for are computed on a GPU as the former does it in torch.
"""

import torch
from torch import Tensor

from kernels.cpu_attention import attend
from kernels.dispatch import triton_kernels
from kernels.paged_layout import PagedLayout
from kernels.quantised_kv import FP8, widened

MOST_ON_TRITON = 256
"""Dimensions of a head that tiles of Triton's kernels have room for."""
_LONGEST_LATENT = 512
_REST = (16, 32, 64)


def fits_triton(head_dim: int, value_dim: int) -> bool:
    """Whether Triton's kernels have room for heads of so many dimensions, of which the first
    ``value_dim`` have values that are asked for: for those of latents a power of two, and some
    more."""
    if head_dim <= MOST_ON_TRITON:
        return True
    rest = head_dim - value_dim
    return value_dim in (MOST_ON_TRITON, _LONGEST_LATENT) and rest in _REST


def paged_attention_reference(
    queries: Tensor,
    k_blocks: Tensor,
    v_blocks: Tensor,
    layout: PagedLayout,
    *,
    scale: float,
    window: int | None,
    sinks: Tensor | None = None,
) -> Tensor:
    """Attention of each query over its sequence's context.

    Args:
        queries: [tokens, heads, head_dim]; heads is a multiple of kv_heads and query head h
            reads kv head ``h // (heads / kv_heads)``.
        k_blocks: [blocks, kv_heads, block_size, head_dim]; slots past a context hold anything.
            int8 and fp8 blocks are those of ``kernels.quantised_kv``.
        v_blocks: likewise.
        layout: the step's sequences, in the order of the query rows.
        scale: multiplies the scores.
        window: tokens a query sees, itself included; None for all.
        sinks: [heads] float32 (float64 for float64 queries): of each head a logit that counts in
            the softmax's sum and has no value.

    Returns:
        New tensor like ``queries``.
    """
    heads, kv_heads, block_size = queries.shape[1], k_blocks.shape[1], k_blocks.shape[2]
    wide = torch.float64 if queries.dtype == torch.float64 else torch.float32
    output = torch.empty_like(queries)
    starts = layout.query_starts.tolist()
    for index, length in enumerate(layout.context_lengths.tolist()):
        rows = slice(starts[index], starts[index + 1])
        blocks = layout.block_tables[index, : -(-length // block_size)].long()
        keys = widened(k_blocks[blocks], wide).transpose(1, 2).flatten(0, 1)[:length]
        values = widened(v_blocks[blocks], wide).transpose(1, 2).flatten(0, 1)[:length]
        keys = keys.repeat_interleave(heads // kv_heads, dim=1)
        values = values.repeat_interleave(heads // kv_heads, dim=1)
        scores = torch.einsum("qhd,khd->hqk", queries[rows].to(wide), keys) * scale
        num_queries = rows.stop - rows.start
        query_at = torch.arange(length - num_queries, length, device=queries.device)[:, None]
        key_at = torch.arange(length, device=queries.device)[None, :]
        hidden = key_at > query_at
        if window is not None:
            hidden |= key_at <= query_at - window
        scores = scores.masked_fill(hidden, -torch.inf)
        if sinks is None:
            weights = scores.softmax(-1)
        else:
            beside = sinks.to(wide)[:, None, None].expand(-1, num_queries, 1)
            weights = torch.cat((scores, beside), -1).softmax(-1)[..., :-1]
        output[rows] = torch.einsum("hqk,khd->qhd", weights, values).to(queries.dtype)
    return output


def paged_attention(
    queries: Tensor,
    k_blocks: Tensor,
    v_blocks: Tensor,
    layout: PagedLayout,
    *,
    scale: float,
    window: int | None,
    sinks: Tensor | None = None,
    most_queries: int | None = None,
    value_dim: int | None = None,
) -> Tensor:
    """See ``paged_attention_reference``. With ``most_queries`` rows of sequences that have more
    query tokens may hold anything, with ``value_dim`` all columns but the first ones. Blocks may be
    the first numbers of longer rows, which Triton's kernels do not take."""
    gpu = triton_kernels("attention", queries)
    head_dim = queries.shape[2]
    in_a_row = k_blocks.is_contiguous()
    if gpu is not None and in_a_row and fits_triton(head_dim, value_dim or head_dim):
        output: Tensor = gpu.paged_attention(
            queries, k_blocks, v_blocks, layout, scale=scale, window=window, sinks=sinks
        )
        return output
    if k_blocks.dtype != FP8:
        return attend(
            queries,
            k_blocks,
            v_blocks,
            layout,
            scale=scale,
            window=window,
            sinks=sinks,
            most_queries=most_queries,
        )
    return paged_attention_reference(
        queries, k_blocks, v_blocks, layout, scale=scale, window=window, sinks=sinks
    )
