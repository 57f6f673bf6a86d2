"""One replica of a cluster in the hands of whoever keeps it: its slot, its folder, its process.

Knows no Ray. It is started when its turn on this host has come, is said to be lost where it has
ended or hangs, and its row goes as soon as it is dead.

Always true: the slot is held as long as the process lives; after ``leave`` or ``end`` there is
neither.
"""

import contextlib
import fcntl
import http.client
import logging
import os
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from cluster.replica_process import START_S, ReplicaDidNotStart, ReplicaProcess
from cluster.slots import SlotLock, folder_free, order, slot_folder, take_first
from sessions.journal.errors import JournalError
from sessions.journal.members import MOST_SLOTS, Member, MemberLoad, MemberState

log = logging.getLogger(__name__)

HANGS_S = 10.0
"""A server that answers nothing for so long is killed; its sockets were cut long before."""
ANSWER_S = 2.0
_LOOK_EVERY_S = 0.1


class ReplicaLost(Exception):
    """It has ended, or hangs and was killed. Another one is to take its place."""


class ReplicaRows(Protocol):
    """Members of the cluster. Methods raise JournalError."""

    def look(self) -> list[Member]:
        """The servers of the cluster that have a row."""
        ...

    def bury(self, address: str) -> None:
        """The process that advertised this address has ended."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaPlan:
    """A replica, completely described."""

    cluster: str
    journal: str
    """``postgresql://...``; it goes to the child by its environment, not by its command line."""
    host: str
    """At which others reach it."""
    options: tuple[str, ...]
    """More options of ``keepwarm serve``."""
    folder: Path
    """For logs, and for the lock of whose turn it is to start; this host's."""
    kv_root: Path | None
    """Has a folder of KV for each slot; None: there are none."""
    environment: Mapping[str, str]
    """Variables beside those of this process."""


