"""The store read through: what memory lacks is asked of the journal, and nothing else."""

import asyncio
from collections.abc import Coroutine
from dataclasses import replace
from typing import Any, TypeVar

import pytest

from sessions.durable.store import ConnectionStore
from sessions.durable.transcript import ROOT_DIGEST, roll_all
from sessions.turns.commits import Commits
from sessions.turns.memory import Memory
from sessions.turns.wanted import Recalled, Wanted
from tests.support.clock import FakeClock
from tests.support.entries import entry
from tests.support.memory_journal import MemoryJournal
from tests.support.sessions_rig import make_service
from tools_api.item_reading import parse_items

Answer = TypeVar("Answer")
KNOWN = {"role": "assistant", "content": "hello"}
ASKED = {"role": "user", "content": "a"}


class Bench:
    """A connection that knows response ``r1``, which began the session ``known``; a journal that
    knows what ``coming`` says."""

    def __init__(self, *, lasts: bool = True, claims: bool = True) -> None:
        service = make_service(FakeClock(1000.0))
        if lasts:
            service = replace(service, commits=Commits(MemoryJournal(b"f")))
            service.store.lasts()
        self.visible = ConnectionStore(
            service.store, tenant=service.store.tenant("t"), connection_id="c"
        )
        self.keep("r1", "known")
        self.wanted: list[Wanted] = []
        self.coming: dict[str, str] = {}
        """Responses that the journal has, with their sessions."""
        self.memory = Memory(self.visible, service, ask=self._ask, claims=claims)

    def keep(self, response_id: str, session: str) -> None:
        mine = self.visible.session(session)
        self.visible.keep(response_id, entry(answer="hello"), mine, private=False)

    async def _ask(self, wanted: Wanted) -> Recalled:
        self.wanted.append(wanted)
        for response_id in wanted.responses:
            if response_id in self.coming:
                self.keep(response_id, self.coming[response_id])
        return Recalled()

    def take(self, asked: Coroutine[Any, Any, Answer]) -> Answer:
        return asyncio.run(asked)

    @property
    def one(self) -> Wanted:
        (wanted,) = self.wanted
        return wanted


@pytest.mark.parametrize("lasts", [False, True])
def test_what_memory_knows_is_not_asked_for(lasts: bool) -> None:
    bench = Bench(lasts=lasts)
    memory, items = bench.memory, parse_items([KNOWN])
    assert bench.take(memory.response("r1")) is not None
    assert bench.take(memory.session("known")).name == "known"
    bench.take(memory.know("known"))
    assert bench.take(memory.history(items, None, goes_on=True)) is not None
    assert bench.take(memory.head("known")) is bench.visible.response("r1")
    assert bench.wanted == []


def test_without_a_journal_nothing_is_asked_for() -> None:
    bench = Bench(lasts=False)
    memory, items = bench.memory, parse_items([ASKED, KNOWN])
    assert bench.take(memory.response("gone")) is None
    assert bench.take(memory.history(items, None, goes_on=True)) is None
    assert bench.take(memory.head("gone")) is None
    assert bench.take(memory.session("gone")).name == "gone"
    bench.take(memory.know("above"))
    bench.take(memory.look_for_turn(None, Wanted(request_id="q")))
    assert bench.wanted == []


@pytest.mark.parametrize("goes_on", [False, True])
@pytest.mark.parametrize("claims", [False, True])
def test_a_response_that_is_not_there_is_fetched_with_its_session_if_the_turn_runs_there(
    goes_on: bool, claims: bool
) -> None:
    bench = Bench(claims=claims)
    bench.coming = {"r2": "other"}
    found = bench.take(bench.memory.response("r2", goes_on=goes_on))
    assert found is not None
    assert found.session.name == "other"
    assert (bench.one.responses, bench.one.owns_first) == (["r2"], goes_on and claims)
    assert bench.take(bench.memory.response("gone")) is None


@pytest.mark.parametrize("with_head", [False, True])
def test_a_session_that_is_not_there_is_claimed_and_made(with_head: bool) -> None:
    bench = Bench()
    assert bench.take(bench.memory.session("gone", with_head=with_head)).name == "gone"
    assert (bench.one.session, bench.one.with_head) == ("gone", with_head)


def test_a_session_that_stands_above_others_is_not_claimed() -> None:
    bench = Bench()
    bench.take(bench.memory.know("above"))
    assert (bench.one.parent, bench.one.session) == ("above", None)
    assert bench.visible.known_session("above") is None, "whoever draws on it makes it"


def test_a_history_is_wanted_from_its_longest_beginning_that_a_model_said() -> None:
    said = [ASKED, {"role": "assistant", "content": "b"}]
    items = parse_items([*said, *said, {"role": "user", "content": "c"}])
    bench = Bench()
    assert bench.take(bench.memory.history(items, None, goes_on=True)) is None
    assert bench.one.histories == [(n, roll_all(ROOT_DIGEST, items[:n])) for n in (4, 2)]
    assert bench.one.owns_first


def test_of_a_history_whose_beginning_memory_knows_only_longer_ones_are_wanted() -> None:
    bench = Bench()
    found = bench.take(
        bench.memory.history(parse_items([KNOWN, ASKED, KNOWN]), None, goes_on=False)
    )
    assert found == (bench.visible.response("r1"), 1)
    assert [length for length, _ in bench.one.histories] == [3]
    assert not bench.one.owns_first


def test_the_head_of_a_session_that_fell_out_is_fetched() -> None:
    bench = Bench()
    bench.coming = {"r2": "known"}
    session = bench.visible.session("known")
    session.head_id = "r2"
    found = bench.take(bench.memory.head("known"))
    assert found is not None
    assert (found.id, bench.one.responses) == ("r2", ["r2"])


def test_the_head_of_a_session_that_nobody_claims_is_asked_for_and_no_session_is_made() -> None:
    bench = Bench(claims=False)
    assert bench.take(bench.memory.head("gone")) is None
    assert bench.one.head_of == "gone"
    assert bench.visible.known_session("gone") is None
