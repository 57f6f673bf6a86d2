"""A cluster whose servers Ray Serve keeps: started, changed, ended by the commands users type."""

import contextlib
import importlib.util
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from cluster.rows import MemberRows
from sessions.journal.members import MemberState
from tests.support.clusters import Cluster, missing
from tests.support.postgres import postgres_server


def ray_missing() -> str:
    """What this machine lacks for such a cluster; "" nothing."""
    if importlib.util.find_spec("ray") is None:
        return "Ray is not installed: pip install 'keepwarm[cluster]'"
    return missing()


@dataclass(frozen=True, kw_only=True)
class Kept:
    """A server that an actor keeps."""

    owner: str
    address: str
    slot: int

    @property
    def pid(self) -> int:
        return int(self.owner.split(":")[-2])

    @property
    def actor(self) -> psutil.Process:
        """Its parent."""
        found = psutil.Process(self.pid).parent()
        assert found is not None
        assert "ServeReplica" in " ".join(found.cmdline()) or "ray::" in found.name()
        return found

    def kill(self, *, parent_lives: bool) -> None:
        """As in a crash; or its actor with it."""
        if not parent_lives:
            self.actor.kill()
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)


@dataclass(kw_only=True)
class RayCluster(Cluster):
    """One; made by ``running_ray``."""

    up_options: Sequence[str] = field(default=())

    def command(self, name: str, *words: str) -> str:
        """Run ``keepwarm cluster NAME``; returns what it says. Raises CalledProcessError."""
        given = ["--cluster", self.name]
        if name in ("up", "status"):
            given += ["--journal", self.database.address]
        done = subprocess.run(
            [sys.executable, "-m", "keepwarm", "cluster", name, *given, *words],
            capture_output=True, text=True, check=False, env=self.environment(), timeout=600,
        )  # fmt: skip
        if done.returncode:
            raise AssertionError(f"{name}: {done.stderr[-3000:]}")
        return done.stdout

    def up(self, count: int, *options: str) -> str:
        """Start, or replace, so many."""
        words = ["--replicas", str(count), *self.up_options, "--", *self.options, *options]
        return self.command("up", *words)

    def ready(self) -> list[Kept]:
        """Those that serve, by slot."""
        with contextlib.closing(MemberRows(self.database.address, self.name)) as rows:
            found = [
                Kept(owner=each.owner, address=each.presence.address, slot=each.slot)
                for each in rows.living()
                if each.presence.state is MemberState.READY
            ]
        return sorted(found, key=lambda each: each.slot)

    def kept(self, session: str) -> Kept:
        """Who owns a session."""
        address = self.owners()[session]
        (found,) = [each for each in self.ready() if each.address == address]
        return found

    def restored(self, count: int, gone: Sequence[Kept] = ()) -> float:
        """Wait until so many serve, none of ``gone``; returns the seconds that took."""
        names = {each.owner for each in gone}

        def so() -> bool:
            now = self.ready()
            there = len(now) == count and not names & {each.owner for each in now}
            return there and all(map(self.serves, now))

        return self.until(so, f"{count} serve", 180)

    def processes(self) -> list[psutil.Process]:
        """Everything of it that lives: Ray's, actors, servers."""
        found = []
        for each in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                line, environment = " ".join(each.cmdline()), each.environ()
                if str(self.folder) in line or (
                    environment.get("XDG_STATE_HOME") == str(self.folder)
                    and each.pid != os.getpid()
                ):
                    found.append(each)
        return found

    def end(self) -> None:
        """All of it."""
        with contextlib.suppress(AssertionError):
            self.command("down")
        super().end()
        for each in self.processes():
            with contextlib.suppress(psutil.Error):
                each.kill()


@contextlib.contextmanager
def running_ray(
    count: int, options: Sequence[str], *up_options: str, balance: bool = True
) -> Iterator[RayCluster]:
    """A new cluster of so many servers on Ray."""
    folder = Path(tempfile.mkdtemp(prefix="keepwarm-rc-", dir="/tmp"))
    with socket.create_server(("127.0.0.1", 0)) as found:
        port = int(found.getsockname()[1])
    with postgres_server() as database:
        made = RayCluster(
            folder=folder, database=database, options=options, port=port, up_options=up_options
        )
        try:
            made.up(count)
            if balance:
                made.begin_balance()
                made.restored(count)
            yield made
        finally:
            made.end()
            shutil.rmtree(folder, ignore_errors=True)
