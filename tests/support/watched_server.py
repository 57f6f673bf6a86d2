"""The command ``keepwarm`` with a watch on its event loop, for the tests' child servers.

From the moment it is ready every callback of the front end's loop is timed in CPU time of its
thread, inside the server's process. One that takes longer than ``MOST_S`` is written to the file
that ``LOOP_WATCH_REPORT`` names, with the stacks that a second thread saw meanwhile. uvloop's
callbacks cannot be timed, so the loop is asyncio's own.

What the host stole from the callback's core meanwhile (``tests.support.stolen_time``) is no work of
the callback, though Linux counts it as such.
"""

import asyncio
import ctypes
import json
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.support.stolen_time import stolen_s

MOST_S = 0.020
_LOOK_EVERY_S = 0.004
_MOST_STACKS = 4


class LoopWatch:
    """Times callbacks; ``begun`` is when the one that runs began."""

    def __init__(self, report: str) -> None:
        self._report = report
        self._thread = threading.get_ident()
        self.begun: float | None = None
        self._stacks: list[str] = []

    def start(self) -> None:
        """From now on."""
        run: Callable[[Any], Any] = asyncio.Handle._run
        watch = self

        def timed(handle: Any) -> None:
            watch._stacks.clear()
            watch.begun, cpu_s = begun_s, _ = time.monotonic(), time.thread_time()
            try:
                run(handle)
            finally:
                watch.begun = None
                took_s = time.thread_time() - cpu_s
                if took_s > MOST_S:
                    watch.tell(handle, took_s, begun_s)

        asyncio.Handle._run = timed  # type: ignore[method-assign]
        threading.Thread(target=self._look, daemon=True).start()

    def _look(self) -> None:
        while True:
            time.sleep(_LOOK_EVERY_S)
            begun = self.begun
            if begun is None or time.monotonic() - begun < MOST_S / 2:
                continue
            frame = sys._current_frames().get(self._thread)
            if frame is not None and len(self._stacks) < _MOST_STACKS:
                self._stacks.append("".join(traceback.format_stack(frame)[-12:]))

    def tell(self, handle: object, took_s: float, begun_s: float) -> None:
        """Write down a callback that has just ended on this core."""
        told = {
            "cpu_s": took_s,
            "begun_s": begun_s,
            "ended_s": time.monotonic(),
            "core": ctypes.CDLL(None).sched_getcpu(),
            "callback": repr(handle)[:500],
            "stacks": list(self._stacks),
        }
        with open(self._report, "a", encoding="utf-8") as file:
            file.write(json.dumps(told) + "\n")


def long_callbacks(report: Path, since: int, most_s: float = MOST_S) -> list[str]:
    """What was written behind that many bytes: a line for each callback that computed for more than
    ``most_s``. Its stacks are printed."""
    with report.open(encoding="utf-8") as file:
        file.seek(since)
        found = [json.loads(line) for line in file]
    lines = []
    for each in found:
        away_s = stolen_s(report, each["core"], each["begun_s"], each["ended_s"])
        if each["cpu_s"] - away_s > most_s:
            cpu = f"{each['cpu_s'] * 1000:.1f} ms of CPU, {away_s * 1000:.1f} ms of it stolen"
            lines.append(f"{cpu}, in {each['callback']}")
            print(lines[-1], *each["stacks"], sep="\n")
    return lines


def main() -> int:
    """Serve as ``keepwarm`` does."""
    from keepwarm.__main__ import main as keepwarm
    from sessions.command import serve

    report = os.environ["LOOP_WATCH_REPORT"]
    ready_line = serve.ready_line

    def told(*arguments: Any, **named: Any) -> str:
        LoopWatch(report).start()
        return ready_line(*arguments, **named)

    serve.ready_line = told
    serve.new_event_loop = asyncio.new_event_loop
    return keepwarm(sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())
