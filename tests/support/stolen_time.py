"""Time that the host takes from a core of a virtual machine (steal), where the guest cannot see it.

Linux charges a thread for all the time between its being put on a core and its being taken off. A
host that gives the core to others meanwhile is not always told to the guest (virtual machines
within virtual machines): then a thread that did nothing has "computed" for up to 20 ms. So on each
core a process of the highest priority wakes every ``EVERY_S``, before whatever else wants the core.
Where it wakes later the core was not there, for it or for anybody.

Where processes may not have that priority nobody sees it, and nothing counts as stolen.
``python -m tests.support.stolen_time CORE FILE`` is such a process; it ends with its input.
"""

import os
import select
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

EVERY_S = 0.004
LEAST_S = 0.001
"""Shorter delays are those of the timer and of waking up."""
PRIORITY = os.sched_get_priority_max(os.SCHED_FIFO) - 1
"""One below the highest, which plays the host in a test."""
_ROOT = Path(__file__).parents[2]


def watch(core: int, file: Path, closed: int = 0) -> None:
    """Write a line for each delay, its begin and its end in ``time.monotonic``, until ``closed``,
    a descriptor, has no more to read.

    Raises:
        OSError: the process may have no such priority.
    """
    os.sched_setaffinity(0, {core})
    os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(PRIORITY))
    with file.open("a", encoding="utf-8") as lines:
        begun_s = time.monotonic()
        while not select.select([closed], [], [], EVERY_S)[0]:
            ended_s = time.monotonic()
            if ended_s - begun_s > EVERY_S + LEAST_S:
                lines.write(f"{begun_s + EVERY_S:.6f} {ended_s:.6f}\n")
                lines.flush()
            begun_s = ended_s


def told_file(report: Path, core: int) -> Path:
    """Where the delays of a core are written, beside a report of long callbacks."""
    return report.with_name(f"{report.name}.core{core}")


@contextmanager
def watched_cores(report: Path) -> Iterator[None]:
    """Watch all cores that this process may use."""
    with ExitStack() as stack:
        for core in sorted(os.sched_getaffinity(0)):
            words = [sys.executable, "-m", __spec__.name, str(core), str(told_file(report, core))]
            # What it says goes nowhere: a process without the right ends at once, which is enough.
            process = stack.enter_context(
                subprocess.Popen(words, cwd=_ROOT, stdin=subprocess.PIPE, stderr=subprocess.DEVNULL)
            )
            stack.callback(_close, process)
        yield


def _close(process: subprocess.Popen[bytes]) -> None:
    assert process.stdin is not None
    process.stdin.close()
    process.wait(timeout=30)


def stolen_s(report: Path, core: int, begun_s: float, ended_s: float) -> float:
    """Seconds that ``core`` was away between two instants of ``time.monotonic``; 0.0 where nobody
    watched it."""
    file = told_file(report, core)
    if not file.exists():
        return 0.0
    with file.open(encoding="utf-8") as lines:
        delays = [tuple(map(float, line.split())) for line in lines if line.endswith("\n")]
    return sum(max(0.0, min(ended_s, end) - max(begun_s, begin)) for begin, end in delays)


if __name__ == "__main__":
    watch(int(sys.argv[1]), Path(sys.argv[2]))
