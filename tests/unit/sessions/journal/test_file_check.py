"""A file is looked through beside its use, and what another program wrote into it is noticed."""

import sqlite3
import threading
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from sessions.journal.errors import JournalDamaged
from sessions.journal.file_check import FileCheck, still_ours
from sessions.journal.file_connections import FileConnections
from sessions.journal.sqlite import SqliteJournal
from tests.support.journals import record

PAGE = 4096


@pytest.fixture
def path(tmp_path: Path) -> Path:
    with closing(SqliteJournal(tmp_path / "j", fingerprint=b"f")) as journal:
        journal.append([record("r1")])
        journal.append([record("r2")])
    return tmp_path / "j"


def harm(path: Path, page: int = -1) -> None:
    """Have a page hold zeros."""
    data = bytearray(path.read_bytes())
    at = page % (len(data) // PAGE) * PAGE
    data[at : at + PAGE] = bytes(PAGE)
    path.write_bytes(data)


def check(path: Path) -> tuple[FileCheck, list[Exception]]:
    """A check that has run, and the errors it raised."""
    raised: list[Exception] = []

    def guarded(work: Callable[[], object]) -> None:
        try:
            work()
        except JournalDamaged as error:
            raised.append(error)

    with closing(FileConnections(path, "OFF").open()) as connection:
        made = FileCheck(path, connection)
        made.start(guarded)
        made.wait()
    assert not made.is_running
    return made, raised


def test_a_whole_file_is_whole_and_a_harmed_one_damaged(path: Path) -> None:
    made, raised = check(path)
    assert (made.whole, raised) == (True, [])
    harm(path)
    made, raised = check(path)
    assert not made.whole
    assert "run 'keepwarm sessions recover'" in str(raised[0])


def test_a_check_that_is_given_up_ends_and_says_nothing(path: Path) -> None:
    begun, goes_on = threading.Event(), threading.Event()

    def step() -> None:
        begun.set()
        goes_on.wait()

    class Connection(sqlite3.Connection):
        def interrupt(self) -> None:
            super().interrupt()
            goes_on.set()

    with closing(sqlite3.connect(path, factory=Connection, check_same_thread=False)) as connection:
        connection.set_progress_handler(step, 1)
        made, errors = FileCheck(path, connection), list[BaseException]()

        def guarded(work: Callable[[], object]) -> None:
            try:
                work()
            except sqlite3.OperationalError as error:
                errors.append(error)

        made.start(guarded)
        assert begun.wait(60)
        made.give_up()
    assert not made.is_running
    assert not made.whole
    assert all("interrupted" in str(error) for error in errors)


def test_a_file_is_ours_while_it_has_our_commits_and_its_pages_are_whole(path: Path) -> None:
    connect = FileConnections(path, "OFF").open
    with closing(connect()) as connection:
        (commits,) = connection.execute("SELECT commits FROM journal").fetchone()
    assert still_ours(path, connect, commits, looks_through=True)
    assert still_ours(path, connect, commits + 1, looks_through=True) is False
    whole, unseen = path.read_bytes(), 0
    for page in range(1, len(whole) // PAGE, 5):
        path.write_bytes(whole)
        harm(path, page)
        unseen += still_ours(path, connect, commits, looks_through=False) is True
        assert still_ours(path, connect, commits, looks_through=True) is False, page
    assert unseen
    path.write_bytes(b"no database" * 1000)
    assert still_ours(path, connect, commits, looks_through=False) is False


def test_a_file_that_another_program_has_locked_is_not_judged(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sessions.journal.file_connections.BUSY_S", 0.0)
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("PRAGMA locking_mode=EXCLUSIVE")
        other.execute("BEGIN EXCLUSIVE")
        connect = FileConnections(path, "OFF").open
        assert still_ours(path, connect, 1, looks_through=False) is None
