"""Which experts a token takes, and how much of each: one router for every family.

The router is a small matrix and is never quantised: its choices are not continuous.
"""

import torch
from torch import Tensor
from torch.nn import functional

from kernels.expert_routing import Routing, route, weigh
from kernels.norm import rms_norm
from runtime.model.config import LoadError, Router
from runtime.model.layers import WeightSource


class ExpertRouter:
    """See ``config.Router``. Weights are those of ``NAME.gate``; but for a router of a softmax that
    is not ``wide`` they are kept and computed in float32 at least."""

    def __init__(
        self, spec: Router, name: str, hidden: int, source: WeightSource, *, eps: float = 1e-6
    ) -> None:
        """``eps``: of the norm of a router that is ``scaled``."""
        self._routing = Routing(
            per_token=spec.per_token,
            scores=spec.scores,
            normalise=spec.normalise,
            groups=spec.groups,
            chosen_groups=spec.chosen_groups,
            best_of_group=spec.best_of_group,
            scale=spec.scale,
            least_sum=spec.least_sum,
        )
        count = spec.num_experts
        wide = spec.wide or spec.scores != "softmax"
        self.weight = source.tensor(f"{name}.gate.weight", (count, hidden), wide=wide)
        self.like = source.tensor(f"{name}.gate.weight", (count, hidden)) if wide else self.weight
        """A tensor of the dtype and on the device of the model."""
        self._bias = source.tensor(f"{name}.gate.bias", (count,), wide=wide) if spec.bias else None
        self.correction: Tensor | None = None
        """[experts], added to the scores where experts are chosen, not in their weights."""
        if spec.correction:
            correction = f"{name}.gate.e_score_correction_bias"
            self.correction = source.tensor(correction, (count,), wide=True)
        self._logit_cap = spec.logit_cap
        self._table: Tensor | None = None
        """[ids, per_token] int64: the experts of each token id."""
        if spec.table_rows is not None:
            self._table = _load_table(spec, f"{name}.gate.tid2eid", spec.table_rows, source)
        self._eps = eps
        self._input_scale: Tensor | None = None
        self._expert_scale: Tensor | None = None
        if spec.scaled:
            scale = source.tensor(f"{name}.gate.input_scale", (hidden,))
            self._input_scale = scale * hidden**-0.5
            self._expert_scale = source.tensor(f"{name}.gate.expert_scale", (count,))
        self.num_bytes = self.weight.numel() * self.weight.element_size()

    def __call__(self, x: Tensor, tokens: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """(weights, experts), each [tokens, per_token]; ``tokens`` [tokens]: their ids, where a
        table chooses."""
        if self._input_scale is not None:
            x = rms_norm(x, self._input_scale, self._eps)
        logits = functional.linear(x.to(self.weight.dtype), self.weight, self._bias)
        if self._logit_cap is not None:
            logits = torch.tanh(logits / self._logit_cap) * self._logit_cap
        if self._table is not None:
            assert tokens is not None
            chosen = self._table[tokens]
            return weigh(logits, chosen, self._routing, x.dtype), chosen
        weights, chosen = route(logits, self.correction, self._routing, x.dtype)
        if self._expert_scale is not None:
            weights = weights * self._expert_scale[chosen]
        return weights, chosen


def _load_table(spec: Router, name: str, rows: int, source: WeightSource) -> Tensor:
    """Raises LoadError: there are numbers that are no experts."""
    stored = source.tensor(name, (rows, spec.per_token), wide=True)
    table = stored.to(torch.int64)
    lowest, highest = table.min().item(), table.max().item()
    if not torch.equal(table.to(stored.dtype), stored) or not 0 <= lowest <= highest < (
        spec.num_experts
    ):
        raise LoadError(
            f"tensor {name!r} has numbers other than those of experts, 0 to {spec.num_experts - 1}"
        )
    return table
