"""A SQLite journal whose database's clock is the test's."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from sessions.journal.sqlite import SqliteJournal
from sessions.journal.tables import Cursor


class TimedJournal(SqliteJournal):
    """``told`` gives the milliseconds that the database's clock shows."""

    def __init__(self, path: Path, told: Callable[[], int], **options: Any) -> None:
        self._told = told
        super().__init__(path, **options)

    def now_ms(self, cursor: Cursor) -> int:
        """See ``SqlTables``."""
        return self._told()
