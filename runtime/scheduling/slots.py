"""Slots for running sequences: when all are taken, a long sequence is paused for a shorter one.

A paused sequence keeps its blocks and goes on when it has a slot again. Knows levels and the order
of sequences. Knows nothing of the blocks that a sequence needs to be admitted.
"""

from runtime.config import EngineConfig
from runtime.scheduling.order import Key, SequenceOrder
from runtime.scheduling.policy import NUM_LEVELS
from runtime.scheduling.queues import Queues
from runtime.scheduling.sequence import Sequence
from runtime.scheduling.step_plan import StepPlan

SlotOffer = tuple[bool, Sequence | None]
"""Whether there is a slot, and which sequence has it now and is to be paused."""
_FREE_SLOT: SlotOffer = (True, None)
_NO_SLOT: SlotOffer = (False, None)
_LONG_SEQUENCES_SHARE = 8
"""One slot in so many, and at least one, is not taken from a long sequence for a shorter one."""


class Slots:
    """``max_running`` slots for the sequences of one scheduler."""

    def __init__(self, config: EngineConfig, order: SequenceOrder, queues: Queues) -> None:
        self._num_slots = config.max_running
        self._order = order
        self._queues = queues
        self._victims: list[tuple[Key, Sequence | None]] | None = None

    def changed(self) -> None:
        """Look again for who would lose a slot next: another sequence has one, or time has
        passed."""
        self._victims = None

    def find(self, sequence: Sequence, key: Key, now: float) -> SlotOffer:
        """A slot for ``sequence``, which has ``key`` in the order."""
        if self._num_slots > len(self._queues.running) - len(self._queues.paused):
            return _FREE_SLOT
        if self._order.policy.strict:
            return _NO_SLOT
        if self._victims is None:
            self._victims = self._victims_of_length(now)
        mine = self._order.level(sequence, now)
        victim_key, victim = self._victims[mine]
        return (True, victim) if victim is not None and victim_key > key else _NO_SLOT

    def _victims_of_length(self, now: float) -> list[tuple[Key, Sequence | None]]:
        """By the level of who wants a slot: the last one in the order of the longer sequences
        that run, None where none loses its slot."""
        long: list[tuple[int, Sequence]] = []
        for sequence in self._queues.running:
            if sequence not in self._queues.paused and sequence.finish is None:
                long.append((self._order.level(sequence, now), sequence))
        long = [(length, sequence) for length, sequence in long if length]
        none: tuple[Key, Sequence | None] = ((), None)
        if len(long) <= max(1, self._num_slots // _LONG_SEQUENCES_SHARE):
            return [none] * NUM_LEVELS
        keyed = [(length, self._order.key(sequence, now), sequence) for length, sequence in long]
        return [
            max(((k, s) for n, k, s in keyed if n > mine), key=lambda pair: pair[0], default=none)
            for mine in range(NUM_LEVELS)
        ]

    def pause(self, sequence: Sequence, step: StepPlan) -> None:
        """Take a sequence out of the step and its slot from it."""
        self.changed()
        step.chunks.pop(sequence, None)
        step.paused.append(sequence)
        self._queues.pause(sequence)

    def resume(self, sequence: Sequence, key: Key, now: float, step: StepPlan) -> bool:
        """Give a paused sequence a slot, if there is one for it."""
        found, victim = self.find(sequence, key, now)
        if not found:
            return False
        if victim is not None:
            self.pause(victim, step)
        self.changed()
        self._queues.resume(sequence)
        return True
