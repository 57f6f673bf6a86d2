"""Hooks see, replace and refuse in both clients; one that fails ends the run by its name."""

import asyncio
import dataclasses
import threading
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from tests.support.fake_server import FakeServer, call, message, turn
from tools_api.items import FunctionCall
from tools_api.sdk.answers import CallRecord, LoopResult, Response
from tools_api.sdk.client import AsyncClient
from tools_api.sdk.failures import HookEnded
from tools_api.sdk.hooks import Hooks, Refuse
from tools_api.sdk.session import AsyncSession
from tools_api.sdk.sync_client import Client
from tools_api.sdk.threads import ToolExit
from tools_api.sdk.tool_making import tool

PLACES = ("before_turn", "after_turn", "before_tool", "after_tool")
ran: list[int] = []


@tool
def double(number: int) -> int:
    """Twice the number."""
    ran.append(number)
    return 2 * number


def server() -> FakeServer:
    """Answers with a call of ``double`` first, and then with a text."""
    rounds = iter(range(100))

    def answer(request: dict[str, Any]) -> list[dict[str, Any]]:
        number = next(rounds)
        odd = number % 2
        item = message("the answer") if odd else call("double", '{"number": 4}', number)
        return turn(request, [item], id=f"resp_{number}")

    return FakeServer(answer)


def play(is_async: bool, hooks: Hooks, *, times: int = 1) -> tuple[list[Any], FakeServer]:
    """So many runs of one session: the result of each, or what it raised."""
    ran.clear()
    found: list[Any] = []

    async def played(url: str) -> None:
        async with AsyncClient(url) as client:
            session = client.session(tools=[double], hooks=hooks)
            for _ in range(times):
                try:
                    found.append(await session.run("go"))
                except HookEnded as ended:
                    found.append(ended)

    with server() as fake:
        if is_async:
            asyncio.run(played(fake.url))
            return found, fake
        with Client(fake.url) as client:
            session = client.session(tools=[double], hooks=hooks)
            for _ in range(times):
                try:
                    found.append(session.run("go"))
                except HookEnded as ended:
                    found.append(ended)
    return found, fake


def texts(request: dict[str, Any]) -> list[str]:
    return [str(item.get("content", item.get("output"))) for item in request["input"]]


def as_coroutine(function: Callable[..., Any], is_coroutine: bool) -> Callable[..., Any]:
    if not is_coroutine:
        return function

    async def asked(*given: Any) -> Any:
        await asyncio.sleep(0)
        return function(*given)

    return asked


both = pytest.mark.parametrize("is_async", [True, False])


@both
@pytest.mark.parametrize("is_coroutine", [True, False])
def test_each_place_is_seen_and_none_leaves_things_as_they_are(
    is_async: bool, is_coroutine: bool
) -> None:
    seen: list[tuple[str, Any]] = []

    def saw(place: str) -> Callable[..., Any]:
        return as_coroutine(lambda *given: seen.append((place, given)), is_coroutine)

    (result,), fake = play(is_async, Hooks(**{place: saw(place) for place in PLACES}))
    assert result.text == "the answer"
    assert ran == [4]
    assert [place for place, _ in seen] == [
        *("before_turn", "after_turn", "before_tool", "after_tool", "before_turn", "after_turn")
    ]
    kinds = [type(given[0]) for _, given in seen]
    assert kinds == [list, Response, FunctionCall, CallRecord, list, Response]
    assert seen[2][1][1] == {"number": 4}
    assert seen[3][1][0].output == "8"
    assert texts(fake.requests[1]) == ["8"]


@both
def test_each_place_may_replace(is_async: bool) -> None:
    def shorter(response: Response) -> Response:
        return dataclasses.replace(response, output=())

    def other(_: FunctionCall, arguments: Mapping[str, Any]) -> Mapping[str, Any]:
        return {"number": arguments["number"] + 1}

    hooks = Hooks(
        before_turn=lambda items: [{"role": "user", "content": f"had {len(items)}"}],
        after_turn=shorter,
        before_tool=other,
        after_tool=lambda record: f"<{record.output}>",
    )
    (result,), fake = play(is_async, hooks)
    assert ran == [5]
    assert texts(fake.requests[0]) == ["had 1"]
    assert texts(fake.requests[1]) == ["<10>", "had 0"]
    assert [response.output for response in result.responses] == [(), ()]
    assert result.calls[0].output == "<10>"


@both
def test_a_turn_that_is_refused_is_not_sent_and_the_session_goes_on(is_async: bool) -> None:
    verdicts = iter([Refuse("too late"), None, None])
    (ended, result), fake = play(is_async, Hooks(before_turn=lambda items: next(verdicts)), times=2)
    assert isinstance(ended, HookEnded)
    assert (ended.hook, ended.reason) == ("before_turn", "too late")
    assert isinstance(ended.result, LoopResult)
    assert result.text == "the answer"
    assert len(fake.requests) == 2


@both
def test_a_turn_that_was_played_may_be_refused_and_its_calls_are_answered(is_async: bool) -> None:
    verdicts = iter([Refuse("not like that"), None])
    (ended, after), fake = play(is_async, Hooks(after_turn=lambda _: next(verdicts)), times=2)
    assert isinstance(ended, HookEnded)
    assert (ended.hook, ended.reason) == ("after_turn", "not like that")
    assert isinstance(ended.result, LoopResult)
    assert [response.id for response in ended.result.responses] == ["resp_0"]
    assert isinstance(after, LoopResult)
    assert after.text == "the answer"
    assert ran == []
    assert "not run" in texts(fake.requests[1])[0]
    assert texts(fake.requests[1])[1] == "go"


