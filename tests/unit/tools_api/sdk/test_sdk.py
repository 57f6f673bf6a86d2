"""Small parts of the SDK: results, failures, options, the loop in a thread, chains."""

import asyncio
import gc
import subprocess
import sys
import threading
from collections.abc import AsyncGenerator
from dataclasses import FrozenInstanceError
from typing import Any

import pytest

import keepwarm
from tests.support.fake_server import FakeServer, message, turn
from tools_api.items import FunctionCall, Message, TextPart
from tools_api.sdk.answers import (
    LoopResult,
    ReasoningDelta,
    Response,
    TextDelta,
    Usage,
    Warned,
)
from tools_api.sdk.backoff import Retries
from tools_api.sdk.chain import Chain
from tools_api.sdk.failures import (
    ConnectionLost,
    HookEnded,
    OutputInvalid,
    Refused,
    TooManyTurns,
    TurnFailed,
)
from tools_api.sdk.occupancy import Occupancy
from tools_api.sdk.options import wire_options
from tools_api.sdk.portal import Portal
from tools_api.sdk.schemas import json_format
from tools_api.sdk.sync_client import Client
from tools_api.sdk.sync_session import Session
from tools_api.sdk.threads import ToolExit
from tools_api.sdk.tool_making import tool


def response(**fields: object) -> Response:
    raw = {"error": {"code": "rate_limit_exceeded", "message": "spent"}}
    whole: dict[str, object] = {"id": "r", "status": "completed", "output": (), "usage": Usage()}
    whole |= {"keepwarm": {}, "ttft_s": None, "duration_s": 0.0, "raw": raw}
    return Response(**(whole | fields))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("result", "status"),
    [
        (LoopResult(), "incomplete"),
        (LoopResult(responses=(response(),)), "completed"),
        (LoopResult(responses=(response(status="incomplete"),)), "incomplete"),
        (LoopResult(responses=(response(),), cancelled=True), "cancelled"),
    ],
)
def test_a_result_says_how_it_ended(result: LoopResult[None], status: str) -> None:
    assert result.status == status


def test_failures_say_what_happened_and_keep_what_was_done() -> None:
    result = LoopResult(responses=(response(),))
    assert str(TooManyTurns(result)) == "the model still calls tools after 1 turns"
    assert OutputInvalid(result, ["a: missing"]).faults == ("a: missing",)
    failed = TurnFailed(response(keepwarm={"reason": "budget"}))
    assert (failed.code, failed.reason) == ("rate_limit_exceeded", "budget")


def test_events_of_the_same_fields_are_equal_to_their_own_kind_alone_and_frozen() -> None:
    kinds = (TextDelta, ReasoningDelta, Warned)
    events = [kind(text="a") for kind in kinds]
    assert [[one == other for one in events] for other in events] == [
        [True, False, False],
        [False, True, False],
        [False, False, True],
    ]
    for kind, event in zip(kinds, events, strict=True):
        assert event == kind(text="a") != kind(text="b")
        assert repr(event) == f"{kind.__name__}(text='a')"
        assert not hasattr(event, "__dict__")
        with pytest.raises(FrozenInstanceError):
            event.text = "b"  # type: ignore[misc]


def test_types_other_than_models_have_a_format() -> None:
    made = json_format(list[int])["format"]
    assert made["schema"] == {"type": "array", "items": {"type": "integer"}}


def test_options_of_a_turn_join_the_sessions() -> None:
    made = wire_options({"keepwarm": {"a": 1}}, {"keepwarm": {"b": 2}, "temperature": 0})
    assert made == {"keepwarm": {"a": 1, "b": 2}, "temperature": 0}


def test_keys_of_the_extension_come_and_go() -> None:
    chain = Chain(defaults={})
    chain.set_keepwarm(session="s", budget=None)
    assert chain.defaults == {"keepwarm": {"session": "s"}}
    chain.set_keepwarm(session=None)
    assert chain.defaults == {}


async def test_an_occupied_session_lets_others_in_one_by_one() -> None:
    occupancy, order = Occupancy(), []

    async def use(number: int) -> None:
        async with occupancy.taken():
            order.append(number)
            await asyncio.sleep(0)
            order.append(number)

    await asyncio.gather(*(use(number) for number in range(3)))
    assert order == [0, 0, 1, 1, 2, 2]


async def numbers() -> AsyncGenerator[int, None]:
    for number in range(3):
        yield number


def test_a_portal_runs_coroutines_and_iterates_in_its_own_thread() -> None:
    async def where() -> int:
        return threading.get_ident()

    portal = Portal()
    assert portal.call(where()) not in (None, threading.get_ident())
    assert list(portal.iterate(numbers())) == [0, 1, 2]
    portal.close()
    assert list(portal.iterate(numbers())) == [0, 1, 2], "it starts anew"
    portal.close()


def test_a_portal_that_nobody_holds_ends_its_thread_behind_what_is_left_to_do() -> None:
    left = threading.Event()

    async def last() -> None:
        left.set()

    async def thread() -> threading.Thread:
        return threading.current_thread()

    portal = Portal(last)
    of_loop, stream = portal.call(thread()), portal.iterate(numbers())
    assert next(stream) == 0
    del portal
    gc.collect()
    assert next(stream) == 1  # a stream holds it
    assert not left.is_set()
    stream.close()
    del stream
    gc.collect()
    of_loop.join(60)
    assert left.is_set()
    assert not of_loop.is_alive()


