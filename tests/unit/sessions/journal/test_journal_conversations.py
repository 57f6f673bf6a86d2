"""Conversations in a journal: kept with the turn that moves them, gone with what they stand at."""

import random
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from sessions.durable.conversations import Conversation, moved, read_of
from sessions.journal.conversations import columns, decode
from sessions.journal.errors import JournalDamaged, JournalParentGone
from sessions.journal.journal import Journal
from sessions.journal.records import TurnRecord
from sessions.journal.recovery import recover
from sessions.journal.sqlite import SqliteJournal
from tests.support.journals import record
from tests.support.memory_journal import MemoryJournal
from tools_api.item_reading import parse_items

ITEMS = parse_items(
    [
        {"type": "message", "role": "user", "content": "ä😀", "id": "msg_a"},
        {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}", "id": "fc_a"},
        {"type": "function_call_output", "call_id": "c", "output": "1", "id": "fco_a"},
        {"type": "reasoning", "summary": [], "id": "rs_a"},
    ],
    "items",
)
ONE = Conversation(id="conv_1", created_s=7, metadata={"k": "é"}, items=ITEMS)


@pytest.fixture(params=["memory", "sqlite"])
def journal(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Journal]:
    opened: Journal = MemoryJournal(b"f")
    if request.param == "sqlite":
        opened = SqliteJournal(tmp_path / "j", fingerprint=b"f")
    yield opened
    opened.close()


def turn_of(conversation: Conversation, response_id: str, **fields: object) -> TurnRecord:
    made = record(response_id, session=conversation.id)
    return replace(made, conversation=read_of(conversation), **fields)  # type: ignore[arg-type]


def test_what_is_written_is_read() -> None:
    stands = replace(ONE, head_id="resp_1", edits=3, version=9)
    assert decode(columns("t", stands, 5)) == stands
    assert decode(columns("t", ONE, 5)) == ONE


def test_a_row_that_changed_on_the_disk_is_not_believed() -> None:
    row = columns("t", ONE, 5)
    for place in range(len(row) - 1):
        other = (*row[:place], "x", *row[place + 1 :])
        with pytest.raises(JournalDamaged):
            decode(other)


def test_it_is_changed_from_the_version_that_is_there_alone(journal: Journal) -> None:
    assert journal.conversation("t", ONE.id) is None
    assert journal.put_conversation("t", ONE, version=None)
    assert not journal.put_conversation("t", ONE, version=None)
    later = ONE.changed({"k": "v"})
    assert not journal.put_conversation("t", later, version=7)
    assert not journal.put_conversation("u", later, version=1)
    assert journal.put_conversation("t", later, version=1)
    assert not journal.put_conversation("t", later, version=1)
    assert journal.conversation("t", ONE.id) == later
    assert journal.conversation("u", ONE.id) is None
    assert not journal.delete_conversation("u", ONE.id)
    assert journal.delete_conversation("t", ONE.id)
    assert not journal.delete_conversation("t", ONE.id)
    assert journal.conversation("t", ONE.id) is None


def test_a_turn_moves_it_with_its_record(journal: Journal) -> None:
    journal.put_conversation("t", ONE, version=None)
    more = replace(ONE, items=(*ONE.items, ONE.items[0]), version=2)
    journal.put_conversation("t", more, version=1)
    turn = turn_of(ONE, "resp_1")
    assert turn.entry is not None
    assert journal.append([turn]) == [True]
    stands = moved(more, read_of(ONE), "resp_1", turn.entry)
    assert journal.conversation("t", ONE.id) == stands
    assert stands is not None
    assert stands.items == (ONE.items[0],)


def test_a_turn_whose_part_was_taken_out_is_not_written(journal: Journal) -> None:
    edited = replace(ONE, edits=1, version=2)
    journal.put_conversation("t", edited, version=None)
    with pytest.raises(JournalParentGone):
        journal.append([turn_of(ONE, "resp_1")])
    assert journal.turn("t", "resp_1") is None
    assert journal.conversation("t", ONE.id) == edited


def test_what_left_nothing_or_lost_its_conversation_moves_none(journal: Journal) -> None:
    assert journal.append([turn_of(ONE, "resp_1")]) == [True]
    assert journal.conversation("t", ONE.id) is None
    journal.put_conversation("t", ONE, version=None)
    assert journal.append([turn_of(ONE, "resp_2", links=(), status="failed")]) == [True]
    assert journal.conversation("t", ONE.id) == ONE


