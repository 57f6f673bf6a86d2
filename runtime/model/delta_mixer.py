"""The mixer of gated delta layers: projections, a short convolution, the rule, a gated norm.

Decays, betas, what the rule computes and what the norm makes of it are in the dtype of states,
whatever the weights are in.
"""

import torch
from torch import Tensor
from torch.nn import functional

from kernels.gated_delta import DeltaInputs
from kernels.short_conv import ConvWeights, short_conv
from runtime.model.config import GatedDelta
from runtime.model.layers import MapLoader
from runtime.model.state_pool import StateStep

_LEAST_LENGTH = 1e-6
"""Added to the squared length that queries and keys are divided by."""


class DeltaMixer:
    """See ``config.GatedDelta``. Weights are those of ``PREFIX.linear_attn``."""

    def __init__(
        self, spec: GatedDelta, prefix: str, hidden: int, loader: MapLoader, *, eps: float
    ) -> None:
        self.spec = spec
        self._eps = eps
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
        self._pace = source.tensor(f"{name}.A_log", (heads,), wide=True).exp()
        self._pace_bias = source.tensor(f"{name}.dt_bias", (heads,), wide=True)
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
        spec = self.spec
        before, gates = self._mixed(x).tensor_split([spec.channels], dim=1)
        before = before.contiguous()
        after = short_conv(before, self._convolution, states.windows(layer), states.rows)
        inputs = self._inputs(after, self._paces(x))
        outputs = states.deltas.mix(layer, inputs)
        states.keep(layer, before)
        states.deltas.keep(layer, inputs, outputs)
        return self._out(self._gated(outputs.mixed, gates).to(x.dtype))

    def _inputs(self, convolved: Tensor, paces: Tensor) -> DeltaInputs:
        spec, wide = self.spec, self._pace.dtype
        parts = [spec.key_size, spec.key_size, spec.value_size]
        queries, keys, values = torch.split(functional.silu(convolved.to(wide)), parts, dim=1)
        by_key = (-1, spec.key_heads, spec.key_dim)
        betas, steps = paces.to(wide).chunk(2, dim=1)
        return DeltaInputs(
            queries=_of_length_one(queries.reshape(by_key)) * spec.key_dim**-0.5,
            keys=_of_length_one(keys.reshape(by_key)),
            values=values.reshape(-1, spec.value_heads, spec.value_dim),
            decays=-self._pace * functional.softplus(steps + self._pace_bias),
            betas=betas.sigmoid(),
        )

    def _gated(self, mixed: Tensor, gates: Tensor) -> Tensor:
        """[T, V * value_dim]: each head normed, scaled, and weighed number by number."""
        normed = mixed * torch.rsqrt(mixed.square().mean(-1, keepdim=True) + self._eps)
        weights = functional.silu(gates.to(mixed.dtype)).view_as(mixed)
        return (normed * self._norm * weights).flatten(1)


def _of_length_one(rows: Tensor) -> Tensor:
    return rows * torch.rsqrt(rows.square().sum(-1, keepdim=True) + _LEAST_LENGTH)
