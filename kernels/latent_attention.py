"""Paged causal attention over latents (DeepSeek-V2, arXiv:2405.04434): two forms of one sum.

What the pool keeps of a token is a row for all heads: a latent that their keys and values are made
of, and behind it the rotated part of the keys. Sequences of few query tokens, decodes among them,
never make keys and values: what makes keys of latents is done to the queries, what makes values to
the mixture, and between is ordinary attention with one head of keys. For many query tokens it takes
less to make keys and values of the whole context, a few heads at a time, since these are shorter
than latents. Which form a sequence takes follows from its number of query tokens alone.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from kernels.attention import fits_triton, paged_attention
from kernels.cpu_attention import by_head, visible_softmax
from kernels.dispatch import triton_kernels
from kernels.latent_rows import whole_queries
from kernels.paged_layout import PagedLayout, SequenceSpan
from kernels.per_head import HeadMaps

_PIECE = 256
"""Query tokens whose scores are there at once."""
_NUMBERS = 1 << 24
"""Keys, values and scores that are there at once, about."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LatentHeads:
    """What heads make of latents."""

    keys: HeadMaps
    """[heads, plain_dim, rank], from queries to what latents are compared with."""
    values: HeadMaps
    """[heads, rank, value_dim]"""

    def made_from(self) -> int:
        """Query tokens from which on keys and values of a context are made: a token of it then
        takes rank * (plain_dim + value_dim) products a head once, and each query spares the
        difference of its rows' lengths."""
        _, plain, rank = self.keys.weights.shape
        value = self.values.weights.shape[2]
        spared = 2 * rank - plain - value
        return 1 + rank * (plain + value) // spared if spared > 0 else 1 << 62


def latent_attention_reference(
    queries: tuple[Tensor, Tensor],
    heads: LatentHeads,
    blocks: Tensor,
    layout: PagedLayout,
    *,
    scale: float,
    sinks: Tensor | None = None,
) -> Tensor:
    """Attention of each query over its sequence's context.

    Args:
        queries: of each head the part without positions, [tokens, heads, plain_dim], and the
            rotated one, [tokens, heads, rotary_dim].
        heads: what keys and values are made with.
        blocks: [blocks, 1, block_size, rank + rotary_dim]; int8 ones are those of
            ``kernels.quantised_kv``. May be the first numbers of longer rows.
        layout: the step's sequences, in the order of the query rows.
        scale: multiplies the scores.
        sinks: [heads] float32 (float64 for float64 queries): see ``kernels.attention``.

    Returns:
        New tensor [tokens, heads, value_dim], like ``queries``.
    """
    shape = *queries[0].shape[:2], heads.values.weights.shape[2]
    output = queries[0].new_zeros(shape)
    for span in layout.spans():
        _attend_made(queries, heads, blocks, span, output, scale=scale, sinks=sinks)
    return output


def latent_attention(
    queries: tuple[Tensor, Tensor],
    heads: LatentHeads,
    blocks: Tensor,
    layout: PagedLayout,
    *,
    scale: float,
    sinks: Tensor | None = None,
) -> Tensor:
    """See ``latent_attention_reference``."""
    on_triton = triton_kernels("attention", queries[0]) is not None
    fits = blocks.is_contiguous() and fits_triton(blocks.shape[3], heads.keys.weights.shape[2])
    if on_triton and fits:
        return _absorbed(queries, heads, blocks, layout, scale=scale, sinks=sinks)
    most = heads.made_from()
    if layout.max_query_tokens < most:
        return _absorbed(queries, heads, blocks, layout, scale=scale, sinks=sinks)
    spans = layout.spans()
    if all(span.num_queries >= most for span in spans):
        return latent_attention_reference(queries, heads, blocks, layout, scale=scale, sinks=sinks)
    output = _absorbed(
        queries, heads, blocks, layout, scale=scale, sinks=sinks, most_queries=most - 1
    ).contiguous()
    for span in spans:
        if span.num_queries >= most:
            _attend_made(queries, heads, blocks, span, output, scale=scale, sinks=sinks)
    return output


def _absorbed(
    queries: tuple[Tensor, Tensor],
    heads: LatentHeads,
    blocks: Tensor,
    layout: PagedLayout,
    *,
    scale: float,
    sinks: Tensor | None,
    most_queries: int | None = None,
) -> Tensor:
    rank = heads.keys.weights.shape[2]
    asked = whole_queries(queries[1], rank)
    if asked is None:
        asked = torch.cat((heads.keys(queries[0]), queries[1]), dim=2)
    else:
        heads.keys.into(queries[0], asked[:, :, :rank])
    mixed = paged_attention(
        asked,
        blocks,
        blocks,
        layout,
        scale=scale,
        window=None,
        sinks=sinks,
        most_queries=most_queries,
        value_dim=rank,
    )
    return heads.values(mixed[..., :rank])


def _attend_made(
    queries: tuple[Tensor, Tensor],
    heads: LatentHeads,
    blocks: Tensor,
    span: SequenceSpan,
    output: Tensor,
    *,
    scale: float,
    sinks: Tensor | None,
) -> None:
    """One sequence, with keys and values as they are defined; into its rows of ``output``."""
    own = slice(span.first_row, span.first_row + span.num_queries)
    asked, output = torch.cat([part[own] for part in queries], dim=2), output[own]
    into_keys, into_values = heads.keys.weights, heads.values.weights
    dtype, (count, _, plain_dim) = into_keys.dtype, into_keys.shape
    rows = by_head(blocks, span, 0, dtype)[0]
    rank, length, value_dim = into_keys.shape[2], len(rows), into_values.shape[2]
    latents, shared = rows[:, :rank], rows[:, rank:]
    asked = (asked * scale).to(dtype).transpose(0, 1)
    piece = min(_PIECE, span.num_queries)
    each = length * (plain_dim + shared.shape[1] + value_dim + 2 * piece)
    at_once = max(1, min(count, _NUMBERS // each))
    for low in range(0, count, at_once):
        some = slice(low, low + at_once)
        made = torch.matmul(latents, into_keys[some].transpose(1, 2))
        keys = torch.cat((made, shared.expand(len(made), -1, -1)), dim=2).transpose(1, 2)
        values = torch.matmul(latents, into_values[some])
        for first in range(0, span.num_queries, piece):
            last = min(first + piece, span.num_queries)
            end = length - span.num_queries + last
            scores = torch.bmm(asked[some, first:last], keys[..., :end])
            weights = visible_softmax(
                scores.view(len(made), 1, last - first, end),
                first_end=length - span.num_queries + first + 1,
                window=None,
                sinks=None if sinks is None else sinks[some],
            )
            mixed = torch.bmm(weights.view(scores.shape), values[:, :end])
            output[first:last, some] = mixed.transpose(0, 1).to(output.dtype)
