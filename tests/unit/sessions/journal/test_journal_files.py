"""A journal's open files against their paths, and the room that is kept beside it."""

import errno
import os
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

import sessions.journal.files as journal_files
from sessions.journal.errors import JournalDisplaced, JournalUnavailable
from sessions.journal.files import RESERVE_BYTES, DiskReserve
from sessions.journal.sqlite import SqliteJournal
from tests.support.harmed_journals import DISPLACED, Harm, moved, written_over
from tests.support.journals import record


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[SqliteJournal]:
    (tmp_path / "folder").mkdir()
    made = SqliteJournal(tmp_path / "folder" / "j.db", fingerprint=b"f")
    made.append([record("r0")])
    made.look()
    yield made
    made.close()


@pytest.mark.parametrize("harm", DISPLACED.values(), ids=DISPLACED)
def test_nothing_is_acknowledged_into_a_file_that_its_path_does_not_name(
    harm: Harm, journal: SqliteJournal
) -> None:
    harm(journal.path)
    with pytest.raises(JournalDisplaced):
        journal.append([record("r1", session="s1")])
    with pytest.raises(JournalDisplaced):
        journal.look()


def test_the_same_file_is_taken_again_when_it_is_moved_back(journal: SqliteJournal) -> None:
    moved(journal.path)
    with pytest.raises(JournalDisplaced):
        journal.look()
    journal.path.parent.with_name("elsewhere").rename(journal.path.parent)
    journal.look()
    assert journal.append([record("r1", session="s1")]) == [True]


def test_a_second_hard_link_is_a_backup_and_no_fault(journal: SqliteJournal) -> None:
    os.link(journal.path, journal.path.with_name("backup"))
    journal.look()
    assert journal.append([record("r1", session="s1")]) == [True]


def test_an_older_copy_written_over_the_file_in_place_is_found(tmp_path: Path) -> None:
    path = tmp_path / "j.db"
    for n in range(2):
        journal = SqliteJournal(path, fingerprint=b"f")
        journal.append([record(f"r{n}", session=f"s{n}", answer="x" * 9000)])
        journal.close()
        if n == 0:
            (tmp_path / "older").write_bytes(path.read_bytes())
    journal = SqliteJournal(path, fingerprint=b"f")
    journal.look()
    written_over(path)
    with pytest.raises(JournalDisplaced, match="written over"):
        journal.look()
    journal.close()


def test_a_command_that_deletes_beside_the_server_is_no_fault(journal: SqliteJournal) -> None:
    journal.append([record("r1", session="s1")])
    beside = SqliteJournal(journal.path, fingerprint=b"f", beside=True)
    beside.delete_session("t", "s1")
    beside.vacuum()
    beside.close()
    journal.look()
    assert journal.append([record("r2", session="s2")]) == [True]
    journal.look()


def test_another_programs_lock_is_told_and_not_waited_for(journal: SqliteJournal) -> None:
    other = sqlite3.connect(journal.path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(JournalUnavailable, match="locked"):
        journal.look()
    other.close()
    journal.look()


def test_a_disk_without_room_is_told_and_the_reserve_pays_what_is_owed(
    journal: SqliteJournal, monkeypatch: pytest.MonkeyPatch
) -> None:
    reserve = journal.path.with_name("j.db.reserve")
    assert reserve.stat().st_size == RESERVE_BYTES
    with monkeypatch.context() as patched:
        patched.setattr(journal_files.os, "pwrite", _no_room)
        with pytest.raises(JournalUnavailable, match="No space left"):
            journal.look()
    assert DiskReserve(journal.path).spend()
    assert reserve.stat().st_size == 0
    journal.look()
    assert reserve.stat().st_size == RESERVE_BYTES


def _no_room(*_: object) -> int:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
