"""Engines that are there at once: forks of the server's process, into which torch is imported.

For tests that need hundreds of engines and not what starting one takes. What runs in the fork is
the engine's own ``main``. Linux only; the fork's name is ``NAME``.
"""

import importlib
import logging
import os
import signal
import subprocess
import sys
import time
import types
from collections.abc import Sequence
from threading import Lock
from typing import Any

from runtime.process import engine_process

NAME = "forked-engine"
_POLL_S = 0.005


class Forked:
    """What ``EngineProcess`` needs of a ``Popen``."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._waiting = Lock()

    def poll(self) -> int | None:
        with self._waiting:
            if self.returncode is None:
                ended, status = os.waitpid(self.pid, os.WNOHANG)
                if ended:
                    self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode

    def wait(self, timeout: float) -> int:
        until = time.monotonic() + timeout
        while (code := self.poll()) is None:
            if time.monotonic() > until:
                raise subprocess.TimeoutExpired(NAME, timeout)
            time.sleep(_POLL_S)
        return code

    def kill(self) -> None:
        if self.poll() is None:
            os.kill(self.pid, signal.SIGKILL)


def fork(command: Sequence[str], *, pass_fds: Sequence[int], **_: Any) -> Forked:
    """Takes the place of ``Popen`` for the engine's command."""
    sys.stdout.flush()
    pid = os.fork()
    if pid:
        return Forked(pid)
    status = 1
    try:
        _become_engine(command, pass_fds[0])
        status = 0
    except SystemExit as ended:
        status = int(ended.code or 0)
    finally:
        logging.shutdown()
        os._exit(status)


def _become_engine(command: Sequence[str], socket_fd: int) -> None:
    os.setpgid(0, 0)
    with open("/proc/self/comm", "w", encoding="ascii") as file:
        file.write(NAME)
    signal.set_wakeup_fd(-1)
    for number in (signal.SIGUSR1, signal.SIGUSR2, signal.SIGHUP, signal.SIGCHLD):
        signal.signal(number, signal.SIG_DFL)
    # Nothing of the server's is ours: not its sockets, and not its log, whose thread is not here.
    os.closerange(3, socket_fd)
    os.closerange(socket_fd + 1, os.sysconf("SC_OPEN_MAX"))
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    logging.root.handlers.clear()
    logging._handlers.clear()  # type: ignore[attr-defined]
    sys.argv = ["engine", *command[4:]]
    engine_process.main()


def use() -> None:
    """From now on in this process; it takes the time that importing torch takes."""
    for name in ("runtime.engine.engine", "runtime.process.loading"):
        importlib.import_module(name)
    engine_process.subprocess = types.SimpleNamespace(  # type: ignore[assignment]
        Popen=fork, DEVNULL=subprocess.DEVNULL, TimeoutExpired=subprocess.TimeoutExpired
    )
