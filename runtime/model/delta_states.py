"""The matrices of gated delta layers within the slots of states, and the factors to go back by.

Knows slots, rings and places in them, as ``runtime.model.state_pool`` counts them. Always true:
what is read of a slot's matrices is at the position that the pool calls committed.
"""

from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from kernels.gated_delta import DeltaInputs, DeltaOutputs, DeltaRows, fold
from kernels.upload import upload
from runtime.model.batch import IntArray
from runtime.model.config import GatedDelta


@dataclass(frozen=True, slots=True, kw_only=True)
class _Factors:
    """For each running sequence and layer, of as many tokens as a ring has."""

    keys: Tensor
    """[rings, layers, ring, K, key_dim]"""
    corrected: Tensor
    """[rings, layers, ring, V, value_dim]"""
    decays: Tensor
    """[rings, layers, ring, V]"""


class DeltaStates:
    """Matrices of sequences, those that run with rings of factors.

    Args:
        matrices: [slots, layers, V, key_dim, value_dim], within the slots.
        rings: how many, and how many tokens each has.
    """

    def __init__(self, spec: GatedDelta, matrices: Tensor, rings: tuple[int, int]) -> None:
        layers = matrices.shape[1]
        self._matrices = matrices
        self._ring = rings[1]
        sizes = (
            (spec.key_heads, spec.key_dim),
            (spec.value_heads, spec.value_dim),
            (spec.value_heads,),
        )
        keys, corrected, decays = (
            matrices.new_zeros(rings[0], layers, rings[1], *size) for size in sizes
        )
        self._factors = _Factors(keys=keys, corrected=corrected, decays=decays)

    def commit(
        self, slots: IntArray, rings: IntArray, committed: IntArray, positions: IntArray
    ) -> None:
        """Bring matrices from ``committed`` to ``positions``."""
        counts = positions - committed
        for count in set(counts.tolist()) - {0}:
            chosen = counts == count
            self._fold(slots[chosen], rings[chosen], committed[chosen], count)

    def _fold(self, slots: IntArray, rings: IntArray, committed: IntArray, count: int) -> None:
        device, factors = self._matrices.device, self._factors
        there = upload(slots, device)
        ring = upload(rings, device)[:, None]
        place = upload((committed[:, None] + np.arange(count)) % self._ring, device)
        old = self._matrices[there]

        def taken(kept: Tensor) -> Tensor:
            return kept[ring, :, place].transpose(1, 2).flatten(0, 1)

        new = fold(
            old.flatten(0, 1),
            taken(factors.keys),
            taken(factors.corrected),
            taken(factors.decays),
        )
        self._matrices[there] = new.view_as(old)

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
    """What the gated delta layers of one step read and leave."""

    rows: DeltaRows
    matrices: Tensor
    factors: _Factors
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
    """Of the matrices of one layer."""
    return spec.value_heads * spec.key_dim * spec.value_dim * itemsize


def factor_bytes(spec: GatedDelta, itemsize: int) -> int:
    """Of the factors of one token and layer."""
    keys, values = spec.key_heads * spec.key_dim, spec.value_heads * spec.value_dim
    return (keys + values + spec.value_heads) * itemsize