def sqlite_journal(tmp_path: Path) -> SqliteJournal:
    return SqliteJournal(tmp_path / "j", fingerprint=b"f")


def test_the_turn_it_stands_at_ages_with_it(tmp_path: Path) -> None:
    with closing(sqlite_journal(tmp_path)) as journal:
        journal.put_conversation("t", ONE, version=None)
        journal.append([turn_of(ONE, "resp_1", created_s=1.0), record("resp_2", created_s=1.0)])
        journal.expire(1000.0)
        assert journal.turn("t", "resp_2") is None
        assert journal.turn("t", "resp_1") is not None, "changed just now"
        journal.expire(journal.clock_s() + 1000)
        assert journal.conversation("t", ONE.id) is None
        assert journal.turn("t", "resp_1") is None


def test_it_goes_with_its_session_and_with_what_it_stands_at(tmp_path: Path) -> None:
    with closing(sqlite_journal(tmp_path)) as journal:
        for id_ in ("conv_1", "conv_2", "conv_3"):
            journal.put_conversation("t", replace(ONE, id=id_), version=None)
        base = record("resp_0", session="other")
        fork = record("resp_2", parent=base, session="conv_2")
        read = read_of(replace(ONE, id="conv_2"))
        journal.append([turn_of(ONE, "resp_1"), base, replace(fork, conversation=read)])
        journal.delete_session("t", "conv_1")
        assert journal.conversation("t", "conv_1") is None
        journal.delete_session("t", "other")
        assert journal.conversation("t", "conv_2") is None
        assert journal.conversation("t", "conv_3") is not None


def test_recovery_saves_those_that_are_whole(tmp_path: Path) -> None:
    with closing(sqlite_journal(tmp_path)) as journal:
        for n in range(1, 5):
            journal.put_conversation("t", replace(ONE, id=f"conv_{n}"), version=None)
        journal.append([turn_of(ONE, "resp_1")])
        journal.append([turn_of(replace(ONE, id="conv_2"), "resp_2")])
        there = journal.conversation("t", "conv_1")
    with closing(sqlite3.connect(tmp_path / "j")) as connection:
        connection.execute("UPDATE turn SET body = x'00' WHERE response_id = 'resp_2'")
        connection.execute("UPDATE conversation SET edits = 5 WHERE id = 'conv_3'")
        connection.commit()
    report = recover(tmp_path / "j", tmp_path / "saved")
    assert any("conversation conv_2" in line for line in report.lost)
    assert any("conversation 't'" in line or "conv_3" in line for line in report.lost)
    with closing(SqliteJournal(tmp_path / "saved", fingerprint=b"f")) as saved:
        assert saved.conversation("t", "conv_1") == there
        assert saved.conversation("t", "conv_2") is None
        assert saved.conversation("t", "conv_3") is None
        assert saved.conversation("t", "conv_4") == replace(ONE, id="conv_4")


@pytest.mark.parametrize("seed", range(3))
def test_both_journals_say_the_same(tmp_path: Path, seed: int) -> None:
    rng, first = random.Random(seed), MemoryJournal(b"f")
    with closing(sqlite_journal(tmp_path)) as second:
        for step in range(60):
            id_ = f"conv_{rng.randrange(3)}"
            there = first.conversation("t", id_)
            match rng.choice(("put", "edit", "move", "late", "delete")):
                case "put":
                    made = replace(there or ONE, id=id_, items=ITEMS[: rng.randrange(5)])
                    version = None if there is None else there.version
                    made = replace(made, version=(version or 0) + 1)
                    for journal in (first, second):
                        assert journal.put_conversation("t", made, version=version)
                case "edit" if there is not None:
                    made = replace(there, edits=there.edits + 1, version=there.version + 1)
                    for journal in (first, second):
                        assert journal.put_conversation("t", made, version=there.version)
                case "move" | "late" as kind if there is not None:
                    read = replace(there, edits=there.edits - (kind == "late"))
                    for journal in (first, second):
                        if kind == "late":
                            with pytest.raises(JournalParentGone):
                                journal.append([turn_of(read, f"resp_{step}")])
                        else:
                            assert journal.append([turn_of(read, f"resp_{step}")]) == [True]
                case "delete":
                    gone = first.delete_conversation("t", id_)
                    assert second.delete_conversation("t", id_) == gone
            for n in range(3):
                id_ = f"conv_{n}"
                assert first.conversation("t", id_) == second.conversation("t", id_)
