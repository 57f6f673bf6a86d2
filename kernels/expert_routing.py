"""From a router's logits to the experts of each token, and from their results to one sum.

Which experts: scores by softmax or sigmoid, the best of them, all or of the best groups
(DeepSeek-V3, arXiv:2412.19437). Picks are sorted by expert, so that each expert's rows are
neighbours (``kernels.grouped_matmul``), and found again by token.
"""

from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from kernels.dispatch import triton_kernels
from kernels.grouped_matmul import sorted_by_expert


@dataclass(frozen=True, slots=True, kw_only=True)
class Routing:
    """How experts are chosen and weighed."""

    per_token: int
    scores: Literal["softmax", "sigmoid", "sqrt_softplus"] = "softmax"
    normalise: bool = True
    """The weights of a token's experts are divided by their sum and ``least_sum``."""
    groups: int = 1
    """Experts are in so many groups of neighbours, of which ``chosen_groups`` are taken: those
    whose ``best_of_group`` best experts have the largest sum."""
    chosen_groups: int = 1
    best_of_group: int = 2
    scale: float = 1.0
    least_sum: float = 0.0


def route_reference(
    logits: Tensor, correction: Tensor | None, routing: Routing, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """The experts of each token.

    Args:
        logits: [tokens, experts].
        correction: [experts], added to the scores where experts are chosen, not in their weights.
        routing: how.
        dtype: of the weights.

    Returns:
        (weights, experts), each [tokens, per_token]; experts int64.
    """
    scores = _scores(logits, routing)
    choice = scores if correction is None else scores + correction
    if routing.groups > 1:
        choice = _within_groups(choice, routing)
    weights, chosen = choice.topk(routing.per_token, dim=-1)
    if choice is not scores:
        weights = scores.gather(-1, chosen)
    return _scaled(weights, routing).to(dtype), chosen


def weigh(logits: Tensor, chosen: Tensor, routing: Routing, dtype: torch.dtype) -> Tensor:
    """[tokens, per_token]: how much a token takes of experts [tokens, per_token] that are chosen
    already; otherwise as ``route_reference`` has it, in torch everywhere."""
    weights = _scores(logits, routing).gather(-1, chosen)
    return _scaled(weights, routing).to(dtype)


def _scores(logits: Tensor, routing: Routing) -> Tensor:
    if routing.scores == "sigmoid":
        return logits.sigmoid()
    if routing.scores == "sqrt_softplus":
        return functional.softplus(logits).sqrt()
    wide = torch.float64 if logits.dtype == torch.float64 else torch.float32
    return logits.softmax(-1, dtype=wide)


def _scaled(weights: Tensor, routing: Routing) -> Tensor:
    if routing.normalise:
        weights = weights / (weights.sum(-1, keepdim=True) + routing.least_sum)
    return weights if routing.scale == 1 else weights * routing.scale


def _within_groups(choice: Tensor, routing: Routing) -> Tensor:
    """Experts of groups that are not taken lose every comparison."""
    grouped = choice.view(len(choice), routing.groups, -1)
    best = grouped.topk(routing.best_of_group, dim=-1).values.sum(-1)
    taken = best.topk(routing.chosen_groups, dim=-1).indices
    out = torch.ones_like(best, dtype=torch.bool).scatter_(-1, taken, False)
    return grouped.masked_fill(out[..., None], -torch.inf).view_as(choice)


def route(
    logits: Tensor, correction: Tensor | None, routing: Routing, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """See ``route_reference``; of experts that are equally good the first goes first on a GPU, but
    for scores that are roots of softplus, which are torch's."""
    gpu = triton_kernels("expert_routing", logits)
    if gpu is None or routing.scores == "sqrt_softplus":
        return route_reference(logits, correction, routing, dtype)
    both: tuple[Tensor, Tensor] = gpu.route(logits, correction, routing, dtype)
    return both


class Picks(NamedTuple):
    """A step's picks of experts, sorted by expert, those of one expert in the tokens' order."""

    rows: Tensor
    """[picks] int64, the token of each."""
    starts: Tensor
    """[experts + 1] int64: expert e has picks starts[e] .. starts[e + 1] - 1."""
    places: Tensor
    """[tokens, per_token] int64, where each lies among the sorted ones."""


def sorted_picks_reference(chosen: Tensor, num_experts: int) -> Picks:
    """Sort ``chosen`` [tokens, per_token] int64. Without a look at the device."""
    order, starts = sorted_by_expert(chosen.flatten(), num_experts)
    places = torch.empty_like(order)
    places[order] = torch.arange(len(order), device=order.device)
    return Picks(order // chosen.shape[1], starts, places.view_as(chosen))


def sorted_picks(chosen: Tensor, num_experts: int, like: Tensor) -> Picks:
    """See ``sorted_picks_reference``; ``like`` is a tensor of the model's dtype."""
    gpu = triton_kernels("expert_routing", like)
    if gpu is None or not gpu.sorts(chosen.numel(), num_experts):
        return sorted_picks_reference(chosen, num_experts)
    picks: Picks = gpu.sorted_picks(chosen, num_experts)
    return picks


def combined_reference(
    parts: Tensor, places: Tensor, weights: Tensor, mine: Tensor | None = None
) -> Tensor:
    """Each token's weighted sum of what its experts made.

    Args:
        parts: [picks, hidden], sorted by expert.
        places: [tokens, per_token] int64, which of them are a token's.
        weights: [tokens, per_token].
        mine: [tokens, per_token], whether something was made for a pick; None: for all.

    Returns:
        New tensor [tokens, hidden] in the dtype of ``parts``.
    """
    own = parts[places]
    if mine is not None:
        own = torch.where(mine[:, :, None], own, 0)
    return (own * weights[:, :, None]).sum(1)


def combined(parts: Tensor, places: Tensor, weights: Tensor, mine: Tensor | None = None) -> Tensor:
    """See ``combined_reference``; on a GPU summed up in float32."""
    gpu = triton_kernels("expert_routing", parts)
    if gpu is None:
        return combined_reference(parts, places, weights, mine)
    total: Tensor = gpu.combined(parts, places, weights, mine)
    return total
