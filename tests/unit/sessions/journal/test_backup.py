"""A backup is one whole state of the file, and a restored one is served."""

import os
import resource
import sqlite3
import stat
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from sessions.journal.backup import back_up, restore
from sessions.journal.copying import sums
from sessions.journal.errors import (
    JournalDamaged,
    JournalError,
    JournalInUse,
    JournalOtherVersion,
    JournalUnavailable,
)
from sessions.journal.mark import read_mark
from sessions.journal.records import NO_TURNS
from sessions.journal.tables import VERSION
from tests.support.journals import record
from tests.unit.sessions.journal.test_copying import drawn
from tests.unit.sessions.journal.test_journal_sqlite import filled, opened


@pytest.mark.parametrize("status", sorted(NO_TURNS))
def test_what_is_no_turn_is_counted_as_none(tmp_path: Path, status: str) -> None:
    """As KV of a session that is idle."""
    journal = opened(tmp_path / "j")
    journal.append([record("r1"), record("r2", session="other")])
    kept = replace(record("kv_1"), status=status, links=(), request_id=None)
    journal.append([kept])
    assert len(journal.session_turns("t", "s")) == 2
    assert back_up(tmp_path / "j", tmp_path / "kept").turns == sums(journal).turns == 2
    journal.close()


def test_a_backup_is_made_beside_a_server_and_restored_where_none_is(tmp_path: Path) -> None:
    journal = drawn(tmp_path / "j", 1)
    (tmp_path / "j.key").write_bytes(b"k" * 32)
    before = sums(journal)
    done = back_up(tmp_path / "j", tmp_path / "kept")
    assert (done.sessions, done.turns, done.cost) == (before.sessions, before.turns, before.cost)
    assert done.commits == journal.commits
    assert done.with_key
    assert stat.S_IMODE((tmp_path / "kept").stat().st_mode) == 0o600
    journal.append([record("later", session="s0")])
    journal.close()
    restored = tmp_path / "new" / "journal.sqlite3"
    told = restore(tmp_path / "kept", restored, aside=None)
    assert (told.turns, told.cost, told.aside) == (done.turns, done.cost, None)
    assert (tmp_path / "new/journal.key").read_bytes() == b"k" * 32
    again = opened(restored)
    assert sums(again) == before
    assert again.append([record("later", session="s0")]) == [True]
    again.close()


def test_nothing_is_left_beside_a_backup(tmp_path: Path) -> None:
    filled(tmp_path / "j")
    folder = tmp_path / "kept"
    folder.mkdir()
    back_up(tmp_path / "j", folder / "b")
    assert [each.name for each in folder.iterdir()] == ["b"]


def test_a_journal_that_is_there_is_put_aside_whole_and_only_if_asked(tmp_path: Path) -> None:
    filled(tmp_path / "j")
    back_up(tmp_path / "j", tmp_path / "kept")
    (tmp_path / "kept.key").write_bytes(b"k" * 32)
    (tmp_path / "j.key").write_bytes(b"o" * 32)
    journal = opened(tmp_path / "j")
    journal.append([record("later")])
    journal.close()
    after = read_mark(tmp_path / "j.mark")
    with pytest.raises(JournalError, match="--replace"):
        restore(tmp_path / "kept", tmp_path / "j", aside=None)
    told = restore(tmp_path / "kept", tmp_path / "j", aside=".old")
    assert told.aside == tmp_path / "j.old"
    assert (tmp_path / "j.key").read_bytes() == b"k" * 32
    assert (tmp_path / "j.key.old").read_bytes() == b"o" * 32
    assert read_mark(tmp_path / "j.old.mark") == after
    with closing(opened(tmp_path / "j")) as restored:
        assert restored.turn("t", "later") is None
        assert len(restored.sessions()) == 3
    with closing(opened(tmp_path / "j.old")) as old:
        assert old.turn("t", "later") is not None


