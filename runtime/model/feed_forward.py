"""The second half of a layer: one gated MLP, or several of which each token takes a few.

Which experts a token takes follows from that token alone (``runtime.model.router``); how many
tokens of a step meet at an expert changes the speed, not the results.
"""

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional

from kernels.activation import (
    clamped_after_silu,
    clamped_silu,
    clamped_swiglu,
    gelu_tanh_mul,
    silu_mul,
    squared_relu,
)
from kernels.expert_routing import combined, sorted_picks
from kernels.grouped_matmul import multiplies_grouped
from kernels.norm import rms_norm
from runtime.model.config import Experts, Gated, Plain
from runtime.model.expert_stacks import ExpertStack, stack_of
from runtime.model.layers import Linear, MapLoader, biases_of, matrices_of
from runtime.model.router import ExpertRouter


class FeedForward(Protocol):
    """[tokens, hidden] -> [tokens, hidden], each row by itself."""

    def __call__(self, x: Tensor) -> Tensor: ...

    @property
    def step_bytes(self) -> int:
        """Bytes of weights that a step of one token reads."""
        ...


def load_feed_forward(
    spec: Gated | Plain | Experts,
    prefix: str,
    hidden: int,
    loader: MapLoader,
    *,
    eps: float = 1e-6,
) -> FeedForward:
    """The MLP of a layer, from ``PREFIX.mlp``.

    Args:
        eps: of norms within, which are those of experts apart and of their router.

    Raises:
        LoadError: see ``WeightSource.tensor``.
    """
    name = f"{prefix}.mlp"
    if not isinstance(spec, Experts):
        return _load_mlp(spec, name, hidden, loader)
    router = ExpertRouter(spec.router, name, hidden, loader.source, eps=eps)
    experts: GroupedExpertMlp | ExpertMlp | None = None
    if multiplies_grouped(router.weight) and loader.bits in (16, "fp8"):
        experts = grouped_experts(spec, name, router, loader)
    if experts is None:
        experts = ExpertMlp(spec, name, router, loader.without_adapters)
    if spec.shared is None:
        return experts
    shared = _load_mlp(spec.shared, f"{name}.shared_expert", hidden, loader)
    if spec.apart:
        return ExpertsApart(experts, shared, prefix, hidden, loader, eps=eps)
    gate = None
    if spec.shared_gate:
        gate = loader.source.tensor(f"{name}.shared_expert_gate.weight", (1, hidden))
    return SharedExpertMlp(experts, shared, gate)


def _load_mlp(spec: Gated | Plain, name: str, hidden: int, loader: MapLoader) -> FeedForward:
    if isinstance(spec, Gated):
        return GatedMlp(spec, name, hidden, loader)
    return PlainMlp(spec, name, hidden, loader)


def waits_for_the_host(feed_forward: FeedForward | None) -> bool:
    """Whether the host is asked in each step how many tokens experts have, so that steps cannot be
    recorded."""
    if isinstance(feed_forward, SharedExpertMlp | ExpertsApart):
        return waits_for_the_host(feed_forward.experts)
    return isinstance(feed_forward, ExpertMlp)


def _activated(spec: Gated | Plain, x: Tensor) -> Tensor:
    """What an expert's or a layer's MLP makes of its first product."""
    return _gate(spec, x) if isinstance(spec, Gated) else squared_relu(x)


def _gate(spec: Gated, gate_up: Tensor) -> Tensor:
    if spec.activation == "silu":
        return silu_mul(gate_up)
    if spec.activation == "gelu_tanh":
        return gelu_tanh_mul(gate_up)
    if spec.activation == "clamped_silu":
        return clamped_silu(gate_up, spec.limit)
    if spec.activation == "clamped_after_silu":
        return clamped_after_silu(gate_up, spec.limit)
    return clamped_swiglu(gate_up, spec.limit)


class GatedMlp:
    """down(act(gate(x)) * up(x)) (Shazeer 2020, arXiv:2002.05202)."""

    def __init__(self, spec: Gated, name: str, hidden: int, loader: MapLoader) -> None:
        self.spec = spec
        wide = [f"{name}.gate_proj", f"{name}.up_proj"]
        self._gate_up = loader.linear(wide, [spec.size, spec.size], hidden, bias=spec.bias)
        self._down = loader.linear([f"{name}.down_proj"], [hidden], spec.size, bias=spec.bias)
        self.step_bytes = self._gate_up.num_bytes + self._down.num_bytes

    def __call__(self, x: Tensor) -> Tensor:
        return self._down(_gate(self.spec, self._gate_up(x)))

    @property
    def maps(self) -> tuple[Linear, Linear]:
        """Gate and up side by side, and down."""
        return self._gate_up, self._down


class PlainMlp:
    """down(max(up(x), 0) ** 2)"""

    def __init__(self, spec: Plain, name: str, hidden: int, loader: MapLoader) -> None:
        self._up = loader.linear([f"{name}.up_proj"], [spec.size], hidden, bias=spec.bias)
        self._down = loader.linear([f"{name}.down_proj"], [hidden], spec.size, bias=spec.bias)
        self.step_bytes = self._up.num_bytes + self._down.num_bytes

    def __call__(self, x: Tensor) -> Tensor:
        return self._down(squared_relu(self._up(x)))


