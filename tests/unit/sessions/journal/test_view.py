"""Whoever looks at a file is told what it is, before anything of it is read."""

import os
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from sessions.journal.errors import (
    JournalAbsent,
    JournalDamaged,
    JournalError,
    JournalOtherVersion,
    JournalUnavailable,
)
from sessions.journal.tables import VERSION
from sessions.journal.view import SqliteView
from tests.unit.sessions.journal.test_journal_sqlite import filled


def test_a_journal_is_read_and_never_written(tmp_path: Path) -> None:
    filled(tmp_path / "j")
    with closing(SqliteView(tmp_path / "j")) as view:
        assert len(view.sessions()) == 3
        with pytest.raises(JournalError, match="only looked at"), view.writing():
            pass


@pytest.mark.parametrize("name", ["j#1", "j?mode=rwc", "100%41", "a b", "ü✓", os.fsdecode(b"\xff")])
def test_a_path_is_read_as_it_stands_whatever_characters_it_has(tmp_path: Path, name: str) -> None:
    folder = tmp_path / name
    folder.mkdir()
    filled(folder / name)
    with closing(SqliteView(folder / name)) as view:
        assert len(view.sessions()) == 3
    assert list(tmp_path.iterdir()) == [folder]


def test_a_file_that_is_no_journal_of_this_version_is_refused_as_what_it_is(
    tmp_path: Path,
) -> None:
    for name in ("other", "emptied", "spoilt"):
        filled(tmp_path / name)
    with closing(sqlite3.connect(tmp_path / "other")) as database:
        database.execute(f"PRAGMA user_version={VERSION + 1}")
    (tmp_path / "emptied").write_bytes(b"")
    (tmp_path / "spoilt").write_bytes(b"no database" * 100)
    (tmp_path / "empty").touch()
    with closing(sqlite3.connect(tmp_path / "bookmarks")) as database:
        database.execute("CREATE TABLE bookmark (url TEXT)")
    for name, kind, said in (
        ("none", JournalUnavailable, "no such file"),
        ("other", JournalOtherVersion, f"version {VERSION} alone"),
        ("emptied", JournalDamaged, "lost commits"),
        ("spoilt", JournalDamaged, "is no journal, or a damaged one"),
        ("empty", JournalAbsent, "there is no journal in"),
        ("bookmarks", JournalUnavailable, "another program's database"),
    ):
        with pytest.raises(kind, match=said):
            SqliteView(tmp_path / name)