def test_a_journal_whose_file_is_lost_and_whose_mark_is_there_is_restored(tmp_path: Path) -> None:
    filled(tmp_path / "j")
    back_up(tmp_path / "j", tmp_path / "kept")
    (tmp_path / "j").unlink()
    with pytest.raises(JournalDamaged):
        opened(tmp_path / "j")
    restore(tmp_path / "kept", tmp_path / "j", aside=".lost")
    with closing(opened(tmp_path / "j")) as journal:
        assert len(journal.sessions()) == 3


def test_what_a_server_uses_is_not_replaced_and_not_restored(tmp_path: Path) -> None:
    filled(tmp_path / "j")
    back_up(tmp_path / "j", tmp_path / "kept")
    with closing(opened(tmp_path / "j")):
        with pytest.raises(JournalInUse, match="stop it, then restore"):
            restore(tmp_path / "kept", tmp_path / "j", aside=".old")
        with pytest.raises(JournalInUse, match="stop it, then restore"):
            restore(tmp_path / "j", tmp_path / "new", aside=None)
    assert not (tmp_path / "new").exists()
    assert not (tmp_path / "j.old").exists()


@contextmanager
def no_room(most: int) -> Iterator[None]:
    """No file of this process grows beyond so many bytes."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (most, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_disk_without_room_leaves_nothing_and_says_so_in_a_line(tmp_path: Path) -> None:
    filled(tmp_path / "j")
    (tmp_path / "kept").mkdir()
    for work in (
        lambda: back_up(tmp_path / "j", tmp_path / "kept/b"),
        lambda: restore(tmp_path / "j", tmp_path / "kept/b", aside=None),
    ):
        with no_room(40 * 1024), pytest.raises(JournalUnavailable, match="kept/b: ") as refused:
            work()
        assert "\n" not in str(refused.value)
        left = {each.name for each in (tmp_path / "kept").iterdir()}
        assert left <= {"b.lock"}


def test_bad_places_are_refused_and_nothing_is_written_over(tmp_path: Path) -> None:
    filled(tmp_path / "j", 3)
    back_up(tmp_path / "j", tmp_path / "kept")
    before = (tmp_path / "kept").read_bytes()
    (tmp_path / "link").symlink_to("nowhere")
    for target in ("j", "kept", "link", "."):
        with pytest.raises(JournalError, match="exists"):
            back_up(tmp_path / "j", tmp_path / target)
    with pytest.raises(JournalUnavailable, match="No such file"):
        back_up(tmp_path / "j", tmp_path / "none/b")
    with pytest.raises(JournalUnavailable, match="no such file"):
        back_up(tmp_path / "none", tmp_path / "b")
    with pytest.raises(JournalError, match="is what was to be restored"):
        restore(tmp_path / "kept", tmp_path / "kept", aside=".old")
    assert (tmp_path / "kept").read_bytes() == before


def test_only_a_whole_journal_of_this_version_is_taken(tmp_path: Path) -> None:
    filled(tmp_path / "j")
    for name, sql in (
        ("newer", f"PRAGMA user_version={VERSION + 1}"),
        ("older", f"PRAGMA user_version={VERSION - 1}"),
    ):
        back_up(tmp_path / "j", tmp_path / name)
        with closing(sqlite3.connect(tmp_path / name)) as connection:
            connection.execute(sql)
        for work in (back_up, lambda a, b: restore(a, b, aside=None)):
            with pytest.raises(JournalOtherVersion, match=f"version {VERSION} alone") as refused:
                work(tmp_path / name, tmp_path / "b")
            assert name in str(refused.value)
    data = bytearray((tmp_path / "j").read_bytes())
    data[8192:12288] = os.urandom(4096)
    (tmp_path / "spoilt").write_bytes(data)
    for work in (back_up, lambda a, b: restore(a, b, aside=None)):
        with pytest.raises(JournalDamaged):
            work(tmp_path / "spoilt", tmp_path / "b")
    (tmp_path / "empty").touch()
    with pytest.raises(JournalUnavailable, match="no journal"):
        back_up(tmp_path / "empty", tmp_path / "b")
    (tmp_path / "text").write_text("no database" * 100)
    with pytest.raises(JournalDamaged, match="no journal"):
        back_up(tmp_path / "text", tmp_path / "b")
    assert not (tmp_path / "b").exists()
