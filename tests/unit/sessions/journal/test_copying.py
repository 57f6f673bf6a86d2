"""A journal's rows in another one: all of them, as they were, or none."""

import itertools
import random
import sqlite3
from collections.abc import Callable, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from sessions.durable.usage_keys import UsageKeys
from sessions.journal.copying import OF_SERVERS, TABLES, JournalSums, copy, sums
from sessions.journal.errors import JournalDamaged, JournalError, JournalInUse
from sessions.journal.rows import Row
from sessions.journal.samples import MINUTE_S, Sample
from sessions.journal.sqlite import SqliteJournal
from sessions.journal.tables import Cursor
from sessions.journal.view import SqliteView
from tests.support.journal_load import drawn_turns
from tests.support.journals import record, reservation
from tests.unit.sessions.journal.test_calls import begun_by
from tests.unit.sessions.journal.test_journal_conversations import ONE
from tests.unit.sessions.journal.test_journal_sqlite import opened

OPTIONS = b'{"session":[{"output":40},{}],"parent":"s1","labels":{"team":"a"}}'
KEYS = UsageKeys(key="ci", model="m", labels=(("team", "a"),), tools=("find",))


def drawn(path: Path, seed: int, commits: int = 40) -> SqliteJournal:
    """A journal with something in every table that is copied."""
    journal = opened(path, synchronous="OFF")
    chance = random.Random(seed)
    for commit in itertools.islice(drawn_turns(chance, seed), commits):
        options = chance.choice((b"", OPTIONS))
        journal.append([replace(turn, options=options, keys=KEYS) for turn in commit])
    journal.reserve([reservation("running", session="s0")])
    journal.keep_samples([Sample(width_s=MINUTE_S, number=1, tenant="", body=b"curve")])
    journal.hide("t", f"r{seed}_0")
    journal.delete_session("t", "s3")
    turns = [turn for each in journal.sessions() for turn in journal.session_turns("t", each.name)]
    said = next(turn.response_id for turn in turns if turn.continuable)
    assert journal.change_call("t", said, "c", begun_by("a")) is not None
    assert journal.put_conversation("t", ONE, version=None)
    return journal


def copied(source: Path, target: Path) -> JournalSums:
    with closing(opened(target)) as made, closing(SqliteView(source)) as view:
        return copy(view, made)


@pytest.mark.parametrize("seed", range(4))
def test_a_copy_has_every_row_and_is_gone_on_with(tmp_path: Path, seed: int) -> None:
    source = drawn(tmp_path / "j", seed)
    before = sums(source)
    source.close()
    told = copied(tmp_path / "j", tmp_path / "copy")
    assert told == before
    assert all(each.count for each in told.tables.values()), told
    journal, original = opened(tmp_path / "copy"), opened(tmp_path / "j")
    assert sums(journal) == before
    for session in original.sessions():
        key = (session.tenant, session.name)
        assert journal.session(*key) == session
        rows = original.session_turns(*key)
        assert journal.session_turns(*key) == rows
        for turn in rows:
            assert journal.chain("t", turn.response_id) == original.chain("t", turn.response_id)
    settled = [
        [(turn.response_id, turn.usage, turn.cost) for turn in each.settle_left()]
        for each in (journal, original)
    ]
    assert settled[0] == settled[1]
    assert [id_ for id_, *_ in settled[0]] == ["running"]
    for each in (journal, original):
        assert each.append([record("new", session="s0")]) == [True]
    assert sums(journal).tables["account"] == sums(original).tables["account"]
    journal.close()
    original.close()


def test_every_table_is_copied_with_all_its_columns_or_is_of_servers_that_run(
    tmp_path: Path,
) -> None:
    opened(tmp_path / "j").close()
    with closing(sqlite3.connect(tmp_path / "j")) as connection:
        found = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
        names = {name for (name,) in found}
        assert names == set(TABLES) | OF_SERVERS | {"journal"}
        for table, of in TABLES.items():
            columns = connection.execute(f"PRAGMA table_info({table})").fetchall()
            there = {name for _, name, *_ in columns} - {"wanted_by"}
            assert set(of.columns.split(", ")) == there, table
            keys = sorted((place, name) for _, name, *_, place in columns if place)
            assert [name for _, name in keys] == of.key.split(", "), table
            assert of.columns.endswith(", checksum") == of.sealed


