"""The matrices of gated delta, Kimi delta or Mamba-2 layers within the slots of states, and their
factors.

Knows slots, rings and places in them, as ``runtime.model.state_pool`` counts them. Always true:
what is read of a slot's matrices is at the position that the pool calls committed. In a step each
layer brings its own there right before it reads them, so that they come from memory once; of a step
that failed, ``catch_up`` does so for the layers that were not reached.
"""

import math
from dataclasses import dataclass, field

import torch
from torch import Tensor

from kernels.delta_rows import DeltaRows, DeltaSpans
from kernels.gated_delta import (
    DeltaDue,
    DeltaInputs,
    DeltaOutputs,
    DeltaRings,
    fold_layer,
    fold_rings,
    folds_apart,
    gated_delta,
)
from kernels.ring_write import RingPlaces, ring_write
from runtime.model.recurrent import OfMatrices


class DeltaStates:
    """Matrices of sequences, those that run with rings of factors.

    Args:
        matrices: [slots, layers, V, key_dim, value_dim], within the slots.
        rings: how many, and how many tokens each has.
    """

    def __init__(self, spec: OfMatrices, matrices: Tensor, rings: tuple[int, int]) -> None:
        layers = matrices.shape[1]
        self._matrices = matrices
        sizes = (
            (spec.key_heads, spec.key_dim),
            (spec.value_heads, spec.value_dim),
            _decays_of(spec),
        )
        keys, corrected, decays = (
            matrices.new_zeros(rings[0], layers, rings[1], *size) for size in sizes
        )
        self._factors = DeltaRings(keys=keys, corrected=corrected, decays=decays)
        self._due: list[DeltaDue] = []
        self._behind: DeltaSpans | None = None

    def catch_up(self) -> None:
        """Bring the matrices of layers that a step did not reach where it was to begin. Before
        anything else is done with a slot."""
        if self._behind is not None:
            fold_rings(self._matrices, self._factors, self._behind)
            self._behind = None
        while self._due:  # one that fails is due still, and no other comes twice
            fold_layer(self._due[-1])
            self._due.pop()

    def commit(self, spans: DeltaSpans) -> None:
        """Take matrices of all layers on; where that fails, the next ``catch_up`` does."""
        self._behind = spans
        self.catch_up()

    def step(
        self, rows: DeltaRows, spans: DeltaSpans, kept: RingPlaces, handed: RingPlaces
    ) -> "DeltaStep":
        """See ``StatePool.begin_step``.

        Args:
            rows: the step's sequences.
            spans: by how much each one's matrices lack to where it begins.
            kept: rings, places in them and tokens whose factors go there.
            handed: slots that matrices go to, places (there is one), and the numbers of matrices.
        """
        if spans.counts.any():
            self._due += self._all_due(spans)
        return DeltaStep(
            rows=rows,
            matrices=self._matrices,
            factors=self._factors,
            due=self._due,
            kept=kept,
            handed=handed,
        )

    def recorded_step(
        self, rows: DeltaRows, spans: DeltaSpans, kept: RingPlaces, handed: RingPlaces
    ) -> "DeltaStep":
        """``step`` that is recorded: each layer takes on what is due when it is played, however
        little that is, and leaves its matrices in their slots."""
        return DeltaStep(
            rows=rows,
            matrices=self._matrices,
            factors=self._factors,
            due=self._all_due(spans),
            kept=kept,
            handed=handed,
            in_place=True,
        )

    def _all_due(self, spans: DeltaSpans) -> list[DeltaDue]:
        """What is due of each layer, the first one's last."""
        return [
            DeltaDue(matrices=self._matrices, rings=self._factors, spans=spans, layer=layer)
            for layer in reversed(range(self._matrices.shape[1]))
        ]


@dataclass(frozen=True, slots=True, kw_only=True)
class DeltaStep:
    """The states that gated delta layers of one step read and leave."""

    rows: DeltaRows
    matrices: Tensor
    factors: DeltaRings
    due: list[DeltaDue]
    kept: RingPlaces
    handed: RingPlaces
    in_place: bool = False
    """Matrices are left in their slots by each layer."""
    left: list[Tensor] = field(default_factory=list)

    def mix(self, layer: int, inputs: DeltaInputs) -> DeltaOutputs:
        """The tokens of a layer behind its matrices, which are brought where the step begins."""
        due = self.due[-1] if self.due else None
        assert due is None or due.layer == layer, "layers come in their order"
        if due is not None and folds_apart(self.matrices):
            fold_layer(due)
            self.due.pop()
            due = None
        outputs = gated_delta(inputs, self.matrices[:, layer], self.rows, due)
        if due is not None:
            self.due.pop()
        return outputs

    def keep(self, layer: int, inputs: DeltaInputs, outputs: DeltaOutputs) -> None:
        """Take the factors of a layer's tokens."""
        ring_write(
            layer,
            self.kept,
            (self.factors.keys, inputs.keys),
            (self.factors.corrected, outputs.corrected),
            (self.factors.decays, inputs.decays),
        )
        if not len(self.handed[0]):
            return
        if self.in_place:
            ring_write(layer, self.handed, (self.matrices[:, :, None], outputs.handed))
        else:
            self.left.append(outputs.handed)

    def done(self) -> None:
        """See ``StateStep.done``."""
        if self.left:
            self.matrices[self.handed[0]] = torch.stack(self.left, dim=1)


def delta_bytes(spec: OfMatrices, itemsize: int) -> int:
    """Bytes of the matrices of one layer."""
    return spec.value_heads * spec.key_dim * spec.value_dim * itemsize


def factor_bytes(spec: OfMatrices, itemsize: int) -> int:
    """Bytes of the factors of one token and layer."""
    keys, values = spec.key_heads * spec.key_dim, spec.value_heads * spec.value_dim
    return (keys + values + math.prod(_decays_of(spec))) * itemsize


def _decays_of(spec: OfMatrices) -> tuple[int, ...]:
    """The shape of the decays of one token and layer."""
    return (spec.value_heads, spec.key_dim) if spec.by_channel else (spec.value_heads,)
