"""Paged attention on a CPU without copying contexts; on a GPU what has no kernel there.

Where a compiler is at hand, few query rows go to ``kernels/native``, and on processors with a
matrix unit, with fast units for bf16 or with AVX2 alone all rows in bf16 do; the rest, and all of
it elsewhere, is plain torch as follows.

A block is [kv_heads, block_size, head_dim], so a run of neighbouring blocks is a stack of
[block_size, head_dim] matrices that a batched product reads where they lie. A sequence is a
few such runs, since its blocks are handed out in runs; only short runs are gathered first.

Few query rows (decode, drafts): batched products over the blocks in place. Many (prefill):
keys and values of the context are laid out by head once, which many queries share, and the
queries go in pieces, so that next to nothing above the causal diagonal is computed.

Slots of the last block past the context's end are never read: they may hold anything.
"""

import functools
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from kernels.native_library import native_library
from kernels.paged_layout import PagedLayout, SequenceSpan
from kernels.quantised_kv import widened

_PIECE = 256
"""Query tokens of a prefill piece."""
COMPILED_QUERIES = 32
"""Sequences of up to this many query tokens go to the compiled kernel where there is one."""
_COMPILED_NUMBERS = 1 << 17
"""Numbers of a sequence's queries for one head of keys that it goes through again and again: more
would not stay in the cache, and products of torch are better."""
_SCORES = 1 << 28
"""Scores of a piece, of all heads: where these are many or a context is long it is shorter."""
_SHORT_RUN = 8
"""Runs of fewer blocks are gathered: a product of its own costs more than the copy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Piece:
    """Blocks that one product covers: neighbours in the pool, or gathered ones."""

    blocks: slice | Tensor
    tokens: int | None
    """Tokens of each block that are read; None: all."""


def attend(
    queries: Tensor,
    k_blocks: Tensor,
    v_blocks: Tensor,
    layout: PagedLayout,
    *,
    scale: float,
    window: int | None,
    sinks: Tensor | None = None,
    most_queries: int | None = None,
) -> Tensor:
    """``kernels.attention.paged_attention`` on a CPU, or in torch on a GPU.

    The torch way rounds scores to the queries' dtype before the softmax, which computes in
    float32, unless it has to multiply in float32; the compiled way keeps them in float32.
    """
    make = torch.zeros_like if layout.has_rows_of_nobody else torch.empty_like
    output = make(queries, memory_format=torch.contiguous_format)
    library = native_library(queries.dtype) if queries.device.type == "cpu" else None
    compiled, group = 0, queries.shape[1] // k_blocks.shape[1]
    if library is not None:
        fitting = max(1, _COMPILED_NUMBERS // (group * queries.shape[2]))
        compiled = min(COMPILED_QUERIES, fitting, most_queries or COMPILED_QUERIES)
        library.attend(
            queries,
            k_blocks,
            v_blocks,
            output,
            layout,
            scale=scale,
            window=window,
            sinks=sinks,
            max_queries=compiled,
        )
        if library.attends_any(queries.shape[2], k_blocks):
            return output
    if layout.max_query_tokens <= compiled:
        return output
    block_size = k_blocks.shape[2]
    for span in layout.spans():
        count = span.num_queries
        if count <= compiled or (most_queries is not None and count > most_queries):
            continue
        rows = slice(span.first_row, span.first_row + count)
        few = count * group <= block_size
        way = _attend_few if few else _attend_many
        mine = (queries[rows] * scale).to(dtype_of_products(queries))
        way(mine, (k_blocks, v_blocks), span, (window, sinks), output[rows])
    return output


def dtype_of_products(like: Tensor) -> torch.dtype:
    """The dtype in which torch multiplies: its products in bf16 are ten times as slow as those in
    float32 on processors without units for them."""
    slow = like.dtype == torch.bfloat16 and like.device.type == "cpu" and not _has_bf16_units()
    return torch.float32 if slow else like.dtype


@functools.lru_cache
def _has_bf16_units() -> bool:
    return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


def _attend_few(
    queries: Tensor,
    blocks: tuple[Tensor, Tensor],
    span: SequenceSpan,
    seen: tuple[int | None, Tensor | None],
    output: Tensor,
) -> None:
    window, sinks = seen
    num_queries, _, head_dim = queries.shape
    _, kv_heads, block_size, _ = blocks[0].shape
    first = _first_visible(span.context_length - num_queries, window) // block_size * block_size
    pieces = list(pieces_of(span, first, block_size))
    asked = queries.view(num_queries, kv_heads, -1, head_dim).transpose(0, 1)
    asked = asked.transpose(1, 2).reshape(kv_heads, -1, head_dim)
    rows = asked.shape[1]
    parts = []
    for piece in pieces:
        keys = _stack(blocks[0], piece, queries.dtype)
        count = keys.shape[0] // kv_heads
        repeated = asked.expand(count, -1, -1, -1).reshape(-1, rows, head_dim)
        scores = torch.bmm(repeated, keys.transpose(1, 2)).view(count, kv_heads, rows, -1)
        parts.append(scores.permute(1, 2, 0, 3).reshape(kv_heads, rows, -1))
    scores = parts[0] if len(parts) == 1 else torch.cat(parts, dim=2)
    weights = visible_softmax(
        scores.view(kv_heads, -1, num_queries, scores.shape[2]),
        first_end=span.context_length - num_queries + 1 - first,
        window=window,
        sinks=sinks,
    ).reshape(scores.shape)
    mixed = torch.zeros_like(asked)
    at = 0
    for piece, part in zip(pieces, parts, strict=True):
        values = _stack(blocks[1], piece, queries.dtype)
        count = values.shape[0] // kv_heads
        share = weights[:, :, at : at + part.shape[2]].view(kv_heads, rows, count, -1)
        share = share.permute(2, 0, 1, 3).reshape(-1, rows, share.shape[3])
        mixed += torch.bmm(share, values).view(count, kv_heads, rows, head_dim).sum(0)
        at += part.shape[2]
    per_query = mixed.view(kv_heads, -1, num_queries, head_dim).permute(2, 0, 1, 3)
    output.view(num_queries, kv_heads, -1, head_dim).copy_(per_query)


def _attend_many(
    queries: Tensor,
    blocks: tuple[Tensor, Tensor],
    span: SequenceSpan,
    seen: tuple[int | None, Tensor | None],
    output: Tensor,
) -> None:
    window, sinks = seen
    num_queries, _, head_dim = queries.shape
    _, kv_heads, block_size, _ = blocks[0].shape
    start = span.context_length - num_queries
    first = _first_visible(start, window) // block_size * block_size
    keys, values = (by_head(part, span, first, queries.dtype) for part in blocks)
    size = max(1, min(_PIECE, _SCORES // (queries.shape[1] * span.context_length)))
    for low in range(0, num_queries, size):
        high = min(low + size, num_queries)
        begin = max(_first_visible(start + low, window) - first, 0)
        end = start + high - first
        count = high - low
        q = queries[low:high].view(count, kv_heads, -1, head_dim)
        q = q.permute(1, 2, 0, 3).reshape(kv_heads, -1, head_dim)
        scores = torch.bmm(q, keys[:, begin:end].transpose(1, 2))
        weights = visible_softmax(
            scores.view(kv_heads, -1, count, end - begin),
            first_end=start + low + 1 - first - begin,
            window=window,
            sinks=sinks,
        )
        mixed = torch.bmm(weights.reshape(scores.shape), values[:, begin:end])
        mixed = mixed.view(kv_heads, -1, count, head_dim).permute(2, 0, 1, 3)
        output[low:high].view(count, kv_heads, -1, head_dim).copy_(mixed)


def _first_visible(query_at: int, window: int | None) -> int:
    return 0 if window is None else max(0, query_at - window + 1)


def pieces_of(span: SequenceSpan, first: int, block_size: int) -> Iterator[_Piece]:
    """The context from ``first``, a block's start: long runs in place, short ones gathered.

    A context of 54 tokens in blocks of 4, in runs of 2 blocks from 20 on, of 9 from 30 on and
    of 3 from 50 on, of which 13 are full; the first block is out of sight (``first`` 4), and
    8 blocks make a long run::

        run       left out   full   full blocks to come   yields
        (20, 2)   20         21     12 - 1 = 11
        (30, 9)              30-38  11 - 9 = 2            [21] gathered, 30 to 38 in place
        (50, 3)              50-51  2 - 2 = 0
        the end                                           [50, 51] gathered, 2 tokens of 52
    """
    skip = first // block_size  # blocks of the context that are still to be left out
    remaining = span.context_length // block_size - skip  # full blocks that are still to come
    short: list[int] = []
    tail = span.context_length % block_size
    for block, count in span.runs:
        low = block + min(skip, count)  # the run's first block in sight
        skip -= low - block
        full = min(block + count - low, remaining)
        remaining -= full
        if full >= _SHORT_RUN:
            if short:
                yield _Piece(blocks=torch.tensor(short), tokens=None)
                short = []
            yield _Piece(blocks=slice(low, low + full), tokens=None)
        else:
            short.extend(range(low, low + full))
    if short:
        yield _Piece(blocks=torch.tensor(short), tokens=None)
    if tail:
        last = span.runs[-1][0] + span.runs[-1][1] - 1
        yield _Piece(blocks=slice(last, last + 1), tokens=tail)


def _stack(blocks: Tensor, piece: _Piece, dtype: torch.dtype) -> Tensor:
    """[blocks * kv_heads, tokens, head_dim]; a view of the pool where it can be."""
    chosen = blocks[piece.blocks][:, :, : piece.tokens]
    return widened(chosen, dtype).flatten(0, 1)


def by_head(blocks: Tensor, span: SequenceSpan, first: int, dtype: torch.dtype) -> Tensor:
    """[kv_heads, context from ``first``, a block's start, head_dim] in ``dtype``: a copy."""
    _, kv_heads, block_size, row = blocks.shape
    parts = [
        blocks[piece.blocks][:, :, : piece.tokens].transpose(0, 1).reshape(kv_heads, -1, row)
        for piece in pieces_of(span, first, block_size)
    ]
    return widened(parts[0] if len(parts) == 1 else torch.cat(parts, dim=1), dtype)


def visible_softmax(
    scores: Tensor, *, first_end: int, window: int | None, sinks: Tensor | None = None
) -> Tensor:
    """Softmax of scores [kv_heads, group, queries, columns], contiguous, over the columns each
    query sees: those below ``first_end`` + its number, the last ``window`` of them, and its head's
    sink. May reuse the memory."""
    num_queries, columns = scores.shape[-2:]
    library = native_library(scores.dtype) if scores.device.type == "cpu" else None
    if library is not None and sinks is None:
        return library.visible_softmax_(
            scores, num_queries=num_queries, first_end=first_end, window=window
        )
    numbers = torch.arange(max(columns, first_end + num_queries), device=scores.device)
    end = numbers[first_end : first_end + num_queries, None]
    tail = max(columns - first_end, 0)
    scores[..., columns - tail :].masked_fill_(numbers[columns - tail : columns] >= end, -torch.inf)
    if window is not None:
        head = min(max(first_end + num_queries - 1 - window, 0), columns)
        scores[..., :head].masked_fill_(numbers[:head] < end - window, -torch.inf)
    if sinks is None:
        return scores.softmax(-1)
    beside = sinks.to(scores.dtype).view(*scores.shape[:2], 1, 1).expand(-1, -1, num_queries, 1)
    return torch.cat((scores, beside), dim=-1).softmax(-1)[..., :-1]
