"""The states of recurrent layers, in slots: what a sequence is resumed from beside its KV.

Which slot belongs to whom is ``radix_cache``'s business; here a slot is an index, and all of its
layers lie together, so that a slot is one copy. A running slot lags: it holds the state at a
*committed* position and, in a ring, what takes it on by each of the tokens behind: inputs of
convolutions, factors of matrices. So a sequence can go on from any position between the two: behind
a rejected draft, before a step that was begun too far.

Numbers are float32, or float64 for a float64 model. A state never sees a token of another sequence:
it is zeroed when its slot begins at position 0.

Always true: what a step reads of a slot is the state at the position at which the step begins.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from kernels.conv_windows import move_windows
from kernels.delta_rows import DeltaRows, DeltaSpans
from kernels.dispatch import wants_triton
from kernels.short_conv import ConvRows
from kernels.upload import upload_together
from runtime.model.batch import NO_STATE, IntArray
from runtime.model.config import LoadError, ModelConfig
from runtime.model.delta_states import DeltaStates, delta_bytes, factor_bytes
from runtime.model.recurrent import OfMatrices, Recurrent
from runtime.model.state_step import (
    RING,
    StateMoves,
    StatePlaces,
    StateRoom,
    StateStep,
    places_of,
)

_NO_RING = -1


class StatePool:
    """States of ``num_slots`` sequences, so many of which may run at a time as there are rings.

    Raises:
        LoadError: there is not that much memory.
    """

    def __init__(
        self,
        config: ModelConfig,
        *,
        num_slots: int,
        num_rings: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        spec = config.recurrent[0]
        layers, wide = len(config.recurrent), state_dtype(dtype)
        self.num_slots, self.num_rings = num_slots, num_rings
        self._taps, self._device = spec.taps, device
        self.state_bytes = state_bytes(config, dtype)
        self._ring_bytes = ring_bytes(config, dtype)
        numbers = self.state_bytes // wide.itemsize
        in_windows = layers * (spec.taps - 1) * spec.channels
        self._deltas: DeltaStates | None = None
        try:
            # One more that stays zero, and is the last: of sequences without a slot.
            self.rows = torch.zeros(num_slots + 1, numbers, dtype=wide, device=device)
            """[slots + 1, numbers]"""
            windows, rest = self.rows.tensor_split([in_windows], dim=1)
            self._windows = windows.view(num_slots + 1, layers, spec.taps - 1, spec.channels)
            self.rings = torch.zeros(
                num_rings, layers, RING, spec.channels, dtype=dtype, device=device
            )
            """[rings, layers, RING, channels]: the last inputs of running sequences."""
            if isinstance(spec, OfMatrices):
                size = spec.value_heads, spec.key_dim, spec.value_dim
                self._deltas = DeltaStates(
                    spec, rest.view(num_slots + 1, layers, *size), (num_rings, RING)
                )
        except RuntimeError as error:
            raise LoadError(
                f"{num_slots} state slots take {num_slots * self.state_bytes / (1 << 30):.1f} GiB, "
                f"which cannot be had on {device.type}: fewer state_slots would fit"
            ) from error
        self.committed = np.zeros(num_slots, dtype=np.int64)
        """[slots]: the positions that states stand at."""
        self.reached = np.zeros(num_slots, dtype=np.int64)
        """[slots]: the positions up to which rings have inputs."""
        self._ring_of = np.full(num_slots, _NO_RING, dtype=np.int64)
        self._free_rings = list(range(num_rings))[::-1]

    @property
    def most_draft_tokens(self) -> int:
        """A step's longest draft behind which a sequence can go back to where it began, however
        many tokens come before it."""
        return RING - self._taps

    @property
    def num_bytes(self) -> int:
        """Memory of all slots and rings."""
        return (self.num_slots + 1) * self.state_bytes + self.num_rings * self._ring_bytes

    @property
    def states(self) -> Tensor:
        """The whole pool: [slots, numbers], windows of convolutions first."""
        return self.rows[: self.num_slots]

    @property
    def windows(self) -> Tensor:
        """[slots, layers, taps - 1, channels] within the states."""
        return self._windows[: self.num_slots]

    def begin(self, slot: int, *, source: int | None, position: int) -> None:
        """A sequence runs on ``slot`` from ``position`` on: with the state of ``source``, which
        may be the slot itself; None: with that of an empty transcript, at position 0.

        Raises:
            ValueError: as many run already as may.
        """
        if self._ring_of[slot] == _NO_RING and not self._free_rings:
            raise ValueError(f"a sequence begins where {self.num_rings} run already")
        self._catch_up()
        if source is None:
            self.rows[slot] = 0
        elif source != slot:
            self.rows[slot] = self.rows[source]
        if self._ring_of[slot] == _NO_RING:
            self._ring_of[slot] = self._free_rings.pop()
        self.committed[slot] = self.reached[slot] = position

    def bring(self, slot: int, *, position: int) -> bool:
        """A running slot holds the state at ``position`` until the next step; False where that is
        not finite."""
        self._catch_up()
        self.commit(np.array([slot]), np.array([position]))
        return self._is_finite(slot)

    def save(self, slot: int, *, target: int, position: int) -> bool:
        """Copy the state of a running slot at ``position`` to another; False where it is not
        finite."""
        whole = self.bring(slot, position=position)
        self.rows[target] = self.rows[slot]
        return whole

    def end(self, slot: int, *, position: int | None) -> bool:
        """No sequence runs on ``slot`` any more; it keeps the state at ``position``, None for none.
        False where that is not finite."""
        self._catch_up()
        if position is not None:
            self.commit(np.array([slot]), np.array([position]))
        if self._ring_of[slot] != _NO_RING:
            self._free_rings.append(int(self._ring_of[slot]))
            self._ring_of[slot] = _NO_RING
        return position is None or self._is_finite(slot)

    def _is_finite(self, slot: int) -> bool:
        return bool(torch.isfinite(self.rows[slot]).all())

    def step(self, slots: IntArray, positions: IntArray, query_starts: IntArray) -> StateStep:
        """``plan`` and ``begin_step`` in one."""
        return self.begin_step(self.plan(slots, positions, query_starts))

    def plan(self, slots: IntArray, positions: IntArray, query_starts: IntArray) -> StateMoves:
        """Work out a step before which each sequence's state is brought to where its tokens begin.

        Args:
            slots: [S], ``NO_STATE`` and ``TRIAL_STATE`` among them.
            positions: [S] of the first token of each.
            query_starts: [S + 1] where the tokens of each begin.

        Raises:
            ValueError: a sequence without a state that does not begin, one on a slot that none
                has begun on, or one whose state cannot be brought there.
        """
        if (positions[slots == NO_STATE] > 0).any():
            raise ValueError("a sequence goes on from a state, and has no slot with one")
        if (self._ring_of[slots[slots >= 0]] == _NO_RING).any():
            raise ValueError("a sequence runs on a slot that none has begun on")
        self._catch_up()
        spans = self._spans(slots, positions)
        runs, counts = slots >= 0, np.diff(query_starts)
        ends, before = positions + counts, self._taps - 1
        long = runs & (counts > RING)
        committed = np.where(long, np.maximum(positions + before, ends - RING), positions)
        firsts = (query_starts[:-1] + committed - positions)[long]
        handed = zip(
            np.flatnonzero(long).tolist(), (committed - positions)[long].tolist(), strict=True
        )
        rows = DeltaRows(
            slots=spans.slots, starts=query_starts, positions=positions, handed=tuple(handed)
        )
        return StateMoves(
            runs=runs,
            spans=spans,
            committed=committed,
            ends=ends,
            rows=rows,
            kept=self._kept(slots, committed, ends, query_starts, counts),
            moved_slots=slots[long],
            moved_rows=firsts[:, None] + np.arange(-before, 0),
            deltas=rows.places(spans) if wants_triton(self._device) else None,
        )

    def begin_step(self, plan: StateMoves) -> StateStep:
        """Begin a step that was planned: what is due is done here, or as its layers are reached."""
        runs, rows, spans = plan.runs, plan.rows, plan.spans
        arrays = [*plan.places(), *(() if plan.deltas is None else plan.deltas)]
        places, of_deltas = places_of(upload_together(arrays, self._device))
        self._move_windows(rows.slots[runs], rows.positions[runs])
        deltas = None  # from here on matrices are due to be where the windows are
        if self._deltas is not None:
            rows = replace(rows, there=of_deltas)
            deltas = self._deltas.step(rows, spans, places.kept, places.handed)
        return StateStep(
            states=self._windows,
            rings=self.rings,
            rows=self._conv_rows(places, rows.starts),
            deltas=deltas,
            kept=places.kept,
            moved=places.moved,
            settle=lambda: self.settle(plan),
        )

    def recorded_step(self, tensors: Sequence[Tensor], room: StateRoom) -> StateStep:
        """A step that is recorded on Triton's kernels, over ``StateMoves.arrays`` in ``tensors``,
        whatever these are when it is played. Whoever plays it says so by ``settle``."""
        places, of_deltas = places_of(tensors)
        assert of_deltas is not None
        none = np.zeros(room.sequences, dtype=np.int64)
        starts = np.zeros(room.sequences + 1, dtype=np.int64)
        there = of_deltas.slots, of_deltas.rings, of_deltas.committed, of_deltas.counts
        spans = DeltaSpans(slots=none, rings=none, committed=none, counts=none, there=there)
        deltas = None
        if self._deltas is not None:
            rows = DeltaRows(
                slots=none,
                starts=starts,
                positions=none,
                handed=((0, 0),) * room.long,
                there=of_deltas,
                recorded=True,
            )
            deltas = self._deltas.recorded_step(rows, spans, places.kept, places.handed)
        move_windows(self._windows, self.rings, spans)
        return StateStep(
            states=self._windows,
            rings=self.rings,
            rows=self._conv_rows(places, starts),
            deltas=deltas,
            kept=places.kept,
            moved=places.moved,
            in_place=True,
        )

    def rehearse(self) -> None:
        """Bring nobody's state to where it is: no commit compiles anything afterwards."""
        spare, zero = np.array([self.num_slots]), np.zeros(1, dtype=np.int64)
        nothing = DeltaSpans(slots=spare, rings=zero, committed=zero, counts=zero)
        move_windows(self._windows, self.rings, nothing)
        if self._deltas is not None:
            self._deltas.commit(nothing)

    def _conv_rows(self, places: StatePlaces[Tensor], starts: IntArray) -> ConvRows:
        there = places.starts, places.sequence_of
        return ConvRows(slots=places.slots, starts=starts, taps=self._taps, there=there)

    def settle(self, plan: StateMoves) -> None:
        """Note that the step of ``plan`` has been computed."""
        slots = plan.rows.slots[plan.runs]
        self.committed[slots] = plan.committed[plan.runs]
        self.reached[slots] = plan.ends[plan.runs]

    def _kept(
        self,
        slots: IntArray,
        committed: IntArray,
        ends: IntArray,
        query_starts: IntArray,
        counts: IntArray,
    ) -> tuple[IntArray, IntArray, IntArray]:
        """Rings, places in them and tokens of a step whose inputs go there."""
        lengths = np.where(slots >= 0, ends - committed, 0)
        sequence = np.repeat(np.arange(len(slots)), lengths)
        first = np.cumsum(lengths) - lengths
        position = np.arange(lengths.sum()) - first[sequence] + committed[sequence]
        begins = ends - counts
        tokens = query_starts[:-1][sequence] + position - begins[sequence]
        return self._ring_of[slots[sequence]], position % RING, tokens

    def _catch_up(self) -> None:
        if self._deltas is not None:
            self._deltas.catch_up()

    def commit(self, slots: IntArray, positions: IntArray) -> None:
        """Bring states to ``positions``, from what they are and the inputs behind."""
        lacking = self._spans(slots, positions)
        self._move_windows(slots, positions)
        if self._deltas is not None and lacking.counts.any():
            self._deltas.commit(lacking)

    def _spans(self, slots: IntArray, positions: IntArray) -> DeltaSpans:
        """What states lack to ``positions``; those without a slot nothing.

        Raises:
            ValueError: one cannot be brought there.
        """
        runs = slots >= 0
        there = slots[runs]
        committed, rings = positions.copy(), np.zeros_like(positions)
        committed[runs], rings[runs] = self.committed[there], self._ring_of[there]
        if ((positions < committed)[runs] | (positions[runs] > self.reached[there])).any():
            spans = list(zip(committed[runs].tolist(), self.reached[there].tolist(), strict=True))
            raise ValueError(f"states within {spans} cannot be brought to {positions.tolist()}")
        return DeltaSpans(
            slots=np.where(runs, slots, self.num_slots),
            rings=rings,
            committed=committed,
            counts=positions - committed,
        )

    def _move_windows(self, slots: IntArray, positions: IntArray) -> None:
        """Bring the windows to ``positions``; matrices are there, or will be when they are read."""
        stale = self.committed[slots] != positions
        if not stale.any():
            return
        slots, positions = slots[stale], positions[stale]
        committed = self.committed[slots]
        spans = DeltaSpans(
            slots=slots,
            rings=self._ring_of[slots],
            committed=committed,
            counts=positions - committed,
        )
        move_windows(self._windows, self.rings, spans)
        self.committed[slots] = positions


def state_dtype(dtype: torch.dtype) -> torch.dtype:
    """The dtype of the states of a model in ``dtype``."""
    return torch.promote_types(dtype, torch.float32)


def state_bytes(config: ModelConfig, dtype: torch.dtype) -> int:
    """Memory of one slot; 0 for a model without recurrent layers."""
    itemsize = state_dtype(dtype).itemsize
    return sum(_layer_bytes(spec, itemsize) for spec in config.recurrent)


def _layer_bytes(spec: Recurrent, itemsize: int) -> int:
    window = (spec.taps - 1) * spec.channels * itemsize
    return window + (delta_bytes(spec, itemsize) if isinstance(spec, OfMatrices) else 0)


def ring_bytes(config: ModelConfig, dtype: torch.dtype) -> int:
    """Memory that a running sequence takes beside its slot."""
    total = 0
    for spec in config.recurrent:
        total += spec.channels * dtype.itemsize
        if isinstance(spec, OfMatrices):
            total += factor_bytes(spec, state_dtype(dtype).itemsize)
    return RING * total
