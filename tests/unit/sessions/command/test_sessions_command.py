"""``keepwarm sessions`` over a file, also one that a server uses."""

import io
import json
import os
import re
import sqlite3
import sys
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from keepwarm.commands.main import main
from keepwarm.commands.sessions import COMMAND
from sessions.journal.errors import JournalParentGone
from sessions.journal.records import RESIDENCY
from sessions.journal.sqlite import SqliteJournal
from sessions.journal.tables import VERSION
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


def test_a_vacuum_counts_the_log_of_what_is_not_in_the_file_yet(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "j"
    journal = SqliteJournal(path, fingerprint=b"f")
    before = path.stat().st_size
    for number in range(40):
        journal.append([record(f"r{number}", answer="long " * 200)])
    status, out, _ = ran(capsys, "vacuum", "--journal", str(path))
    assert path.stat().st_size > before
    assert (status, int(out.split()[-3]) >= 0) == (0, True)
    journal.close()


def test_what_is_not_there_is_said_in_a_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    status, _, err = ran(capsys, "list", "--journal", str(tmp_path / "none"))
    assert (status, err.count("\n")) == (1, 1)
    for source in ("none", "x" * 300):  # the system does not look for the second name
        status, _, err = ran(capsys, "recover", source, str(tmp_path / "new"))
        assert (status, err.count("\n")) == (1, 1)
        assert err.startswith(f"keepwarm: error: {source}: ")
    looking = {"list", "show", "delete", "vacuum", "recover"}
    assert set(COMMAND.commands) == looking | {"backup", "restore", "copy"}
    SqliteJournal(tmp_path / "j", fingerprint=b"").close()
    view = SqliteView(tmp_path / "j")
    assert view.sessions() == []
    view.close()


@pytest.mark.parametrize("version", [1, VERSION - 1, VERSION + 1])
def test_a_journal_of_another_version_is_refused_by_name_by_every_command(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], version: int
) -> None:
    path = tmp_path / "j"
    SqliteJournal(path, fingerprint=b"").close()
    with closing(sqlite3.connect(path)) as database:
        if version == 1:  # which had less
            database.execute("DROP TABLE conversation")
            database.execute("DROP TABLE session")
        database.execute(f"PRAGMA user_version={version}")
    before, new = path.read_bytes(), str(tmp_path / "new")
    session = ("--tenant", "t", "s")
    commands = {
        "list": (),
        "show": session,
        "delete": session,
        "vacuum": (),
        "backup": (new,),
    }
    asked = [(name, *more, "--journal", str(path)) for name, more in commands.items()]
    asked += [("recover", str(path), new), ("copy", str(path), new)]
    asked += [("restore", str(path), "--journal", new)]
    assert {name for name, *_ in asked} == set(COMMAND.commands)
    for command in asked:
        status, out, err = ran(capsys, *command)
        assert (status, out) == (1, ""), command
        assert f"{path} has tables of version {version}, and this program reads" in err, command
        assert not Path(new).exists()
    assert path.read_bytes() == before


