"""``keepwarm sessions`` over a file, also one that a server uses."""

import json
from pathlib import Path

import pytest

from keepwarm.commands.main import main
from keepwarm.commands.sessions import COMMAND
from sessions.journal.errors import JournalParentGone
from sessions.journal.sqlite import SqliteJournal
from sessions.journal.view import SqliteView
from tests.support.journals import record, reservation


def ran(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    status = main(["sessions", *words])
    out, err = capsys.readouterr()
    return status, out, err


def test_sessions_are_listed_shown_deleted_and_vacuumed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = ("--journal", str(tmp_path / "j"))
    tenant = ("--tenant", "t")
    journal = SqliteJournal(tmp_path / "j", fingerprint=b"f")
    first = record("r1")
    journal.append([first, record("r2", parent=first, session="fork")])
    status, out, _ = ran(capsys, "list", *place, "--json")  # while it is in use
    assert status == 0
    assert {each["session"] for each in json.loads(out)} == {"s", "fork"}
    journal.reserve([reservation("r3", session="fork"), reservation("r4", session="new")])
    status, out, _ = ran(capsys, "show", *place, *tenant, "fork", "--json")
    assert [(each["response"], each["status"]) for each in json.loads(out)] == [
        ("r2", "completed"),
        ("r3", "running"),
    ]
    assert "r4" in ran(capsys, "show", *place, *tenant, "new")[1]
    journal.close()
    journal = SqliteJournal(tmp_path / "j", fingerprint=b"f")
    assert len(journal.settle_left()) == 2
    journal.close()
    assert "server_died" in ran(capsys, "show", *place, *tenant, "new")[1]
    assert "r1" in ran(capsys, "list", *place)[1]
    status, out, _ = ran(capsys, "show", *place, *tenant, "fork", "--json")
    assert [(each["response"], each["parent"]) for each in json.loads(out)] == [
        ("r2", "r1"),
        ("r3", "r0"),
    ]
    status, out, _ = ran(capsys, "delete", *place, *tenant, "s", "--json")
    assert json.loads(out) == [{"deleted": "s", "ended": ["fork"]}]
    assert ran(capsys, "show", *place, *tenant, "s")[0] == 1
    assert ran(capsys, "vacuum", *place)[0] == 0
    assert ran(capsys, "recover", str(tmp_path / "j"), str(tmp_path / "new"))[0] == 0


def test_deleting_and_vacuuming_go_beside_a_server(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = ("--journal", str(tmp_path / "j"))
    journal = SqliteJournal(tmp_path / "j", fingerprint=b"f")
    first = record("r1", answer="never to be read again")
    journal.append([first])
    assert ran(capsys, "delete", *place, "--tenant", "t", "s")[0] == 0
    assert ran(capsys, "vacuum", *place)[0] == 0
    said = [file.read_bytes() for file in tmp_path.iterdir()]
    assert not any(b"never to be read again" in each for each in said)
    with pytest.raises(JournalParentGone):
        journal.append([record("r2", parent=first)])
    assert journal.append([record("r3")]) == [True]
    journal.close()
    again = SqliteJournal(tmp_path / "j", fingerprint=b"f")
    assert len(again.chain("t", "r3")) == 1
    again.close()


def test_what_is_not_there_is_said_in_a_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    status, _, err = ran(capsys, "list", "--journal", str(tmp_path / "none"))
    assert (status, err.count("\n")) == (1, 1)
    assert set(COMMAND.commands) == {"list", "show", "delete", "vacuum", "recover"}
    SqliteJournal(tmp_path / "j", fingerprint=b"").close()
    view = SqliteView(tmp_path / "j")
    assert view.sessions() == []
    view.close()
