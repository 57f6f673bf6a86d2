"""Which experts a token takes, and how much of each: one router for every family.

The router is a small matrix and is never quantised: its choices are not continuous.
"""

import torch
from torch import Tensor
from torch.nn import functional

from runtime.model.config import Router
from runtime.model.layers import WeightSource


class ExpertRouter:
    """See ``config.Router``. Weights are those of ``NAME.gate``; a router of sigmoids and its
    correction, and one that is ``wide``, are kept and computed in float32 at least."""

    def __init__(self, spec: Router, name: str, hidden: int, source: WeightSource) -> None:
        self._spec = spec
        count = spec.num_experts
        wide = spec.wide or spec.scores == "sigmoid"
        self.weight = source.tensor(f"{name}.gate.weight", (count, hidden), wide=wide)
        self.like = source.tensor(f"{name}.gate.weight", (count, hidden)) if wide else self.weight
        """A tensor of the dtype and on the device of the model."""
        self._bias = source.tensor(f"{name}.gate.bias", (count,), wide=wide) if spec.bias else None
        self.correction: Tensor | None = None
        """[experts], added to the scores where experts are chosen, not in their weights."""
        if spec.correction:
            correction = f"{name}.gate.e_score_correction_bias"
            self.correction = source.tensor(correction, (count,), wide=True)
        self.num_bytes = self.weight.numel() * self.weight.element_size()

    def __call__(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """(weights, experts), each [tokens, per_token]."""
        spec = self._spec
        scores = self._scores(x)
        choice = scores if self.correction is None else scores + self.correction
        if spec.groups > 1:
            choice = self._within_groups(choice)
        weights, chosen = choice.topk(spec.per_token, dim=-1)
        if choice is not scores:
            weights = scores.gather(-1, chosen)
        if spec.normalise:
            weights = weights / (weights.sum(-1, keepdim=True) + spec.least_sum)
        if spec.scale != 1:
            weights = weights * spec.scale
        return weights.to(x.dtype), chosen

    def _scores(self, x: Tensor) -> Tensor:
        logits = functional.linear(x.to(self.weight.dtype), self.weight, self._bias)
        if self._spec.scores == "sigmoid":
            return logits.sigmoid()
        wide = torch.float64 if x.dtype == torch.float64 else torch.float32
        return logits.softmax(-1, dtype=wide)

    def _within_groups(self, choice: Tensor) -> Tensor:
        """Experts of groups that are not taken lose every comparison."""
        spec = self._spec
        grouped = choice.view(len(choice), spec.groups, -1)
        best = grouped.topk(spec.best_of_group, dim=-1).values.sum(-1)
        taken = best.topk(spec.chosen_groups, dim=-1).indices
        out = torch.ones_like(best, dtype=torch.bool).scatter_(-1, taken, False)
        return grouped.masked_fill(out[..., None], -torch.inf).view_as(choice)
