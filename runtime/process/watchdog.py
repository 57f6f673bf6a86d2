"""Whether the engine's process still gets anywhere: a hung one tells nobody by itself.

In the engine's process a thread of its own says once in a while how far its loading is
(``LoadPulse``), and from then on in which turn its loop is and whether it works there
(``Pulse``). The front end hears that, asks the system what the process has been given, and puts
both together (``LoadWatch``, ``Watch``): a process that should work and shows no sign of it is
hung, and so is a load or a step that takes beyond all bounds.

Always true: a process that answers and rests is never called hung, however long it does; one
that computes or waits for its disk is so only after the longest time that a load or a step may
take; and time in which the watcher itself stood still does not count.
"""

import os
import resource
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from runtime.messages import Beat, Loading

STARTING = "starting"
"""The stage of loading before the process has said anything."""
READING_FOLDER = "reading the folder"
READING_TOKENIZER = "reading the tokenizer"
_READING_LIMIT_S = 30.0
"""Processor seconds for each of the two: a folder that takes more is made to take them."""

_END_S = 2.0
_LEAST_SHARE = 0.01
"""A process that has had less of one core than this has not worked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessWork:
    """The work that the system has done for a process since it started."""

    processor_s: float
    page_reads: int
    """Pages of memory that had to be read from a disk first, as weights are the first time."""
    bytes_read: int = 0
    """Bytes read of files, by calls rather than by pages of memory. 0 where the system does not
    tell."""


def process_work(process_id: int) -> ProcessWork | None:
    """Linux's account of a process, by proc_pid_stat(5); None where there is none."""
    try:
        text = Path(f"/proc/{process_id}/stat").read_text()
        fields = text.rpartition(")")[2].split()  # the name before may hold anything
        ticks = int(fields[11]) + int(fields[12])
        return ProcessWork(
            processor_s=ticks / os.sysconf("SC_CLK_TCK"),
            page_reads=int(fields[9]),
            bytes_read=_bytes_read(process_id),
        )
    except (OSError, ValueError, IndexError):
        return None


def ranks_work(process_id: int) -> ProcessWork | None:
    """The same of a process and those that its main thread has started, together: of all ranks of
    a model. One that has ended takes its share with it, which is no work."""
    try:
        told = Path(f"/proc/{process_id}/task/{process_id}/children").read_text()
    except OSError:
        told = ""
    own = process_work(process_id)
    if own is None:
        return None
    found = [own, *(process_work(int(child)) for child in told.split())]
    works = [work for work in found if work is not None]
    return ProcessWork(
        processor_s=sum(work.processor_s for work in works),
        page_reads=sum(work.page_reads for work in works),
        bytes_read=sum(work.bytes_read for work in works),
    )


def _bytes_read(process_id: int) -> int:
    try:
        return int(Path(f"/proc/{process_id}/io").read_text().split()[1])  # rchar, the first line
    except (OSError, ValueError, IndexError):
        return 0


def group_is_busy(process_id: int) -> bool:
    """Whether a thread of the process, or a process of the group that it leads, could run now or
    waits for a disk: a compiler that it waits for, a read that takes long. Looks at all processes
    of the machine; False where the system does not tell."""
    return any(state in ("R", "D") for state in _group_states(process_id))


def _group_states(leader: int) -> Iterator[str]:
    for stat in (*Path(f"/proc/{leader}/task").glob("*/stat"), *Path("/proc").glob("[0-9]*/stat")):
        try:
            state, _, group = stat.read_text().rpartition(")")[2].split()[:3]
        except (OSError, ValueError):
            continue  # it has ended
        if group == str(leader):
            yield state