class ExpertMlp:
    """A sum of the experts that a token takes, weighted."""

    def __init__(self, spec: Experts, name: str, router: ExpertRouter, loader: MapLoader) -> None:
        self._router = router
        self._per_token = spec.router.per_token
        self._count = spec.router.num_experts
        hidden = router.weight.shape[1]
        self._experts = {
            index: _load_mlp(spec.each, f"{name}.experts.{index}", hidden, loader)
            for index in spec.held
        }
        one = self._experts[spec.held[0]].step_bytes
        self.step_bytes = router.num_bytes + min(self._per_token, len(self._experts)) * one

    def __call__(
        self, x: Tensor, seen: Tensor | None = None, tokens: Tensor | None = None
    ) -> Tensor:
        """``seen``: what the router looks at; None: ``x``. ``tokens``: see ``ExpertRouter``."""
        weights, chosen = self._router(x if seen is None else seen, tokens)
        order = chosen.flatten().argsort(stable=True)
        counts = chosen.flatten().bincount(minlength=self._count).tolist()
        output = torch.zeros_like(x)
        every = torch.split(order, counts)
        for index, expert in self._experts.items():
            picks = every[index]
            if picks.numel():
                rows = picks // self._per_token
                output.index_add_(0, rows, expert(x[rows]) * weights.flatten()[picks, None])
        return output


class GroupedExpertMlp:
    """The same with all experts' matrices stacked, for one product over all of them. Nothing of
    a step waits for the host, and a token's parts are summed up in the order of its choice."""

    def __init__(
        self, spec: Experts, router: ExpertRouter, maps: tuple[ExpertStack, ExpertStack]
    ) -> None:
        """``maps``: what an expert begins with (gate and up side by side, or up), and down."""
        self._router, self._spec = router, spec
        self._first, self._down = maps
        taken = min(spec.router.per_token, len(spec.held))
        stacked = sum(each.num_bytes for each in maps) // len(spec.held)
        self.step_bytes = router.num_bytes + taken * stacked

    def __call__(
        self, x: Tensor, seen: Tensor | None = None, tokens: Tensor | None = None
    ) -> Tensor:
        """See ``ExpertMlp``."""
        weights, chosen = self._router(x if seen is None else seen, tokens)
        picks = sorted_picks(chosen, self._spec.router.num_experts, x)
        held, mine = self._spec.held, None
        if self._spec.own is not None:
            mine = (chosen >= held.start) & (chosen < held.stop)
        starts = picks.starts[held.start : held.stop + 1]
        inner = _activated(self._spec.each, self._first.multiply(x, picks.rows, starts))
        parts = self._down.multiply(inner, None, starts)
        return combined(parts, picks.places, weights, mine)


def grouped_experts(
    spec: Experts, name: str, router: ExpertRouter, loader: MapLoader
) -> GroupedExpertMlp | None:
    """Experts stacked; None: their matrices are not of one form.

    Raises:
        LoadError: see ``WeightSource.matrix``.
    """
    hidden, size, source = router.weight.shape[1], spec.each.size, loader.source
    wide = ("gate_proj", "up_proj") if isinstance(spec.each, Gated) else ("up_proj",)

    def stacked(parts: Sequence[str], outputs: int, inputs: int) -> ExpertStack | None:
        names = [[f"{name}.experts.{index}.{part}" for part in parts] for index in spec.held]
        sizes = [outputs] * len(parts)
        bias = None
        if spec.each.bias:
            bias = torch.stack([biases_of(source, each, sizes) for each in names])
        return stack_of(
            lambda place: matrices_of(source, names[place], sizes, inputs),
            len(names),
            loader.bits,
            bias,
        )

    first = stacked(wide, size, hidden)
    down = None if first is None else stacked(("down_proj",), hidden, size)
    return None if first is None or down is None else GroupedExpertMlp(spec, router, (first, down))


class SharedExpertMlp:
    """Experts, and beside them one MLP that every token takes."""

    def __init__(
        self,
        experts: "ExpertMlp | GroupedExpertMlp",
        shared: FeedForward,
        gate: Tensor | None,
    ) -> None:
        """``gate`` [1, hidden]: the shared one is weighed by the sigmoid of its product."""
        self.experts = experts
        self._shared = shared
        self._gate = gate
        self.step_bytes = experts.step_bytes + shared.step_bytes

    def __call__(self, x: Tensor, tokens: Tensor | None = None) -> Tensor:
        """``tokens``: see ``ExpertRouter``."""
        shared = self._shared(x)
        if self._gate is not None:
            shared = torch.sigmoid(functional.linear(x, self._gate)) * shared
        return self.experts(x, tokens=tokens) + shared


class ExpertsApart:
    """Experts, and beside them one MLP that every token takes, each between two norms of its own
    (``config.Experts.apart``). What goes in is not normed; several ranks' parts are summed here."""

    def __init__(
        self,
        experts: ExpertMlp | GroupedExpertMlp,
        shared: FeedForward,
        prefix: str,
        hidden: int,
        loader: MapLoader,
        *,
        eps: float,
    ) -> None:
        """Load the norms of the layer ``prefix``."""
        self.experts = experts
        self._shared = shared
        self._eps = eps
        self._rank_sum = loader.rank_sum
        self._shared_norms, self._expert_norms = (
            tuple(loader.source.tensor(f"{prefix}.{name}.weight", (hidden,)) for name in names)
            for names in (
                ("post_attention_layernorm", "after_dense_norm"),
                ("before_experts_norm", "after_experts_norm"),
            )
        )
        self.step_bytes = experts.step_bytes + shared.step_bytes

    def __call__(self, x: Tensor) -> Tensor:
        shared = self._shared(rms_norm(x, self._shared_norms[0], self._eps))
        mixed = self.experts(rms_norm(x, self._expert_norms[0], self._eps), x)
        if self._rank_sum is not None:
            shared, mixed = self._rank_sum(shared), self._rank_sum(mixed)
        shared = rms_norm(shared, self._shared_norms[1], self._eps)
        return shared + rms_norm(mixed, self._expert_norms[1], self._eps)
