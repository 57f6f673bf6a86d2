"""Attention over latents where a query sees the tokens that it has chosen (DeepSeek-V3.2).

A query that has no more than ``top_k`` tokens up to itself sees all of them, and goes the way of
``kernels.latent_attention``; the others' chosen rows are gathered, and each such query attends to
its own as if they were a sequence's context. Which of the two a query is follows from its position
alone.

Memory: of gathered rows 2^24 numbers at once, about, or those of one query.
"""

import functools
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from kernels.latent_attention import LatentHeads, latent_attention
from kernels.paged_layout import MAX_DECODE_QUERIES, PagedLayout, SequenceSpan

_NUMBERS = 1 << 24
"""Numbers of gathered rows that are there at once, about."""
_BLOCK = 64
"""Tokens of a block of gathered rows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChosenRows:
    """The query rows of a step, parted by what they see."""

    all_seen: Tensor
    """[rows] int64: those that see all up to themselves."""
    seen: PagedLayout | None
    """The contexts of these, in their order; None: there are none."""
    choosing: Tensor
    """[rows] int64: those that choose."""
    spans: tuple[SequenceSpan, ...]
    """The contexts of these, whose rows are counted among them."""


def part_rows(layout: PagedLayout, top_k: int, block_size: int) -> ChosenRows | None:
    """The rows of a step in which queries see ``top_k`` tokens at most; None: all see all."""
    spans = layout.spans()
    if all(span.context_length <= top_k for span in spans):
        return None
    all_seen: list[int] = []
    choosing: list[int] = []
    seen, spans_of_choosing, places = [], [], []
    for place, span in enumerate(spans):
        before, first = span.context_length - span.num_queries, span.first_row
        count = min(max(top_k - before, 0), span.num_queries)
        if count:
            seen.append(
                replace(
                    span,
                    first_row=len(all_seen),
                    num_queries=count,
                    context_length=before + count,
                    runs=_first_blocks(span.runs, -(-(before + count) // block_size)),
                )
            )
            all_seen.extend(range(first, first + count))
            places.append(place)
        if count < span.num_queries:
            spans_of_choosing.append(
                replace(span, first_row=len(choosing), num_queries=span.num_queries - count)
            )
            choosing.extend(range(first + count, first + span.num_queries))
    device = layout.block_tables.device
    return ChosenRows(
        all_seen=torch.tensor(all_seen, dtype=torch.int64, device=device),
        seen=_layout_of(seen, layout.block_tables[places]) if seen else None,
        choosing=torch.tensor(choosing, dtype=torch.int64, device=device),
        spans=tuple(spans_of_choosing),
    )


def chosen_attention_reference(
    queries: tuple[Tensor, Tensor],
    heads: LatentHeads,
    blocks: Tensor,
    slots: Tensor,
    *,
    scale: float,
    counts: Tensor | None = None,
    sinks: Tensor | None = None,
) -> Tensor:
    """Attention of each query over the tokens that it has chosen.

    Args:
        queries: as ``kernels.latent_attention`` has them, of ``rows`` queries.
        heads: likewise.
        blocks: [blocks, 1, block_size, rank + rotary_dim], in the queries' dtype; may be the first
            numbers of longer rows.
        slots: [rows, top_k] int32, ``block * block_size + offset`` of the tokens.
        scale: multiplies the scores.
        counts: [rows] int64, how many of a row's slots are meant, its first ones; the others are
            any of the pool. None: all.
        sinks: [heads] float32 (float64 for float64 queries): see ``kernels.attention``.

    Returns:
        New tensor [rows, heads, value_dim], like ``queries``.
    """
    into_keys, into_values = heads.keys.weights, heads.values.weights
    wide, rank = into_keys.dtype, into_keys.shape[2]
    flat = blocks[:, 0].reshape(-1, blocks.shape[3]).to(wide)
    rows = []
    meant = [slots.shape[1]] * len(slots) if counts is None else counts.tolist()
    for plain, turned, chosen, count in zip(*queries, slots, meant, strict=True):
        seen = flat[chosen[:count].long()]
        latents, shared = seen[:, :rank], seen[:, rank:]
        asked = torch.einsum("hp,hpr->hr", plain.to(wide), into_keys)
        scores = (asked @ latents.T + turned.to(wide) @ shared.T) * scale
        if sinks is not None:
            scores = torch.cat((scores, sinks.to(wide)[:, None]), dim=1)
        weights = scores.softmax(-1)[:, : len(seen)]
        rows.append(torch.einsum("ht,tr,hrv->hv", weights, latents, into_values))
    return torch.stack(rows).to(queries[0].dtype)


def chosen_attention(
    queries: tuple[Tensor, Tensor],
    heads: LatentHeads,
    blocks: Tensor,
    slots: Tensor,
    *,
    scale: float,
    counts: Tensor | None = None,
    sinks: Tensor | None = None,
) -> Tensor:
    """See ``chosen_attention_reference``."""
    (rows, top_k), width = slots.shape, blocks.shape[3]
    count = -(-top_k // _BLOCK)
    at_once = max(1, min(rows, _NUMBERS // (count * _BLOCK * width)))
    flat = blocks.flatten(0, 2)
    gathered = blocks.new_empty(at_once, count * _BLOCK, width)
    meant = [top_k] * rows if counts is None else counts.tolist()
    parts = []
    for low in range(0, rows, at_once):
        high = min(low + at_once, rows)
        some = high - low
        chosen = flat.index_select(0, slots[low:high].flatten())
        gathered[:some, :top_k] = chosen.view(some, top_k, width)
        parts.append(
            latent_attention(
                (queries[0][low:high], queries[1][low:high]),
                heads,
                gathered[:some].view(-1, 1, _BLOCK, width),
                _contexts(meant[low:high], count, blocks.device),
                scale=scale,
                sinks=sinks,
            )
        )
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def _first_blocks(runs: Sequence[tuple[int, int]], count: int) -> tuple[tuple[int, int], ...]:
    """The first ``count`` blocks of a context, in runs."""
    found = []
    for block, size in runs:
        if count > 0:
            found.append((block, min(size, count)))
        count -= size
    return tuple(found)


def _contexts(lengths: Sequence[int], count: int, device: torch.device) -> PagedLayout:
    """A context for each row, ``count`` blocks behind each other's."""
    spans = [
        SequenceSpan(
            first_row=row,
            num_queries=1,
            context_length=length,
            runs=((row * count, -(-length // _BLOCK)),),
        )
        for row, length in enumerate(lengths)
    ]
    tables = torch.arange(len(lengths) * count, dtype=torch.int32, device=device)
    return _layout_of(spans, tables.view(len(lengths), count))


def _layout_of(spans: Sequence[SequenceSpan], block_tables: Tensor) -> PagedLayout:
    device, counts = block_tables.device, [span.num_queries for span in spans]
    starts = [0, *(span.first_row + span.num_queries for span in spans)]
    return PagedLayout(
        query_starts=torch.tensor(starts, dtype=torch.int32, device=device),
        context_lengths=torch.tensor(
            [span.context_length for span in spans], dtype=torch.int32, device=device
        ),
        block_tables=block_tables,
        max_query_tokens=max(counts),
        max_decode_tokens=max((each for each in counts if each <= MAX_DECODE_QUERIES), default=0),
        spans=functools.partial(tuple, spans),
    )
