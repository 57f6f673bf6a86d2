"""Approvals that outlive the process: what waits, who decides, and that nothing runs twice.

Each client here is another process as far as the server can tell: it shares nothing with the
others but the server.
"""

import asyncio
import json
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from keepwarm import (
    AsyncSession,
    FunctionCallOutput,
    LoopResult,
    PendingCall,
    Retries,
    Tool,
    ToolFinished,
    Warned,
    tool,
)
from keepwarm.scripted.server import URL
from keepwarm.testing import AskedTurn, ScriptedServer, call, cut, fail
from tools_api.sdk.held_turns import has_input


class Shop:
    """Tools that write down what they did."""

    def __init__(self) -> None:
        self.paid: list[int] = []
        self.looked = 0
        self.sent = 0

    def tools(self, *, idempotent: bool = False) -> list[Tool]:
        @tool(needs_approval=True, idempotent=idempotent)
        def pay(amount: int) -> str:
            self.paid.append(amount)
            return f"paid {amount}"

        @tool(read_only=True)
        def look() -> str:
            self.looked += 1
            return "seen"

        @tool
        def send() -> str:
            self.sent += 1
            return "sent"

        return [pay, look, send]


def told(asked: AskedTurn) -> str:
    """Every output that the model reads, in its order."""
    outputs = [item for item in asked.items if isinstance(item, FunctionCallOutput)]
    return " ".join(output.output for output in outputs)


def served(*calls: Any) -> ScriptedServer:
    """A server whose first turn makes ``calls`` and whose second tells what came of them."""
    return ScriptedServer(lambda asked: list(calls) if asked.number == 1 else told(asked))


@asynccontextmanager
async def process(
    server: ScriptedServer, shop: Shop, **options: Any
) -> AsyncGenerator[AsyncSession, None]:
    """A process of its own with the session."""
    async with server.async_client() as client:
        yield client.session(**({"name": "s", "tools": shop.tools()} | options))


async def test_a_call_waits_and_another_process_approves_and_goes_on() -> None:
    server, shop = served(call("pay", amount=5)), Shop()
    async with process(server, shop) as session:
        result = await session.run("pay 5")
        assert result.status == "waiting"
        assert [c.name for c in result.waiting] == ["pay"]  # type: ignore[union-attr]
    async with process(server, shop) as other:
        (pending,) = await other.pending()
        assert isinstance(pending, PendingCall)
        assert (pending.state, pending.call.full_name, pending.by) == ("pending", "pay", "")
        approved = await other.approve(pending.call.call_id, by="ana", reason="fine")
        assert (approved.state, approved.by, approved.reason) == ("approved", "ana", "fine")
    assert shop.paid == []
    async with process(server, shop) as third:
        result = await third.run()
        assert (result.text, result.status, shop.paid) == ("paid 5", "completed", [5])
        assert await third.pending() == ()


async def test_the_same_process_may_go_on_too_and_the_model_reads_why_not() -> None:
    server, shop = served(call("pay", amount=5)), Shop()
    async with process(server, shop, name=None) as session:
        waiting = (await session.run("pay 5")).waiting
        await session.reject(waiting[0].call_id, by="bob", reason="too much")
        result = await session.run("and?")
        assert "not approved: too much" in result.text
    assert shop.paid == []


async def test_calls_beside_it_run_once_and_their_outputs_are_kept() -> None:
    server, shop = served(call("look"), call("pay", amount=5), call("send")), Shop()
    async with process(server, shop) as session:
        events = [event async for event in session.stream("go")]
        assert len([e for e in events if isinstance(e, ToolFinished)]) == 2
    async with process(server, shop) as other:
        states = {p.call.full_name: p.state for p in await other.pending()}
        assert (states["pay"], states["send"]) == ("pending", "ended")
        (pay,) = [p for p in await other.pending() if p.state == "pending"]
        await other.approve(pay.call.call_id)
        assert (await other.run()).text == "seen paid 5 sent"
    assert (shop.paid, shop.sent) == ([5], 1)


async def test_a_process_that_can_ask_somebody_needs_no_decision() -> None:
    server, shop = served(call("pay", amount=5)), Shop()
    async with process(server, shop) as session:
        await session.run("go")
    async with process(server, shop, approve=lambda call, arguments: True) as other:
        assert (await other.run("go on")).status == "completed"
    assert shop.paid == [5]


