"""Work on grammars that steps aside, so that turns which do not need it need not wait for it.

What a turn emits for a drawn token may take a search through its grammar: mostly some
microseconds, for a hostile schema many milliseconds; the first look at a new grammar takes
longer. All such work of a step together has a share of the time that a step takes. What is not
done by then goes on beside later steps, piece by piece and in turn; the turns that wait for it
are left out of steps until it is done, and nobody else is.

Knows work in pieces and the clock. Knows no grammar, no schedule and no cache.

Always true: what work yields does not depend on when it is done; in every step some of it is
done, that which has waited longest first.
"""

from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

from runtime.grammar_closing import Work
from runtime.sequence import Sequence

SHARE = 0.2
"""Of the mean time of a step, for all such work together."""
_FIRST_STEP_S = 0.002
_LEAST_S = 0.0001
_IDLE_STEP_S = 0.005
"""Where nobody waits, work is only interrupted to hear of new messages."""
_LEARNING_RATE = 0.1


class Errand(Protocol):
    """Something to be done in pieces."""

    @property
    def work(self) -> Work[Any]: ...

    @property
    def is_void(self) -> bool:
        """Nobody waits for it any more."""
        ...

    def holds(self, sequence: Sequence) -> bool:
        """Whether an admitted turn must not run before it is done."""
        ...


class Aside:
    """What stands aside."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._queue: deque[Errand] = deque()
        self._step_s = _FIRST_STEP_S
        self._left_s = 0.0
        self.spent_s = 0.0
        """Time that errands took since ``begin_step``."""

    def __len__(self) -> int:
        return len(self._queue)

    def __contains__(self, sequence: Sequence) -> bool:
        return any(errand.holds(sequence) for errand in self._queue)

    @property
    def mean_step_s(self) -> float:
        """What steps take, errands not counted."""
        return self._step_s

    def begin_step(self, *, idle: bool = False) -> None:
        """A new share of time begins; ``idle``: nobody would wait for the step."""
        self._left_s = _IDLE_STEP_S if idle else max(SHARE * self._step_s, _LEAST_S)
        self.spent_s = 0.0

    def end_step(self, seconds: float) -> None:
        """A step took so long, errands not counted."""
        self._step_s += _LEARNING_RATE * (seconds - self._step_s)

    def drop_void(self) -> None:
        """Forget what nobody waits for any more. To be called before work goes on."""
        kept: deque[Errand] = deque()
        for errand in self._queue:
            if errand.is_void:
                errand.work.close()
            else:
                kept.append(errand)
        self._queue = kept

    def begin(self, errand: Errand) -> Any:
        """The result, never None, if it is there within what is left of the step's share; else
        None, and the errand stands aside."""
        result = self._work(errand)
        if result is None:
            self._queue.append(errand)
        return result

    def go_on(self) -> list[tuple[Errand, Any]]:
        """Work on what stands aside for what is left of the step's share, one piece at least;
        returns what came to an end, and its results."""
        done: list[tuple[Errand, Any]] = []
        while self._queue:
            errand = self._queue.popleft()
            result = self._work(errand)
            if result is None:
                self._queue.append(errand)
            else:
                done.append((errand, result))
            if self._left_s <= 0.0:
                break
        return done

    def _work(self, errand: Errand) -> Any:
        started = self._clock()
        try:
            while True:
                next(errand.work)
                if self._clock() - started >= self._left_s:
                    return None
        except StopIteration as end:
            return end.value
        finally:
            spent = self._clock() - started
            self._left_s -= spent
            self.spent_s += spent
