"""The mixer of Mamba-2 layers: one projection, a short convolution, the state space, a gated norm.

Steps, decays, what the rule computes and what the norm makes of it are in the dtype of states,
whatever the weights are in. The gate is multiplied before the norm, which is over each group: where
several ranks have heads of one, over all of these.
"""

import torch
from torch import Tensor

from kernels.gated_norm import skipped_and_weighed, skipped_group_norm
from kernels.mamba_shaping import MambaShape, mamba_shaping
from kernels.norm import mean_square, norm_by
from kernels.short_conv import ConvWeights, short_conv
from runtime.model.layers import MapLoader
from runtime.model.recurrent import Mamba2, SpreadGroup
from runtime.model.state_step import StateStep


class MambaMixer:
    """See ``recurrent.Mamba2``. Weights are those of ``PREFIX.mamba``."""

    def __init__(
        self, spec: Mamba2, prefix: str, hidden: int, loader: MapLoader, *, eps: float
    ) -> None:
        self.spec = spec
        self._eps = eps
        self._rank_sum = loader.rank_sum
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
        self._shape = MambaShape(
            heads=spec.heads,
            groups=spec.groups,
            head_dim=spec.head_dim,
            state_dim=spec.state_dim,
            pace=-source.tensor(f"{name}.A_log", heads, wide=True).exp(),
            step_bias=source.tensor(f"{name}.dt_bias", heads, wide=True),
            least_step=spec.least_step,
            most_step=spec.most_step,
        )
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
        inputs, values = mamba_shaping(after, steps, self._shape)
        outputs = states.deltas.mix(layer, inputs)
        states.keep(layer, before)
        states.deltas.keep(layer, inputs, outputs)
        if spec.spread is not None:
            weighed = skipped_and_weighed(outputs.mixed, values, self._skip, gates)
            return self._out(self._normed_over_ranks(weighed, spec.spread).to(gates.dtype))
        normed = skipped_group_norm(
            outputs.mixed, values, self._skip, gates, self._norm, groups=spec.groups, eps=self._eps
        )
        return self._out(normed)

    def _normed_over_ranks(self, x: Tensor, spread: SpreadGroup) -> Tensor:
        """[T, size] of heads of a group -> the same, normed over all heads of the group."""
        assert self._rank_sum is not None
        means = x.new_zeros(len(x), spread.groups)
        means[:, spread.number : spread.number + 1] = mean_square(x)
        total = self._rank_sum(means)[:, spread.number : spread.number + 1]
        return norm_by(x, total / spread.ranks, self._norm, self._eps)
