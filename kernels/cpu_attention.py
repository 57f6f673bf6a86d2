"""Paged attention on a CPU, in plain torch, without copying contexts.

The pool is token-major, so neighbouring blocks are one matrix [tokens, kv_heads * head_dim]
that a matrix product reads where it lies. A sequence is a few such runs, since its blocks
are handed out in runs; only short runs are gathered first.

Few query rows (decode, drafts): the queries of all heads become one matrix that is zero
outside each row's own kv head, so that one product over the whole run serves every head.
That spends kv_heads times the arithmetic to read each byte once, which is what decode is
bound by. Many rows (prefill): head by head over pieces of the queries, so that nothing
above the causal diagonal is computed and the scores stay in the cache.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

_FEW_ROWS = 64
"""Up to this many (query, head) rows use the one-product way."""
_PIECE = 256
"""Query tokens of a prefill piece."""
_SHORT_RUN = 128
"""Runs of fewer tokens are gathered: a product of its own costs more than the copy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SequenceSpan:
    """One sequence's part of a step, in slots of the pool."""

    first_row: int
    """Its first query row."""
    num_queries: int
    context_length: int
    """Tokens in the cache, the queries' own included."""
    runs: tuple[tuple[int, int], ...]
    """(first slot, tokens) in the order of the context; the tokens add up to its length."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Cache:
    """A layer's pool as matrices [slots, kv_heads * head_dim]."""

    keys: Tensor
    values: Tensor
    kv_heads: int


def attend_spans(
    queries: Tensor,
    k_blocks: Tensor,
    v_blocks: Tensor,
    spans: tuple[SequenceSpan, ...],
    *,
    scale: float,
    window: int | None,
) -> Tensor:
    """``kernels.attention.paged_attention_reference`` on a CPU.

    Scores are rounded to the queries' dtype before the softmax, which computes in float32.
    """
    kv_heads, head_dim = k_blocks.shape[2], k_blocks.shape[3]
    cache = _Cache(
        keys=k_blocks.view(-1, kv_heads * head_dim),
        values=v_blocks.view(-1, kv_heads * head_dim),
        kv_heads=kv_heads,
    )
    output = torch.empty_like(queries)
    scaled = queries * scale
    for span in spans:
        rows = slice(span.first_row, span.first_row + span.num_queries)
        few = span.num_queries * queries.shape[1] <= _FEW_ROWS
        attend = _attend_few if few else _attend_many
        attend(scaled[rows], cache, span, window, output[rows])
    return output


def _attend_few(
    queries: Tensor,
    cache: _Cache,
    span: SequenceSpan,
    window: int | None,
    output: Tensor,
) -> None:
    num_queries, heads, head_dim = queries.shape
    kv_heads = cache.kv_heads
    group = heads // kv_heads
    first = _first_visible(span.context_length - num_queries, window)
    runs = _pieces(span.runs, first, span.context_length)
    own = torch.eye(kv_heads, dtype=queries.dtype).view(1, kv_heads, 1, kv_heads, 1)
    spread = queries.view(num_queries, kv_heads, group, 1, head_dim) * own
    spread = spread.view(num_queries * heads, kv_heads * head_dim)
    scores = _concatenate([spread @ part.T for part in _parts(cache.keys, runs)], dim=1)
    if num_queries > 1 or window is not None:
        _hide(scores.view(num_queries, heads, -1).transpose(0, 1), span, first, window)
    weights = scores.softmax(-1)
    mixed = _weighted_sum(weights, _parts(cache.values, runs))
    mixed = mixed.view(num_queries, kv_heads, group, kv_heads, head_dim)
    output.view(num_queries, kv_heads, group, head_dim).copy_(
        mixed.diagonal(dim1=1, dim2=3).permute(0, 3, 1, 2)
    )


def _attend_many(
    queries: Tensor,
    cache: _Cache,
    span: SequenceSpan,
    window: int | None,
    output: Tensor,
) -> None:
    num_queries, heads, head_dim = queries.shape
    kv_heads = cache.kv_heads
    group = heads // kv_heads
    start = span.context_length - num_queries
    first = _first_visible(start, window)
    runs = _pieces(span.runs, first, span.context_length)
    by_head = (-1, kv_heads, head_dim)
    all_keys = _concatenate(_parts(cache.keys, runs), dim=0).view(by_head)
    all_values = _concatenate(_parts(cache.values, runs), dim=0).view(by_head)
    for low in range(0, num_queries, _PIECE):
        high = min(low + _PIECE, num_queries)
        begin = _first_visible(start + low, window) - first
        end = start + high - first
        piece = SequenceSpan(
            first_row=0, num_queries=high - low, context_length=start + high, runs=()
        )
        for head in range(kv_heads):
            of_head = slice(head * group, (head + 1) * group)
            q = queries[low:high, of_head].transpose(0, 1).reshape(-1, head_dim)
            scores = q @ all_keys[begin:end, head].T
            _hide(scores.view(group, high - low, -1), piece, begin + first, window)
            mixed = scores.softmax(-1) @ all_values[begin:end, head]
            output[low:high, of_head] = mixed.view(group, high - low, head_dim).transpose(0, 1)


def _first_visible(query_at: int, window: int | None) -> int:
    return 0 if window is None else max(0, query_at - window + 1)


def _pieces(
    runs: tuple[tuple[int, int], ...], first: int, end: int
) -> list[tuple[int, int] | list[tuple[int, int]]]:
    """Context positions first .. end - 1: long runs alone, neighbouring short ones together."""
    pieces: list[tuple[int, int] | list[tuple[int, int]]] = []
    at = 0
    for slot, tokens in runs:
        low, high = max(first - at, 0), min(end - at, tokens)
        at += tokens
        if low >= high:
            continue
        run = (slot + low, high - low)
        if run[1] >= _SHORT_RUN or len(runs) == 1:
            pieces.append(run)
        elif pieces and isinstance(pieces[-1], list):
            pieces[-1].append(run)
        else:
            pieces.append([run])
    return pieces


def _parts(rows: Tensor, pieces: list[tuple[int, int] | list[tuple[int, int]]]) -> list[Tensor]:
    parts = []
    for piece in pieces:
        if isinstance(piece, tuple):
            parts.append(rows[piece[0] : piece[0] + piece[1]])
        else:
            parts.append(torch.cat([rows[slot : slot + tokens] for slot, tokens in piece]))
    return parts


def _concatenate(parts: list[Tensor], dim: int) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(parts, dim)


def _weighted_sum(weights: Tensor, values: list[Tensor]) -> Tensor:
    total: Tensor | None = None
    at = 0
    for part in values:
        share = weights[:, at : at + part.shape[0]]
        at += part.shape[0]
        total = share @ part if total is None else total.addmm_(share, part)
    assert total is not None
    return total


def _hide(scores: Tensor, span: SequenceSpan, first: int, window: int | None) -> None:
    """Set scores [..., queries, context from first] of unseen keys to -inf, in place."""
    num_queries = span.num_queries
    query_at = torch.arange(span.context_length - num_queries, span.context_length)[:, None]
    if num_queries > 1:
        tail = min(num_queries, scores.shape[-1])
        key_at = torch.arange(span.context_length - tail, span.context_length)
        scores[..., -tail:].masked_fill_(key_at > query_at, -torch.inf)
    if window is not None:
        head = min(num_queries, scores.shape[-1])
        key_at = torch.arange(first, first + head)
        scores[..., :head].masked_fill_(key_at <= query_at - window, -torch.inf)
