"""Python's collector of cyclic garbage in front end and engine: never long at once.

A full collection looks at all that there is: with 10,000 sessions in memory that takes hundreds of
milliseconds of the event loop, and 100 ms of an engine that has only just loaded. So what survives
the oldest generation is set aside (``gc.freeze``), and each automatic collection looks at no more
than what was made since. What is kept for long has to go without the collector: sockets,
connections, sessions and responses leave no cycles behind (``tests/e2e/test_left_behind.py``). For
cycles that nobody knows of everything is looked at again once an hour, as soon as nothing has run
for a while; seldomer where that finds nothing.

Always true: any other collection looks at ``MOST_OBJECTS`` or fewer.
"""

import asyncio
import gc
import logging
import time
from collections.abc import Awaitable, Callable
from typing import Any

log = logging.getLogger(__name__)

THRESHOLDS = (500, 4, 1)
"""So many objects made and still there before the youngest are looked at; so often that before
those that survived it are looked at as well; and so often that before all since the last time."""
MOST_OBJECTS = 10_000
"""Most objects of a collection that takes a few milliseconds."""
WHOLE_EVERY_S = 3600.0
MOST_WHOLE_EVERY_S = 24 * 3600.0
FEW = 10_000
"""Objects found by looking at everything that are no reason to do it as often."""
LOOK_EVERY_S = 5.0
QUIET_LOOKS = 6
"""Nothing was running at so many looks in a row."""
QUIET_S = QUIET_LOOKS * LOOK_EVERY_S


def keep_short() -> None:
    """From now on, with all that is there set aside."""
    gc.set_threshold(*THRESHOLDS)
    if set_aside not in gc.callbacks:
        gc.callbacks.append(set_aside)
    _collect()


def set_aside(phase: str, info: dict[str, Any]) -> None:
    """The collector's callback: what a whole collection leaves is not looked at again."""
    if phase == "stop" and info["generation"] == 2:
        gc.freeze()


def _collect() -> int:
    """Collect all that is not set aside; what survives is set aside."""
    found = gc.collect()
    gc.collect()  # Python lets as much pass as a quarter of what the last one left: now nothing
    return found


def collect_whole() -> int:
    """Look at everything; returns how many objects were found."""
    begun_s = time.thread_time()
    gc.unfreeze()
    found = _collect()
    taken_ms = (time.thread_time() - begun_s) * 1000
    log.debug("everything was looked at for garbage objects=%d cpu_ms=%.1f", found, taken_ms)
    return found


class WholeCollections:
    """When to look at everything: seldom, and when told that nothing runs."""

    def __init__(
        self, clock: Callable[[], float], collect: Callable[[], int] = collect_whole
    ) -> None:
        self._clock = clock
        self._collect = collect
        self._every_s = WHOLE_EVERY_S
        self._last_s = clock()
        self._idle_s = 0.0

    def busy(self) -> None:
        """Something runs that a whole collection would delay."""
        self._idle_s = 0.0

    def idle(self, seconds: float) -> None:
        """Nothing has run for so much longer."""
        self._idle_s += seconds
        if self._idle_s >= QUIET_S:
            self._idle_s = 0.0
            self.quiet()

    def quiet(self) -> bool:
        """Nothing has run for ``QUIET_S``: whether everything was looked at."""
        if self._clock() - self._last_s < self._every_s:
            return False
        many = self._collect() > FEW
        self._every_s = WHOLE_EVERY_S if many else min(2 * self._every_s, MOST_WHOLE_EVERY_S)
        self._last_s = self._clock()
        return True


async def collect_when_quiet(
    busy: Callable[[], bool],
    collections: WholeCollections,
    *,
    pause: Callable[[float], Awaitable[None]] = asyncio.sleep,
) -> None:
    """Look at everything now and then, while nothing is ``busy``, until cancelled."""
    quiet = 0
    while True:
        await pause(LOOK_EVERY_S)
        quiet = 0 if busy() else quiet + 1
        if quiet >= QUIET_LOOKS and collections.quiet():
            quiet = 0
