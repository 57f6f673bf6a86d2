"""What of a request has to be asked of the journal."""

from typing import Any

from sessions.durable.ledger import PriceTable
from sessions.durable.store import ConnectionStore, Store
from sessions.durable.transcript import ROOT_DIGEST, roll_all
from sessions.turns.wanted import wanted_by
from tests.support.clock import FakeClock
from tests.support.entries import entry
from tools_api.items import parse_items
from tools_api.limits import Limits
from tools_api.requests import CreateRequest, KeepwarmOptions


def memory() -> ConnectionStore:
    """A connection that knows response ``r1``, which began the session ``known``."""
    store = Store(limits=Limits(), prices=PriceTable(), clock=FakeClock(1000.0))
    mine = ConnectionStore(store, tenant="t", connection_id="c")
    mine.keep("r1", entry(answer="hello"), mine.session("known"), private=False)
    return mine


def request(*, session: str | None = None, **fields: Any) -> CreateRequest:
    return CreateRequest(keepwarm=KeepwarmOptions(session=session), **fields)


def test_what_memory_knows_is_not_asked_for() -> None:
    assert not wanted_by(request(previous_response_id="r1"), memory())
    assert not wanted_by(request(session="known"), memory())


def test_a_response_that_is_not_there_is_wanted_and_the_turn_runs_in_its_session() -> None:
    wanted = wanted_by(request(previous_response_id="gone"), memory())
    assert wanted.responses == ["gone"]
    assert wanted.owns_first
    named = wanted_by(request(previous_response_id="gone", session="known"), memory())
    assert named.responses == ["gone"]
    assert not named.owns_first


def test_a_session_that_is_not_there_is_wanted_with_its_head() -> None:
    wanted = wanted_by(request(session="gone"), memory())
    assert (wanted.session, wanted.with_head) == ("gone", True)


def test_a_history_is_wanted_from_its_longest_beginning_that_a_model_said() -> None:
    said = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    items = parse_items([*said, *said, {"role": "user", "content": "c"}])
    wanted = wanted_by(request(input=items), memory())
    assert wanted.histories == [(n, roll_all(ROOT_DIGEST, items[:n])) for n in (4, 2)]
    assert wanted.owns_first


def test_of_a_history_whose_beginning_memory_knows_only_longer_ones_are_wanted() -> None:
    known = {"role": "assistant", "content": "hello"}
    items = parse_items([known, {"role": "user", "content": "a"}, known])
    wanted = wanted_by(request(input=items), memory())
    assert [length for length, _ in wanted.histories] == [3]
