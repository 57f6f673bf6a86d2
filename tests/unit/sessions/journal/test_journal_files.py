"""A journal's open files against their paths, and the room that is kept beside it."""

import errno
import os
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import sessions.journal.files as journal_files
from sessions.journal.errors import JournalDisplaced, JournalUnavailable
from sessions.journal.files import RESERVE_BYTES, DiskReserve
from sessions.journal.mark import MarkFile, read_mark
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


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT], ids=["full", "quota"])
def test_a_disk_without_room_is_told_and_the_reserve_pays_what_is_owed(
    code: int, journal: SqliteJournal, monkeypatch: pytest.MonkeyPatch
) -> None:
    reserve = journal.path.with_name("j.db.reserve")
    assert reserve.stat().st_size == RESERVE_BYTES
    with monkeypatch.context() as patched:
        patched.setattr(journal_files.os, "pwrite", _failing(code))
        with pytest.raises(JournalUnavailable, match=os.strerror(code)):
            journal.look()
    assert DiskReserve(journal.path).spend()
    assert reserve.stat().st_size == 0
    journal.look()
    assert reserve.stat().st_size == RESERVE_BYTES


def test_a_disk_that_is_full_for_the_mark_alone_acknowledges_nothing(
    journal: SqliteJournal, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is in no mark may be gone one day without anybody knowing."""
    told = record("r1", session="s1")
    with monkeypatch.context() as patched:
        patched.setattr(MarkFile, "_write", _failing(errno.ENOSPC))
        for _ in range(3):
            with pytest.raises(JournalUnavailable, match="its mark: No space left"):
                journal.append([told])
    assert journal.append([told]) == [True]
    marked = read_mark(journal.path.with_name("j.db.mark"))
    assert marked is not None
    assert journal.turn("t", "r1") is not None


def test_a_folder_that_is_unmounted_and_mounted_again_is_taken_again(
    journal: SqliteJournal,
) -> None:
    """Without its disk the folder is there, and empty or with other files of the same names."""
    folder = journal.path.parent
    for strange in (False, True):
        moved(journal.path)
        folder.mkdir()
        if strange:
            for name in ("j.db", "j.db-wal", "j.db.mark"):
                (folder / name).write_bytes(b"another")
        with pytest.raises(JournalDisplaced):
            journal.look()
        with pytest.raises(JournalDisplaced):
            journal.append([record("r1", session="s1")])
        if strange:
            assert (folder / "j.db").read_bytes() == b"another"
        shutil.rmtree(folder)
        folder.with_name("elsewhere").rename(folder)
        journal.look()
    assert journal.append([record("r2", session="s2")]) == [True]


def test_of_two_faults_at_once_each_is_told_until_both_have_ended(
    journal: SqliteJournal, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = journal.path.parent
    with monkeypatch.context() as patched:
        patched.setattr(journal_files.os, "pwrite", _failing(errno.ENOSPC))
        moved(journal.path)
        with pytest.raises(JournalDisplaced):
            journal.look()
        folder.with_name("elsewhere").rename(folder)
        with pytest.raises(JournalUnavailable, match="No space left"):
            journal.look()
        moved(journal.path)
    with pytest.raises(JournalDisplaced):
        journal.look()
    folder.with_name("elsewhere").rename(folder)
    journal.look()
    assert journal.append([record("r1", session="s1")]) == [True]


def _failing(code: int) -> Callable[..., int]:
    def fail(*_: object) -> int:
        raise OSError(code, os.strerror(code))

    return fail