async def test_two_processes_that_go_on_at_once_run_the_tool_once() -> None:
    server, shop = served(call("pay", amount=5)), Shop()
    async with process(server, shop) as session:
        (waiting,) = (await session.run("go")).waiting
        await session.approve(waiting.call_id)
    async with process(server, shop) as one, process(server, shop) as other:
        found = await asyncio.gather(one.run(), other.run(), return_exceptions=True)
    assert shop.paid == [5]
    ended = [r for r in found if isinstance(r, LoopResult) and r.status == "completed"]
    assert ended
    assert {r.text for r in ended} == {"paid 5"}
    turns = [r["keepwarm"]["request_id"] for r in server.requests[1:]]
    assert len(set(turns)) == 1, "the turn behind it is one request"


async def test_a_call_that_was_begun_and_not_ended_is_told_and_not_run() -> None:
    server, shop = served(call("pay", amount=5)), Shop()
    async with process(server, shop) as session:
        (waiting,) = (await session.run("go")).waiting
        await session.approve(waiting.call_id)
        await begun(server, session, waiting.call_id)
    async with process(server, shop) as other:
        events = [event async for event in other.stream()]
        assert events[-1].status == "waiting"  # type: ignore[union-attr]
        (warned,) = [event.text for event in events if isinstance(event, Warned)]
        assert "was begun and its end is not known" in warned
        (pending,) = await other.pending()
        assert (pending.state, pending.begun_at is not None) == ("begun", True)
        await other.owe([FunctionCallOutput(call_id=waiting.call_id, output="it was paid")])
        assert (await other.run()).text == "it was paid"
    assert shop.paid == []


async def test_a_tool_that_may_run_twice_is_run_again() -> None:
    server, shop = served(call("pay", amount=5)), Shop()
    tools = shop.tools(idempotent=True)
    async with process(server, shop, tools=tools) as session:
        (waiting,) = (await session.run("go")).waiting
        assert shop.paid == [], "it may start early, but not before somebody approves"
        await session.approve(waiting.call_id)
        await begun(server, session, waiting.call_id)
    async with process(server, shop, tools=tools) as other:
        assert (await other.run()).text == "paid 5"
    assert shop.paid == [5]


async def test_calls_that_a_killed_process_left_are_run_where_they_may_run_twice() -> None:
    server, shop = served(call("look"), call("look")), Shop()
    only_look = shop.tools()[1:2]
    async with process(server, shop, tools=only_look) as session:
        await session.respond("go", tools=only_look)  # and is killed before its tools run
    async with process(server, shop, tools=only_look) as other:
        assert (await other.run("and now?")).text == "seen seen"
    assert shop.looked == 2


@pytest.mark.parametrize("beside_approvals", [False, True])
async def test_calls_that_a_killed_process_may_have_run_wait(beside_approvals: bool) -> None:
    server, shop = served(call("send"), call("look")), Shop()
    tools = shop.tools() if beside_approvals else shop.tools()[1:]
    async with process(server, shop, tools=tools) as session:
        await session.respond("go", tools=tools)
    async with process(server, shop, tools=tools) as other:
        with pytest.raises(RuntimeError, match=r"waits for the calls .* approve or reject"):
            await other.run("and now?")
        events = [event async for event in other.stream()]
        assert events[-1].status == "waiting"  # type: ignore[union-attr]
        (warned,) = [event.text for event in events if isinstance(event, Warned)]
        assert "of send may have run" in warned
        assert (shop.sent, shop.looked) == (0, 1)
        waiting = next(each for each in await other.pending() if each.state == "pending")
        await other.approve(waiting.call.call_id)
        assert (await other.run()).text == "sent seen"
    assert (shop.sent, shop.looked) == (1, 1)


async def begun(server: ScriptedServer, session: AsyncSession, call_id: str) -> None:
    """Begin a call as a process does that is killed behind it."""
    for holder, expected in (("killed", 200), ("late", 409)):
        body = {"call_id": call_id, "decision": "begin", "holder": holder}
        path = f"{URL}/responses/{session.head}/calls"
        status, _ = await server.ask(path, {}, json.dumps(body).encode(), timeout_s=1)
        assert status == expected


async def test_an_input_is_refused_while_calls_wait() -> None:
    server, shop = served(call("pay", amount=5)), Shop()
    async with process(server, shop) as session, process(server, shop) as other:
        await session.run("go")
        for each in (session, other):
            with pytest.raises(RuntimeError, match=r"waits for the calls .* approve or reject"):
                await each.run("something else")
            assert (await each.run()).status == "waiting"


