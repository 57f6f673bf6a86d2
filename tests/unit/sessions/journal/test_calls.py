"""States of calls in a journal: durable, changed one at a time, gone with their turn."""

import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from sessions.durable.call_states import CallState
from sessions.journal.errors import JournalDamaged
from sessions.journal.journal import Journal
from sessions.journal.recovery import recover
from sessions.journal.sqlite import SqliteJournal
from tests.support.journals import record
from tests.support.memory_journal import MemoryJournal
from tools_api.errors import ApiError


def begun_by(holder: str) -> Callable[[CallState], CallState]:
    return lambda state: replace(state, state="begun", holder=holder)


def opened(path: Path) -> SqliteJournal:
    return SqliteJournal(path, fingerprint=b"f")


@pytest.fixture(params=["file", "memory"])
def journal(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Journal]:
    made: Journal = opened(tmp_path / "j") if request.param == "file" else MemoryJournal(b"f")
    yield made
    made.close()


def test_what_was_said_of_a_call_is_there_and_goes_with_its_turn(journal: Journal) -> None:
    first = record("r1")
    journal.append([first])
    assert journal.call_states("t", "r1") == {}
    state = journal.change_call("t", "r1", "c", begun_by("a"))
    assert state == CallState(call_id="c", state="begun", holder="a")
    assert journal.call_states("t", "r1") == {"c": state}
    assert journal.call_states("u", "r1") == {}
    assert journal.change_call("t", "r2", "c", begun_by("a")) is None
    assert journal.change_call("u", "r1", "c", begun_by("a")) is None
    journal.delete_session("t", "s")
    assert journal.call_states("t", "r1") == {}


def test_a_change_that_is_refused_leaves_nothing(journal: Journal) -> None:
    journal.append([record("r1")])

    def refuse(state: CallState) -> CallState:
        raise ApiError("no", code="x")

    with pytest.raises(ApiError):
        journal.change_call("t", "r1", "c", refuse)
    state = journal.change_call("t", "r1", "c", begun_by("a"))
    assert state is not None
    assert state.holder == "a"


def test_a_session_that_has_gone_on_decides_nothing(journal: Journal) -> None:
    first = record("r1")
    journal.append([first])
    assert journal.change_call("t", "r1", "c", begun_by("a"), "s") is not None
    journal.append([record("r2", parent=first)])
    for session in ("s", "another"):
        with pytest.raises(ApiError) as caught:
            journal.change_call("t", "r1", "c", begun_by("a"), session)
        assert caught.value.code == "call_not_open"
    assert journal.change_call("t", "r2", "c", begun_by("a"), "s") is not None


def test_a_response_that_was_deleted_has_no_calls(journal: Journal) -> None:
    journal.append([record("r1")])
    journal.hide("t", "r1")
    assert journal.change_call("t", "r1", "c", begun_by("a")) is None


def test_states_outlive_the_server_and_a_recovery(tmp_path: Path) -> None:
    journal = opened(tmp_path / "j")
    journal.append([record("r1")])
    state = journal.change_call("t", "r1", "c", begun_by("a"))
    journal.close()
    recover(tmp_path / "j", tmp_path / "saved")
    for name in ("j", "saved"):
        again = opened(tmp_path / name)
        assert again.call_states("t", "r1") == {"c": state}
        again.close()


def test_a_state_that_was_harmed_is_said_to_be(tmp_path: Path) -> None:
    journal = opened(tmp_path / "j")
    journal.append([record("r1")])
    journal.change_call("t", "r1", "c", begun_by("a"))
    with journal.writing() as cursor:
        cursor.execute("UPDATE call_state SET call_id = 'd'")
    with pytest.raises(JournalDamaged, match="state of a call"):
        journal.call_states("t", "r1")
    journal.close()


def test_of_many_who_change_one_at_once_each_sees_what_the_one_before_did(tmp_path: Path) -> None:
    journal = opened(tmp_path / "j")
    journal.append([record("r1")])
    seen: list[str] = []
    start = threading.Barrier(8)

    def take(holder: str) -> None:
        start.wait()

        def change(state: CallState) -> CallState:
            seen.append(state.holder)
            return replace(state, holder=state.holder or holder)

        journal.change_call("t", "r1", "c", change)

    threads = [threading.Thread(target=take, args=(f"h{n}",)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert seen.count("") == 1
    assert len(set(seen)) == 2
    journal.close()
