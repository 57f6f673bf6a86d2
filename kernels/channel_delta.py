"""The gated delta rule with a decay for each number of a key, in torch (Kimi Delta Attention,
arXiv:2510.26692).

    S_t = diag(exp(g_t)) S_{t-1} + k_t u_t^T,    u_t = beta_t (v_t - S_{t-1}^T (exp(g_t) k_t))

Between two tokens a key is left with the product of what each token in between leaves of it. That
product is made as the rule makes it, token by token, of factors that are at most 1: no logarithms
are added up whose differences would have lost their digits, none is negated, nothing is divided, so
that nothing can overflow, however strong decays are.

A chunk is cut into parts of ``PART`` tokens: within all of its parts at once keys are decayed token
by token, and from part to part as a whole. Knows one chunk and one fold; which tokens these are of
is ``kernels.gated_delta``'s to say.
"""

from typing import Final

import torch
from torch import Tensor
from torch.nn import functional

PART: Final = 16


def products_within(keys: Tensor, queries: Tensor, kept: Tensor) -> tuple[Tensor, Tensor]:
    """Products of each token's key and query with what is left of each earlier key of a chunk.

    Args:
        keys: [V, n, key_dim] of the tokens, and so on.
        queries: [V, n, key_dim]
        kept: [V, n, key_dim]: what each token leaves of the numbers before it, at most 1.

    Returns:
        Two of [V, n, n], of keys and of queries: rows are those that find, columns those that are
        found; at and below the diagonal, else 0.
    """
    heads, count, key_dim = keys.shape
    missing = -count % PART
    parts = (count + missing) // PART
    keys, asked, kept = (
        functional.pad(each, (0, 0, 0, missing), value=value).view(heads, parts, PART, -1)
        for each, value in ((keys, 0.0), (torch.cat((keys, queries), 2), 0.0), (kept, 1.0))
    )
    asked = asked.view(heads, parts, PART, 2, key_dim)
    held, inside = torch.zeros_like(keys), []
    for row in range(PART):
        held = held * kept[:, :, row, None]
        held[:, :, row] = keys[:, :, row]
        inside.append(asked[:, :, row] @ held.mT)
    found = keys.new_zeros(heads, parts, PART, 2, parts, PART)
    reach = kept.cumprod(2)
    for low in range(parts):
        found[:, low, :, :, low] = torch.stack([rows[:, low] for rows in inside], 1)
        left = held[:, low]
        for high in range(low + 1, parts):
            reached = asked[:, high] * reach[:, high, :, None]
            found[:, high, :, :, low] = (reached.flatten(1, 2) @ left.mT).view(heads, PART, 2, PART)
            left = left * reach[:, high, -1:]
    whole = found.movedim(3, 0).reshape(2, heads, parts * PART, parts * PART)
    of_keys, of_queries = whole[:, :, :count, :count]
    return of_keys, of_queries


def chunk_by_channel(
    keys: Tensor, queries: Tensor, values: Tensor, state: Tensor, *, decays: Tensor, betas: Tensor
) -> tuple[Tensor, Tensor]:
    """Mix the tokens of one chunk, all of one sequence.

    Args:
        keys: [V, n, key_dim] of n tokens, and so on.
        queries: [V, n, key_dim], scaled.
        values: [V, n, value_dim]
        state: [V, key_dim, value_dim] before them.
        decays: [V, n, key_dim]: logarithms, at most 0.
        betas: [V, n]

    Returns:
        What queries find and the corrected values, each [V, n, value_dim].
    """
    kept = decays.exp()
    alike, seen = products_within(keys, queries, kept)
    reach = kept.cumprod(1)
    known, old = (torch.cat((keys * reach, queries * reach), 1) @ state).chunk(2, 1)
    weights = betas[..., None]
    system = (weights * alike).tril(-1)
    system = system + torch.eye(keys.shape[1], dtype=system.dtype, device=system.device)
    corrected = torch.linalg.solve_triangular(
        system, weights * (values - known), upper=False, unitriangular=True
    )
    return old + seen @ corrected, corrected


def left_behind(decays: Tensor) -> tuple[Tensor, Tensor]:
    """Factors of the keys of some tokens behind all of them, and of a matrix from before.

    Args:
        decays: [N, n, ...] of n tokens, at least one: logarithms, at most 0.

    Returns:
        [N, n, ...] what the tokens behind each have left of its key, and [N, ...] what all have
        left of what was there before them.
    """
    kept = decays.exp()
    behind = torch.cat((kept[:, 1:], torch.ones_like(kept[:, :1])), 1)
    weights = behind.flip(1).cumprod(1).flip(1)
    return weights, weights[:, 0] * kept[:, 0]
