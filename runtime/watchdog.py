"""Whether the engine's process still gets anywhere: a hung one tells nobody by itself.

In the engine's process a thread of its own says once in a while in which turn its loop is and
whether it works there (``Pulse``). The front end hears that, asks the system how much processor
time the process has had, and puts both together (``Watch``): a process that should work and
shows no sign of it is hung, and so is a step that computes beyond all bounds.

Always true: a process that answers and rests is never called hung, however long it does; one
that computes or waits for its disk is so only after the longest time a step may take; and time
in which the watcher itself stood still does not count.
"""

import os
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from runtime.messages import Beat

_END_S = 2.0
_LEAST_SHARE = 0.01
"""A process that has had less of one core than this has not worked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessWork:
    """What the system has given a process since it started."""

    processor_s: float
    page_reads: int
    """Pages of memory that had to be read from a disk first, as weights are the first time."""


def process_work(process_id: int) -> ProcessWork | None:
    """Linux's account of a process, by proc_pid_stat(5); None where there is none."""
    try:
        text = Path(f"/proc/{process_id}/stat").read_text()
        fields = text.rpartition(")")[2].split()  # the name before may hold anything
        ticks = int(fields[11]) + int(fields[12])
        return ProcessWork(processor_s=ticks / os.sysconf("SC_CLK_TCK"), page_reads=int(fields[9]))
    except (OSError, ValueError, IndexError):
        return None


class Watch:
    """Judges one process by what is heard of it. Knows no process and starts nothing.

    Args:
        hung_after_s: without any sign of life for so long, it is hung.
        step_limit_s: no step takes longer, whatever the process computes.
        work: what the process has been given so far; None where nobody can tell.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        *,
        hung_after_s: float,
        step_limit_s: float,
        work: Callable[[], ProcessWork | None],
        clock: Callable[[], float],
    ) -> None:
        self.period_s = period_s(hung_after_s)
        """``tick`` is to be called so often, while what the process says is listened to."""
        self._hung_after_s = hung_after_s
        self._step_limit_s = step_limit_s
        self._work = work
        self._clock = clock
        self._last_s = clock()
        self._known = work()
        self._turn = 0
        self._rests = False
        """It has been heard since the last tick, and said that it waits for messages."""
        self._stuck_s = 0.0
        """For how long it has not been known to rest or to begin another turn."""
        self._still_s = 0.0
        """For how long it has not worked either."""

    def heard(self, beat: Beat | None) -> None:
        """The process has spoken; None: with the outcome of a step."""
        if beat is None or not beat.working or beat.turn != self._turn:
            self._stuck_s = self._still_s = 0.0
        if beat is not None:
            self._turn = beat.turn
            self._rests = not beat.working

    def tick(self) -> str | None:
        """Let time pass; says in words why the process is hung, or None."""
        now = self._clock()
        passed_s = min(now - self._last_s, 2 * self.period_s)
        self._last_s = now
        worked = self._has_worked(passed_s)
        rests, self._rests = self._rests, False
        if rests:
            return None
        self._stuck_s += passed_s
        self._still_s = 0.0 if worked else self._still_s + passed_s
        if self._still_s >= self._hung_after_s:
            return f"no sign of life for {self._still_s:.1f} s"
        if self._stuck_s >= self._step_limit_s:
            return f"one step has taken {self._stuck_s:.1f} s"
        return None

    def _has_worked(self, passed_s: float) -> bool:
        before, self._known = self._known, self._work()
        if before is None or self._known is None:
            return False
        return (
            self._known.processor_s - before.processor_s > _LEAST_SHARE * passed_s
            or self._known.page_reads > before.page_reads
        )


class Pulse:
    """In the engine's process: says how its loop gets on, until ``end`` or a closed socket.

    The loop calls ``works`` and ``rests``; ``send`` is called in a thread.
    """

    def __init__(self, send: Callable[[Beat], None], period_s: float) -> None:
        self._send = send
        self._period_s = period_s
        self._turn = 0
        self._working = False
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="pulse", daemon=True)
        self._thread.start()

    def works(self) -> None:
        """The loop begins something that takes time, and ends."""
        self._turn += 1
        self._working = True

    def rests(self) -> None:
        """The loop waits for messages."""
        self._working = False

    def end(self) -> None:
        """Say nothing more."""
        self._ended.set()
        self._thread.join(_END_S)

    def _run(self) -> None:
        while not self._ended.wait(self._period_s):
            try:
                self._send(Beat(turn=self._turn, working=self._working))
            except OSError:
                return


def period_s(hung_after_s: float) -> float:
    """How often a process tells, and is looked after, that is hung after ``hung_after_s``;
    0: it is told all the same, and nobody looks."""
    return min(1.0, hung_after_s / 4) or 1.0
