"""Waits until what other processes did for the last run is done.

An engine may go on after its last answer: vLLM's took .35 s of processor time .6 s after eight
sessions had ended, out of a run of 6 s of whoever came next, and who that is follows from the order
of the runs.
"""

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

WINDOW_S: Final = 0.5
_WINDOWS = 4
"""So many in a row must be quiet: what follows a run begins within a second of its end."""
_MOST_BUSY = 0.1
"""The share of one core that is busy in a window that counts as quiet."""
_RESTING = 0.06
"""The share of one core, more for each server at rest: one wakes six times a second to look after
things, and on a virtual machine that has idled each waking is counted as up to 10 ms."""
LIMIT_S: Final = 15.0


def idle_seconds() -> float | None:
    """How long all cores together have had nothing to do since the machine started, by
    proc_stat(5); None where the system does not tell."""
    try:
        fields = Path("/proc/stat").read_text().split("\n", 1)[0].split()
        return (int(fields[4]) + int(fields[5])) / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError):
        return None


def wait_until_quiet(
    *,
    resting: int = 0,
    cores: int | None = None,
    idle: Callable[[], float | None] = idle_seconds,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> bool:
    """Return when the machine has done next to nothing for two seconds.

    Args:
        resting: servers that run and have nothing to do.
        cores: that the machine has. Default: as the system says.
        idle: seconds that they have been idle in all; None where nobody can tell, and then two
            seconds are waited for.

    Returns:
        False: it was not quiet in ``LIMIT_S``.
    """
    cores = cores or os.cpu_count() or 1
    most_busy = _MOST_BUSY + resting * _RESTING
    until_s, quiet, at_s, before = clock() + LIMIT_S, 0, clock(), idle()
    while quiet < _WINDOWS:
        if at_s >= until_s:
            return False
        sleep(WINDOW_S)
        last_s, at_s, last, before = at_s, clock(), before, idle()
        took_s = at_s - last_s
        busy_s = 0.0 if before is None or last is None else cores * took_s - (before - last)
        quiet = quiet + 1 if busy_s <= most_busy * took_s else 0
    return True
