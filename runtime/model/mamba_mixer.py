"""The mixer of Mamba-2 layers: one projection, a short convolution, the state space, a gated norm.

Steps, decays, what the rule computes and what the norm makes of it are in the dtype of states,
whatever the weights are in. The gate is multiplied before the norm, which is over each group.
"""

import torch
from torch import Tensor
from torch.nn import functional

from kernels.mamba2 import Mamba2Inputs
from kernels.short_conv import ConvWeights, short_conv
from runtime.model.config import Mamba2
from runtime.model.layers import MapLoader
from runtime.model.state_pool import StateStep


class MambaMixer:
    """See ``config.Mamba2``. Weights are those of ``PREFIX.mamba``."""

    def __init__(
        self, spec: Mamba2, prefix: str, hidden: int, loader: MapLoader, *, eps: float
    ) -> None:
        self.spec = spec
        self._eps = eps
        name, source, heads = f"{prefix}.mamba", loader.source, (spec.heads,)
        rows = spec.size + spec.channels + spec.heads
        self._in = loader.linear([f"{name}.in_proj"], [rows], hidden, bias=spec.bias)
        self._out = loader.linear([f"{name}.out_proj"], [hidden], spec.size, bias=spec.bias)
        shape = (spec.channels, 1, spec.taps)
        taps = source.tensor(f"{name}.conv1d.weight", shape, wide=True)
        bias = None
        if spec.conv_bias:
            bias = source.tensor(f"{name}.conv1d.bias", (spec.channels,), wide=True)
        self._convolution = ConvWeights(taps=taps[:, 0].T.contiguous(), bias=bias)
        self._pace = -source.tensor(f"{name}.A_log", heads, wide=True).exp()
        self._step_bias = source.tensor(f"{name}.dt_bias", heads, wide=True)
        self._skip = source.tensor(f"{name}.skip", heads, wide=True)
        self._norm = source.tensor(f"{name}.gated_norm.scale", (spec.size,), wide=True)

    @property
    def step_bytes(self) -> int:
        return self._in.num_bytes + self._out.num_bytes

    def __call__(self, x: Tensor, states: StateStep, layer: int) -> Tensor:
        """[T, hidden] -> [T, hidden]; leaves what the next step needs in the sequences' rings.

        Args:
            x: the step's tokens.
            states: of the step's sequences.
            layer: counted among the recurrent ones.
        """
        assert states.deltas is not None
        spec = self.spec
        gates, before, steps = torch.split(
            self._in(x), [spec.size, spec.channels, spec.heads], dim=1
        )
        before = before.contiguous()
        after = short_conv(before, self._convolution, states.windows(layer), states.rows)
        inputs = self._inputs(after, steps)
        delta = inputs.as_delta()
        outputs = states.deltas.mix(layer, delta)
        states.keep(layer, before)
        states.deltas.keep(layer, delta, outputs)
        mixed = outputs.mixed + inputs.values * self._skip[:, None]
        return self._out(self._gated(mixed.flatten(1), gates).to(x.dtype))

    def _inputs(self, convolved: Tensor, steps: Tensor) -> Mamba2Inputs:
        spec, wide = self.spec, self._pace.dtype
        shared = spec.groups * spec.state_dim
        values, into, out_of = torch.split(
            functional.silu(convolved.to(wide)), [spec.size, shared, shared], dim=1
        )
        by_group = (-1, spec.groups, spec.state_dim)
        steps = functional.softplus(steps.to(wide) + self._step_bias)
        return Mamba2Inputs(
            values=values.reshape(-1, spec.heads, spec.head_dim),
            steps=steps.clamp(spec.least_step, spec.most_step),
            pace=self._pace,
            into=into.reshape(by_group),
            out_of=out_of.reshape(by_group),
        )

    def _gated(self, mixed: Tensor, gates: Tensor) -> Tensor:
        """[T, size]: weighed number by number, then each group normed and scaled."""
        weighed = mixed * functional.silu(gates.to(mixed.dtype))
        groups = weighed.view(len(weighed), self.spec.groups, -1)
        normed = groups * torch.rsqrt(groups.square().mean(-1, keepdim=True) + self._eps)
        return normed.flatten(1) * self._norm
