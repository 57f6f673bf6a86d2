"""Each thread has a connection of its own, and all are closed together."""

import sqlite3
import threading
from pathlib import Path

import pytest

from sessions.journal.file_connections import FileConnections


def test_a_thread_opens_once_until_all_are_to_open_anew(tmp_path: Path) -> None:
    connections = FileConnections(tmp_path / "j", "OFF")
    made: list[sqlite3.Connection] = []

    def make() -> sqlite3.Connection:
        made.append(connections.keep(connections.open()))
        return made[-1]

    def use() -> None:
        assert connections.mine(make) is connections.mine(make)

    use()
    thread = threading.Thread(target=use)
    thread.start()
    thread.join()
    assert len(made) == 2
    assert connections.first is made[0]
    connections.renew()
    use()
    assert len(made) == 3
    connections.close()
    for each in made:
        with pytest.raises(sqlite3.ProgrammingError, match="closed"):
            each.execute("SELECT 1")


def test_a_file_that_is_no_database_leaves_no_connection_open(tmp_path: Path) -> None:
    (tmp_path / "j").write_bytes(b"no database" * 1000)
    with pytest.raises(sqlite3.DatabaseError):
        FileConnections(tmp_path / "j", "FULL").open().execute("SELECT * FROM t")
