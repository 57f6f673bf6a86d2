"""Saving what is committed of a journal whose file is not where its path says any more.

What is open still reads what was committed: a file that was removed or moved is copied whole. Of
one that was emptied or written over, what the log and memory have of it is picked row by row. The
new file lies beside the old one, or in a folder that was named; ``keepwarm sessions recover`` reads
it, and it can be put where the journal was.

Always true: a file that is there is not written to; what is in the new one was committed once.
"""

import contextlib
import logging
import os
import sqlite3
import tempfile
import time
from pathlib import Path

from sessions.journal.errors import JournalError
from sessions.journal.recovery import Recovered, save
from sessions.journal.sqlite import SqliteJournal

log = logging.getLogger(__name__)

_PAGES = 1024
"""Pages of a file that are copied at once."""


class Rescue:
    """The rescue of one journal that is open."""

    def __init__(self, journal: SqliteJournal, folder: Path | None) -> None:
        """``folder``: where to save; None: beside the journal."""
        self._journal = journal
        self._folder = folder
        self._saved: int | None = None
        """Commits of what was saved last."""

    def save(self) -> None:
        """Save it, unless nothing was committed since; a log line says where it is."""
        with self._journal.held() as connection:
            if self._saved == self._journal.commits:
                return
            self._saved = self._journal.commits
            try:
                target = self._place()
                try:
                    _copy(connection, target, self._journal.commits)
                except sqlite3.Error:
                    target.unlink(missing_ok=True)
                    report = save(connection, target, Recovered())
                    log.error(
                        "journal saved in part path=%s responses=%d not_saved=%d faults=%d",
                        *(target, report.turns, report.gone, len(report.lost)),
                    )
                else:
                    log.error("journal saved path=%s", target)
            except (sqlite3.Error, OSError, JournalError) as error:
                self._saved = None
                log.error("journal cannot be saved reason=%s", error)

    def _place(self) -> Path:
        """A name that nothing has, beside the journal or as near as a folder is left."""
        path = self._journal.path.absolute()
        near = [folder for folder in path.parents if os.access(folder, os.W_OK | os.X_OK)]
        folder = self._folder or (near[0] if near else Path(tempfile.gettempdir()))
        stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
        for number in range(1000):
            name = f"{path.name}.saved-{stamp}" + (f"-{number}" if number else "")
            if not (folder / name).exists():
                return folder / name
        raise FileExistsError(f"{folder} is full of saved journals")


def _copy(connection: sqlite3.Connection, target: Path, commits: int) -> None:
    """Raises sqlite3.Error: what can be read is not all of it."""
    os.close(os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    with contextlib.closing(sqlite3.connect(target, isolation_level=None)) as copy:
        connection.backup(copy, pages=_PAGES)
        copy.execute("PRAGMA journal_mode=DELETE")
        found = copy.execute("SELECT commits FROM journal WHERE id = 1").fetchone()
        whole = copy.execute("PRAGMA integrity_check(1)").fetchone()
    if found != (commits,) or whole != ("ok",):
        raise sqlite3.DatabaseError("the copy lacks some of it")
