"""The second half of a layer: one gated MLP, or several of which each token takes a few.

Which experts a token takes follows from that token alone; how many tokens of a step meet at
an expert changes the speed, not the results.
"""

from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional

from kernels.activation import silu_mul
from runtime.models.config import ExpertsConfig, ModelConfig
from runtime.models.layers import WeightBits, WeightSource, fused_linear


class FeedForward(Protocol):
    """[tokens, hidden] -> [tokens, hidden], each row by itself."""

    def __call__(self, x: Tensor) -> Tensor: ...

    @property
    def step_bytes(self) -> int:
        """Bytes of weights that a step of one token reads."""
        ...


def load_feed_forward(
    config: ModelConfig, layer: int, source: WeightSource, bits: WeightBits
) -> FeedForward:
    """The MLP of a layer, from ``model.layers.LAYER.mlp``.

    Raises:
        LoadError: see ``WeightSource.tensor``.
    """
    prefix = f"model.layers.{layer}.mlp"
    experts = config.experts_of(layer)
    if experts is not None:
        return ExpertMlp(prefix, config.hidden_size, experts, source, bits)
    size = config.intermediate_size
    return GatedMlp(prefix, config.hidden_size, size, source, bits, bias=config.mlp_bias)


class GatedMlp:
    """down(SiLU(gate(x)) * up(x)) (Shazeer 2020, arXiv:2002.05202)."""

    def __init__(
        self,
        prefix: str,
        hidden: int,
        size: int,
        source: WeightSource,
        bits: WeightBits,
        *,
        bias: bool,
    ) -> None:
        self._gate_up = fused_linear(
            source,
            [f"{prefix}.gate_proj", f"{prefix}.up_proj"],
            [size, size],
            hidden,
            bias=bias,
            bits=bits,
        )
        self._down = fused_linear(
            source, [f"{prefix}.down_proj"], [hidden], size, bias=bias, bits=bits
        )
        self.step_bytes = self._gate_up.num_bytes + self._down.num_bytes

    def __call__(self, x: Tensor) -> Tensor:
        return self._down(silu_mul(self._gate_up(x)))


class ExpertMlp:
    """A sum of the ``per_token`` likeliest experts, weighted by how likely each is.

    The router is a small matrix and is never quantised: its choices are not continuous.
    """

    def __init__(
        self,
        prefix: str,
        hidden: int,
        experts: ExpertsConfig,
        source: WeightSource,
        bits: WeightBits,
    ) -> None:
        self._per_token = experts.per_token
        self._normalise = experts.normalise
        self._router = source.tensor(f"{prefix}.gate.weight", (experts.num_experts, hidden))
        size = experts.intermediate_size
        self._experts = [
            GatedMlp(f"{prefix}.experts.{index}", hidden, size, source, bits, bias=False)
            for index in range(experts.num_experts)
        ]
        router_bytes = self._router.numel() * self._router.element_size()
        self.step_bytes = router_bytes + self._per_token * self._experts[0].step_bytes

    def __call__(self, x: Tensor) -> Tensor:
        weights, chosen = self._route(x)
        order = chosen.flatten().argsort(stable=True)
        counts = chosen.flatten().bincount(minlength=len(self._experts)).tolist()
        output = torch.zeros_like(x)
        for expert, picks in zip(self._experts, torch.split(order, counts), strict=True):
            if picks.numel():
                rows = picks // self._per_token
                output.index_add_(0, rows, expert(x[rows]) * weights.flatten()[picks, None])
        return output

    def _route(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """(weights, experts), each [tokens, per_token]."""
        wide = torch.float64 if x.dtype == torch.float64 else torch.float32
        likely = functional.linear(x, self._router).softmax(-1, dtype=wide)
        weights, chosen = likely.topk(self._per_token, dim=-1)
        if self._normalise:
            weights = weights / weights.sum(-1, keepdim=True)
        return weights.to(x.dtype), chosen
