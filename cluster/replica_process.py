"""A server of a cluster as a child process: started, drained, and buried when it dies.

No Ray: whoever has a process of its own for each replica uses this. The child is watched: when it
ends unasked its row goes at once, so that nobody waits until its heart is missed.

Always true: a child does not outlive its parent, however that ends; after ``end`` or ``drain``
there is none.
"""

import contextlib
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

START_S = 600.0
"""A model may have to be read from a slow disk."""
_ADDRESS = re.compile(r"http://(\S+?:\d+)/v1")


class ReplicaDidNotStart(Exception):
    """The child ended, or took too long, before it was ready. The message is its last line."""


class ReplicaProcess:
    """One child. Made by ``start``."""

    def __init__(
        self,
        options: Sequence[str],
        *,
        log: Path,
        on_death: Callable[["ReplicaProcess"], None] = lambda _: None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """Start ``keepwarm serve``; ``wait_ready`` waits for it.

        Args:
            options: of ``keepwarm serve``; without ``--port`` it takes a free one.
            log: takes its log lines.
            on_death: called in a thread when it has ended and nobody asked for it.
            environment: instead of this process's own.
        """
        self._log = log
        self._on_death = on_death
        self._asked = False
        self.address = ""
        """``HOST:PORT``, once it is ready."""
        self.ready_line = ""
        port = () if "--port" in options else ("--port", "0")
        inner, self._pipe = os.pipe()
        try:
            with log.open("ab") as said:
                self.process = subprocess.Popen(
                    [sys.executable, "-m", "cluster.child", str(inner), "serve", *port, *options],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=said,
                    pass_fds=(inner,),
                    env=None if environment is None else dict(environment),
                )
        finally:
            os.close(inner)
        self._watcher = threading.Thread(target=self._watch, name="replica", daemon=True)

    def wait_ready(self, timeout_s: float = START_S) -> str:
        """Wait until it serves; returns its address. From then on its death is told.

        Raises:
            ReplicaDidNotStart: it does not; it is gone then.
        """
        assert self.process.stdout is not None
        timer = threading.Timer(timeout_s, self.process.kill)
        timer.start()
        try:
            self.ready_line = self.process.stdout.readline().decode(errors="replace").strip()
        finally:
            timer.cancel()
        found = _ADDRESS.search(self.ready_line)
        if found is None:
            self.end()
            lines = self._log.read_text(errors="replace").strip().splitlines() or [
                "it said nothing"
            ]
            raise ReplicaDidNotStart(lines[-1])
        self.address = found[1]
        self._watcher.start()
        return self.address

    @property
    def lives(self) -> bool:
        """Whether the process has not ended."""
        return self.process.poll() is None

    def drain(self, timeout_s: float | None = None) -> int:
        """Tell it to stop and wait; one that takes longer is killed. Returns its exit status."""
        self._asked = True
        with contextlib.suppress(ProcessLookupError):
            self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self.process.kill()
        return self._gone()

    def end(self) -> int:
        """Kill it. Returns its exit status."""
        self._asked = True
        self.process.kill()
        return self._gone()

    def _gone(self) -> int:
        status = self.process.wait()
        if self._pipe >= 0:
            os.close(self._pipe)
            self._pipe = -1
        if self.process.stdout is not None:
            self.process.stdout.close()
        return status

    def _watch(self) -> None:
        self.process.wait()
        if not self._asked:
            self._on_death(self)
