"""The matrices of gated delta layers within the slots of states, and the factors to go back by.

Knows slots, rings and places in them, as ``runtime.model.state_pool`` counts them. Always true:
what is read of a slot's matrices is at the position that the pool calls committed.
"""

from dataclasses import dataclass, field

import torch
from torch import Tensor

from kernels.gated_delta import (
    DeltaInputs,
    DeltaOutputs,
    DeltaRings,
    DeltaRows,
    DeltaSpans,
    fold_rings,
)
from runtime.model.batch import IntArray
from runtime.model.config import GatedDelta


class DeltaStates:
    """Matrices of sequences, those that run with rings of factors.

    Args:
        matrices: [slots, layers, V, key_dim, value_dim], within the slots.
        rings: how many, and how many tokens each has.
    """

    def __init__(self, spec: GatedDelta, matrices: Tensor, rings: tuple[int, int]) -> None:
        layers = matrices.shape[1]
        self._matrices = matrices
        sizes = (
            (spec.key_heads, spec.key_dim),
            (spec.value_heads, spec.value_dim),
            (spec.value_heads,),
        )
        keys, corrected, decays = (
            matrices.new_zeros(rings[0], layers, rings[1], *size) for size in sizes
        )
        self._factors = DeltaRings(keys=keys, corrected=corrected, decays=decays)

    def commit(
        self, slots: IntArray, rings: IntArray, committed: IntArray, positions: IntArray
    ) -> None:
        """Bring matrices from ``committed`` to ``positions``."""
        spans = DeltaSpans(
            slots=slots, rings=rings, committed=committed, counts=positions - committed
        )
        fold_rings(self._matrices, self._factors, spans)

    def step(
        self, rows: DeltaRows, kept: tuple[Tensor, Tensor, Tensor], moved: Tensor
    ) -> "DeltaStep":
        """See ``StatePool.step``.

        Args:
            rows: the step's sequences.
            kept: rings, places in them and tokens whose factors go there.
            moved: slots of the sequences whose matrices are handed out.
        """
        return DeltaStep(
            rows=rows, matrices=self._matrices, factors=self._factors, kept=kept, moved_slots=moved
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class DeltaStep:
    """The states that gated delta layers of one step read and leave."""

    rows: DeltaRows
    matrices: Tensor
    factors: DeltaRings
    kept: tuple[Tensor, Tensor, Tensor]
    moved_slots: Tensor
    moved: list[Tensor] = field(default_factory=list)

    def of(self, layer: int) -> Tensor:
        """[slots, V, key_dim, value_dim]"""
        return self.matrices[:, layer]

    def keep(self, layer: int, inputs: DeltaInputs, outputs: DeltaOutputs) -> None:
        """Take the factors of a layer's tokens."""
        ring, place, token = self.kept
        self.factors.keys[ring, layer, place] = inputs.keys[token]
        self.factors.corrected[ring, layer, place] = outputs.corrected[token]
        self.factors.decays[ring, layer, place] = inputs.decays[token]
        if len(self.moved_slots):
            self.moved.append(outputs.handed)

    def done(self) -> None:
        """See ``StateStep.done``."""
        if self.moved:
            self.matrices[self.moved_slots] = torch.stack(self.moved, dim=1)


def delta_bytes(spec: GatedDelta, itemsize: int) -> int:
    """Bytes of the matrices of one layer."""
    return spec.value_heads * spec.key_dim * spec.value_dim * itemsize


def factor_bytes(spec: GatedDelta, itemsize: int) -> int:
    """Bytes of the factors of one token and layer."""
    keys, values = spec.key_heads * spec.key_dim, spec.value_heads * spec.value_dim
    return (keys + values + spec.value_heads) * itemsize