@both
@pytest.mark.parametrize("place", ["before_tool", "after_tool"])
def test_of_a_tool_that_is_refused_the_model_reads_why(is_async: bool, place: str) -> None:
    (result,), fake = play(is_async, Hooks(**{place: lambda *_: Refuse("not on a sunday")}))
    assert result.text == "the answer"
    assert result.calls[0].failed
    assert texts(fake.requests[1]) == ['{"error":"not on a sunday"}']
    assert ran == ([] if place == "before_tool" else [4])


def failing(how: str, released: threading.Event) -> Callable[..., Any]:
    """A hook that fails; a thread that hangs does so until it is ``released``."""

    def hook(*given: Any) -> Any:
        if how == "raises":
            raise LookupError("no such thing")
        if how == "hangs":
            released.wait(60)
        return 17 if how == "answers something else" else None

    async def hanging(*given: Any) -> Any:
        await asyncio.Event().wait()

    return hanging if how == "hangs as a coroutine" else hook


@pytest.mark.samples(7)
@both
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize(
    "how", ["raises", "hangs", "hangs as a coroutine", "answers something else"]
)
def test_a_hook_that_fails_ends_the_run_by_name_and_every_call_is_answered(
    is_async: bool, place: str, how: str
) -> None:
    released = threading.Event()
    left = iter([failing(how, released)])

    def once(*given: Any) -> Any:
        return next(left, lambda *_: None)(*given)

    hooks = Hooks(**{place: once}, timeout_s=0.2)
    try:
        (ended, after), fake = play(is_async, hooks, times=2)
    finally:
        released.set()
    assert isinstance(ended, HookEnded)
    assert ended.hook == place
    assert place in str(ended)
    said = {"raises": "LookupError: no such thing", "hangs": "no answer within 0.2 s"}
    assert said.get(how.partition(" as ")[0], "it gave") in str(ended)
    assert isinstance(after, LoopResult)
    answered = [item for request in fake.requests for item in request["input"]]
    outputs = [item["call_id"] for item in answered if item.get("type") == "function_call_output"]
    assert len(outputs) == len(set(outputs))
    if place == "after_tool":
        assert "the tool ran" in texts(fake.requests[1])[0]
    elif place == "before_tool":
        assert "not run" in texts(fake.requests[1])[0]


@both
def test_arguments_of_other_names_end_the_run(is_async: bool) -> None:
    (ended,), _ = play(is_async, Hooks(before_tool=lambda *_: {"nummer": 3}))
    assert "it gave nummer for the arguments number of double" in str(ended)
    assert ran == []


async def test_a_hook_that_calls_its_own_session_is_told_so() -> None:
    sessions: list[AsyncSession] = []

    async def asks(items: list[dict[str, Any]]) -> None:
        await sessions[0].respond("deadlock?")

    with server() as fake:
        async with AsyncClient(fake.url) as client:
            sessions.append(client.session(hooks=Hooks(before_turn=asks)))
            for work in (sessions[0].run, sessions[0].respond):
                with pytest.raises(HookEnded, match="called the session that runs it"):
                    await work("go")
    assert fake.requests == []


@both
def test_a_turn_alone_and_a_warming_are_hooked_too(is_async: bool) -> None:
    seen: list[str] = []
    hooks = Hooks(
        before_turn=lambda items: seen.append("before"),  # type: ignore[func-returns-value]
        after_turn=lambda response: seen.append("after"),  # type: ignore[func-returns-value]
    )

    async def story(url: str) -> None:
        async with AsyncClient(url) as client:
            session = client.session(hooks=hooks)
            await session.respond("a")
            await session.child().warm("b")

    with server() as fake:
        if is_async:
            asyncio.run(story(fake.url))
        else:
            with Client(fake.url) as client:
                session = client.session(hooks=hooks)
                session.respond("a")
                session.child().warm("b")
    assert seen == ["before", "after"] * 2


async def test_a_run_that_is_cancelled_inside_a_hook_sends_nothing_more() -> None:
    sessions: list[AsyncSession] = []
    with server() as fake:
        async with AsyncClient(fake.url) as client:
            hooks = Hooks(before_turn=lambda items: sessions[0].cancel() and None)
            sessions.append(client.session(tools=[double], hooks=hooks))
            result = await sessions[0].run("go")
    assert result.status == "cancelled"
    assert fake.requests == []


def test_a_hook_may_end_the_program() -> None:
    def leaves(items: list[dict[str, Any]]) -> None:
        raise SystemExit(3)

    with server() as fake, Client(fake.url) as client:
        with pytest.raises(SystemExit):
            client.session(hooks=Hooks(before_turn=leaves)).run("go")

    async def story(url: str) -> None:
        async with AsyncClient(url) as client:
            await client.session(hooks=Hooks(before_turn=leaves)).run("go")

    with server() as fake, pytest.raises(ToolExit):
        asyncio.run(story(fake.url))


def test_a_time_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="timeout_s 0 of hooks is not above 0"):
        Hooks(timeout_s=0)
