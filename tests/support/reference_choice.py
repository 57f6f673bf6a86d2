"""Which tokens of a transcript each may see, as the reference engine chooses them: by sorting."""

import torch
from torch import Tensor


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    centred = x - x.mean(-1, keepdim=True)
    return centred / (centred.pow(2).mean(-1, keepdim=True) + 1e-6).sqrt() * weight + bias


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
