"""Work on grammars in the background: sequences that do not need it do not wait for it.

What a sequence emits for a drawn token may take a search through its grammar: mostly some
microseconds, for a hostile schema many milliseconds; the first look at a new grammar takes
longer. All such work of a step together has a share of the time that a step takes. What is not
done by then goes on beside later steps, piece by piece and in turn; the sequences that wait for it
are left out of steps until it is done, and nobody else is.

Knows work in pieces and the clock. Knows no grammar, no schedule and no cache.

Always true: what work yields does not depend on when it is done; in every step some of it is
done, that which has waited longest first.
"""

from collections import deque
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

from runtime.grammar.closing import Work
from runtime.scheduling.sequence import Sequence

SHARE = 0.2
"""The share of a step's mean time for all such work together."""
_FIRST_STEP_S = 0.002
_LEAST_S = 0.0001
_IDLE_STEP_S = 0.005
"""Where nobody waits, work is only interrupted to hear of new messages."""
_LEARNING_RATE = 0.1

Result = TypeVar("Result")


class Pieces(Generic[Result]):
    """Work that is done piece by piece, and what it came to."""

    __slots__ = ("_result", "_work")

    def __init__(self, work: Work[Result]) -> None:
        self._work = work
        self._result: Result | None = None

    def advance(self) -> bool:
        """Do one piece; True if that was the last one."""
        try:
            next(self._work)
        except StopIteration as end:
            self._result = end.value
            return True
        return False

    def close(self) -> None:
        """Give up what is not done."""
        self._work.close()

    @property
    def result(self) -> Result:
        """The result of the work in the end, never None."""
        assert self._result is not None, "the work is not over"
        return self._result


class Progress(Protocol):
    """The progress of work in pieces whose result is somebody else's."""

    def advance(self) -> bool: ...

    def close(self) -> None: ...


class BackgroundTask(Protocol):
    """Something to be done in pieces, and what follows from it."""

    @property
    def pieces(self) -> Progress: ...

    @property
    def is_void(self) -> bool:
        """Nobody waits for it any more."""
        ...

    def holds(self, sequence: Sequence) -> bool:
        """Whether an admitted sequence must not run before it is done."""
        ...

    def conclude(self) -> None:
        """Draw the consequences of the result, which is there."""
        ...


class BackgroundTasks:
    """Tasks of one engine, worked on piece by piece beside its steps."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.clock = clock
        self.queue: deque[BackgroundTask] = deque()
        self._step_s = _FIRST_STEP_S
        self._left_s = 0.0
        self.spent_s = 0.0
        """Time that tasks took since ``begin_step``."""

    def __len__(self) -> int:
        return len(self.queue)

    def __contains__(self, sequence: Sequence) -> bool:
        return any(task.holds(sequence) for task in self.queue)

    @property
    def mean_step_s(self) -> float:
        """The mean time of steps, tasks not counted."""
        return self._step_s

    def begin_step(self, *, idle: bool = False) -> None:
        """A new share of time begins; ``idle``: nobody would wait for the step."""
        self._left_s = _IDLE_STEP_S if idle else max(SHARE * self._step_s, _LEAST_S)
        self.spent_s = 0.0

    def end_step(self, seconds: float) -> None:
        """A step took so long, tasks not counted."""
        self._step_s += _LEARNING_RATE * (seconds - self._step_s)

    def drop_void(self) -> None:
        """Forget what nobody waits for any more. To be called before work goes on."""
        kept: deque[BackgroundTask] = deque()
        for task in self.queue:
            if task.is_void:
                task.pieces.close()
            else:
                kept.append(task)
        self.queue = kept

    def finished_at_once(self, task: BackgroundTask) -> bool:
        """Whether the task is over within what is left of the step's share; if not it goes on in
        the background. Its consequences are the caller's in the first case, ``resume``'s in the
        second."""
        if self._work(task):
            return True
        self.queue.append(task)
        return False

    def resume(self) -> None:
        """Work on what is in the background for what is left of the step's share, one piece at
        least; then conclude what came to an end."""
        done: list[BackgroundTask] = []
        while self.queue:
            task = self.queue.popleft()
            if self._work(task):
                done.append(task)
            else:
                self.queue.append(task)
            if self._left_s <= 0.0:
                break
        for task in done:
            task.conclude()

    def _work(self, task: BackgroundTask) -> bool:
        """Work on a task while time is left; True if it came to its end."""
        started = self.clock()
        try:
            while not task.pieces.advance():
                if self.clock() - started >= self._left_s:
                    return False
            return True
        finally:
            spent = self.clock() - started
            self._left_s -= spent
            self.spent_s += spent
