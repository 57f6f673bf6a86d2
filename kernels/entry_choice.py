"""Which compressed entries each query attends to (DeepSeek-V4): the best of those before it.

Scores are those by which tokens are chosen (``kernels.token_choice``), with entries in the place of
tokens; what is said there of their bits and of memory holds here.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from kernels.native_library import native_library
from kernels.token_choice import IndexQueries, best, compiled_scores, scores_of_all

_NUMBERS = 1 << 24
"""Products and scores that are there at once, about."""
_STRETCH = 512
"""Entries whose products with the heads of queries are made at once, in torch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChoosingRows:
    """Neighbouring queries of a sequence that see more entries than they take."""

    first_row: int
    """The first, counted among the rows that choose."""
    seen: Tensor
    """[rows] int64, ascending: how many entries each sees, more than are taken."""
    slots: Tensor
    """[entries] int32: the places of the sequence's entries in the pool, as many as the last row
    sees."""


def chosen_entries_reference(
    asked: IndexQueries, keys: Tensor, spans: Sequence[ChoosingRows], top_k: int
) -> Tensor:
    """Choose ``top_k`` entries for each query.

    Args:
        asked: of the queries, those of each span from its ``first_row`` on.
        keys: [blocks, 1, block_size, dim], index keys in the pool, of entries in the slots that
            spans name; may be a part of longer rows.
        spans: which entries each query sees.
        top_k: entries of a choice.

    Returns:
        [rows, top_k] int64: slots of the pool, in the order of the entries. Of equal scores the
        earliest are taken; scores that are no numbers count as infinite.
    """
    flat, wide = keys.flatten(0, 2), asked.weights.dtype
    chosen = torch.empty(len(asked.queries), top_k, dtype=torch.int64, device=keys.device)
    for span in spans:
        for row, seen in enumerate(span.seen.tolist(), span.first_row):
            slots = span.slots[:seen].long()
            products = asked.queries[row].to(wide) @ flat[slots].to(wide).T
            scores = asked.weights[row] @ products.relu()
            scores = scores.masked_fill(scores.isnan(), torch.inf)
            order = scores.sort(descending=True, stable=True).indices
            chosen[row] = slots[order[:top_k].sort().values]
    return chosen


def chosen_entries(
    asked: IndexQueries, keys: Tensor, spans: Sequence[ChoosingRows], top_k: int
) -> Tensor:
    """See ``chosen_entries_reference``."""
    chosen = chosen_numbers(asked, keys, spans, top_k)
    for span in spans:
        own = slice(span.first_row, span.first_row + len(span.seen))
        chosen[own] = span.slots[chosen[own]].long()
    return chosen


def chosen_numbers(
    asked: IndexQueries, keys: Tensor, spans: Sequence[ChoosingRows], top_k: int
) -> Tensor:
    """[rows, top_k] int64: the same entries by their numbers in their sequences, ascending."""
    rows, heads, wide = len(asked.queries), asked.queries.shape[1], asked.weights.dtype
    chosen = torch.empty(rows, top_k, dtype=torch.int64, device=keys.device)
    library = native_library(keys.dtype) if keys.device.type == "cpu" else None
    compiled = library is not None and wide == torch.float32
    for span in spans:
        own = None if compiled else keys.flatten(0, 2).index_select(0, span.slots).to(wide)
        numbers = torch.arange(len(span.slots), device=keys.device)
        room = 4 * len(numbers) + (0 if compiled else heads * _STRETCH)
        at_once = max(1, _NUMBERS // room)
        for low in range(0, len(span.seen), at_once):
            seen = span.seen[low : low + at_once, None]
            most = int(seen[-1])
            some = slice(span.first_row + low, span.first_row + low + len(seen))
            queries, weights = asked.queries[some].to(wide), asked.weights[some]
            if own is None:
                scores = compiled_scores(queries, weights, keys, span.slots[:most], most)
            else:
                scores = scores_of_all(queries, weights, own[:most])
            scores.masked_fill_(numbers[:most] >= seen, -torch.inf)
            chosen[some] = best(scores, top_k)
    return chosen