class ReplicaKeeper:
    """Keeps one. ``start`` is to be called first."""

    def __init__(
        self,
        plan: ReplicaPlan,
        *,
        rows: ReplicaRows,
        lock_of: Callable[[int], SlotLock],
        on_death: Callable[[], None] = lambda: None,
        clock: Callable[[], float] = time.monotonic,
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        """
        Args:
            lock_of: makes the lock of a slot.
            on_death: called in a thread when it has ended unasked and its row is gone.
        """
        self._plan = plan
        self._rows = rows
        self._lock_of = lock_of
        self._on_death = on_death
        self._clock = clock
        self._pause = pause
        self._lock: SlotLock | None = None
        self.process: ReplicaProcess | None = None
        """The server's process; None: there is none."""
        self._answered_at = 0.0
        self.slot = 0

    @property
    def address(self) -> str:
        """``HOST:PORT``; "" before it serves."""
        return "" if self.process is None else self.process.address

    def start(self) -> str:
        """Wait for its turn, start it, and wait until the cluster sends it sessions; returns its
        address.

        Raises:
            ReplicaDidNotStart: there is none.
            JournalError: the database cannot be asked for a slot.
        """
        with start_turn(self._plan.folder / "starting"):
            found = take_first(order(range(1, MOST_SLOTS + 1), self._plan.kv_root), self._lock_of)
            if found is None:
                raise ReplicaDidNotStart(f"all {MOST_SLOTS} slots are taken")
            self.slot, self._lock = found
            try:
                self._start_process(self._kv_options())
                self._wait_until_ready()
            except BaseException:
                self.end()
                raise
        return self.address

    def _start_process(self, kv_options: Sequence[str]) -> None:
        """A folder that is refused (full disk, another model's KV) costs warmth and no server."""
        try:
            self.process = self._started(kv_options)
        except ReplicaDidNotStart as error:
            if not kv_options or "disk" not in str(error):
                raise
            log.error("slot=%d starts cold reason=%s", self.slot, error)
            self.process = self._started(self._cold())
        self._answered_at = self._clock()

    def _started(self, kv_options: Sequence[str]) -> ReplicaProcess:
        plan = self._plan
        advertised = ("--cluster", plan.cluster, "--advertise", plan.host, "--host", plan.host)
        process = ReplicaProcess(
            [*plan.options, *advertised, "--cluster-slot", str(self.slot), *kv_options],
            log=plan.folder / f"slot-{self.slot}.log",
            on_death=self._died,
            environment={**os.environ, **plan.environment, "KEEPWARM_JOURNAL": plan.journal},
        )
        process.wait_ready()
        return process

    def _kv_options(self) -> Sequence[str]:
        root = self._plan.kv_root
        if root is None:
            return ()
        folder = slot_folder(root, self.slot)
        if folder_free(folder, clock=self._clock, pause=self._pause):
            return ("--disk-kv-folder", str(folder))
        log.error("slot=%d starts cold reason=another engine has %s", self.slot, folder)
        return self._cold()

    def _cold(self) -> Sequence[str]:
        return ("--disk-kv-mib", "0")

    def _wait_until_ready(self) -> None:
        assert self.process is not None
        until = self._clock() + START_S
        while self._clock() < until:
            if not self.process.lives:
                raise ReplicaDidNotStart(f"it ended: see {self._plan.folder}")
            with contextlib.suppress(JournalError):
                row = self._row()
                if row is not None and row.presence.state is MemberState.READY:
                    return
            self._pause(_LOOK_EVERY_S)
        raise ReplicaDidNotStart(f"{self.address} is not ready after {START_S:g} s")

    def _row(self) -> Member | None:
        found = [each for each in self._rows.look() if each.presence.address == self.address]
        return found[0] if found else None

    def _died(self, process: ReplicaProcess) -> None:
        log.error("slot=%d it has ended address=%s", self.slot, process.address)
        self._bury(process)
        self._on_death()

    def _bury(self, process: ReplicaProcess) -> None:
        try:
            self._rows.bury(process.address)
        except JournalError as error:
            log.warning("its row stays until its heart is missed reason=%s", error)

    # While it serves

    def check(self) -> None:
        """Raise ReplicaLost where it has ended, or has answered nothing for ``HANGS_S``: then it
        is killed."""
        process = self.process
        if process is None or not process.lives:
            raise ReplicaLost("it has ended")
        if self._lock is not None:
            with contextlib.suppress(JournalError):
                self._lock.holds()  # after the database was away the lock is asked for anew
        if answers(process.address):
            self._answered_at = self._clock()
        elif self._clock() - self._answered_at > HANGS_S:
            log.error("slot=%d it hangs and is killed address=%s", self.slot, process.address)
            self.end()
            self._bury(process)
            raise ReplicaLost("it answered nothing")

    def load(self) -> MemberLoad:
        """Figures of its last heartbeat; all 0 where they cannot be read."""
        with contextlib.suppress(JournalError):
            row = self._row()
            if row is not None:
                return row.presence.load
        return MemberLoad()

    def reload(self) -> None:
        """Have it read its tenants file again."""
        if self.process is not None and self.process.lives:
            self.process.process.send_signal(signal.SIGHUP)

    def leave(self, timeout_s: float) -> None:
        """Let it drain and end; one that takes longer is killed."""
        process, self.process = self.process, None
        if process is not None:
            process.drain(timeout_s)
        self._let_go()

    def end(self) -> None:
        """Kill the server's process."""
        process, self.process = self.process, None
        if process is not None:
            process.end()
        self._let_go()

    def _let_go(self) -> None:
        lock, self._lock = self._lock, None
        if lock is not None:
            lock.leave()


def answers(address: str) -> bool:
    """Whether a server at ``HOST:PORT`` lives; nothing is said of its engine."""
    host, _, port = address.rpartition(":")
    asking = http.client.HTTPConnection(host.strip("[]"), int(port), timeout=ANSWER_S)
    try:
        asking.request("GET", "/health", headers={"Host": "127.0.0.1"})
        return asking.getresponse().status == http.client.OK
    except (OSError, http.client.HTTPException):
        return False
    finally:
        asking.close()


@contextlib.contextmanager
def start_turn(file: Path) -> Iterator[None]:
    """Whose turn it is on this host; a holder that dies lets go."""
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    lock = os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)
