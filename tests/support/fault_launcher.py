"""The command ``keepwarm``, with two signals more for the fault suite.

SIGUSR1 lets the server's monotonic clock jump by an hour. SIGUSR2 writes how many asyncio tasks
there are to the file that ``FAULT_SUITE_REPORT`` names. ``FAULT_SUITE_FORGET_S`` is how long
responses and sessions are kept; of the ended turns the dashboard keeps a fortieth then. The engine
and the probes start as ever, all probes at once, but with ``FAULT_SUITE_FORKED`` engines are forks
(``tests.support.forked_engine``), and one that died is replaced without a pause. Nobody pays for
large frames: a reader that hangs would cost its tenant ten seconds, and the next frame waited.
"""

import asyncio
import os
import signal
import sys
import time
from dataclasses import replace
from functools import partial

JUMP_S = 3600.0
_ahead_s = [0.0]
_monotonic = time.monotonic


def _shifted() -> float:
    return _monotonic() + _ahead_s[0]


def _jump(*_: object) -> None:
    _ahead_s[0] += JUMP_S


def _report(*_: object) -> None:
    path = os.environ["FAULT_SUITE_REPORT"]
    with open(path + ".part", "w", encoding="utf-8") as file:
        file.write(str(len(asyncio.all_tasks())))
    os.replace(path + ".part", path)


if __name__ == "__main__":
    time.monotonic = _shifted
    signal.signal(signal.SIGUSR1, _jump)
    signal.signal(signal.SIGUSR2, _report)
    from keepwarm.__main__ import main
    from runtime.grammar import probe, probe_child
    from sessions.command import serve
    from sessions.pages import turn_log

    at_once = probe_child.ProbeLimits(others_after_s=0.0)
    serve.GrammarProbe = partial(probe.GrammarProbe, limits=at_once)  # type: ignore[misc]
    limits = serve.DEFAULT_LIMITS = replace(serve.DEFAULT_LIMITS, read_cpu_burst_s=1e9)
    if forget_s := os.environ.get("FAULT_SUITE_FORGET_S"):
        kept_s = float(forget_s)
        serve.DEFAULT_LIMITS = replace(limits, stored_response_ttl_s=kept_s, resume_s=kept_s)
        turn_log.MAX_TURNS //= 40
    if os.environ.get("FAULT_SUITE_FORKED"):
        from sessions.wire import hub
        from tests.support import forked_engine

        forked_engine.use()
        hub.STEADY_S = 0.0

    sys.exit(main(sys.argv[1:]))
