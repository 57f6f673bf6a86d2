"""A journal backed up while it is written to, and taken to PostgreSQL and back."""

import itertools
import json
import os
import random
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import psycopg
import pytest

from keepwarm.commands.main import main
from sessions.journal.copying import sums
from sessions.journal.errors import JournalError
from sessions.journal.journal import Journal
from sessions.journal.postgres import PostgresJournal
from sessions.journal.sqlite import SqliteJournal
from tests.support.journal_load import journal_load
from tests.support.journal_rig import FINGERPRINT, JournalRig
from tests.support.journals import assert_books_agree, record
from tests.support.postgres import MISSING, PROGRAMS, postgres

BACKUPS = int(os.environ.get("KEEPWARM_BACKUPS", "5"))
BACKUP_SEED = int(os.environ.get("KEEPWARM_BACKUP_SEED", "1"))
SESSIONS = int(os.environ.get("KEEPWARM_COPIED_SESSIONS", "300"))


def keepwarm_sessions(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, object]:
    capsys.readouterr()
    status = main(["sessions", *words, "--json"])
    out, err = capsys.readouterr()
    assert status == 0, err
    found = json.loads(out)
    assert isinstance(found, dict)
    return found


def test_a_backup_under_load_has_all_that_was_told_of_and_whole_turns_only(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with capsys.disabled():
        print(f"seed={BACKUP_SEED}")
    chance = random.Random(BACKUP_SEED)
    with journal_load(tmp_path / "j", BACKUP_SEED) as load:
        for number in range(BACKUPS):
            target = tmp_path / f"b{number}"
            load.go_on(60)
            before = load.told(chance.randrange(1, 40))
            told = keepwarm_sessions(
                capsys, "backup", str(target), "--journal", str(tmp_path / "j")
            )
            begun = load.begun
            journal = SqliteJournal(target, fingerprint=b"f")
            found = set[str]()
            cost = 0
            for session in journal.sessions():
                rows = journal.session_turns(session.tenant, session.name)
                assert_books_agree(session, rows)
                found |= {row.response_id for row in rows}
                cost += session.account.cost
                assert session.head_id is None or journal.chain("t", session.head_id)
            assert before <= found <= begun, (before - found, found - begun)
            assert (told["turns"], told["cost_nano"]) == (len(found), cost)
            sums(journal)
            journal.close()
        load.end()


@pytest.fixture(scope="module")
def addresses() -> Iterator[Iterator[str]]:
    """Of empty databases."""
    if PROGRAMS is None:
        pytest.skip(MISSING)
    with postgres() as server:

        def each() -> Iterator[str]:
            for number in itertools.count(1):
                with psycopg.connect(server, autocommit=True) as connection:
                    connection.execute(f"CREATE DATABASE copy{number}".encode())
                yield server.replace("/postgres?", f"/copy{number}?")

        yield each()


def filled(file: Path, sessions: int) -> None:
    """Three turns a session, some of them forks of others."""
    journal = SqliteJournal(file, fingerprint=FINGERPRINT)
    heads = [None] * sessions
    for round_ in range(3):
        for first in range(0, sessions, 200):
            turns = [
                record(
                    f"r{round_}_{n}",
                    parent=heads[n if round_ < 2 or n % 5 else n - n % 7],
                    session=f"session {n}",
                    created_s=1000.0 + n,
                    accounts=("tenant", f"tree/{n % 50}"),
                )
                for n in range(first, min(first + 200, sessions))
            ]
            assert all(journal.append(turns))
            for n, turn in enumerate(turns, first):
                heads[n] = turn  # type: ignore[call-overload]
    journal.close()


def test_a_journal_goes_to_postgresql_and_back_and_is_gone_on_with(
    tmp_path: Path, addresses: Iterator[str], capsys: pytest.CaptureFixture[str]
) -> None:
    address, file, back = next(addresses), tmp_path / "j", tmp_path / "back"
    filled(file, SESSIONS)
    there = keepwarm_sessions(capsys, "copy", str(file), address)
    assert (there["sessions"], there["turns"]) == (SESSIONS, 3 * SESSIONS)
    returned = keepwarm_sessions(capsys, "copy", address, str(back))
    assert returned == there
    with closing(SqliteJournal(file, fingerprint=FINGERPRINT)) as one:
        with closing(SqliteJournal(back, fingerprint=FINGERPRINT)) as other:
            assert sums(one) == sums(other)
            assert other.chain("t", "r2_9") == one.chain("t", "r2_9")
            assert [each.name for each in other.sessions()] == [e.name for e in one.sessions()]
    with closing(PostgresJournal(address, fingerprint=FINGERPRINT, owner="a")) as shared:
        claimed = shared.claim("t", "session 4", 0.0)
        assert claimed is not None
        parent = record("r2_4", session="session 4")
        new = record("new", session="session 4", parent=parent, epoch=claimed.epoch)
        assert shared.append([new]) == [True]
        assert [each.response_id for each in shared.chain("t", "new")][-2:] == ["r2_4", "new"]


def test_a_dialogue_goes_on_from_one_store_to_the_other(
    tmp_path: Path, addresses: Iterator[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """A whole server but its sockets and engine: a turn in each place, one conversation."""
    address, places = next(addresses), [tmp_path / "j", tmp_path / "back"]

    numbers = itertools.count(1)

    def said(journal: Journal, parent: str | None) -> str:
        rig = JournalRig(journal)
        rig.numbers = numbers
        more = {} if parent is None else {"previous_response_id": parent}
        response = rig.connect().turn(input="Weather?", keepwarm={"session": "s"}, **more)
        assert (response["status"], response["keepwarm"]["turn"]) == ("completed", turns)
        return str(response["id"])

    turns = 1
    with closing(SqliteJournal(places[0], fingerprint=FINGERPRINT)) as journal:
        parent = said(journal, None)
    keepwarm_sessions(capsys, "copy", str(places[0]), address)
    turns = 2
    shared = PostgresJournal(address, fingerprint=FINGERPRINT, owner="a")
    parent = said(shared, parent)
    shared.close()
    keepwarm_sessions(capsys, "copy", address, str(places[1]))
    turns = 3
    with closing(SqliteJournal(places[1], fingerprint=FINGERPRINT)) as journal:
        said(journal, parent)


def test_postgresqls_own_programs_are_named_and_the_password_is_not(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    address = "postgresql://me:secret@host:5432/db?sslmode=require&password=hidden"
    for words, program in (
        (("backup", str(tmp_path / "b"), "--journal", address), "pg_dump --format=custom"),
        (("restore", str(tmp_path / "b"), "--journal", address), "pg_restore"),
    ):
        assert main(["sessions", *words]) == 1
        told = capsys.readouterr().err
        assert program in told
        assert told.count("\n") == 1
        assert "secret" not in told
        assert "hidden" not in told
        assert "'postgresql://me@host:5432/db?sslmode=require'" in told


def test_what_pg_dump_writes_is_restored_and_served(
    tmp_path: Path, addresses: Iterator[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """With the very lines that the command prints."""
    address, other = next(addresses), next(addresses)
    filled(tmp_path / "j", 20)
    keepwarm_sessions(capsys, "copy", str(tmp_path / "j"), address)
    for words in (
        ("backup", str(tmp_path / "dump"), "--journal", address),
        ("restore", str(tmp_path / "dump"), "--journal", other),
    ):
        assert main(["sessions", *words]) == 1
        line = capsys.readouterr().err.partition("pg_")[2].partition(";")[0]
        assert os.system(f"{PROGRAMS}/pg_{line.strip()}") == 0
    with closing(PostgresJournal(address, fingerprint=b"", owner="")) as one:
        with closing(PostgresJournal(other, fingerprint=b"", owner="")) as two:
            assert sums(one) == sums(two)


def test_two_databases_of_which_one_is_used_or_filled_are_not_copied(
    tmp_path: Path, addresses: Iterator[str], capsys: pytest.CaptureFixture[str]
) -> None:
    address, file = next(addresses), tmp_path / "j"
    filled(file, 10)
    with closing(PostgresJournal(address, fingerprint=b"f", owner="a")) as used:
        used.ownership.beat()
        assert main(["sessions", "copy", str(file), address]) == 1
        assert "stop it, then copy" in capsys.readouterr().err
        assert main(["sessions", "copy", address, str(tmp_path / "new")]) == 1
        assert "stop it, then copy" in capsys.readouterr().err
    assert [each.name for each in tmp_path.glob("new*")] == []
    keepwarm_sessions(capsys, "copy", str(file), address)
    assert main(["sessions", "copy", str(file), address]) == 1
    assert "empty" in capsys.readouterr().err
    assert main(["sessions", "copy", address, str(file)]) == 1
    assert "exists" in capsys.readouterr().err
    assert main(["sessions", "copy", str(tmp_path / "none"), address]) == 1
    with pytest.raises(JournalError):
        PostgresJournal("postgresql://127.0.0.1:1/x", fingerprint=b"", owner="")
