"""A journal's file as somebody sees it who changes nothing, beside the server that uses it."""

import contextlib
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path

from sessions.journal.errors import JournalAbsent, JournalError, JournalUnavailable
from sessions.journal.file_state import NOW_SQL, file_beside, has_tables, said
from sessions.journal.mark import Mark, read_mark
from sessions.journal.sql import SqlJournal
from sessions.journal.tables import Cursor


class SqliteView(SqlJournal):
    """The reading half of ``Journal``; one thread's."""

    now_sql = NOW_SQL

    def __init__(self, path: Path) -> None:
        """Open the file, to read alone.

        Raises:
            JournalUnavailable: there is no such file, or it holds what no journal does.
            JournalAbsent: it has no tables yet.
            JournalOtherVersion: it has tables of another version.
            JournalDamaged: it is no database, or what it had is gone.
        """
        super().__init__(fingerprint=b"", owner="", shared=False)
        if not path.is_file():
            raise JournalUnavailable(f"{path}: no such file")
        self._path = path
        with said(path):
            self._connection = sqlite3.connect(
                f"{path.resolve().as_uri()}?mode=ro", uri=True, isolation_level=None
            )
        try:
            with said(path):
                if not has_tables(self._connection.cursor(), path, _mark(path)):
                    raise JournalAbsent(f"there is no journal in {path} yet")
        except JournalError:
            self.close()
            raise

    @contextlib.contextmanager
    def writing(self, *, synced: bool = True) -> Iterator[Cursor]:
        """Raises: a file that is only looked at is not written."""
        raise JournalError(f"{self._path} is only looked at")
        yield

    @contextlib.contextmanager
    def reading(self) -> Iterator[Cursor]:
        """See ``SqlTables``."""
        with said(self._path):
            yield self._connection.cursor()

    def interrupt_if(self, told: Callable[[], bool] | None, *, every: int = 0) -> None:
        """End a statement with SQLITE_INTERRUPT once ``told`` says so, which is asked after so many
        steps of SQLite's machine; None: let it run."""
        self._connection.set_progress_handler(told, every)

    def close(self) -> None:
        """Close the file that was looked at."""
        self._connection.close()


def _mark(path: Path) -> Mark | None:
    """The mark beside a journal's file; None also where it cannot be read."""
    try:
        return read_mark(file_beside(path, "mark"))
    except OSError:
        return None
