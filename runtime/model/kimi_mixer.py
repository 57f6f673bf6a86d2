"""The mixer of layers of Kimi Delta Attention (arXiv:2510.26692): projections, a short convolution,
the rule with decays by channel, a gated norm.

Decays and the gate come in two steps through few numbers, or in one. Decays, betas, what the rule
computes and what the norm makes of it are in the dtype of states, whatever the weights are in.
"""

import torch
from torch import Tensor

from kernels.gated_norm import gated_norm
from kernels.kimi_shaping import KimiShape, kimi_shaping
from kernels.short_conv import ConvWeights, short_conv
from runtime.model.layers import Linear, MapLoader
from runtime.model.recurrent import KimiDelta
from runtime.model.state_step import StateStep


class KimiMixer:
    """See ``recurrent.KimiDelta``. Weights are those of ``PREFIX.linear_attn``."""

    def __init__(
        self, spec: KimiDelta, prefix: str, hidden: int, loader: MapLoader, *, eps: float
    ) -> None:
        self.spec = spec
        self._eps = eps
        name, source = f"{prefix}.linear_attn", loader.source
        size, between = spec.size, spec.head_dim if spec.two_steps else spec.size
        self._widths = [between, between, spec.heads]
        self._mixed = loader.linear(
            [f"{name}.{part}_proj" for part in "qkv"], [size] * 3, hidden, bias=False
        )
        parts = ("f_a", "g_a", "b") if spec.two_steps else ("f", "g", "b")
        self._paces = loader.linear(
            [f"{name}.{part}_proj" for part in parts], self._widths, hidden, bias=False
        )
        self._second: tuple[Linear, Linear] | None = None
        """To decays and to gates, where there are two steps."""
        if spec.two_steps:
            self._second = (
                loader.linear([f"{name}.f_b_proj"], [size], between, bias=False),
                loader.linear([f"{name}.g_b_proj"], [size], between, bias=False),
            )
        self._out = loader.linear([f"{name}.o_proj"], [hidden], size, bias=False)
        taps = [
            source.tensor(f"{name}.{part}_conv1d.weight", (size, 1, spec.taps), wide=True)
            for part in "qkv"
        ]
        self._convolution = ConvWeights(taps=torch.cat(taps)[:, 0].T.contiguous(), bias=None)
        rates = source.tensor(f"{name}.A_log", spec.rates_shape, wide=True)
        self._shape = KimiShape(
            heads=spec.heads,
            head_dim=spec.head_dim,
            rates=rates.flatten().exp(),
            bias=source.tensor(f"{name}.dt_bias", (size,), wide=True),
            lowest=spec.lowest,
        )
        self._norm = source.tensor(f"{name}.o_norm.weight", (spec.head_dim,), wide=True)

    @property
    def step_bytes(self) -> int:
        maps = self._mixed, self._paces, self._out, *(self._second or ())
        return sum(each.num_bytes for each in maps)

    def __call__(self, x: Tensor, states: StateStep, layer: int) -> Tensor:
        """[T, hidden] -> [T, hidden]; leaves what the next step needs in the sequences' rings.

        Args:
            x: the step's tokens.
            states: of the step's sequences.
            layer: counted among the recurrent ones.
        """
        assert states.deltas is not None
        before = self._mixed(x)
        after = short_conv(before, self._convolution, states.windows(layer), states.rows)
        steps, gates, betas = torch.split(self._paces(x), self._widths, dim=1)
        if self._second is not None:
            steps, gates = (
                second(part.contiguous())
                for second, part in zip(self._second, (steps, gates), strict=True)
            )
        inputs = kimi_shaping(after, steps, betas, self._shape)
        outputs = states.deltas.mix(layer, inputs)
        states.keep(layer, before)
        states.deltas.keep(layer, inputs, outputs)
        normed = gated_norm(outputs.mixed, gates, self._norm, self._eps, by_sigmoid=True)
        return self._out(normed)
