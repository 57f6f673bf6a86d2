"""What one step does to the states of its sequences: worked out, in arrays, and by its layers.

A recorded step runs on arrays that stay where they are and are as large as it has room for
(``runtime.model.cuda_graphs``), and leaves states in their slots as soon as a layer has them. One
that runs as it comes leaves them when all of its layers are done. Which slot and ring are whose is
``runtime.model.state_pool``'s to know.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, Generic, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from kernels.delta_rows import CHUNK, Array, DeltaPlaces, DeltaRows, DeltaSpans, IntArray
from kernels.ring_write import RingPlaces, ring_write
from kernels.short_conv import ConvRows
from runtime.model.delta_states import DeltaStep

RING: Final = 32
"""Tokens that a running sequence can go back."""
NOWHERE: Final = -1
"""In the place of a ring or a slot: nothing is written."""
MOST_LONG: Final = 8
"""Sequences with more tokens than a ring that a recorded step has room for."""


class StatePlaces(NamedTuple, Generic[Array]):
    """Arrays of a step of S sequences and T tokens, on the host or on the device; all int64."""

    slots: Array
    """[S]"""
    starts: Array
    """[S + 1] where the tokens of each begin."""
    sequence_of: Array
    """[T]"""
    kept_rings: Array
    """[N] where tokens go that rings keep, ``NOWHERE`` for none."""
    kept_places: Array
    kept_tokens: Array
    moved_slots: Array
    """[M * (taps - 1)] likewise, of windows of sequences with more tokens than a ring has."""
    moved_places: Array
    moved_tokens: Array
    handed_slots: Array
    """[M] likewise, of their matrices."""
    handed_places: Array
    handed_numbers: Array

    @property
    def kept(self) -> tuple[Array, Array, Array]:
        """Rings, places in them, and tokens that go there."""
        return self.kept_rings, self.kept_places, self.kept_tokens

    @property
    def moved(self) -> tuple[Array, Array, Array]:
        """Slots, places in their windows, and tokens that go there."""
        return self.moved_slots, self.moved_places, self.moved_tokens

    @property
    def handed(self) -> tuple[Array, Array, Array]:
        """Slots, the one place of each, and the numbers of matrices that go there."""
        return self.handed_slots, self.handed_places, self.handed_numbers


@dataclass(frozen=True, slots=True, kw_only=True)
class StateRoom:
    """How many of each a recorded step has room for."""

    sequences: int
    """One more than sequences of the step: rows behind theirs are nobody's."""
    tokens: int
    kept: int
    long: int
    """Sequences with more tokens than a ring."""
    chunks: int
    """Chunks of sequences that are computed chunk by chunk."""

    @classmethod
    def of(cls, *, sequences: int, tokens: int, chunked: bool) -> "StateRoom":
        """Room for any step of so many, the longest of which may be computed by chunks."""
        long = min(MOST_LONG, sequences) if chunked else 0
        return cls(
            sequences=sequences + 1,
            tokens=tokens,
            kept=min(tokens, RING * sequences),
            long=long,
            chunks=tokens // CHUNK + 2 * long if chunked else 0,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class StateMoves:
    """What a step does to states, worked out before any of it is done: S sequences."""

    runs: npt.NDArray[np.bool_]
    """[S]: which have a slot that they run on."""
    rows: DeltaRows
    spans: DeltaSpans
    """By how much each lacks to where its tokens begin."""
    committed: IntArray
    """[S] where each state stands behind the step."""
    ends: IntArray
    """[S] up to where rings reach then."""
    kept: tuple[IntArray, IntArray, IntArray]
    """Rings, places in them and tokens that go there; [N] each."""
    moved_slots: IntArray
    """[M] slots of sequences with more tokens than a ring has."""
    moved_rows: IntArray
    """[M, taps - 1] the tokens before their new committed positions."""
    deltas: DeltaPlaces[IntArray] | None
    """Where rows and what is due of them are, for Triton; None where it does not run."""

    def fits(self, room: StateRoom) -> bool:
        """Whether there is room for it; for its sequences and tokens the caller sees to that."""
        chunks = 0 if self.deltas is None else len(self.deltas.firsts)
        return len(self.moved_slots) <= room.long and chunks <= room.chunks

    def padded(self, room: StateRoom, spare_slot: int) -> "StateMoves":
        """The same with more sequences: nobody's, which has all rows up to ``room.tokens``, and
        others without a row. All are on ``spare_slot`` and leave nothing."""
        rows, spans = self.rows, self.spans
        more = room.sequences - len(rows.slots)

        def longer(array: IntArray, value: int) -> IntArray:
            return np.pad(array, (0, more), constant_values=value)

        slots = longer(rows.slots, spare_slot)
        return replace(
            self,
            runs=np.pad(self.runs, (0, more)),
            rows=replace(
                rows,
                slots=slots,
                starts=longer(rows.starts, room.tokens),
                positions=longer(rows.positions, 0),
            ),
            spans=DeltaSpans(
                slots=slots,
                rings=longer(spans.rings, 0),
                committed=longer(spans.committed, 0),
                counts=longer(spans.counts, 0),
            ),
            committed=longer(self.committed, 0),
            ends=longer(self.ends, 0),
        )

    def places(self) -> StatePlaces[IntArray]:
        """The arrays of the step."""
        counts, before = np.diff(self.rows.starts), self.moved_rows.shape[1]
        many = len(self.moved_slots)
        return StatePlaces(
            slots=self.rows.slots,
            starts=self.rows.starts,
            sequence_of=np.repeat(np.arange(len(counts)), counts),
            kept_rings=self.kept[0],
            kept_places=self.kept[1],
            kept_tokens=self.kept[2],
            moved_slots=np.repeat(self.moved_slots, before),
            moved_places=np.tile(np.arange(before), many),
            moved_tokens=self.moved_rows.ravel(),
            handed_slots=self.moved_slots,
            handed_places=np.zeros(many, dtype=np.int64),
            handed_numbers=np.arange(many),
        )

    def arrays(self, room: StateRoom, spare_slot: int) -> list[IntArray]:
        """``StatePlaces`` and, where Triton runs, ``DeltaPlaces`` of a step with such ``room``."""
        whole = self.padded(room, spare_slot)
        own, before = whole.places(), self.moved_rows.shape[1]
        windows = room.long * before
        places = own._replace(
            kept_rings=_up_to(own.kept_rings, room.kept, NOWHERE),
            kept_places=_up_to(own.kept_places, room.kept, 0),
            kept_tokens=_up_to(own.kept_tokens, room.kept, 0),
            moved_slots=_up_to(own.moved_slots, windows, NOWHERE),
            moved_places=_up_to(own.moved_places, windows, 0),
            moved_tokens=_up_to(own.moved_tokens, windows, 0),
            handed_slots=_up_to(own.handed_slots, room.long, NOWHERE),
            handed_places=_up_to(own.handed_places, room.long, 0),
            handed_numbers=np.arange(room.long),
        )
        if self.deltas is None:
            return [*places]
        given, starts, many = self.deltas, whole.rows.starts[:-1], room.sequences
        deltas = DeltaPlaces(
            slots=whole.rows.slots,
            starts=starts,
            ends=np.concatenate((given.ends, starts[len(given.ends) :])),
            rings=whole.spans.rings,
            committed=whole.spans.committed,
            counts=whole.spans.counts,
            begins=_up_to(given.begins, many + 1, int(given.begins[-1])),
            firsts=_up_to(given.firsts, room.chunks, 0),
            lows=_up_to(given.lows, room.chunks, 0),
            highs=_up_to(given.highs, room.chunks, 0),
            handed_in=_up_to(given.handed_in, many, NOWHERE),
            handed_at=_up_to(given.handed_at, many, 0),
            handed_to=_up_to(given.handed_to, many, 0),
        )
        return [*places, *deltas]


def _up_to(array: IntArray, size: int, value: int) -> IntArray:
    return np.pad(array, (0, size - len(array)), constant_values=value)


def places_of(
    tensors: Sequence[Tensor],
) -> tuple[StatePlaces[Tensor], DeltaPlaces[Tensor] | None]:
    """What ``StateMoves.arrays`` are, of tensors in their order."""
    own, deltas = tensors[: len(StatePlaces._fields)], tensors[len(StatePlaces._fields) :]
    return StatePlaces(*own), DeltaPlaces(*deltas) if deltas else None


@dataclass(frozen=True, slots=True, kw_only=True)
class StateStep:
    """The states that recurrent layers of one step read, and the places where they leave those for
    the next one."""

    states: Tensor
    """[slots, layers, taps - 1, channels]: windows."""
    rings: Tensor
    """[rings, layers, RING, channels]"""
    rows: ConvRows
    deltas: DeltaStep | None
    kept: RingPlaces
    moved: RingPlaces
    """Slots, places in their windows and tokens that go there, of sequences with more tokens than a
    ring has."""
    in_place: bool = False
    """Windows are left in their slots by each layer."""
    settle: Callable[[], None] = lambda: None
    left: list[Tensor] = field(default_factory=list)

    def windows(self, layer: int) -> Tensor:
        """[slots, taps - 1, channels] of a layer, counted among the recurrent ones."""
        return self.states[:, layer]

    def keep(self, layer: int, inputs: Tensor) -> None:
        """Take the inputs [T, channels] of a layer's convolution."""
        ring_write(layer, self.kept, (self.rings, inputs))
        if not len(self.moved[0]):
            return
        if self.in_place:
            ring_write(layer, self.moved, (self.states, inputs))
        else:
            self.left.append(inputs[self.moved[2]].to(self.states.dtype))

    def done(self) -> None:
        """All layers have kept theirs: the states move on. Without this a step that failed leaves
        every state where it was."""
        new = torch.stack(self.left, dim=1) if self.left else None
        if self.deltas is not None:
            self.deltas.done()
        if new is not None:
            slots, places, _ = self.moved
            self.states[slots, :, places] = new
        self.settle()
