"""Attention of queries over the tokens near them and over compressed entries (DeepSeek-V4).

Of each query the rows that it sees are gathered, the near tokens' first, and it attends to them as
if they were a sequence's context (``kernels.attention``); so what it gets follows from it and from
these rows alone, whatever is computed beside it.

Memory: of gathered rows 2^24 numbers at once, about, or those of one query.
"""

import functools
from collections.abc import Iterator
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
    ``counts`` are meant, the others are slots of its context."""
    counts: Tensor
    """[queries] int64, at least 1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenEntries:
    """The entries that each query of a step sees."""

    slots: Tensor
    """[lists, most] int64: slots of the rows that have them."""
    lists: Tensor
    """[queries] int64: which of the lists is a query's."""
    counts: Tensor
    """[queries] int64: how many of the list's first ones it sees."""
    begins: int
    """At which number of a row an entry begins."""


def entry_attention_reference(
    queries: Tensor,
    blocks: Tensor,
    near: NearTokens,
    entries: SeenEntries,
    *,
    scale: float,
    sinks: Tensor,
) -> Tensor:
    """Attention of each query over the rows that it sees, which are keys and values.

    Args:
        queries: [queries, heads, dim].
        blocks: [blocks, 1, block_size, row], contiguous, of the queries' dtype; the first ``dim``
            numbers of a row are the token's own, as many from ``begins`` on the entry's.
        near: of the queries.
        entries: likewise.
        scale: multiplies the scores.
        sinks: [heads] float32 (float64 for float64 queries): see ``kernels.attention``.

    Returns:
        New tensor like ``queries``.
    """
    dim, wide = queries.shape[2], sinks.dtype
    flat = blocks.flatten(0, 2)
    mixed = []
    for row, query in enumerate(queries.to(wide)):
        tokens = near.slots[row, : near.counts[row]]
        others = entries.slots[entries.lists[row], : entries.counts[row]]
        ends = entries.begins + dim
        keys = torch.cat((flat[tokens, :dim], flat[others, entries.begins : ends])).to(wide)
        scores = torch.cat((query @ keys.T * scale, sinks[:, None]), dim=1)
        mixed.append(scores.softmax(1)[:, :-1] @ keys)
    return torch.stack(mixed).to(queries.dtype)


def entry_attention(
    queries: Tensor,
    blocks: Tensor,
    near: NearTokens,
    entries: SeenEntries,
    *,
    scale: float,
    sinks: Tensor,
) -> Tensor:
    """See ``entry_attention_reference``."""
    dim, row = queries.shape[2], blocks.shape[3]
    # every number of the pool begins a row of this view, of which those that are seen are taken
    every = blocks.view(-1)
    every = every.as_strided((len(every) - dim + 1, dim), (1, 1))
    parts = []
    for low, high, places in _pieces(near, entries, row, dim):
        counts = near.counts[low:high] + entries.counts[low:high]
        gathered = every.index_select(0, places.flatten()).view(-1, 1, _BLOCK, dim)
        layout = _contexts(counts, places.shape[1] // _BLOCK)
        parts.append(
            paged_attention(
                queries[low:high],
                gathered,
                gathered,
                layout,
                scale=scale,
                window=None,
                sinks=sinks,
            )
        )
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def _pieces(
    near: NearTokens, entries: SeenEntries, row: int, dim: int
) -> Iterator[tuple[int, int, Tensor]]:
    """Neighbouring queries, and [queries, rows] where in the pool the rows begin that each sees,
    filled up to whole blocks."""
    counts = near.counts + entries.counts
    width = -(-int(counts.max()) // _BLOCK) * _BLOCK
    at_once = max(1, _NUMBERS // (width * dim))
    columns = torch.arange(width, device=counts.device)
    most = near.slots.shape[1] + entries.slots.shape[1]
    for low in range(0, len(counts), at_once):
        some = slice(low, min(low + at_once, len(counts)))
        own = near.counts[some, None]
        others = entries.slots[entries.lists[some]] * row + entries.begins
        begins = torch.cat((near.slots[some] * row, others), dim=1)
        behind = columns - own + near.slots.shape[1]
        chosen = torch.where(columns < own, columns, behind).clamp_(max=most - 1)
        filled = columns >= counts[some, None]
        yield low, some.stop, begins.gather(1, chosen.masked_fill_(filled, 0))


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
