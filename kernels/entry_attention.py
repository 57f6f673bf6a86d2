"""Attention of queries over the tokens near them and over compressed entries (DeepSeek-V4).

Of each query the rows that it sees are gathered, the entries first, and it attends to them as if
they were a sequence's context (``kernels.attention``); so what it gets follows from it and from
these rows alone, whatever is computed beside it.

Memory: of gathered rows 2^24 numbers at once, about, or those of one query.
"""

import functools
from dataclasses import dataclass

import torch
from torch import Tensor

from kernels.attention import paged_attention
from kernels.paged_layout import PagedLayout, SequenceSpan

_NUMBERS = 1 << 24
"""Numbers of gathered rows that are there at once, about."""
_BLOCK = 64
"""Rows of a block of gathered ones."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NearTokens:
    """The tokens themselves that each query of a step sees."""

    slots: Tensor
    """[queries, near] int64, ``block * block_size + offset`` in the pool; each query's own first
    ``counts`` are meant, the others are any of the pool's."""
    counts: Tensor
    """[queries] int64, at least 1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenEntries:
    """The entries that each query of a step sees."""

    slots: Tensor
    """[lists, most] int64, ``block * places + place``."""
    lists: Tensor
    """[queries] int64: which of the lists is a query's."""
    counts: Tensor
    """[queries] int64: how many of the list's first ones it sees."""


def entry_attention_reference(
    queries: Tensor,
    blocks: Tensor,
    entries: Tensor,
    near: NearTokens,
    seen: SeenEntries,
    *,
    scale: float,
    sinks: Tensor,
) -> Tensor:
    """Attention of each query over the rows that it sees, which are keys and values.

    Args:
        queries: [queries, heads, dim].
        blocks: [blocks, 1, block_size, row], of the queries' dtype; the first ``dim`` numbers of a
            row are the token's own.
        entries: [blocks, 1, places, dim], likewise; may be a part of longer rows.
        near: of the queries, in ``blocks``.
        seen: of the queries, in ``entries``.
        scale: multiplies the scores.
        sinks: [heads] float32 (float64 for float64 queries): see ``kernels.attention``.

    Returns:
        New tensor like ``queries``.
    """
    dim, wide = queries.shape[2], sinks.dtype
    own, far = blocks.flatten(0, 2)[:, :dim], entries.flatten(0, 2)
    mixed = []
    for row, query in enumerate(queries.to(wide)):
        tokens = near.slots[row, : near.counts[row]]
        others = seen.slots[seen.lists[row], : seen.counts[row]]
        keys = torch.cat((own[tokens], far[others])).to(wide)
        scores = torch.cat((query @ keys.T * scale, sinks[:, None]), dim=1)
        mixed.append(scores.softmax(1)[:, :-1] @ keys)
    return torch.stack(mixed).to(queries.dtype)


def entry_attention(
    queries: Tensor,
    blocks: Tensor,
    entries: Tensor,
    near: NearTokens,
    seen: SeenEntries,
    *,
    scale: float,
    sinks: Tensor,
) -> Tensor:
    """See ``entry_attention_reference``."""
    dim, device = queries.shape[2], queries.device
    own, far = blocks.flatten(0, 2)[:, :dim], entries.flatten(0, 2)
    most = near.slots.shape[1] + seen.slots.shape[1]
    width = -(-most // _BLOCK) * _BLOCK
    places = torch.arange(most, device=device)
    at_once = max(1, _NUMBERS // (2 * width * dim))
    parts = []
    for low in range(0, len(queries), at_once):
        some = slice(low, min(low + at_once, len(queries)))
        tokens, others = near.slots[some], seen.slots[seen.lists[some]]
        gathered = queries.new_empty(len(tokens), width, dim)
        rows = far.index_select(0, others.flatten())
        gathered[:, : others.shape[1]] = rows.view(*others.shape, dim)
        # right behind the entries that a query sees; what is behind its tokens nobody reads
        first = torch.arange(len(tokens), device=device) * width + seen.counts[some]
        behind = first[:, None] + places[: tokens.shape[1]]
        rows = own.index_select(0, tokens.flatten())
        gathered = gathered.view(-1, dim).index_copy_(0, behind.flatten(), rows)
        gathered = gathered.view(-1, 1, _BLOCK, dim)
        layout = _contexts(near.counts[some] + seen.counts[some], width // _BLOCK)
        parts.append(
            paged_attention(
                queries[some],
                gathered,
                gathered,
                layout,
                scale=scale,
                window=None,
                sinks=sinks,
            )
        )
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def _contexts(counts: Tensor, blocks: int) -> PagedLayout:
    """A context for each query, ``blocks`` of rows behind each other's."""
    rows, device = len(counts), counts.device
    return PagedLayout(
        query_starts=torch.arange(rows + 1, dtype=torch.int32, device=device),
        context_lengths=counts.to(torch.int32),
        block_tables=torch.arange(rows * blocks, dtype=torch.int32, device=device).view(
            rows, blocks
        ),
        max_query_tokens=1,
        max_decode_tokens=1,
        spans=functools.partial(_spans, counts, blocks),
    )


def _spans(counts: Tensor, blocks: int) -> tuple[SequenceSpan, ...]:
    return tuple(
        SequenceSpan(
            first_row=row,
            num_queries=1,
            context_length=count,
            runs=((row * blocks, -(-count // _BLOCK)),),
        )
        for row, count in enumerate(counts.tolist())
    )
