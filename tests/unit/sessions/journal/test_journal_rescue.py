"""What is committed of a journal that its path names no more is saved, and can be recovered."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from sessions.journal.recovery import recover
from sessions.journal.rescue import Rescue
from sessions.journal.sqlite import SqliteJournal
from tests.support.harmed_journals import DISPLACED, Harm, emptied
from tests.support.journals import record


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[SqliteJournal]:
    (tmp_path / "folder").mkdir()
    made = SqliteJournal(tmp_path / "folder" / "j.db", fingerprint=b"f")
    made.append([record("r0")])
    yield made
    made.close()


@pytest.mark.parametrize("harm", DISPLACED.values(), ids=DISPLACED)
def test_what_is_committed_is_saved_and_can_be_recovered(
    harm: Harm, journal: SqliteJournal, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    ids = [f"r{n}" for n in range(40)]
    journal.append([record(id_, session=id_) for id_ in ids[1:]])
    harm(journal.path)
    rescue = Rescue(journal, None)
    rescue.save()
    rescue.save()
    (saved,) = (path for path in tmp_path.rglob("*.saved-*") if path.suffix[-1] == "Z")
    assert str(saved) in caplog.text
    recover(saved, tmp_path / "recovered")
    found = SqliteJournal(tmp_path / "recovered", fingerprint=b"f")
    assert all(found.turn("t", id_) is not None for id_ in ids)
    found.close()


def test_what_cannot_be_read_any_more_is_counted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """An emptied file of which neither the log nor memory has everything."""
    path = tmp_path / "j.db"
    journal = SqliteJournal(path, fingerprint=b"f")
    journal.append([record(f"r{n}", session="s", answer="x" * 20_000) for n in range(300)])
    journal.close()
    journal = SqliteJournal(path, fingerprint=b"f")
    journal.append([record("last", session="s")])
    emptied(path)
    Rescue(journal, None).save()
    journal.close()
    (line,) = (message for message in caplog.messages if "saved in part" in message)
    told = dict(each.split("=") for each in line.split() if "=" in each)
    assert int(told["responses"]) + int(told["not_saved"]) >= 301 or int(told["faults"])