class LoadWatch:
    """Judges one process from its start until it is ready. Knows no process and starts nothing.

    Args:
        hung_after_s: without any sign that it gets on for longer than this, it is hung. 0: never.
        limit_s: loading takes no longer, whatever the process does. 0: as long as it likes.
        work: what the process has been given so far; None where nobody can tell.
        busy: whether something runs or waits for a disk for it. Asked only where nothing else
            is a sign of life.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        *,
        hung_after_s: int,
        limit_s: int,
        work: Callable[[], ProcessWork | None],
        busy: Callable[[], bool],
        clock: Callable[[], float],
    ) -> None:
        self.period_s = load_period_s(hung_after_s, limit_s)
        """``tick`` is to be called so often, while what the process says is listened to."""
        self.took_s = 0.0
        """Seconds since the loading began."""
        self.stage = STARTING
        self._hung_after_s = hung_after_s
        self._limit_s = limit_s
        self._work = work
        self._busy = busy
        self._clock = clock
        self._last_s = clock()
        self._known = work()
        self._heard: Loading | None = None
        self._gets_on = False
        """It has said so since the last tick."""
        self._read_from: float | None = None
        """Processor seconds when the stage began, if it is one that reads."""
        self._still_s = 0.0
        """For how long nothing has shown that it gets on."""

    def heard(self, loading: Loading) -> None:
        """The process has spoken. Where the system tells what it does, that alone proves
        nothing: it must have got further as well."""
        if loading != self._heard or self._known is None:
            self._gets_on = True
        self._heard = loading
        if loading.stage != self.stage:
            work = self._work() if loading.stage in (READING_FOLDER, READING_TOKENIZER) else None
            self._read_from = None if work is None else work.processor_s
        self.stage = loading.stage

    def tick(self) -> str | None:
        """Let time pass; says in words why loading is to be given up, or None."""
        now = self._clock()
        passed_s = min(now - self._last_s, 2 * self.period_s)
        self._last_s = now
        self.took_s += passed_s
        gets_on = self._has_worked(passed_s) or self._gets_on
        self._gets_on = False
        self._still_s = 0.0 if gets_on else self._still_s + passed_s
        if 2 * self._still_s > self._hung_after_s > 0 and self._busy():
            self._still_s = 0.0
        if self._still_s > self._hung_after_s > 0:
            return (
                f"no sign of life for {self._still_s:.1f} s while {self.stage} "
                f"(--load-hung-after-s {self._hung_after_s})"
            )
        if self._reading_s() > _READING_LIMIT_S:
            return (
                f"{self.stage} has taken {self._reading_s():.0f} s of processor time; no published "
                f"model takes {_READING_LIMIT_S:.0f}"
            )
        if self.took_s > self._limit_s > 0:
            return (
                f"not ready after {self.took_s:.1f} s, still {self.stage} "
                f"(--load-limit-s {self._limit_s})"
            )
        return None

    def _reading_s(self) -> float:
        """Processor time that the stage has taken, if it is one that reads."""
        if self._read_from is None or self._known is None:
            return 0.0
        return self._known.processor_s - self._read_from

    def _has_worked(self, passed_s: float) -> bool:
        before, self._known = self._known, self._work()
        if before is None or self._known is None:
            return False
        return self._known.bytes_read > before.bytes_read or _worked(before, self._known, passed_s)


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
        return _worked(before, self._known, passed_s)


def _worked(before: ProcessWork, after: ProcessWork, passed_s: float) -> bool:
    share_s = after.processor_s - before.processor_s
    return share_s > _LEAST_SHARE * passed_s or after.page_reads > before.page_reads


class LoadPulse:
    """In the engine's process: says how far loading is, until ``end`` or a closed socket.

    Each new stage is said at once, by the caller's thread; in between a thread says it again
    with what has come into memory since.
    """

    def __init__(self, send: Callable[[Loading], None], period_s: float) -> None:
        self._send = send
        self._period_s = period_s
        self._stage = STARTING
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="load-pulse", daemon=True)
        self._thread.start()

    def enters(self, stage: str) -> None:
        """Loading begins with something else; ``stage`` is what it does, as in "reading x".

        Raises:
            OSError: nobody listens any more, and nobody would use what is loaded.
        """
        self._stage = stage
        self._say()

    def end(self) -> None:
        """Say nothing more: once this returns, nothing is sent."""
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._ended.wait(self._period_s):
            try:
                self._say()
            except OSError:
                return

    def _say(self) -> None:
        self._send(Loading(stage=self._stage, memory_bytes=_peak_memory_bytes()))


def _peak_memory_bytes() -> int:
    """Most memory this process has held: it grows as weights are read, and asking reads no file."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


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
        """Tell the watchdog nothing more."""
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


def load_period_s(hung_after_s: float, limit_s: float) -> float:
    """The same while it loads, with a limit for all of it; 0: none."""
    return period_s(min((bound for bound in (hung_after_s, limit_s) if bound), default=0.0))
