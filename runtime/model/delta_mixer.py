"""The mixer of gated delta layers: projections, a short convolution, the rule, a gated norm.

Decays, betas, what the rule computes and what the norm makes of it are in the dtype of states,
whatever the weights are in.
"""

from torch import Tensor

from kernels.delta_shaping import DeltaShape, delta_shaping
from kernels.gated_norm import gated_norm
from kernels.short_conv import ConvWeights, short_conv
from runtime.model.layers import MapLoader
from runtime.model.recurrent import GatedDelta
from runtime.model.state_step import StateStep


class DeltaMixer:
    """See ``recurrent.GatedDelta``. Weights are those of ``PREFIX.linear_attn``."""

    def __init__(
        self, spec: GatedDelta, prefix: str, hidden: int, loader: MapLoader, *, eps: float
    ) -> None:
        self.spec = spec
        self._eps = eps if spec.norm_eps is None else spec.norm_eps
        name, source = f"{prefix}.linear_attn", loader.source
        keys, values, heads = spec.key_size, spec.value_size, spec.value_heads
        self._mixed = loader.linear(
            [f"{name}.in_proj_{part}" for part in "qkvz"],
            [keys, keys, values, values],
            hidden,
            bias=False,
        )
        self._paces = loader.linear(
            [f"{name}.in_proj_{part}" for part in "ba"], [heads, heads], hidden, bias=False
        )
        self._out = loader.linear([f"{name}.out_proj"], [hidden], values, bias=False)
        shape = (spec.channels, 1, spec.taps)
        taps = source.tensor(f"{name}.conv1d.weight", shape, wide=True)
        self._convolution = ConvWeights(taps=taps[:, 0].T.contiguous(), bias=None)
        self._shape = DeltaShape(
            key_heads=spec.key_heads,
            value_heads=heads,
            key_dim=spec.key_dim,
            value_dim=spec.value_dim,
            rates=source.tensor(f"{name}.A_log", (heads,), wide=True).exp(),
            bias=source.tensor(f"{name}.dt_bias", (heads,), wide=True),
            most_beta=spec.most_beta,
        )
        self._norm = source.tensor(f"{name}.gated_norm.scale", (spec.value_dim,), wide=True)

    @property
    def step_bytes(self) -> int:
        return self._mixed.num_bytes + self._paces.num_bytes + self._out.num_bytes

    def __call__(self, x: Tensor, states: StateStep, layer: int) -> Tensor:
        """[T, hidden] -> [T, hidden]; leaves what the next step needs in the sequences' rings.

        Args:
            x: the step's tokens.
            states: of the step's sequences.
            layer: counted among the recurrent ones.
        """
        assert states.deltas is not None
        before, gates = self._mixed(x).tensor_split([self.spec.channels], dim=1)
        before = before.contiguous()
        after = short_conv(before, self._convolution, states.windows(layer), states.rows)
        inputs = delta_shaping(after, self._paces(x), self._shape)
        outputs = states.deltas.mix(layer, inputs)
        states.keep(layer, before)
        states.deltas.keep(layer, inputs, outputs)
        return self._out(gated_norm(outputs.mixed, gates, self._norm, self._eps))
