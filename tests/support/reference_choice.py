"""Which tokens of a transcript each may see, as the reference engine chooses them: by sorting."""

import torch
from torch import Tensor


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    centred = x - x.mean(-1, keepdim=True)
    return centred / (centred.pow(2).mean(-1, keepdim=True) + eps).sqrt() * weight + bias


def chosen_tokens(queries: Tensor, keys: Tensor, weights: Tensor, top_k: int) -> Tensor:
    """[tokens, tokens] bool, from index queries [tokens, heads, dim], index keys [tokens, dim] and
    the heads' weights [tokens, heads]: of equal scores the earliest token's is taken."""
    products = torch.einsum("qhd,kd->qhk", queries, keys).clamp(min=0)
    scores = (products * weights[:, :, None]).sum(1).tolist()
    chosen = torch.zeros(len(keys), len(keys), dtype=torch.bool)
    for at, row in enumerate(scores):
        order = sorted(range(at + 1), key=lambda token, row=row: (-row[token], token))
        chosen[at, order[:top_k]] = True
    return chosen


def seen_blocks(queries: Tensor, keys: Tensor, size: int, count: int, local: int) -> Tensor:
    """[heads, tokens, tokens] bool, from index queries [tokens, heads, dim] and index keys
    [tokens, dim]: the last ``local`` blocks of ``size`` tokens, the others by their best token."""
    tokens, heads, _ = queries.shape
    seen = torch.zeros(heads, tokens, tokens, dtype=torch.bool)
    for head in range(heads):
        scores = (queries[:, head] @ keys.T).tolist()
        for at, row in enumerate(scores):
            own = at // size
            best = {block: max(row[block * size : at + 1][:size]) for block in range(own + 1)}
            far = sorted((block for block in best if block <= own - local), key=lambda b: -best[b])
            near = [block for block in best if block > own - local]
            for block in [*near, *far[: count - len(near)]]:
                seen[head, at, block * size : min((block + 1) * size, at + 1)] = True
    return seen


def chosen_pools(
    queries: Tensor,
    keys: Tensor,
    weights: Tensor,
    gates: Tensor,
    bias: Tensor,
    top_k: int,
) -> Tensor:
    """The same where tokens are chosen pool by pool, of ``len(bias)`` tokens each, and those behind
    the last full pool always; ``gates`` [tokens, dim] and ``bias`` [pool, dim] say how much of each
    token is in its pool's key."""
    pool, chosen = len(bias), torch.zeros(len(keys), len(keys), dtype=torch.bool)
    mixed = []
    for first in range(0, len(keys) // pool * pool, pool):
        share = (gates[first : first + pool] + bias).softmax(0)
        mixed.append((share * keys[first : first + pool]).sum(0))
    if mixed:
        products = torch.einsum("qhd,kd->qhk", queries, torch.stack(mixed)).clamp(min=0)
        scores = (products * weights[:, :, None]).sum(1).tolist()
    for at in range(len(keys)):
        full = (at + 1) // pool
        chosen[at, full * pool : at + 1] = True
        order = sorted(range(full), key=lambda one, at=at: (-scores[at][one], one))
        for one in order[: top_k // pool]:
            chosen[at, one * pool : (one + 1) * pool] = True
    return chosen
