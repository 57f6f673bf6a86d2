"""The second half of a layer: one gated MLP, or several of which each token takes a few.

Which experts a token takes follows from that token alone; how many tokens of a step meet at
an expert changes the speed, not the results.
"""

from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional

from kernels.activation import silu_mul
from kernels.grouped_matmul import grouped_matmul, multiplies_grouped, sorted_by_expert
from runtime.model.config import ExpertsConfig, ModelConfig
from runtime.model.layers import Linear, WeightBits, WeightSource, fused_linear
from runtime.model.product_choice import ProductChoice


class FeedForward(Protocol):
    """[tokens, hidden] -> [tokens, hidden], each row by itself."""

    def __call__(self, x: Tensor) -> Tensor: ...

    @property
    def step_bytes(self) -> int:
        """Bytes of weights that a step of one token reads."""
        ...


def load_feed_forward(
    config: ModelConfig,
    layer: int,
    source: WeightSource,
    bits: WeightBits,
    choice: ProductChoice | None = None,
) -> FeedForward:
    """The MLP of a layer, from ``model.layers.LAYER.mlp``.

    Raises:
        LoadError: see ``WeightSource.tensor``.
    """
    prefix = f"model.layers.{layer}.mlp"
    experts = config.experts_of(layer)
    if experts is not None:
        router = source.tensor(f"{prefix}.gate.weight", (experts.num_experts, config.hidden_size))
        if bits == 16 and multiplies_grouped(router):
            return GroupedExpertMlp(prefix, router, experts, source)
        return ExpertMlp(prefix, router, experts, source, bits=bits, choice=choice)
    size = config.intermediate_size
    hidden, bias = config.hidden_size, config.mlp_bias
    return GatedMlp(prefix, hidden, size, source, bits=bits, choice=choice, bias=bias)


class GatedMlp:
    """down(SiLU(gate(x)) * up(x)) (Shazeer 2020, arXiv:2002.05202)."""

    def __init__(
        self,
        prefix: str,
        hidden: int,
        size: int,
        source: WeightSource,
        *,
        bits: WeightBits,
        choice: ProductChoice | None,
        bias: bool,
    ) -> None:
        self._gate_up = fused_linear(
            source,
            [f"{prefix}.gate_proj", f"{prefix}.up_proj"],
            [size, size],
            hidden,
            bias=bias,
            bits=bits,
            choice=choice,
        )
        self._down = fused_linear(
            source, [f"{prefix}.down_proj"], [hidden], size, bias=bias, bits=bits, choice=choice
        )
        self.step_bytes = self._gate_up.num_bytes + self._down.num_bytes

    def __call__(self, x: Tensor) -> Tensor:
        return self._down(silu_mul(self._gate_up(x)))

    @property
    def maps(self) -> tuple[Linear, Linear]:
        """Gate and up side by side, and down."""
        return self._gate_up, self._down


class ExpertMlp:
    """A sum of the ``per_token`` likeliest experts, weighted by how likely each is.

    The router is a small matrix and is never quantised: its choices are not continuous.
    """

    def __init__(
        self,
        prefix: str,
        router: Tensor,
        experts: ExpertsConfig,
        source: WeightSource,
        *,
        bits: WeightBits,
        choice: ProductChoice | None,
    ) -> None:
        self._config = experts
        self._router = router
        hidden = router.shape[1]
        size = experts.intermediate_size
        self._experts = [
            GatedMlp(
                f"{prefix}.experts.{index}",
                hidden,
                size,
                source,
                bits=bits,
                choice=choice,
                bias=False,
            )
            for index in range(experts.num_experts)
        ]
        router_bytes = router.numel() * router.element_size()
        self.step_bytes = router_bytes + experts.per_token * self._experts[0].step_bytes

    def __call__(self, x: Tensor) -> Tensor:
        weights, chosen = _route(x, self._router, self._config)
        order = chosen.flatten().argsort(stable=True)
        counts = chosen.flatten().bincount(minlength=len(self._experts)).tolist()
        output = torch.zeros_like(x)
        for expert, picks in zip(self._experts, torch.split(order, counts), strict=True):
            if picks.numel():
                rows = picks // self._config.per_token
                output.index_add_(0, rows, expert(x[rows]) * weights.flatten()[picks, None])
        return output


class GroupedExpertMlp:
    """The same with all experts' matrices stacked, for one product over all of them. Nothing of
    a step waits for the host, and a token's parts are summed up in the order of its choice."""

    def __init__(
        self, prefix: str, router: Tensor, experts: ExpertsConfig, source: WeightSource
    ) -> None:
        self._config = experts
        self._router = router
        hidden, size, count = router.shape[1], experts.intermediate_size, experts.num_experts
        self._gate_up = router.new_empty(count, 2 * size, hidden)
        self._down = router.new_empty(count, hidden, size)
        for index in range(count):
            name = f"{prefix}.experts.{index}"
            self._gate_up[index, :size] = source.tensor(f"{name}.gate_proj.weight", (size, hidden))
            self._gate_up[index, size:] = source.tensor(f"{name}.up_proj.weight", (size, hidden))
            self._down[index] = source.tensor(f"{name}.down_proj.weight", (hidden, size))
        weights = experts.per_token * 3 * size * hidden
        self.step_bytes = (router.numel() + weights) * router.element_size()

    def __call__(self, x: Tensor) -> Tensor:
        weights, chosen = _route(x, self._router, self._config)
        order, starts = sorted_by_expert(chosen.flatten(), self._config.num_experts)
        rows = order // self._config.per_token
        gated = silu_mul(grouped_matmul(x, self._gate_up, rows, starts))
        each = torch.arange(len(order), device=x.device)
        parts = torch.empty(*chosen.shape, x.shape[1], dtype=x.dtype, device=x.device)
        parts.flatten(0, 1)[order] = grouped_matmul(gated, self._down, each, starts)
        return (parts * weights[:, :, None]).sum(1)


def _route(x: Tensor, router: Tensor, experts: ExpertsConfig) -> tuple[Tensor, Tensor]:
    """(weights, experts), each [tokens, per_token]."""
    wide = torch.float64 if x.dtype == torch.float64 else torch.float32
    likely = functional.linear(x, router).softmax(-1, dtype=wide)
    weights, chosen = likely.topk(experts.per_token, dim=-1)
    if experts.normalise:
        weights = weights / weights.sum(-1, keepdim=True)
    return weights.to(x.dtype), chosen
