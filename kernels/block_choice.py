"""Which blocks of its context each head of keys reads for a query (MiniMax M3's lightning indexer,
as ``transformers`` has it in ``models/minimax_m3_vl``).

A context is in blocks of ``size`` tokens, counted from its first. A block's score, for a query and
a head of keys, is the largest product of the head's index query with the index keys of those of its
tokens that the query sees. The ``local`` blocks up to the query's own are always chosen, the others
by their scores, of equal ones the earliest.

Where compiled kernels are, a choice follows from the query and the keys before it alone, bit for
bit, whatever is computed beside it (``kernels.token_choice``).

Memory: scores of as many queries at once as take 2^24 numbers, or of one, and in torch the
context's index keys beside them.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from kernels.cpu_attention import by_head
from kernels.native_library import native_library
from kernels.paged_layout import SequenceSpan
from kernels.token_choice import best, compiled_scores, slots_of

_NUMBERS = 1 << 24
"""Scores that are there at once, about."""


def chosen_blocks_reference(
    queries: Tensor,
    keys: Tensor,
    spans: Sequence[SequenceSpan],
    *,
    size: int,
    count: int,
    local: int,
) -> Tensor:
    """Choose ``count`` blocks for each query and head of keys.

    Args:
        queries: [rows, heads, dim], rotated, in the model's dtype; those of each span from its
            ``first_row`` on.
        keys: [blocks, 1, block_size, dim], index keys in the pool.
        spans: of the sequences. Each query has at least ``count`` blocks up to its own.
        size: tokens of a block of the context.
        count: blocks of a choice.
        local: of these the last ones, at least 1.

    Returns:
        [rows, heads, count] int32: numbers of blocks of the context, ascending, so that the query's
        own is the last. Scores that are no numbers count as infinite.
    """
    rows, heads, _ = queries.shape
    chosen = queries.new_empty(rows, heads, count, dtype=torch.int32)
    wide = torch.promote_types(queries.dtype, torch.float32)
    for span in spans:
        own = by_head(keys, span, 0, wide)[0]
        for row in range(span.num_queries):
            at = span.first_row + row
            seen = span.context_length - span.num_queries + row + 1
            for head in range(heads):
                products = own[:seen] @ queries[at, head].to(wide)
                parts = torch.split(products, size)
                scores = torch.stack([part.max() for part in parts])
                scores[max(0, len(parts) - local) :] = torch.inf
                scores = scores.masked_fill(scores.isnan(), torch.inf)
                order = scores.sort(descending=True, stable=True).indices
                chosen[at, head] = order[:count].sort().values.int()
    return chosen


def chosen_blocks(
    queries: Tensor,
    keys: Tensor,
    spans: Sequence[SequenceSpan],
    *,
    size: int,
    count: int,
    local: int,
) -> Tensor:
    """See ``chosen_blocks_reference``."""
    rows, heads, _ = queries.shape
    chosen = queries.new_empty(rows, heads, count, dtype=torch.int32)
    wide = torch.promote_types(queries.dtype, torch.float32)
    library = native_library(keys.dtype) if keys.device.type == "cpu" else None
    compiled = library is not None and wide == torch.float32
    for span in spans:
        places, length = slots_of(span, keys), span.context_length
        own = None if compiled else by_head(keys, span, 0, wide)[0]
        at_once = max(1, _NUMBERS // (2 * length))
        before = length - span.num_queries
        for low in range(0, span.num_queries, at_once):
            high = min(low + at_once, span.num_queries)
            some = slice(span.first_row + low, span.first_row + high)
            for head in range(heads):
                asked = queries[some, head].to(wide)
                if own is None:
                    scores = _compiled(asked, keys, places[: before + high])
                else:
                    scores = _products(asked, own[: before + high])
                of_blocks = _of_blocks(scores, size, local)
                chosen[some, head] = best(of_blocks, count).int()
    return chosen


def _compiled(queries: Tensor, keys: Tensor, places: Tensor) -> Tensor:
    """[rows, tokens]: products of queries [rows, dim], -inf behind each query. The kernel adds up
    what is above 0 of products: of one and of its negative, which is exact."""
    both = torch.stack((queries, -queries), dim=1)
    signs = queries.new_tensor([1.0, -1.0]).expand(len(queries), 2)
    return compiled_scores(both, signs, keys, places)


def _products(queries: Tensor, keys: Tensor) -> Tensor:
    """The same in torch, for keys [tokens, dim]."""
    rows, tokens = len(queries), len(keys)
    numbers = torch.arange(tokens, device=keys.device)
    hidden = numbers > numbers[tokens - rows :, None]
    return (queries @ keys.T).masked_fill_(hidden, -torch.inf)


def _of_blocks(scores: Tensor, size: int, local: int) -> Tensor:
    """[rows, blocks]: the largest of each block's scores; of the last ``local`` of each row's,
    which are those of a sequence's last tokens, infinity."""
    rows, tokens = scores.shape
    blocks = -(-tokens // size)
    filled = torch.nn.functional.pad(scores, (0, blocks * size - tokens), value=-torch.inf)
    most = filled.view(rows, blocks, size).amax(2)
    last = torch.arange(tokens - rows, tokens, device=scores.device)[:, None] // size
    numbers = torch.arange(blocks, device=scores.device)
    return most.masked_fill_((numbers <= last) & (numbers > last - local), torch.inf)