def test_a_session_outlives_the_name_of_its_client_and_leaves_nothing_behind() -> None:
    program = """
from keepwarm.testing import ScriptedServer
def play():
    session = ScriptedServer(["one", "two"]).client().session(name="s")
    assert session.run("go").text == "one"
    next(session.stream("go"))
    print(session)
for _ in range(5):
    play()
kept = ScriptedServer(["one"]).client().session()
kept.run("go")
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stderr == ""
    head = f"resp_{1:032}"
    shown = f"<Session 's' at {head}: 1 turns, 5 tokens in (0% cached), 1 out>"
    assert done.stdout.splitlines() == [shown] * 5


def test_what_is_printed_of_a_turn_fits_a_line() -> None:
    call = FunctionCall(call_id="c", name="look", arguments="{}")
    text = TextPart(type="output_text", text="word " * 100)
    said = Message(role="assistant", content=(text,))
    shown = repr(response(output=(said, call)))
    assert shown.startswith("<Response r completed: 0 tokens in (0% cached), 0 out; text 'word ")
    assert shown.endswith("..., calls look>")
    assert len(shown) < 260
    assert repr(response()).endswith("out; text ''>")


@pytest.mark.parametrize("error", [Refused, ConnectionLost, TurnFailed, HookEnded])
def test_an_error_is_named_as_it_is_caught(error: type[Exception]) -> None:
    public = getattr(keepwarm, error.__qualname__)
    assert issubclass(error, public)
    assert error.__module__ == "keepwarm"


def test_a_portal_raises_what_was_raised() -> None:
    async def fail(error: BaseException) -> None:
        raise error

    portal = Portal()
    with pytest.raises(LookupError):
        portal.call(fail(LookupError()))
    with pytest.raises(KeyboardInterrupt):
        portal.call(fail(ToolExit(KeyboardInterrupt())))
    portal.close()


@pytest.mark.parametrize("sent", [True, False])
def test_an_interrupt_at_the_sending_ends_what_was_sent(
    sent: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C comes into the midst of sending a step: before the loop has it, or after."""
    begun, ended = threading.Event(), threading.Event()

    async def endless() -> AsyncGenerator[int, None]:
        try:
            begun.set()
            await asyncio.Event().wait()
            yield 0
        finally:
            ended.set()

    async def loop_of_thread() -> asyncio.AbstractEventLoop:
        return asyncio.get_running_loop()

    portal = Portal()
    loop = portal.call(loop_of_thread())
    send, interrupts = loop.call_soon_threadsafe, iter([KeyboardInterrupt])

    def interrupted(*work: Any) -> object:
        error = next(interrupts, None)
        handle = send(*work) if sent or error is None else None
        if error is not None:
            assert not sent or begun.wait(10)
            raise error
        return handle

    monkeypatch.setattr(loop, "call_soon_threadsafe", interrupted)
    monkeypatch.setattr("tools_api.sdk.portal._GRACE_S", 3600)
    with pytest.raises(KeyboardInterrupt):
        next(portal.iterate(endless()))
    assert ended.is_set() is sent
    assert list(portal.iterate(numbers())) == [0, 1, 2]
    portal.close()


def test_a_client_that_nobody_closed_leaves_no_thread() -> None:
    with FakeServer(lambda request: turn(request, [message("x")])) as server:
        before = set(threading.enumerate())  # other tests' clients may be waiting to be collected
        client = Client(server.url, retries=Retries(tries=0))
        session = client.session()
        assert isinstance(session, Session)
        session.respond("a")
        new = set(threading.enumerate()) - before
        threads = [thread for thread in new if thread.name == "keepwarm client"]
        assert len(threads) == 1
        del client, session
    for thread in threads:
        thread.join(60)
    assert not any(thread.is_alive() for thread in threads)


def plain(x: int) -> int:
    return x


class Callable3:
    def __call__(self) -> int:
        return 3


@pytest.mark.parametrize(
    ("tools", "said"),
    [
        ([plain], "one of tools is the function plain and no tool: put @tool"),
        ([tool(plain), lambda: 1], "the function <lambda> and no tool: put @tool"),
        ([Callable3()], "the function Callable3 and no tool: put @tool"),
        (["plain"], "one of tools is of type str and no tool: a tool is made by @tool"),
        ([None], "one of tools is of type NoneType and no tool"),
        (plain, "tools is the function plain, not a list of tools"),
        (tool(plain), "tools is the tool plain, not a list of tools"),
        ("plain", "tools is of type str, not a list of tools"),
        ({"type": "function"}, "tools is of type dict, not a list of tools"),
        (3, "tools is of type int, not a list of tools"),
    ],
)
def test_what_is_no_tool_is_a_type_error_wherever_it_is_given(tools: Any, said: str) -> None:
    client = Client("http://127.0.0.1:1/v1")
    with pytest.raises(TypeError, match=said):
        client.session(tools=tools)
    session = client.session()
    for give in (session.run, session.stream, session.respond, session.warm):
        with pytest.raises(TypeError, match=said):
            give("x", tools=tools)  # type: ignore[operator]
    client.close()


def test_tools_may_be_anything_that_can_be_gone_through_once() -> None:
    def asked(request: dict[str, Any]) -> list[dict[str, Any]]:
        names.append([each["name"] for each in request["tools"]])
        return turn(request, [message("hello")])

    names: list[list[str]] = []
    with FakeServer(asked) as server, Client(server.url) as client:
        session = client.session(tools=(tool(each) for each in [plain]))  # type: ignore[arg-type]
        session.run("one")
        session.run("two")
        session.run("three", tools=(tool(each) for each in [plain]))  # type: ignore[arg-type]
    assert names == [["plain"]] * 3