def test_what_a_server_has_is_not_copied(tmp_path: Path) -> None:
    source = opened(tmp_path / "j", owner="a", shared=True)
    assert source.ownership is not None
    source.ownership.beat()
    with closing(opened(tmp_path / "copy")) as target:
        with pytest.raises(JournalInUse, match="stop it"):
            copy(source, target)
        with pytest.raises(JournalInUse, match="stop it"):
            copy(target, source)
        source.close()
        with closing(SqliteView(tmp_path / "j")) as view:
            assert copy(view, target).turns == 0


def test_a_journal_that_has_something_takes_no_copy(tmp_path: Path) -> None:
    drawn(tmp_path / "j", 0).close()
    with closing(opened(tmp_path / "other")) as target:
        target.append([record("mine")])
        before = sums(target)
        with (
            closing(SqliteView(tmp_path / "j")) as view,
            pytest.raises(JournalError, match="empty"),
        ):
            copy(view, target)
        assert sums(target) == before


HARM = {
    "a row of turns is gone": "DELETE FROM turn WHERE response_id = 'r0_5'",
    "a name is gone": "DELETE FROM name WHERE response_id = 'r0_5'",
    "a name leads elsewhere": "UPDATE name SET seq = seq + 1000 WHERE response_id = 'r0_5'",
    "a session is gone": "DELETE FROM session WHERE name = 's0'",
    "an amount has changed": "UPDATE account SET cost = cost + 1 WHERE name = 'tenant'",
    "a text has changed": "UPDATE turn SET body = body || x'00' WHERE response_id = 'r0_5'",
    "what turns stand on is gone": (
        "DELETE FROM turn WHERE response_id IN "
        "(SELECT base_id FROM turn WHERE base_id IS NOT NULL LIMIT 1)"
    ),
}


@pytest.mark.parametrize("harm", HARM)
def test_a_journal_that_contradicts_itself_is_not_copied(tmp_path: Path, harm: str) -> None:
    drawn(tmp_path / "j", 0).close()
    with closing(sqlite3.connect(tmp_path / "j")) as connection, connection:
        assert connection.execute(HARM[harm]).rowcount
    with closing(opened(tmp_path / "copy")) as target:
        with closing(SqliteView(tmp_path / "j")) as view, pytest.raises(JournalDamaged):
            copy(view, target)
        assert not any(each.count for each in sums(target).tables.values())


class _Careless:
    """A cursor of a store that changes a value on the way in."""

    def __init__(self, cursor: Cursor, harm: Callable[[str, Sequence[object]], Row]) -> None:
        self._cursor, self._harm = cursor, harm

    def execute(self, sql: str, parameters: Sequence[object] = (), /) -> object:
        return self._cursor.execute(sql, self._harm(sql, parameters))

    def fetchone(self) -> object:
        return self._cursor.fetchone()

    def fetchall(self) -> list[object]:
        return self._cursor.fetchall()


@pytest.mark.parametrize("table", ["session_text", "usage_value", "header", "item"])
def test_a_store_that_keeps_something_else_keeps_nothing(
    tmp_path: Path, table: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn(tmp_path / "j", 0).close()

    def harm(sql: str, parameters: Sequence[object]) -> Row:
        if not sql.startswith(f"INSERT INTO {table} "):
            return tuple(parameters)
        last = parameters[-1]
        return (*parameters[:-1], last + ("!" if isinstance(last, str) else b"!"))  # type: ignore[operator]

    target = opened(tmp_path / "copy")
    plain = target.writing

    @contextmanager
    def writing(*, synced: bool = True):  # type: ignore[no-untyped-def]
        with plain(synced=synced) as cursor:
            yield _Careless(cursor, harm)

    monkeypatch.setattr(target, "writing", writing)
    with closing(SqliteView(tmp_path / "j")) as view, pytest.raises(JournalError, match=table):
        copy(view, target)
    assert not any(each.count for each in sums(target).tables.values())
    target.close()
