"""Deciding about calls: who was first stands, and what was left behind is not decided about."""

from typing import Any

import pytest

from keepwarm import ApiError
from keepwarm.testing import AskedTurn, ScriptedServer, call
from tests.unit.tools_api.sdk.test_sdk_held_turns import Shop, process, served
from tools_api.sdk.open_calls import PendingCall


@pytest.mark.parametrize("decision", ["approve", "reject"])
async def test_a_decision_is_not_taken_back(decision: str) -> None:
    server, shop = served(call("pay", amount=5)), Shop()
    async with process(server, shop) as session, process(server, shop) as other:
        (waiting,) = (await session.run("go")).waiting
        once, otherwise = session.approve, other.reject
        if decision == "reject":
            once, otherwise = session.reject, other.approve
        first = await once(waiting.call_id, by="ana")
        assert (await once(waiting.call_id, by="bob")).by == "ana" == first.by
        with pytest.raises(ApiError) as caught:
            await otherwise(waiting.call_id)
        assert (caught.value.status, caught.value.code) == (409, "call_decided")


async def test_a_session_without_a_turn_has_no_calls() -> None:
    async with process(served("fine"), Shop()) as session:
        assert await session.pending() == ()
        with pytest.raises(ValueError, match="no response yet"):
            await session.approve("call_1")
        await session.run("go")
        assert await session.pending() == ()
        with pytest.raises(ApiError, match="No call with id"):
            await session.approve("call_1")


async def test_a_session_that_went_on_or_was_taken_back_decides_nothing() -> None:
    def answers(asked: AskedTurn) -> Any:
        return call("pay", amount=5) if "pay" in str(asked.items[-1]) else "fine"

    server, shop = ScriptedServer(answers), Shop()
    async with process(server, shop) as session, process(server, shop) as other:
        await session.run("hello")
        (waiting,) = (await session.run("pay")).waiting
        await other.pending()
        await session.rewind()
        with pytest.raises(ApiError) as caught:
            await session.approve(waiting.call_id)
        assert caught.value.code == "call_not_found"
        assert (await session.run("never mind")).text == "fine"
        with pytest.raises(ApiError) as caught:
            await other.approve(waiting.call_id)
        assert (caught.value.status, caught.value.code) == (409, "call_not_open")
    assert shop.paid == []


async def test_a_call_is_listed_as_its_turn_wrote_it() -> None:
    server, shop = served("So:", call("pay", amount=5), call("unknown")), Shop()
    async with process(server, shop) as session:
        await session.run("go")
        pay, unknown = await session.pending()
    assert isinstance(pay, PendingCall)
    assert (pay.call.full_name, pay.state, pay.decided_at, pay.output) == (
        *("pay", "pending"),
        *(None, None),
    )
    assert (unknown.call.full_name, unknown.state) == ("unknown", "ended")
