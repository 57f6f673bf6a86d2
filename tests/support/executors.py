"""Executors that run tasks when a test wants it, in the test's own thread."""

import random
from collections import deque
from concurrent.futures import Executor, Future


class AtOnce(Executor):
    """Runs what it is given at once, so that a schedule does not depend on a thread."""

    def submit(self, fn, /, *args, **kwargs):  # type: ignore[no-untyped-def]
        future: Future[object] = Future()
        _run(future, fn, args, kwargs)
        return future


class Later(Executor):
    """Runs tasks in order, each at a random later time: when somebody asks whether it is done
    and the dice say so, or when somebody waits for its result."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._tasks: deque[tuple[_Lazy, tuple]] = deque()
        self._hurried = False

    def submit(self, fn, /, *args, **kwargs):  # type: ignore[no-untyped-def]
        future = _Lazy(self)
        self._tasks.append((future, (fn, args, kwargs)))
        if self._hurried:
            self.run_one()
        return future

    @property
    def num_waiting(self) -> int:
        """Tasks that have not been run."""
        return len(self._tasks)

    def run_some(self) -> None:
        """Run the oldest task or not, as it comes."""
        if self._tasks and self._rng.random() < 0.3:
            self.run_one()

    def hurry(self) -> None:
        """Run all tasks now, and those still to come at once."""
        while self._tasks:
            self.run_one()
        self._hurried = True

    def run_one(self) -> None:
        future, (fn, args, kwargs) = self._tasks.popleft()
        _run(future, fn, args, kwargs)


class _Lazy(Future):
    def __init__(self, executor: Later) -> None:
        super().__init__()
        self._executor = executor

    def done(self) -> bool:
        if not super().done():
            self._executor.run_some()
        return super().done()

    def result(self, timeout: float | None = None):  # type: ignore[no-untyped-def]
        while not super().done():
            self._executor.run_one()
        return super().result(timeout)


def _run(future: Future, fn, args, kwargs) -> None:  # type: ignore[no-untyped-def]
    try:
        future.set_result(fn(*args, **kwargs))
    except Exception as error:
        future.set_exception(error)
