"""A PostgreSQL server of a test's own, where Debian's is installed."""

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

PROGRAMS = next(iter(sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)), None)
MISSING = "PostgreSQL is not installed (Debian: apt-get install postgresql)"


@dataclass(kw_only=True)
class PostgresServer:
    """One that runs, until it is stopped."""

    folder: Path
    command: list[str]
    """Before each of its programs: it refuses to run as root."""

    @property
    def address(self) -> str:
        """Reached through a socket in its folder alone."""
        return f"postgresql:///postgres?host={self.folder}&user=keepwarm"

    def start(self) -> None:
        """Wait until it can be asked."""
        options = f"-k {self.folder} -c listen_addresses= -c shared_buffers=16MB"
        self._run("-w", "-o", options, "-l", str(self.folder / "log"), "start")

    def stop(self, mode: str = "immediate", *, check: bool = True) -> None:
        """``immediate``: as in a power cut, nothing is tidied up; ``fast``: it is."""
        self._run("-m", mode, "stop", check=check)

    def _run(self, *arguments: str, check: bool = True) -> None:
        control = [*self.command, f"{PROGRAMS}/pg_ctl", "-D", str(self.folder / "data")]
        subprocess.run([*control, *arguments], check=check, stdout=subprocess.DEVNULL, cwd="/")


@contextmanager
def postgres_server() -> Iterator[PostgresServer]:
    """A new one."""
    folder = Path(tempfile.mkdtemp(prefix="keepwarm-pg-", dir="/tmp"))
    command = ["runuser", "-u", "postgres", "--"] if os.geteuid() == 0 else []
    if command:
        shutil.chown(folder, "postgres")
    server = PostgresServer(folder=folder, command=command)
    try:
        made = [*command, f"{PROGRAMS}/initdb", "-D", str(folder / "data")]
        made += ["-A", "trust", "-U", "keepwarm"]
        subprocess.run(made, check=True, capture_output=True, cwd=folder)
        server.start()
        yield server
    finally:
        server.stop(check=False)
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def postgres() -> Iterator[str]:
    """The address of a new one."""
    with postgres_server() as server:
        yield server.address
