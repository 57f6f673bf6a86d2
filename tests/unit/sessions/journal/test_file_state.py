"""What SQLite says of a file, in the journal's words; how a whole file is opened is in
``test_journal_sqlite`` and ``test_inspection``."""

import sqlite3
from pathlib import Path

import pytest

from sessions.journal.errors import JournalDamaged, JournalError, JournalUnavailable
from sessions.journal.file_state import file_beside, lost, said, unusable

PATH = Path("/x/j")


def failing(code: int, text: str = "it failed") -> sqlite3.Error:
    error = sqlite3.OperationalError(text)
    error.sqlite_errorcode = code
    return error


@pytest.mark.parametrize(
    ("error", "kind", "words"),
    [
        (failing(sqlite3.SQLITE_BUSY), JournalUnavailable, "/x/j: it failed"),
        (failing(sqlite3.SQLITE_IOERR | 5 << 8), JournalUnavailable, "/x/j: it failed"),
        (
            failing(sqlite3.SQLITE_NOTADB),
            JournalDamaged,
            "no journal, or a damaged one .*--journal",
        ),
        (failing(sqlite3.SQLITE_CORRUPT), JournalDamaged, "damaged: it failed; run .*recover"),
        (failing(1, "no such table: turn"), JournalDamaged, "no such table"),
        (failing(1), JournalError, "/x/j: it failed"),
        (OverflowError("too large"), JournalDamaged, "damaged: too large"),
    ],
)
def test_every_failure_has_its_type_and_says_what_to_do(
    error: Exception, kind: type[JournalError], words: str
) -> None:
    with pytest.raises(kind, match=words) as told, said(PATH):
        raise error
    assert type(told.value) is kind
    assert "\n" not in str(told.value)


def test_what_lies_beside_a_journal_is_named_after_it() -> None:
    assert file_beside(PATH, "mark") == Path("/x/j.mark")
    assert "delete j.mark" in str(lost(PATH, 1, 2))
    assert "name another with --journal" in str(unusable(PATH, "it is a folder"))
