"""Which tokens of its context each query attends to (DeepSeek-V3.2, arXiv:2512.02556, section 2.1).

The score of a token for a query is a sum over heads: what is above 0 of the product of the head's
index query with the token's index key, times the head's weight. The tokens of the best scores are
chosen, of equal scores the earliest ones.

Where compiled kernels are, a choice follows from the query, its weights and the keys before it
alone, bit for bit, whatever is computed beside it (``kernels/native``); in torch sums may differ in
their last bits with the number of queries, as those of its other products do.

Memory: scores of as many queries at once as take 2^24 numbers, or of one, and in torch the products
of their heads with 512 tokens and the context's index keys in float32 beside them.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from kernels.cpu_attention import by_head
from kernels.native_arguments import IndexScoresArgs
from kernels.native_library import native_library
from kernels.paged_layout import SequenceSpan

_STRETCH = 512
"""Tokens whose products with the heads of queries are made at once."""
_NUMBERS = 1 << 24
"""Products and scores that are there at once, about."""


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexQueries:
    """What queries choose by."""

    queries: Tensor
    """[rows, heads, dim], rotated, in the model's dtype."""
    weights: Tensor
    """[rows, heads] float32, float64 for float64 queries: of the heads, with all scales in them."""


def chosen_slots_reference(
    asked: IndexQueries, keys: Tensor, spans: Sequence[SequenceSpan], top_k: int
) -> Tensor:
    """Choose ``top_k`` tokens for each query among those up to and including its own.

    Args:
        asked: of the queries, those of each span from its ``first_row`` on.
        keys: [blocks, 1, block_size, dim], index keys in the pool; may be a part of longer rows.
        spans: of the sequences. Each query sees at least ``top_k`` tokens.
        top_k: tokens of a choice.

    Returns:
        [rows, top_k] int32: slots of the pool, ``block * block_size + offset``, in the order of
        their tokens in the context. Scores that are no numbers count as infinite.
    """
    slots = asked.queries.new_empty(len(asked.queries), top_k, dtype=torch.int32)
    wide = asked.weights.dtype
    for span in spans:
        own, places = by_head(keys, span, 0, wide)[0], slots_of(span, keys)
        for row in range(span.num_queries):
            at = span.first_row + row
            seen = span.context_length - span.num_queries + row + 1
            products = asked.queries[at].to(wide) @ own[:seen].T
            scores = asked.weights[at] @ products.relu()
            scores = scores.masked_fill(scores.isnan(), torch.inf)
            order = scores.sort(descending=True, stable=True).indices
            slots[at] = places[order[:top_k].sort().values]
    return slots


def chosen_slots(
    asked: IndexQueries, keys: Tensor, spans: Sequence[SequenceSpan], top_k: int
) -> Tensor:
    """See ``chosen_slots_reference``."""
    slots = asked.queries.new_empty(len(asked.queries), top_k, dtype=torch.int32)
    heads, wide = asked.queries.shape[1], asked.weights.dtype
    library = native_library(keys.dtype) if keys.device.type == "cpu" else None
    compiled = library is not None and wide == torch.float32
    for span in spans:
        places, length = slots_of(span, keys), span.context_length
        own = None if compiled else by_head(keys, span, 0, wide)[0]
        at_once = max(1, _NUMBERS // (4 * length + (0 if compiled else heads * _STRETCH)))
        before = length - span.num_queries
        for low in range(0, span.num_queries, at_once):
            high = min(low + at_once, span.num_queries)
            some = slice(span.first_row + low, span.first_row + high)
            queries, weights = asked.queries[some].to(wide), asked.weights[some]
            if own is None:
                scores = compiled_scores(queries, weights, keys, places[: before + high])
            else:
                scores = _scores(queries, weights, own[: before + high])
            slots[some] = places[best(scores, top_k)]
    return slots


def best(scores: Tensor, top_k: int) -> Tensor:
    """[rows, top_k] int64, ascending: the columns with the largest of ``scores``
    [rows, columns], of equal ones the first. NaN counts as infinite, in place."""
    scores.masked_fill_(scores.isnan(), torch.inf)
    least = scores.topk(top_k, dim=1).values[:, -1:]
    above, equal = scores > least, scores == least
    room = top_k - above.sum(1, keepdim=True)
    taken = above | (equal & (equal.cumsum(1) <= room))
    return taken.nonzero()[:, 1].view(len(scores), top_k)


def compiled_scores(
    queries: Tensor,
    weights: Tensor,
    keys: Tensor,
    places: Tensor,
    first_seen: int | None = None,
) -> Tensor:
    """[rows, len(places)] float32: scores of a sequence's last tokens, -inf behind each; or of rows
    of which the first sees ``first_seen`` places and each other one more, as far as there are."""
    library = native_library(keys.dtype)
    assert library is not None
    rows, heads, dim = queries.shape
    queries, weights = queries.contiguous(), weights.contiguous()
    scores = weights.new_empty(rows, len(places))
    library.index_scores(
        IndexScoresArgs(
            queries=queries.data_ptr(),
            weights=weights.data_ptr(),
            keys=keys.data_ptr(),
            slots=places.data_ptr(),
            scores=scores.data_ptr(),
            rows=rows,
            heads=heads,
            dim=dim,
            tokens=len(places),
            key_stride=keys.stride(2),
            first_seen=len(places) - rows + 1 if first_seen is None else first_seen,
        )
    )
    return scores


def scores_of_all(queries: Tensor, weights: Tensor, keys: Tensor) -> Tensor:
    """[rows, tokens] in torch: scores of keys [tokens, dim], all of them seen."""
    rows, parts = len(queries), []
    for first in range(0, len(keys), _STRETCH):
        stretch = keys[first : first + _STRETCH].T.expand(rows, -1, -1)
        products = torch.bmm(queries, stretch).relu_()
        parts.append(torch.bmm(weights[:, None], products)[:, 0])
    return torch.cat(parts, dim=1)


def _scores(queries: Tensor, weights: Tensor, keys: Tensor) -> Tensor:
    """``compiled_scores`` in torch, for keys [tokens, dim]."""
    rows, tokens = len(queries), len(keys)
    scores = scores_of_all(queries, weights, keys)
    numbers = torch.arange(tokens, device=scores.device)
    return scores.masked_fill_(numbers > numbers[tokens - rows :, None], -torch.inf)


def slots_of(span: SequenceSpan, keys: Tensor) -> Tensor:
    """[context] int32: the slot of each token."""
    size = keys.shape[2]
    runs = [
        torch.arange(block * size, (block + count) * size, dtype=torch.int32, device=keys.device)
        for block, count in span.runs
    ]
    return torch.cat(runs)[: span.context_length]
