"""One program locks a journal's file and makes its tables; one that has gone is refused."""

import os
import sqlite3
from contextlib import closing
from fcntl import LOCK_EX, LOCK_SH
from pathlib import Path

import pytest

from sessions.journal.errors import JournalDamaged, JournalInUse, JournalUnavailable
from sessions.journal.file_opening import locked, made_file, prepare
from sessions.journal.mark import MarkFile


def test_a_lock_is_one_programs_or_shared(tmp_path: Path) -> None:
    path = tmp_path / "j"
    held = [locked(path, LOCK_SH), locked(path, LOCK_SH), locked(path, None)]
    with pytest.raises(JournalInUse, match="another server's"):
        locked(path, LOCK_EX)
    for lock in held:
        os.close(lock)
    os.close(locked(path, LOCK_EX))
    with pytest.raises(JournalUnavailable):
        locked(tmp_path / "nowhere" / "j", LOCK_EX)


def test_tables_are_made_once_and_the_identity_stays(tmp_path: Path) -> None:
    path = tmp_path / "j"
    for time in range(2):
        mark = made_file(path)
        with closing(sqlite3.connect(path, isolation_level=None)) as connection:
            found = prepare(connection.cursor(), path, mark)
        if time == 0:
            assert (path.stat().st_mode & 0o777, found[2]) == (0o600, True)
            first = found
    assert found == (0, first[1], False), "nobody has said that it was closed"


def test_a_file_that_has_gone_and_a_folder_are_refused(tmp_path: Path) -> None:
    mark = MarkFile(tmp_path / "j.mark", b"i" * 16)
    mark.write(3)
    mark.close()
    with pytest.raises(JournalDamaged):
        made_file(tmp_path / "j")
    with pytest.raises(JournalUnavailable, match="folder"):
        made_file(tmp_path)
