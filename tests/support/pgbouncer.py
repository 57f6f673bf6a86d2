"""A PgBouncer of a test's own before a PostgreSQL server, where Debian's is installed."""

import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psycopg

from tests.support.postgres import PostgresServer

PROGRAM = shutil.which("pgbouncer") or shutil.which("pgbouncer", path="/usr/sbin:/usr/local/sbin")
MISSING = "PgBouncer is not installed (Debian: apt-get install pgbouncer)"


@dataclass(kw_only=True)
class Pooler:
    """One that runs; ``told`` changes its settings."""

    database: PostgresServer
    folder: Path
    port: int
    process: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        """Of the database ``postgres`` behind it."""
        return f"postgresql://keepwarm@127.0.0.1:{self.port}/postgres"

    def write(self, **settings: str | int) -> None:
        """Its file, with these settings beside those that a test needs."""
        given = {"pool_mode": "session", "default_pool_size": 30, **settings}
        lines = [
            "[databases]",
            f"* = host={self.database.folder}",
            "[pgbouncer]",
            f"listen_port = {self.port}",
            "listen_addr = 127.0.0.1",
            "unix_socket_dir =",
            "auth_type = trust",
            f"auth_file = {self.folder}/users",
            "admin_users = keepwarm",
            f"logfile = {self.folder}/log",
            *(f"{name} = {value}" for name, value in given.items()),
        ]
        (self.folder / "users").write_text('"keepwarm" ""\n')
        (self.folder / "ini").write_text("\n".join(lines) + "\n")

    def tell(self, word: str) -> None:
        """A word on its console, as ``RELOAD``."""
        console = self.address.replace("/postgres", "/pgbouncer")
        with psycopg.connect(console, autocommit=True) as told:
            told.execute(word.encode())

    def change(self, **settings: str | int) -> None:
        """Have it read its file anew."""
        self.write(**settings)
        self.tell("RELOAD")

    def start(self) -> None:
        """Wait until it listens."""
        refuses_root = {"user": "postgres", "group": "postgres", "extra_groups": []}
        self.process = subprocess.Popen(
            [str(PROGRAM), str(self.folder / "ini")],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd="/",
            **(refuses_root if os.geteuid() == 0 else {}),
        )  # fmt: skip
        until = time.monotonic() + 20
        while True:
            try:
                socket.create_connection(("127.0.0.1", self.port)).close()
                return
            except OSError:
                assert time.monotonic() < until, (self.folder / "log").read_text()
                time.sleep(0.02)

    def stop(self) -> None:
        """As in a crash."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None


@contextmanager
def pooler(database: PostgresServer, **settings: str | int) -> Iterator[Pooler]:
    """A new one."""
    folder = Path(tempfile.mkdtemp(prefix="keepwarm-pb-", dir="/tmp"))
    folder.chmod(0o755)
    if os.geteuid() == 0:
        shutil.chown(folder, "postgres")
    with socket.create_server(("127.0.0.1", 0)) as found:
        port = int(found.getsockname()[1])
    made = Pooler(database=database, folder=folder, port=port)
    made.write(**settings)
    made.start()
    try:
        yield made
    finally:
        made.stop()
        shutil.rmtree(folder, ignore_errors=True)
