"""The journal is shown page by page, to each tenant its own."""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import orjson
import pytest

from sessions.journal.errors import JournalDamaged, JournalUnavailable
from sessions.pages.archive import MAX_TURNS_SHOWN, Archive, unread
from sessions.tenants import Principal, Role
from tests.support.exchange import KeptExchange, make_call
from tests.support.journals import record
from tests.support.memory_journal import MemoryJournal
from tools_api.errors import ApiError


async def at_once(_: str, work: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    return work()


def asked(journal: MemoryJournal | None, query: str, beside: Any = at_once, **call: Any) -> Any:
    async def ask() -> KeptExchange:
        exchange = KeptExchange()
        target = "/dashboard/journal?" + query
        exchange.answer(await Archive(journal, beside).show(make_call(target=target, **call)))
        return exchange

    return asyncio.run(ask())


def kept(sessions: int) -> MemoryJournal:
    journal = MemoryJournal()
    journal.append(
        [record(response_id=f"resp_{n}", session=f"s{n}", tenant="acme") for n in range(sessions)]
    )
    return journal


def test_a_sessions_turns_have_their_accounts() -> None:
    found = asked(kept(2), "name=s1").body
    (turn,) = found["rows"]
    assert (found["total"], turn["response"], turn["turn"]) == (1, "resp_1", 1)
    assert {"input_tokens", "cached_tokens", "cost", "status"} <= turn.keys()


@pytest.mark.parametrize("beyond", [False, True])
def test_of_more_turns_than_are_shown_the_oldest_are_left_out_and_that_is_told(
    beyond: bool,
) -> None:
    journal, count = MemoryJournal(), MAX_TURNS_SHOWN + beyond
    for n in range(1, count + 1):
        journal.append([record(response_id=f"resp_{n}", session="s", tenant="acme")])
    found = asked(journal, "name=s").body
    assert (found["total"], found["more"]) == (count, beyond)
    assert len(found["rows"]) == MAX_TURNS_SHOWN
    assert found["rows"][0]["response"] == f"resp_{count}"


def test_a_tenant_sees_its_own_whatever_it_asks_for() -> None:
    journal = kept(2)
    assert asked(journal, "name=s1&tenant=acme", tenant="other").body["rows"] == []


def test_a_server_without_a_journal_and_one_that_cannot_be_read_say_so() -> None:
    with pytest.raises(ApiError) as caught:
        asked(None, "name=s1")
    assert caught.value.status == 404

    async def gone(*_: Any) -> dict[str, Any]:
        raise JournalUnavailable("locked")

    with pytest.raises(ApiError) as caught:
        asked(kept(1), "name=s0", gone)
    assert caught.value.status == 503


def test_a_request_that_names_nothing_is_refused() -> None:
    with pytest.raises(ApiError) as caught:
        asked(kept(1), "")
    assert (caught.value.status, caught.value.param) == (400, "name")


def test_a_turns_words_are_for_its_own_tenants_keys_and_gone_with_it() -> None:
    journal = MemoryJournal()
    journal.append([record("resp_1", tenant="acme", answer="The red ones.")])
    operator = Principal(tenant="other", role=Role.OPERATOR)

    def said(who: Principal) -> Any:
        call = make_call(target="/dashboard/journal?name=s&tenant=acme")
        answer = asyncio.run(Archive(journal, at_once).show(replace(call, principal=who)))
        return orjson.loads(answer.body)["rows"][0]["said"]

    assert said(Principal(tenant="acme"))["answered"] == "The red ones."
    assert said(operator) is None
    assert journal.hide("acme", "resp_1")
    assert said(Principal(tenant="acme")) is None


def test_a_turns_items_are_read_from_the_journal_by_its_own_tenant_alone() -> None:
    journal = MemoryJournal()
    journal.append([record("resp_1", tenant="acme", answer="The red ones.")])
    told = asked(journal, "items=resp_1", tenant="acme").body
    assert told["kept"] is True
    assert "The red ones." in str(told["output"])
    assert asked(journal, "items=resp_1", tenant="other").body == {"kept": False}
    assert asked(journal, "items=resp_2", tenant="acme").body == {"kept": False}
    assert journal.hide("acme", "resp_1")
    assert asked(journal, "items=resp_1", tenant="acme").body == {"kept": False}


def test_a_journal_out_of_reach_is_no_line_of_the_log_with_each_look_and_a_damaged_one_is(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    for error, levels in ((JournalUnavailable("away"), []), (JournalDamaged("x"), ["ERROR"])):
        caplog.clear()
        told = unread(error, "usage")
        assert (told.status, told.code) == (503, "server_is_overloaded")
        assert str(error) not in told.message
        assert [each.levelname for each in caplog.records] == levels
        assert all(each.exc_info for each in caplog.records)
