"""Looking a journal's file through, as after a server that was killed: beside its use.

Others read and write the file meanwhile. A check that is given up is made at the next start.
"""

import contextlib
import logging
import sqlite3
import threading
from collections.abc import Callable
from pathlib import Path

from sessions.journal.errors import JournalDamaged

log = logging.getLogger(__name__)

_LARGE = 64 * 1024 * 1024
"""A file that another program has written into is looked through at once unless it is larger."""


class FileCheck:
    """One check, in a thread of its own once it is started."""

    def __init__(self, path: Path, connection: sqlite3.Connection) -> None:
        """``connection``: nobody else uses it until the check is over."""
        self.path = path
        self.connection = connection
        self.whole = False
        """Whether all of the file was read, and nothing is wrong."""
        self._given_up = False
        self._thread: threading.Thread | None = None

    def start(self, guarded: Callable[[Callable[[], object]], None]) -> None:
        """Begin. ``guarded`` makes the call and takes the errors that it raises."""
        self._thread = threading.Thread(
            target=guarded, args=(self.look_through,), name="journal check", daemon=True
        )
        self._thread.start()

    @property
    def is_running(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    def wait(self) -> None:
        """Return when the check is over."""
        if self._thread is not None:
            self._thread.join()

    def give_up(self) -> None:
        """End the check where it is."""
        self._given_up = True
        while self._thread is not None and self._thread.is_alive():
            self.connection.interrupt()  # in vain where it has not begun
            self._thread.join(0.01)

    def look_through(self) -> None:
        """Read all of the file, and look each row up in each index, which alone finds a damaged
        key. Raises JournalDamaged."""
        log.info("journal was not closed, looking through it path=%s", self.path)
        (found,) = self.connection.execute("PRAGMA integrity_check(1)").fetchone()
        if self._given_up:
            return  # what was interrupted may say anything
        if found != "ok":
            first = str(found).splitlines()[0]
            raise JournalDamaged(f"{self.path}: {first}; run 'keepwarm sessions recover'")
        self.whole = True
        log.info("journal is whole path=%s", self.path)


def still_ours(
    path: Path,
    connect: Callable[[], sqlite3.Connection],
    commits: int,
    *,
    looks_through: bool,
) -> bool | None:
    """Whether a file into which another program has written still holds the journal with so many
    commits; None: that program has it locked.

    Args:
        connect: opens the file; what it returns is closed here.
        looks_through: also whether its pages are whole, unless it is large.
    """
    try:
        with contextlib.closing(connect()) as connection:
            sql = "SELECT identity, commits FROM journal WHERE id = 1"
            found = connection.execute(sql).fetchone()
            if found is None or found[1] < commits:
                return False
            if not looks_through or path.stat().st_size > _LARGE:
                return True
            return bool(connection.execute("PRAGMA quick_check(1)").fetchone() == ("ok",))
    except (sqlite3.DatabaseError, OSError) as error:
        busy = getattr(error, "sqlite_errorcode", 0) & 0xFF == sqlite3.SQLITE_BUSY
        return None if busy else False
