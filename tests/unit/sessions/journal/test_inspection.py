"""Who looks at a journal says what a server would that opens it, and leaves it as it was."""

import os
import random
import sqlite3
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

from sessions.journal.errors import (
    JournalDamaged,
    JournalError,
    JournalInUse,
    JournalOtherVersion,
    JournalUnavailable,
)
from sessions.journal.inspection import Seen, look_at
from tests.support.journals import record
from tests.unit.sessions.journal.test_journal_sqlite import (
    copied,
    damaged,
    filled,
    opened,
    without_rights,
)

SEEDS = range(30)


def files(path: Path) -> dict[str, bytes]:
    """All that lies there, but for what SQLite shares among those who read."""
    return {
        each.name: each.read_bytes()
        for each in path.parent.iterdir()
        if not each.name.endswith("-shm") and (each.stat().st_size or "-wal" not in each.name)
    }


def test_a_whole_journal_is_counted_and_left_alone(tmp_path: Path) -> None:
    filled(tmp_path / "j")
    before = files(tmp_path / "j")
    size = (tmp_path / "j").stat().st_size
    assert look_at(tmp_path / "j", shared=False) == Seen(sessions=3, num_bytes=size, whole=True)
    assert files(tmp_path / "j") == before


def test_what_is_not_there_yet_is_nothing_and_is_not_made(tmp_path: Path) -> None:
    assert look_at(tmp_path / "j", shared=False) is None
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "empty").touch()
    assert look_at(tmp_path / "empty", shared=False) is None


def test_a_file_that_was_not_closed_is_looked_at_with_its_log(tmp_path: Path) -> None:
    journal = opened(tmp_path / "j")
    journal.append([record("r1")])
    image = copied(tmp_path / "j", tmp_path / "image")
    journal.close()
    seen = look_at(image, shared=False)
    assert seen is not None
    assert seen.sessions == 1


def test_a_file_that_another_server_has_is_told_unless_both_share_it(tmp_path: Path) -> None:
    for shared in (False, True):
        journal = opened(tmp_path / "j", shared=shared)
        with pytest.raises(JournalInUse, match="another server's"):
            look_at(tmp_path / "j", shared=False)
        if shared:
            assert look_at(tmp_path / "j", shared=True) is not None
        journal.close()


def of_another_version(path: Path) -> None:
    with sqlite3.connect(path) as connection:
        connection.execute("PRAGMA user_version=99")


def others(path: Path) -> None:
    path.unlink()
    path.with_name(f"{path.name}.mark").unlink()
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE bookmarks (url TEXT)")


def emptied(path: Path) -> None:
    path.write_bytes(b"")


def gone(path: Path) -> None:
    path.unlink()


def text(path: Path) -> None:
    path.write_bytes(b"not a database, but long enough to be looked at" * 100)


def without_first_row(path: Path) -> None:
    with sqlite3.connect(path) as connection:
        connection.execute("DELETE FROM journal")


def older_copy(path: Path) -> None:
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE journal SET commits = commits - 1")


def folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


@pytest.mark.parametrize(
    ("harm", "kind", "said"),
    [
        (of_another_version, JournalOtherVersion, "tables of version 99"),
        (others, JournalUnavailable, "another program's database; name another with --journal"),
        (emptied, JournalDamaged, "lost commits"),
        (gone, JournalDamaged, "lost commits"),
        (text, JournalDamaged, "is no journal, or a damaged one"),
        (without_first_row, JournalDamaged, "first row"),
        (older_copy, JournalDamaged, "lost commits"),
        (folder, JournalUnavailable, "it is a folder"),
    ],
)
def test_what_keeps_a_server_from_opening_it_is_told_in_the_same_words(
    harm: Callable[[Path], None], kind: type[JournalError], said: str, tmp_path: Path
) -> None:
    filled(tmp_path / "j", turns=3)
    harm(tmp_path / "j")
    with pytest.raises(kind, match=said) as looked:
        look_at(tmp_path / "j", shared=False)
    with pytest.raises(kind, match=said) as tried:
        opened(tmp_path / "j")
    assert str(looked.value) == str(tried.value)
    assert "\n" not in str(looked.value)


@pytest.mark.parametrize("seed", SEEDS)
def test_no_damage_that_a_server_meets_at_its_start_is_overlooked(
    seed: int, tmp_path: Path
) -> None:
    made = filled(tmp_path / "j", turns=9)
    (tmp_path / "j").write_bytes(damaged((tmp_path / "j").read_bytes(), random.Random(seed)))
    before = files(tmp_path / "j")
    try:
        seen = look_at(tmp_path / "j", shared=False)
    except JournalError:
        seen = None
    assert files(tmp_path / "j") == before
    if seen is None:
        return
    journal = opened(tmp_path / "j")
    assert len(journal.sessions()) == seen.sessions == len({turn.session for turn in made})
    journal.close()


@pytest.mark.parametrize("closed", ["j", "j.mark", "j.lock", "."])
def test_what_may_not_be_written_is_told(closed: str) -> None:
    with tempfile.TemporaryDirectory() as name:  # pytest's own folders are for nobody else
        place = Path(name)
        opened(place / "j").close()
        for path in place.iterdir():
            path.chmod(0o666)
        place.chmod(0o777)
        (place / closed).chmod(0o555 if closed == "." else 0o444)
        target = "new" if closed == "." else "j"
        with without_rights(), pytest.raises(JournalUnavailable, match="--journal"):
            look_at(place / target, shared=False)
        place.chmod(0o777)


def test_a_folder_that_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(JournalUnavailable, match=f"there is no folder {tmp_path / 'no'}; name"):
        look_at(tmp_path / "no" / "j", shared=False)


def test_a_look_ends_in_time_and_says_that_it_did(tmp_path: Path) -> None:
    filled(tmp_path / "j")
    ticks = iter(range(10**9))
    seen = look_at(tmp_path / "j", shared=False, look_s=0.5, clock=lambda: float(next(ticks)))
    assert seen is not None
    assert (seen.sessions, seen.whole) == (3, False)
    assert os.path.exists(tmp_path / "j")
