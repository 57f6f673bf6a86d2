"""Memory of the SQLite library."""

import sqlite3
from pathlib import Path

import pytest

from sessions.journal import sqlite_memory
from sessions.journal.sqlite_memory import sqlite_bytes


@pytest.mark.skipif(sqlite_memory.memory_used() is None, reason="the library does not say")
def test_pages_that_a_connection_keeps_count_until_it_is_closed(tmp_path: Path) -> None:
    before = sqlite_bytes()
    connection = sqlite3.connect(tmp_path / "file")
    connection.execute("CREATE TABLE t (a)")
    connection.executemany("INSERT INTO t VALUES (?)", [("x" * 500,)] * 4000)
    connection.commit()
    assert 1 << 20 < sqlite_bytes() - before < 8 << 20
    connection.close()
    assert abs(sqlite_bytes() - before) < 1 << 20


def test_a_library_that_does_not_say_has_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite_memory, "memory_used", lambda: None)
    assert sqlite_bytes() == 0
