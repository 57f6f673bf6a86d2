"""Turns are kept by session, within bounds, with what came before them."""

from dataclasses import replace

import pytest

import sessions.pages.turn_log as module
from sessions.durable.miss_reasons import Miss, MissReason
from sessions.pages.turn_log import MAX_TURNS_OF_SESSION, TurnHistory
from tests.unit.sessions.pages.test_dashboard import REPORT

NEW = Miss(reason=MissReason.NEW_INPUT, tokens=5)
EVICTED = Miss(reason=MissReason.EVICTED, tokens=15)


def test_a_session_of_another_tenant_is_another_one() -> None:
    log = TurnHistory()
    log.add(REPORT, 10.0)
    assert log.of("acme", "s1") is not None
    assert log.of("other", "s1") is None
    assert log.of("acme", "s2") is None


def test_the_wait_for_tools_runs_from_the_turn_whose_calls_are_answered() -> None:
    log = TurnHistory()
    log.add(replace(REPORT, response_id="r1", open_calls=1, total_s=1.0), 10.0)
    log.add(replace(REPORT, response_id="r2", parent_response_id="r0", total_s=1.0), 11.5)
    answer = log.add(replace(REPORT, response_id="r3", parent_response_id="r1", total_s=2.0), 15.0)
    after = log.add(replace(REPORT, response_id="r4", parent_response_id="r3", total_s=1.0), 18.0)
    assert (answer.tool_wait_s, answer.began_s) == (3.0, 13.0)
    assert after.tool_wait_s is None


def test_what_could_have_been_avoided_is_added_up_and_remembered() -> None:
    log = TurnHistory()
    log.add(replace(REPORT, misses=(EVICTED, NEW)), 1.0)
    log.add(replace(REPORT, misses=(NEW,), status="failed"), 2.0)
    found = log.of("acme", "s1")
    assert found is not None
    assert (found.avoidable_tokens, found.last_avoidable) == (15, EVICTED)
    assert (found.ended, found.failed, found.missed[MissReason.NEW_INPUT]) == (2, 1, 10)


def test_a_session_keeps_its_newest_turns() -> None:
    log = TurnHistory()
    for number in range(MAX_TURNS_OF_SESSION + 3):
        log.add(replace(REPORT, turn=number), float(number))
    found = log.of("acme", "s1")
    assert found is not None
    assert (len(found.turns), found.turns[0].report.turn) == (MAX_TURNS_OF_SESSION, 3)
    assert found.ended == MAX_TURNS_OF_SESSION + 3


def test_the_session_that_was_quiet_for_longest_is_forgotten_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "MAX_TURNS", 4)
    log = TurnHistory()
    for session in ("a", "b", "a", "c", "d"):
        log.add(replace(REPORT, session=session), 1.0)
    assert log.of("acme", "b") is None
    kept = [log.of("acme", session) for session in "acd"]
    assert [len(each.turns) for each in kept if each is not None] == [2, 1, 1]


def test_a_branch_is_that_of_the_session_that_wrote_to_it_last() -> None:
    log = TurnHistory()
    log.add(replace(REPORT, branch_id="branch_1"), 1.0)
    log.add(replace(REPORT, branch_id="branch_1", session="s2"), 1.0)
    log.add(REPORT, 1.0)
    assert log.session_of_branch("branch_1") == ("acme", "s2")
    assert log.session_of_branch("") is None