async def test_a_fork_shares_the_decision_and_the_output() -> None:
    server, shop = served(call("pay", amount=5)), Shop()
    async with process(server, shop) as session:
        (waiting,) = (await session.run("go")).waiting
        fork = session.fork()
        await session.approve(waiting.call_id)
        assert (await session.run()).text == "paid 5"
        assert (await fork.run()).text == "paid 5"
    assert shop.paid == [5]


@pytest.mark.parametrize("failures", [1, 2])
async def test_a_turn_behind_it_that_fails_is_asked_anew(failures: int) -> None:
    answers = [call("pay", amount=5), *[fail("server_error", "no")] * failures, "done"]
    server, shop = ScriptedServer(answers), Shop()
    async with process(server, shop) as session:
        (waiting,) = (await session.run("go")).waiting
        await session.approve(waiting.call_id)
        for _ in range(failures):
            with pytest.raises(Exception, match="no"):
                await session.run()
        assert (await session.run()).text == "done"
    assert shop.paid == [5]


async def test_a_server_that_is_away_for_a_moment_is_asked_again() -> None:
    server, shop = served(call("pay", amount=5)), Shop()
    asked: list[str] = []

    class Shaky:
        open = server.open

        async def ask(self, url: str, *given: Any, **named: Any) -> tuple[int, bytes]:
            asked.append(url)
            if len(asked) % 3 == 2:  # it has been met before
                raise OSError("away")
            if len(asked) % 3 == 0:
                return 503, b'{"error": {"message": "busy", "code": "server_is_overloaded"}}'
            return await server.ask(url, *given, **named)

    retries = Retries(first_wait_s=0.0, longest_wait_s=0.0)
    async with server.async_client() as client:
        client = type(client)("http://scripted.invalid/v1", transport=Shaky(), retries=retries)
        session = client.session(name="s", tools=shop.tools())
        (waiting,) = (await session.run("go")).waiting
        await session.approve(waiting.call_id)
        assert (await session.run()).text == "paid 5"
    assert shop.paid == [5]
    assert len(asked) >= 12


async def test_an_output_that_cannot_be_kept_is_here_all_the_same() -> None:
    server, shop = served(call("pay", amount=5)), Shop()

    class Forgetful:
        open = server.open

        async def ask(self, url: str, headers: Any, body: Any, **named: Any) -> tuple[int, bytes]:
            if body is not None and b'"end"' in body:
                return 500, b"<html>"
            return await server.ask(url, headers, body, **named)

    async with server.async_client() as client:
        client = type(client)("http://scripted.invalid/v1", transport=Forgetful())
        session = client.session(name="s", tools=shop.tools())
        (waiting,) = (await session.run("go")).waiting
        await session.approve(waiting.call_id)
        assert (await session.run()).text == "paid 5"


def test_approvals_of_what_is_not_stored_are_refused_at_once() -> None:
    shop = Shop()
    with served().client() as client:
        with pytest.raises(TypeError, match="store=False leaves no place for"):
            client.session(tools=shop.tools(), store=False)
        with pytest.raises(TypeError, match="store=False leaves no place for"):
            client.session(tools=shop.tools()).run("go", store=False)
        client.session(tools=shop.tools(), store=False, approve=lambda *_: True)


async def test_a_child_that_waits_is_told_by_name() -> None:
    shop = Shop()
    server = ScriptedServer(
        lambda asked: (
            call("ask", input="x")
            if asked.session == "lead" and asked.number == 1
            else told(asked)
            if asked.session == "lead"
            else call("pay", amount=5)
        )
    )
    async with process(server, shop, name="lead", tools=[]) as lead:
        child = lead.child(name="child", tools=shop.tools())
        result = await lead.run("go", tools=[child.as_tool("ask", "Ask.")])
    assert "waits for somebody to answer or approve pay" in result.text


@pytest.mark.parametrize(
    "break_off", [lambda server: server.cut(), lambda server: server.cut(1012)]
)
async def test_sockets_that_break_around_a_decision_change_nothing(
    break_off: Callable[[ScriptedServer], None],
) -> None:
    shop = Shop()
    server = ScriptedServer([cut(call("pay", amount=5), after=2), cut("done", after=2)])
    async with process(server, shop) as session:
        (waiting,) = (await session.run("go")).waiting
        break_off(server)
        await session.approve(waiting.call_id)
        break_off(server)
        assert (await session.run()).text == "done"
    assert shop.paid == [5]


def test_what_counts_as_an_input() -> None:
    assert [has_input(given) for given in ((), [], "", [{}], "x")] == [
        *(False, False),
        *(True, True, True),
    ]
