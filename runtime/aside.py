"""Turns that step aside while their grammar is asked, so that others need not wait for it.

What a turn emits for a drawn token may take a search through its grammar: mostly some
microseconds, for a hostile schema many milliseconds. All searches of a step together have a
share of the time that a step takes. What is not done by then goes on beside later steps, piece
by piece and in turn; its turn is left out of steps until it is done, and nobody else is.

Knows work in pieces and the clock. Knows no grammar, no schedule and no cache.

Always true: what a turn emits does not depend on when its work is done; a turn that stands
aside has a piece done in every step, the one that has waited longest first.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from runtime.emission import Taken
from runtime.grammar_closing import Work
from runtime.sequence import Sequence

SHARE = 0.2
"""Of the mean time of a step, for the searches of all turns together."""
_FIRST_STEP_S = 0.002
_LEAST_S = 0.0001
_IDLE_STEP_S = 0.005
"""What is left to do then is only interrupted to hear of new messages."""
_LEARNING_RATE = 0.1


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Settlement:
    """What one turn makes of the tokens drawn for it, in the making."""

    sequence: Sequence
    num_drafted: int
    work: Work[Taken]
    preemptions: int
    """Of the turn when the tokens were drawn; more by now means that its KV is gone."""

    @property
    def is_void(self) -> bool:
        """The turn has ended otherwise, or had to give way: then it will draw these tokens
        again, and the same ones."""
        sequence = self.sequence
        return sequence.finish is not None or sequence.preemptions != self.preemptions


class Aside:
    """The turns that stand aside."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._queue: deque[Settlement] = deque()
        self._step_s = _FIRST_STEP_S
        self._left_s = 0.0
        self.spent_s = 0.0
        """Time that settlements took since ``begin_step``."""

    def __len__(self) -> int:
        return len(self._queue)

    def __contains__(self, sequence: Sequence) -> bool:
        return any(settlement.sequence is sequence for settlement in self._queue)

    @property
    def mean_step_s(self) -> float:
        """What steps take, settlements not counted."""
        return self._step_s

    def begin_step(self, *, idle: bool = False) -> None:
        """A new share of time begins; ``idle``: the step computes nothing else."""
        self._left_s = _IDLE_STEP_S if idle else max(SHARE * self._step_s, _LEAST_S)
        self.spent_s = 0.0

    def end_step(self, seconds: float) -> None:
        """A step took so long, settlements not counted."""
        self._step_s += _LEARNING_RATE * (seconds - self._step_s)

    def drop_void(self) -> None:
        """Forget what nobody waits for any more. To be called before turns are gone on with."""
        kept: deque[Settlement] = deque()
        for settlement in self._queue:
            if settlement.is_void:
                settlement.work.close()
            else:
                kept.append(settlement)
        self._queue = kept

    def settle(self, settlement: Settlement) -> Taken | None:
        """What the turn takes, if that is known within what is left of the step's share; else
        the turn stands aside."""
        taken = self._work(settlement)
        if taken is None:
            self._queue.append(settlement)
        return taken

    def go_on(self) -> list[tuple[Settlement, Taken]]:
        """Work on what stands aside for what is left of the step's share, one piece at least;
        returns what came to an end."""
        done: list[tuple[Settlement, Taken]] = []
        while self._queue:
            settlement = self._queue.popleft()
            taken = self._work(settlement)
            if taken is None:
                self._queue.append(settlement)
            else:
                done.append((settlement, taken))
            if self._left_s <= 0.0:
                break
        return done

    def _work(self, settlement: Settlement) -> Taken | None:
        started = self._clock()
        try:
            while True:
                next(settlement.work)
                if self._clock() - started >= self._left_s:
                    return None
        except StopIteration as end:
            taken: Taken = end.value
            return taken
        finally:
            spent = self._clock() - started
            self._left_s -= spent
            self.spent_s += spent
