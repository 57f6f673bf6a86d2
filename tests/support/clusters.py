"""A cluster of real servers behind HAProxy on a PostgreSQL of its own, whose parts a test kills."""

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from cluster.haproxy import HaproxyError, find_program
from cluster.haproxy_file import BACKEND
from cluster.haproxy_socket import HaproxyGone, HaproxySocket
from cluster.replica_process import ReplicaProcess
from cluster.rows import MemberRows
from sessions.journal import members
from sessions.journal.members import Member, MemberState
from sessions.journal.postgres import PostgresJournal
from tests.support.postgres import MISSING as NO_POSTGRES
from tests.support.postgres import PROGRAMS, PostgresServer, postgres_server

PATIENCE_S = 60.0


def missing() -> str:
    """What this machine lacks for a cluster; "" nothing."""
    try:
        find_program(None)
    except HaproxyError as error:
        return str(error)
    return NO_POSTGRES if PROGRAMS is None else ""


@dataclass(kw_only=True)
class Cluster:
    """One cluster; made by ``running``."""

    folder: Path
    database: PostgresServer
    options: Sequence[str]
    name: str = "tests"
    buries: bool = True
    """The parent of a replica removes its row when it dies."""
    port: int = 0
    replicas: list[ReplicaProcess] = field(default_factory=list)
    balance: subprocess.Popen[str] | None = None

    @property
    def url(self) -> str:
        """Where clients come in."""
        return f"http://127.0.0.1:{self.port}/v1"

    @property
    def state(self) -> Path:
        """Where its HAProxy has its files."""
        return self.folder / "keepwarm/cluster" / self.name

    @property
    def haproxy(self) -> HaproxySocket:
        return HaproxySocket(self.state / "haproxy.sock")

    def environment(self) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if "KEEPWARM" not in name}
        return kept | {"XDG_STATE_HOME": str(self.folder), "KEEPWARM_CONFIG": ""}

    # Servers

    def start(self, *options: str, log: str = "") -> ReplicaProcess:
        """One more server; returns when it serves."""
        given = ["--journal", self.database.address, "--cluster", self.name]
        replica = ReplicaProcess(
            [*self.options, *given, "--advertise", "127.0.0.1", *options],
            log=self.folder / f"{log or len(self.replicas)}.log",
            on_death=self._bury if self.buries else lambda _: None,
            environment=self.environment(),
        )
        self.replicas.append(replica)
        replica.wait_ready(120)
        return replica

    def start_all(self, count: int, *options: str) -> list[ReplicaProcess]:
        """So many at once, and wait until all are ready behind the balancer."""
        with ThreadPoolExecutor(count) as threads:
            logs = [f"first {number}" for number in range(count)]
            made = list(threads.map(lambda log: self.start(*options, log=log), logs))
        self.until(lambda: all(self.serves(each) for each in made), "all serve")
        return made

    def _bury(self, replica: ReplicaProcess) -> None:
        rows = MemberRows(self.database.address, self.name, lambda: None)
        with suppress(Exception), closing(rows):
            rows.bury(replica.address)

    def rows(self) -> dict[str, Member]:
        """By address."""
        with (
            closing(
                PostgresJournal(self.database.address, fingerprint=b"", owner="tests", beside=True)
            ) as journal,
            journal.reading() as cursor,
        ):
            found = members.cluster_members(cursor, self.name)
        return {each.presence.address: each for each in found}

    def owners(self) -> dict[str, str]:
        """Of each session the address of its owner; "" where that is nobody or is gone."""
        with (
            closing(
                PostgresJournal(self.database.address, fingerprint=b"", owner="tests", beside=True)
            ) as journal,
            journal.reading() as cursor,
        ):
            found = cursor.execute(
                "SELECT session.name, COALESCE(address, '') FROM session LEFT JOIN member "
                "ON member.owner = session.owner"
            ).fetchall()
        return dict(found)

    def owner_of(self, session: str) -> ReplicaProcess:
        address = self.owners()[session]
        (found,) = [each for each in self.replicas if each.address == address and each.lives]
        return found

    def serves(self, replica: ReplicaProcess) -> bool:
        """HAProxy sends new sessions there."""
        with suppress(HaproxyGone):
            return any(
                slot.address == replica.address
                and (slot.up, slot.drained, slot.maintained) == (True, False, False)
                for slot in self.haproxy.slots(BACKEND)
            )
        return False

    def state_of(self, replica: ReplicaProcess) -> MemberState | None:
        row = self.rows().get(replica.address)
        return None if row is None else row.presence.state

    # The balancer

    def begin_balance(self, *options: str) -> str:
        """Start it; returns its first line."""
        self.balance = self.another_balance(*options)
        assert self.balance.stdout is not None
        return self.balance.stdout.readline().strip()

    def another_balance(self, *options: str) -> subprocess.Popen[str]:
        words = ["--journal", self.database.address, "--cluster", self.name]
        bind = ["--bind", f"127.0.0.1:{self.port}"]
        bind += ["--file-sd", str(self.folder / "targets.json")]
        with (self.folder / "balance.log").open("a") as log:
            return subprocess.Popen(
                [sys.executable, "-m", "keepwarm", "cluster", "balance", *words, *bind, *options],
                stdout=subprocess.PIPE, stderr=log, text=True, env=self.environment(),
            )  # fmt: skip

    def kill_balance(self) -> None:
        """As in a crash: HAProxy goes on."""
        assert self.balance is not None
        self.balance.kill()
        self.balance.communicate()

    def until(self, fact: Callable[[], bool], what: str, patience_s: float = PATIENCE_S) -> float:
        """Wait for a fact; returns the seconds that took."""
        began = time.monotonic()
        while not fact():
            if time.monotonic() - began > patience_s:
                log = (self.folder / "balance.log").read_text()
                raise AssertionError(f"not so after {patience_s:g} s: {what}\n{log[-3000:]}")
            time.sleep(0.02)
        return time.monotonic() - began

    def end(self) -> None:
        """All of it."""
        for each in self.replicas:
            with suppress(ProcessLookupError, PermissionError):
                each.process.send_signal(signal.SIGCONT)
            each.end()
        if self.balance is not None and self.balance.poll() is None:
            self.balance.terminate()
            self.balance.communicate(timeout=20)
        with suppress(HaproxyGone, ProcessLookupError):
            os.kill(self.haproxy.process(), signal.SIGTERM)


@contextmanager
def running(
    count: int, options: Sequence[str], *, balance: bool = True, buries: bool = True
) -> Iterator[Cluster]:
    """A new cluster of so many servers."""
    folder = Path(tempfile.mkdtemp(prefix="keepwarm-cl-", dir="/tmp"))  # a socket's path is short
    with socket.create_server(("127.0.0.1", 0)) as found:
        port = int(found.getsockname()[1])
    with postgres_server() as database:
        made = Cluster(folder=folder, database=database, options=options, port=port, buries=buries)
        try:
            if balance:
                made.begin_balance()
            if count:
                made.start_all(count)
            yield made
        finally:
            made.end()
            shutil.rmtree(folder, ignore_errors=True)
