"""Attention of which each head of keys reads a few blocks of a query's context (MiniMax M3).

Nothing is gathered: for each query and head of keys the pool's blocks of the choice are a context
of their own, in the order of their tokens, whose last token is the query's. ``kernels.attention``
reads such a context where it lies, by a table of its blocks.
"""

import functools
from collections.abc import Sequence

import torch
from torch import Tensor

from kernels.attention import paged_attention
from kernels.paged_layout import PagedLayout, SequenceSpan
from kernels.upload import upload

_CONTEXTS = 1 << 14
"""Contexts of one call at most: grids of a GPU have bounds."""


def block_attention_reference(
    queries: Tensor,
    k_blocks: Tensor,
    v_blocks: Tensor,
    chosen: Tensor,
    spans: Sequence[SequenceSpan],
    *,
    size: int,
    scale: float,
) -> Tensor:
    """Attention of each query, head of keys by head of keys, over the blocks that it has chosen.

    Args:
        queries: [rows, heads, head_dim]; query head h reads kv head ``h // (heads / kv_heads)``.
        k_blocks: [blocks, kv_heads, block_size, head_dim], in one piece; ``block_size`` divides
            ``size``.
        v_blocks: likewise.
        chosen: [rows, kv_heads, count] int32: see ``kernels.block_choice``; the last one is the
            query's own, which is seen up to the query.
        spans: of the sequences, those of whose queries these are.
        size: tokens of a chosen block.
        scale: multiplies the scores.

    Returns:
        New tensor like ``queries``.
    """
    kv_heads, block_size = k_blocks.shape[1:3]
    wide = torch.promote_types(queries.dtype, torch.float32)
    output = torch.empty_like(queries)
    group = queries.shape[1] // kv_heads
    for span in spans:
        table = _table(span, 1, k_blocks.device).flatten()
        for row in range(span.first_row, span.first_row + span.num_queries):
            seen = span.context_length - span.num_queries + row - span.first_row + 1
            for head in range(kv_heads):
                starts = chosen[row, head].long() * size
                tokens = (starts[:, None] + torch.arange(size, device=starts.device)).flatten()
                tokens = tokens[tokens < seen]
                blocks, offsets = table[tokens // block_size].long(), tokens % block_size
                keys = k_blocks[blocks, head, offsets].to(wide)
                values = v_blocks[blocks, head, offsets].to(wide)
                mine = slice(head * group, (head + 1) * group)
                scores = queries[row, mine].to(wide) @ keys.T * scale
                output[row, mine] = (scores.softmax(-1) @ values).to(queries.dtype)
    return output


def block_attention(
    queries: Tensor,
    k_blocks: Tensor,
    v_blocks: Tensor,
    chosen: Tensor,
    spans: Sequence[SequenceSpan],
    *,
    size: int,
    scale: float,
) -> Tensor:
    """See ``block_attention_reference``."""
    kv_heads, block_size = k_blocks.shape[1:3]
    count, device = chosen.shape[2], queries.device
    heads = torch.arange(kv_heads, device=device)[:, None, None]
    tables, lengths = [], []
    for span in spans:
        own = chosen[span.first_row : span.first_row + span.num_queries].long()
        read = _table(span, size // block_size, device)[own]
        tables.append((read * kv_heads + heads).int().view(len(own) * kv_heads, -1))
        last = torch.arange(span.context_length - span.num_queries, span.context_length)
        lengths.append((count - 1) * size + last % size + 1)
    table = torch.cat(tables)
    length = torch.cat(lengths).repeat_interleave(kv_heads).int()
    by_head = queries.view(len(queries) * kv_heads, -1, queries.shape[2])
    k_alone, v_alone = (part.flatten(0, 1).unsqueeze(1) for part in (k_blocks, v_blocks))
    parts = [
        paged_attention(
            by_head[low : low + _CONTEXTS],
            k_alone,
            v_alone,
            _contexts(table[low : low + _CONTEXTS], length[low : low + _CONTEXTS], block_size),
            scale=scale,
            window=None,
        )
        for low in range(0, len(table), _CONTEXTS)
    ]
    return (parts[0] if len(parts) == 1 else torch.cat(parts)).view_as(queries)


def _table(span: SequenceSpan, each: int, device: torch.device) -> Tensor:
    """[blocks of the context, each] int32: the pool's blocks in them; of the last one those that
    are not there are any."""
    runs = [torch.arange(block, block + count, dtype=torch.int32) for block, count in span.runs]
    table = torch.cat(runs)
    table = torch.nn.functional.pad(table, (0, -len(table) % each))
    return upload(table.view(-1, each), device)


def _contexts(tables: Tensor, lengths: Tensor, block_size: int) -> PagedLayout:
    """A context for each row of ``tables``, of one query each; ``lengths`` on the host."""
    device, rows = tables.device, len(tables)
    return PagedLayout(
        query_starts=torch.arange(rows + 1, dtype=torch.int32, device=device),
        context_lengths=upload(lengths, device),
        block_tables=tables.contiguous(),
        max_query_tokens=1,
        max_decode_tokens=1,
        spans=functools.partial(_spans, tables, lengths, block_size),
    )


def _spans(tables: Tensor, lengths: Tensor, block_size: int) -> tuple[SequenceSpan, ...]:
    return tuple(
        SequenceSpan(
            first_row=row,
            num_queries=1,
            context_length=length,
            runs=tuple((block, 1) for block in table[: -(-length // block_size)]),
        )
        for row, (table, length) in enumerate(zip(tables.tolist(), lengths.tolist(), strict=True))
    )
