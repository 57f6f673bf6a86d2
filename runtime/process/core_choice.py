"""Keeps a process off the core on which an engine's main thread works.

Each step wakes the server, which has its tokens to send. As long as the engine's threads occupy all
cores the system lets it run on the core that woke it, and the step that follows begins when it is
done (docs/log/kernels.md says how long that takes). On another core the server works while the
engine's main thread does what it does alone.

The engine's threads stay free to move: what is known of its core is looked at again and again, and
where it rests every core is there for the others. Works where ``/proc`` tells and affinities can be
set (Linux); elsewhere nothing happens.
"""

import contextlib
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple

LOOK_S: Final = 0.1
"""Between two looks at an engine that works: it may go on elsewhere after each turn."""
RESTS_AFTER_S: Final = 2.0
"""Without a token; tools take as long between the turns of a session."""
_BUSY_SHARE = 0.5
"""A share of a look's time: a main thread that has worked less is not there for most of the
steps."""


class MainThread(NamedTuple):
    """The system's account of a process's main thread, by proc_pid_stat(5)."""

    core: int
    processor_s: float


def main_thread(process_id: int) -> MainThread | None:
    """The main thread of a process: its core and CPU time; None where nobody can tell."""
    try:
        text = Path(f"/proc/{process_id}/task/{process_id}/stat").read_text()
        fields = text.rpartition(")")[2].split()  # the name before may hold anything
        ticks = int(fields[11]) + int(fields[12])
        return MainThread(int(fields[36]), ticks / os.sysconf("SC_CLK_TCK"))
    except (OSError, ValueError, IndexError):
        return None


def own_cores() -> frozenset[int]:
    """The cores that this thread may run on; none where the system does not tell."""
    if sys.platform != "linux":
        return frozenset()
    return frozenset(os.sched_getaffinity(0))


def run_on(cores: frozenset[int]) -> None:
    """Have all threads of this process run on ``cores`` only. What cannot be moved stays."""
    if sys.platform != "linux":
        return
    for thread in Path("/proc/self/task").iterdir():
        with contextlib.suppress(OSError):  # it has ended, or the cores are gone
            os.sched_setaffinity(int(thread.name), cores)


class CoreChoice:
    """Where the threads of this process run, by what the engine's main thread does.

    Args:
        cores: that the process may run on.
        look: tells of a process's main thread.
        run_on: has all threads of this process run on some cores only.
    """

    def __init__(
        self,
        cores: frozenset[int] | None = None,
        *,
        look: Callable[[int], MainThread | None] = main_thread,
        run_on: Callable[[frozenset[int]], None] = run_on,
    ) -> None:
        self._all = own_cores() if cores is None else cores
        self._look = look
        self._run_on = run_on
        self._avoided: int | None = None
        self._last: tuple[int, float, float] | None = None  # process, its seconds, the time

    def tend(self, process_id: int, now_s: float) -> None:
        """Look at an engine's main thread and go out of its way. To be called every ``LOOK_S``."""
        seen, last = self._look(process_id), self._last
        self._last = None if seen is None else (process_id, seen.processor_s, now_s)
        busy = (
            seen is not None
            and last is not None
            and last[0] == process_id
            and seen.processor_s - last[1] >= _BUSY_SHARE * (now_s - last[2])
        )
        self._avoid(seen.core if seen is not None and busy else None)

    def back(self) -> None:
        """Run on all cores again, as a process does that has no engine."""
        self._avoid(None)

    def _avoid(self, core: int | None) -> None:
        if core is not None and len(self._all - {core}) == 0:
            core = None  # the only one
        if core == self._avoided:
            return
        self._avoided = core
        self._run_on(self._all if core is None else self._all - {core})
