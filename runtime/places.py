"""Places for turns: when all are taken, a long turn that runs is paused for a shorter one.

It keeps its blocks and goes on when its turn comes again. Knows levels and the order of turns.
Knows nothing of blocks that a turn needs to be admitted.
"""

from runtime.config import EngineConfig
from runtime.policy import NUM_LEVELS
from runtime.roster import Roster
from runtime.schedule import StepPlan
from runtime.sequence import Sequence
from runtime.turn_order import Key, TurnOrder

Place = tuple[bool, Sequence | None]
"""Whether there is one, and who has it now and is to be paused."""
_FREE_PLACE: Place = (True, None)
_NO_PLACE: Place = (False, None)
_LONG_TURNS_SHARE = 8
"""One place in so many, and at least one, is not taken from a long turn for a shorter one."""


class Places:
    """``max_running`` places for the turns of one roster."""

    def __init__(self, config: EngineConfig, order: TurnOrder, roster: Roster) -> None:
        self._num_places = config.max_running
        self._strict = config.policy == "fcfs"
        """Nobody loses a place."""
        self._order = order
        self._roster = roster
        self._victims: list[tuple[Key, Sequence | None]] | None = None

    def changed(self) -> None:
        """Who would lose a place next has to be found again: another turn has one, or time
        has passed."""
        self._victims = None

    def find(self, sequence: Sequence, key: Key, now: float) -> Place:
        """A place for ``sequence``, which has ``key`` in the order."""
        if self._num_places > len(self._roster.running) - len(self._roster.paused):
            return _FREE_PLACE
        if self._strict:
            return _NO_PLACE
        if self._victims is None:
            self._victims = self._victims_of_length(now)
        mine = self._order.level(sequence, now)
        victim_key, victim = self._victims[mine]
        return (True, victim) if victim is not None and victim_key > key else _NO_PLACE

    def _victims_of_length(self, now: float) -> list[tuple[Key, Sequence | None]]:
        """By the level of who wants a place: the last one in the order of the longer turns
        that run, None where none has to give its place."""
        long: list[tuple[int, Sequence]] = []
        for sequence in self._roster.running:
            if sequence not in self._roster.paused and sequence.finish is None:
                long.append((self._order.level(sequence, now), sequence))
        long = [(length, sequence) for length, sequence in long if length]
        none: tuple[Key, Sequence | None] = ((), None)
        if len(long) <= max(1, self._num_places // _LONG_TURNS_SHARE):
            return [none] * NUM_LEVELS
        keyed = [(length, self._order.key(sequence, now), sequence) for length, sequence in long]
        return [
            max(((k, s) for n, k, s in keyed if n > mine), key=lambda pair: pair[0], default=none)
            for mine in range(NUM_LEVELS)
        ]

    def pause(self, sequence: Sequence, step: StepPlan) -> None:
        """Take a turn out of the step and its place from it."""
        self.changed()
        step.chunks.pop(sequence, None)
        step.paused.append(sequence)
        self._roster.pause(sequence)

    def resume(self, sequence: Sequence, key: Key, now: float, step: StepPlan) -> bool:
        """Give a paused turn a place, if there is one for it."""
        placed, victim = self.find(sequence, key, now)
        if not placed:
            return False
        if victim is not None:
            self.pause(victim, step)
        self.changed()
        self._roster.resume(sequence)
        return True