def test_a_name_is_shown_on_a_terminal_without_its_letters(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = SqliteJournal(tmp_path / "j", fingerprint=b"f")
    journal.append([record("r1", session="ü✓😀")])
    journal.close()
    for as_json in ((), ("--json",)):
        written = io.BytesIO()
        monkeypatch.setattr("sys.stdout", io.TextIOWrapper(written, encoding="latin-1"))
        assert main(["sessions", "list", "--journal", str(tmp_path / "j"), *as_json]) == 0
        sys.stdout.flush()
        if as_json:
            assert json.loads(written.getvalue())[0]["session"] == "ü✓😀"
        else:
            assert "ü\\u2713\\U0001f600".encode("latin-1") in written.getvalue()


def test_words_that_are_no_text_are_refused_in_a_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    SqliteJournal(tmp_path / "j", fingerprint=b"f").close()
    typed = os.fsdecode(b"\xff")
    for words in (
        ("show", "--tenant", "t", typed),
        ("delete", "--tenant", "t", typed),
        ("list", "--tenant", typed),
        ("list", "--search", typed),
    ):
        status, out, err = ran(capsys, *words, "--journal", str(tmp_path / "j"))
        assert (status, out) == (2, "")
        assert err == "keepwarm: error: '\\udcff' is not text in UTF-8\n"


LEAD = b'{"tree":[{"output":100,"cost":2000000000},{}]}'
CODER = b'{"session":[{"output":40},{}],"parent":"lead"}'


def test_sessions_are_listed_by_their_last_turn_with_budgets_of_every_scope(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = ("--journal", str(tmp_path / "j"))
    journal = SqliteJournal(tmp_path / "j", fingerprint=b"f")
    lead = record("r1", session="lead", created_s=100.0, accounts=("tree/lead",))
    coder = record("r2", session="coder", created_s=200.0, accounts=("tree/coder", "tree/lead"))
    free = record("r3", session="free", created_s=50.0)
    kv = replace(record("kv", session="free", said=False, created_s=900.0), status=RESIDENCY)
    journal.append([replace(lead, options=LEAD), replace(coder, options=CODER), free, kv])
    journal.close()
    status, out, _ = ran(capsys, "list", *place)
    assert status == 0
    head, *lines = out.splitlines()
    assert {"last_turn", "budget_left", "cost"} <= set(head.split())
    assert [line.split()[1] for line in lines] == ["coder", "lead", "free"]
    assert "session: 35 output; tree of lead: 90 output, 1.99999" in lines[0]
    assert "  tree: 90 output, 1.99999" in lines[1]
    assert [each["budgets"] for each in json.loads(ran(capsys, "list", *place, "--json")[1])][
        2
    ] == []
    told = ran(capsys, "show", *place, "--tenant", "t", "coder")[1].splitlines()
    assert told[-3] == "session: 35 of 40 output left, 5 spent"
    assert told[-2] == "tree of lead: 90 of 100 output left, 10 spent"
    assert re.fullmatch(r"tree of lead: 1\.99999\d* of 2 cost left, 0\.0000\d* spent", told[-1])


def test_names_are_no_orders_to_a_terminal_and_do_not_fill_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    journal = SqliteJournal(tmp_path / "j", fingerprint=b"f")
    journal.append([record("r1", session="\x1b]0;owned\x07"), record("r2", session="x" * 500)])
    journal.close()
    place = ("--journal", str(tmp_path / "j"))
    _, out, _ = ran(capsys, "list", *place)
    assert "\x1b" not in out
    assert max(map(len, out.splitlines())) < 300
    names = {each["session"] for each in json.loads(ran(capsys, "list", *place, "--json")[1])}
    assert names == {"\x1b]0;owned\x07", "x" * 500}


def test_the_list_knows_the_filters_and_orders_of_the_page(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = ("--journal", str(tmp_path / "j"))
    journal = SqliteJournal(tmp_path / "j", fingerprint=b"f")
    cheap = replace(record("r1", session="cheap"), cost=0, options=b'{"labels":{"team":"red"}}')
    dear = replace(record("r2", session="dear", said=False), cost=10**12)
    journal.append([cheap, dear, record("r3", session="mine", tenant="u", created_s=5000.0)])
    journal.close()

    def listed(*words: str) -> list[str]:
        status, out, _ = ran(capsys, "list", *place, "--json", *words)
        assert status == 0
        return [each["session"] for each in json.loads(out)]

    assert listed()[0] == "mine"
    assert listed("--sort", "cost") == ["dear", "mine", "cheap"]
    assert listed("--sort", "cost", "--limit", "1") == ["dear"]
    assert listed("--label", "team:red") == listed("--search", "TEAM:R") == ["cheap"]
    assert listed("--failed") == ["dear"]
    assert listed("--tenant", "u") == listed("--from", "4000") == ["mine"]
    assert listed("--to", "4000", "--several") == listed("--budget") == []
    assert ran(capsys, "list", *place, "--label", "team")[0] == 1
    rows = json.loads(ran(capsys, "list", *place, "--json")[1])
    assert sum(row["cost_nano"] for row in rows) == 10**12 + record("r").cost
