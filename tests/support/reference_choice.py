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
