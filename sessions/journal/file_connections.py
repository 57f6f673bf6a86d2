"""A journal's connections to its file: one for each thread, all closed together.

Always true: a connection that is not kept is its caller's to close.
"""

import sqlite3
import threading
from collections.abc import Callable
from pathlib import Path

BUSY_S = 2.0
"""How long a statement waits for another program's lock."""
CHECKPOINT_BYTES = 4 * 1024 * 1024
"""A write-ahead log that is longer is moved into the database, beside the commits, and cut to
this when it begins anew: a commit that writes over old ones waits for less of the file system."""


class FileConnections:
    """Connections to one file, one for each thread."""

    def __init__(self, path: Path, synchronous: str) -> None:
        """``synchronous``: SQLite's word."""
        self._path = path
        self._synchronous = synchronous
        self._local = threading.local()
        self._all: list[sqlite3.Connection] = []

    @property
    def first(self) -> sqlite3.Connection:
        """The one that was opened first."""
        return self._all[0]

    def mine(self, make: Callable[[], sqlite3.Connection]) -> sqlite3.Connection:
        """This thread's connection, made if it has none."""
        connection: sqlite3.Connection | None = getattr(self._local, "connection", None)
        if connection is None:
            connection = self._local.connection = make()
        return connection

    def keep(self, connection: sqlite3.Connection) -> sqlite3.Connection:
        """Have it closed with the others."""
        self._all.append(connection)
        return connection

    def one_more(self) -> sqlite3.Connection:
        """A new one for writing, closed with the others."""
        return self.keep(self.open())

    def open(self) -> sqlite3.Connection:
        """A new one for writing, which is its caller's to close."""
        connection = sqlite3.connect(
            self._path, timeout=BUSY_S, isolation_level=None, check_same_thread=False
        )
        try:
            for pragma in (
                f"synchronous={self._synchronous}",
                "secure_delete=ON",
                "cell_size_check=ON",
                "trusted_schema=OFF",
                "wal_autocheckpoint=0",
                f"journal_size_limit={CHECKPOINT_BYTES}",
            ):
                connection.execute(f"PRAGMA {pragma}")
        except BaseException:
            connection.close()
            raise
        return connection

    def renew(self) -> None:
        """Have each thread open a connection of its own anew from now on."""
        self._local = threading.local()

    def leave_open(self) -> None:
        """Close none of them before the process ends."""
        held = list(self._all)
        self._all.clear()
        threading.Thread(
            target=_keep_for_ever, args=(held,), name="journal kept", daemon=True
        ).start()

    def close(self) -> None:
        """Close all connections that are kept."""
        for connection in self._all:
            connection.close()
        self._all.clear()


def _keep_for_ever(_: object) -> None:
    """For a thread that nobody waits for: its argument lives as long as the process."""
    threading.Event().wait()
