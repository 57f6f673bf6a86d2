"""Loops that run calls until the model is done: events, ends, answers of a type."""

import asyncio
import threading
from collections.abc import Iterator
from datetime import date
from typing import Any

import orjson
import pytest
from pydantic import BaseModel

from keepwarm.testing import ScriptedServer, refuse
from keepwarm.testing import call as call_of
from tests.support.fake_server import Close, FakeServer, call, message, refusal, turn
from tools_api.items import FunctionCall, FunctionCallOutput
from tools_api.sdk.answers import TextDelta, ToolFinished, ToolStarted, Warned
from tools_api.sdk.backoff import Retries
from tools_api.sdk.client import AsyncClient
from tools_api.sdk.failures import ConnectionLost, OutputInvalid, Refused, TooManyTurns
from tools_api.sdk.hooks import Hooks
from tools_api.sdk.sync_client import Client
from tools_api.sdk.sync_session import Session
from tools_api.sdk.tool_loop import STILL_RUNS
from tools_api.sdk.tool_making import tool
from tools_api.sdk.tools import Tool


@tool
def add(a: int, b: int) -> int:
    """Add two whole numbers.

    This paragraph is for people.
    """
    return a + b


@tool
def fail(reason: str) -> str:
    raise ValueError(reason)


@tool
async def add_slowly(a: int, b: int) -> int:
    return a + b


def outputs(request: dict[str, Any]) -> list[str]:
    return [item["output"] for item in request["input"]]


def server_of(*rounds: list[dict[str, Any]]) -> FakeServer:
    """A server whose n-th response has the n-th list of items."""
    left = list(enumerate(rounds, start=1))

    def answer(request: dict[str, Any]) -> list[dict[str, Any]]:
        number, items = left.pop(0)
        return turn(request, items, id=f"resp_{number}")

    return FakeServer(answer)


def test_the_loop_answers_calls_until_there_are_none() -> None:
    rounds = [call("add", '{"a": 1, "b": 2}')], [call("add", '{"a": 3, "b": 4}', 2)]
    with server_of(*rounds, [message("seven")]) as server, Client(server.url) as client:
        result = client.session(tools=[add]).run("go", tool_choice="required")
    assert result.text == "seven"
    assert [record.output for record in result.calls] == ["3", "7"]
    assert result.usage.input_tokens == 30
    assert outputs(server.requests[1]) == ["3"]
    assert [request["tool_choice"] for request in server.requests] == ["required", "auto", "auto"]
    assert [len(request["input"]) for request in server.requests] == [1, 1, 1]


def test_the_choice_may_be_a_function_of_the_turn() -> None:
    named = {"type": "function", "name": "add"}
    rounds = [call("add", '{"a": 1, "b": 2}')], [message("done")]
    with server_of(*rounds) as server, Client(server.url) as client:
        client.session(tools=[add]).run("go", tool_choice=lambda n: [named, "none"][n])
    assert [request["tool_choice"] for request in server.requests] == [named, "none"]


@pytest.mark.parametrize(
    ("made", "output"),
    [
        (call("fail", '{"reason": "no stock"}'), {"error": "ValueError: no stock"}),
        (call("gone", "{}"), {"error": "LookupError: there is no tool 'gone'"}),
        (
            call("add", '{"a": "x", "c": 1}'),
            {
                "error": "the arguments do not fit",
                "faults": [
                    "a: Input should be a valid integer, unable to parse string as an integer",
                    "b: Field required",
                    "c: Extra inputs are not permitted",
                ],
            },
        ),
        (
            call("add", '{"a": 1'),
            {
                "error": "the arguments do not fit",
                "faults": [
                    "arguments: Invalid JSON: EOF while parsing an object at line 1 column 7"
                ],
            },
        ),
    ],
)
def test_a_call_that_fails_is_answered_with_an_error(
    made: dict[str, Any], output: dict[str, Any]
) -> None:
    with server_of([made], [message("sorry")]) as server, Client(server.url) as client:
        result = client.session(tools=[add, fail]).run("go")
    assert orjson.loads(result.calls[0].output) == output
    assert result.calls[0].failed


def test_text_goes_back_as_it_is_and_objects_as_json() -> None:
    @tool
    def look_up(name: str) -> dict[str, Any]:
        return {"name": name, "sold": date(2026, 11, 23)}

    @tool
    def say(name: str) -> str:
        return name

    rounds = [call("look_up", '{"name": "a"}'), call("say", '{"name": "b"}', 2)]
    with server_of(rounds, [message("ok")]) as server, Client(server.url) as client:
        client.session(tools=[look_up, say]).run("go")
    assert outputs(server.requests[1]) == ['{"name":"a","sold":"2026-11-23"}', "b"]


def test_the_loop_is_bounded_and_calls_of_the_last_turn_are_not_run() -> None:
    ran: list[int] = []

    @tool
    def count(n: int) -> str:
        ran.append(n)
        return "ok"

    rounds = [[call("count", f'{{"n": {n}}}', n)] for n in range(3)]
    with server_of(*rounds) as server, Client(server.url) as client:
        with pytest.raises(TooManyTurns, match="after 3 turns") as caught:
            client.session(tools=[count]).run("go", max_turns=3)
    assert ran == [0, 1]
    assert len(caught.value.result.responses) == 3


def test_a_turn_cut_short_ends_the_loop_without_running_its_calls() -> None:
    def answer(request: dict[str, Any]) -> list[dict[str, Any]]:
        return turn(request, [call("add", '{"a": 1')], status="incomplete")

    with FakeServer(answer) as server, Client(server.url) as client:
        result = client.session(tools=[add]).run("go")
    assert result.final.status == "incomplete"
    assert result.calls == ()


async def run_async(rounds: list[list[dict[str, Any]]], tools: list[Tool]) -> list[str]:
    """Outputs that the second request carries."""
    with server_of(*rounds) as server:
        async with AsyncClient(server.url) as client:
            await client.session(tools=tools).run("go")
    return outputs(server.requests[1])


async def test_the_async_loop_runs_async_and_plain_tools_alike() -> None:
    rounds = [
        [
            call("add_slowly", '{"a": 1, "b": 2}'),
            call("add", '{"a": 3, "b": 4}', 2),
            call("fail", '{"reason": "x"}', 3),
        ],
        [message("ok")],
    ]
    assert await run_async(rounds, [add, add_slowly, fail]) == [
        "3",
        "7",
        '{"error":"ValueError: x"}',
    ]


async def test_parallel_calls_run_at_once_and_are_answered_in_their_order() -> None:
    met = threading.Barrier(2, timeout=60)
    second = asyncio.Event()

    @tool
    def meet(who: str) -> str:
        met.wait()  # passes only if both calls are inside
        return who

    @tool
    async def wait_for_second() -> str:
        await second.wait()
        return "first"

    @tool
    async def be_second() -> str:
        second.set()
        return "second"

    threads = [call("meet", '{"who": "a"}', 1), call("meet", '{"who": "b"}', 2)]
    assert await run_async([threads, [message("ok")]], [meet]) == ["a", "b"]
    tasks = [call("wait_for_second", "{}", 1), call("be_second", "{}", 2)]
    tools = [wait_for_second, be_second]
    assert await run_async([tasks, [message("ok")]], tools) == ["first", "second"]


async def test_the_async_loop_is_bounded_too() -> None:
    rounds = [[call("add", '{"a": 1, "b": 2}', n)] for n in range(2)]
    with server_of(*rounds) as server:
        async with AsyncClient(server.url) as client:
            with pytest.raises(TooManyTurns):
                await client.session(tools=[add]).run("go", max_turns=2)


# Interrupted tools


@tool
def interrupt(reason: str) -> str:
    raise KeyboardInterrupt(reason)


def test_calls_that_were_interrupted_are_answered_with_the_next_turn() -> None:
    calls = [call("add", '{"a": 1, "b": 2}', 1), call("interrupt", '{"reason": "x"}', 2)]
    calls.append(call("add", '{"a": 3, "b": 4}', 3))
    server = server_of(calls, [message("fine")], [message("more")])
    with server, Client(server.url) as client:
        session = client.session()
        with pytest.raises(KeyboardInterrupt):
            session.run("go", tools=[add, interrupt])
        assert session.respond("never mind").text == "fine"
        session.respond("go on")
    answered = server.requests[1]["input"]
    assert [item.get("call_id") for item in answered] == ["call_1", "call_2", "call_3", None]
    assert answered[0]["output"] == "3"
    assert "interrupted" in answered[1]["output"]
    assert [item["content"] for item in server.requests[2]["input"]] == ["go on"]


async def test_calls_of_a_cancelled_task_are_answered_with_the_next_turn() -> None:
    started = asyncio.Event()

    @tool
    async def wait(reason: str) -> str:
        started.set()
        await asyncio.Event().wait()
        return reason

    calls = [call("add_slowly", '{"a": 1, "b": 2}', 1), call("wait", '{"reason": "x"}', 2)]
    server = server_of(calls, [message("fine")])
    with server:
        async with AsyncClient(server.url) as client:
            session = client.session()
            task = asyncio.create_task(session.run("go", tools=[add_slowly, wait]))
            await started.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert (await session.respond("never mind")).text == "fine"
    answered = server.requests[1]["input"]
    assert [item.get("call_id") for item in answered] == ["call_1", "call_2", None]
    assert answered[0]["output"] == "3"
    assert "interrupted" in answered[1]["output"]


def test_a_fork_owes_what_its_parent_owed() -> None:
    server = server_of([call("interrupt", '{"reason": "x"}')], [message("a")], [message("b")])
    with server, Client(server.url) as client:
        session = client.session()
        with pytest.raises(KeyboardInterrupt):
            session.run("go", tools=[interrupt])
        fork = session.fork()
        session.respond("one")
        fork.respond("two")
    assert [len(request["input"]) for request in server.requests] == [1, 2, 2]


def test_a_fork_inside_a_tool_is_told_what_ended_and_what_still_runs() -> None:
    """What the error of a tool that calls its own session advises."""
    rounds = [call("add", '{"a": 1, "b": 2}'), call("look", "{}", 2)]
    server = server_of(rounds, [message("half")], [message("done")], [message("more")])
    ended = threading.Event()
    with server, Client(server.url) as client:
        forks: list[Session] = []

        @tool
        def look() -> str:
            with pytest.raises(RuntimeError, match=r"give it a fork\(\)"):
                session.run("and now?")
            assert ended.wait(10)
            forks.append(session.fork())
            return forks[0].run("and now?").text

        session = client.session(tools=[add, look])
        for event in session.stream("go"):
            if isinstance(event, ToolFinished):
                ended.set()
        assert event.text == "done"
        assert forks[0].run("on").text == "more"
    inside, behind, after = server.requests[1:]
    assert [each.get("output") for each in inside["input"]] == ["3", STILL_RUNS, None]
    assert inside["previous_response_id"] == behind["previous_response_id"]
    assert inside["keepwarm"]["fork"] is True
    assert outputs(behind) == ["3", "half"]
    assert len(after["input"]) == 1


# Events and the order of things


def kinds(events: list[Any]) -> list[str]:
    names = [type(event).__name__ for event in events]
    return [name for name in names if not name.endswith("Delta")]


def test_a_stream_tells_the_whole_loop_and_ends_with_its_result() -> None:
    rounds = [call("add", '{"a": 1, "b": 2}'), call("fail", '{"reason": "x"}', 2)]
    with server_of(rounds, [message("three")]) as server, Client(server.url) as client:
        events = list(client.session(tools=[add, fail]).stream("go"))
    assert kinds(events)[:5] == [
        *("CallStarted", "FunctionCall", "CallStarted", "FunctionCall", "Response"),
    ]
    assert kinds(events)[5:7] == ["ToolStarted", "ToolStarted"]
    assert sorted(kinds(events)[7:9]) == ["ToolFailed", "ToolFinished"]
    assert kinds(events)[9:] == ["Response", "LoopResult"]
    assert events[-1].text == "three"
    assert events[-1].status == "completed"
    assert "".join(e.text for e in events if isinstance(e, TextDelta)) == "three"


class Held:
    """A turn whose end waits for the test."""

    def __init__(self, *rounds: list[dict[str, Any]]) -> None:
        self._left = list(rounds)
        self.go_on = threading.Event()

    def __call__(self, request: dict[str, Any]) -> Iterator[dict[str, Any]]:
        number = len(self._left)
        events = turn(request, self._left.pop(0), id=f"resp_{number}")
        yield from events[:-1]
        if self._left:
            assert self.go_on.wait(10)
        yield events[-1]


@pytest.mark.parametrize("conduct", [{"read_only": True}, {"idempotent": True}])
async def test_what_may_run_in_vain_starts_while_its_turn_goes_on(conduct: Any) -> None:
    held = Held([call("look", "{}")], [message("done")])

    @tool(**conduct)
    async def look() -> str:
        held.go_on.set()  # the turn ends only when the tool has begun
        return "seen"

    with FakeServer(held) as server:
        async with AsyncClient(server.url) as client:
            events = [event async for event in client.session(tools=[look]).stream("go")]
    assert kinds(events)[:3] == ["CallStarted", "FunctionCall", "ToolStarted"]
    assert kinds(events)[-2:] == ["Response", "LoopResult"]
    assert outputs(server.requests[1]) == ["seen"]


async def test_what_has_effects_starts_when_its_turn_has_ended() -> None:
    held = Held([call("write", "{}")], [message("done")])
    ran: list[bool] = []

    @tool
    async def write() -> str:
        ran.append(held.go_on.is_set())
        return "written"

    with FakeServer(held) as server:
        async with AsyncClient(server.url) as client:
            async for event in client.session(tools=[write]).stream("go"):
                if isinstance(event, FunctionCall):
                    await asyncio.sleep(0)
                    assert not ran
                    held.go_on.set()
    assert ran == [True]


async def test_a_turn_that_begins_again_forgets_what_it_had_started() -> None:
    seen: list[str] = []

    @tool(read_only=True)
    async def look(at: str) -> str:
        seen.append(at)
        if at == "first":
            await asyncio.Event().wait()
        return at

    lost = turn({}, [call("look", '{"at": "first"}')])[:-1]
    answers = iter(["lost", "second", "end"])

    def answer(request: dict[str, Any]) -> list[dict[str, Any] | Close]:
        match next(answers):
            case "lost":
                return [*({**e, "stream_id": request["stream_id"]} for e in lost), Close(None)]
            case "second":
                return [*turn(request, [call("look", '{"at": "second"}', 2)], id="resp_2")]
        return [*turn(request, [message("done")], id="resp_3")]

    with FakeServer(answer) as server:
        async with AsyncClient(server.url) as client:
            session = client.session(tools=[look])
            events = [event async for event in session.stream("go")]
    assert "TurnRestarted" in kinds(events)
    assert outputs(server.requests[-1]) == ["second"]
    assert session.stats.restarts == 1


# Ends


def test_the_calls_of_a_loop_that_had_too_many_turns_are_answered_with_the_next_input() -> None:
    rounds = [[call("add", '{"a": 1, "b": 2}', n)] for n in range(2)]
    server = server_of(*rounds, [message("fine")])
    with server, Client(server.url) as client:
        session = client.session(tools=[add])
        with pytest.raises(TooManyTurns):
            session.run("go", max_turns=2)
        assert session.run("stop").text == "fine"
    answered, asked = server.requests[2]["input"]
    assert "not run" in answered["output"]
    assert asked["content"] == "stop"


def test_calls_of_a_turn_that_was_cut_short_are_answered_with_the_next_input() -> None:
    cut = [call("add", '{"a": 1, "b": 2}', 1), call("add", '{"a": 1', 2) | {"status": "incomplete"}]
    left = [cut, [message("fine")]]

    def answer(request: dict[str, Any]) -> list[dict[str, Any]]:
        status = "incomplete" if len(left) == 2 else "completed"
        return turn(request, left.pop(0), status=status)

    with FakeServer(answer) as server, Client(server.url) as client:
        session = client.session(tools=[add])
        assert session.run("go").status == "incomplete"
        session.run("more")
    assert [item.get("call_id") for item in server.requests[1]["input"]] == ["call_1", None]


def test_a_call_of_a_tool_without_a_function_is_left_to_the_caller() -> None:
    rounds = [call("add", '{"a": 1, "b": 2}'), call("ask_person", "{}", 2)]
    raw = {"type": "function", "name": "ask_person", "parameters": {"type": "object"}}
    with server_of(rounds, [message("ok")]) as server, Client(server.url) as client:
        session = client.session(tools=[add, raw])
        result = session.run("go")
        assert (result.status, [waiting.call_id for waiting in result.waiting]) == (
            "waiting",
            ["call_2"],
        )
        session.owe([FunctionCallOutput(call_id="call_2", output="yes")])
        assert session.run(()).text == "ok"
    assert outputs(server.requests[1]) == ["3", "yes"]


@pytest.mark.parametrize("when", ["in a turn", "in a tool"])
async def test_cancel_ends_the_run_with_its_result_and_the_session_goes_on(when: str) -> None:
    began = asyncio.Event()

    @tool
    async def wait() -> str:
        began.set()
        await asyncio.Event().wait()
        return "never"

    rounds = {
        "in a turn": [[message("on and on")], [message("fine")]],
        "in a tool": [[call("wait", "{}")], [message("fine")]],
    }[when]
    count = iter(range(9))

    def answer(request: dict[str, Any]) -> list[dict[str, Any]]:
        number = next(count)
        events = turn(request, rounds[number], id=f"resp_{number}")
        return events[:4] if when == "in a turn" and number == 0 else events

    def stopped(request: dict[str, Any]) -> list[dict[str, Any]]:
        return turn(request, [], status="incomplete", keepwarm={"reason": "cancelled"})[-1:]

    with FakeServer(answer, on_cancel=stopped) as server:
        async with AsyncClient(server.url) as client:
            session = client.session(tools=[wait])
            events = []
            async for event in session.stream("go"):
                events.append(event)
                if isinstance(event, TextDelta | ToolStarted):
                    if when == "in a tool":
                        await began.wait()
                    session.cancel()
            assert events[-1].status == "cancelled"
            assert (await session.run("again")).text == "fine"
    answered = [item for item in server.requests[1]["input"] if "output" in item]
    assert len(answered) == (when == "in a tool")


def test_an_error_in_a_loop_carries_what_was_done() -> None:
    rounds = iter([[call("add", '{"a": 1, "b": 2}')], None, [message("three")]])

    def answer(request: dict[str, Any]) -> list[dict[str, Any]]:
        output = next(rounds)
        return [refusal(request, "invalid_value")] if output is None else turn(request, output)

    with FakeServer(answer) as server, Client(server.url) as client:
        session = client.session(tools=[add])
        with pytest.raises(Refused) as caught:
            session.run("go")
        assert caught.value.result is not None
        assert [record.output for record in caught.value.result.calls] == ["3"]
        assert session.run("go on").text == "three", "the output is sent with the next input"
    assert server.requests[2]["input"][0]["output"] == "3"


def test_a_lost_connection_keeps_the_text_of_the_turn_that_did_not_end() -> None:
    def answer(request: dict[str, Any]) -> list[dict[str, Any] | Close]:
        return [*turn(request, [message("half of it")])[:6], Close(None)]

    with FakeServer(answer) as server:
        with Client(server.url, retries=Retries(tries=0)) as client:
            with pytest.raises(ConnectionLost) as caught:
                client.session().run("go")
    assert caught.value.result is not None
    assert caught.value.result.partial_text == "half"


# Answers of a type


class Order(BaseModel):
    product: str
    pieces: int


def test_an_answer_is_a_value_of_the_type_that_was_asked_for() -> None:
    rounds = [call("add", '{"a": 1, "b": 2}')], [message('{"product": "desk", "pieces": 3}')]
    with server_of(*rounds) as server, Client(server.url) as client:
        result = client.session(tools=[add]).run("go", output_type=Order)
    assert result.output == Order(product="desk", pieces=3)
    assert [request["text"]["format"]["name"] for request in server.requests] == ["Order"] * 2


def test_an_answer_that_does_not_fit_is_asked_for_again() -> None:
    rounds = [message('{"product": "desk"}')], [message('{"product": "desk", "pieces": 3}')]
    with server_of(*rounds) as server, Client(server.url) as client:
        events = list(client.session().stream("go", output_type=Order))
    assert kinds(events) == ["Response", "Repairing", "Response", "LoopResult"]
    assert events[-1].output.pieces == 3
    (told,) = server.requests[1]["input"]
    assert "pieces: Field required" in told["content"]


def test_an_answer_that_never_fits_is_given_up_and_the_session_goes_on() -> None:
    rounds = [[message("no")] for _ in range(4)]
    with server_of(*rounds) as server, Client(server.url) as client:
        session = client.session()
        with pytest.raises(OutputInvalid, match="Invalid JSON") as caught:
            session.run("go", output_type=Order, max_repairs=2)
        assert session.run("go").text == "no"
    assert len(caught.value.result.responses) == 3
    assert len(server.requests) == 4


def test_an_output_that_the_server_found_invalid_is_asked_for_again() -> None:
    failed = {"error": {"code": "server_error", "message": "broken"}}
    left = [("failed", []), ("completed", [message('{"product": "a", "pieces": 1}')])]

    def answer(request: dict[str, Any]) -> list[dict[str, Any]]:
        status, output = left.pop(0)
        reason = {"keepwarm": {"reason": "output_invalid"}} if status == "failed" else {}
        return turn(request, output, status=status, **reason, **(failed if reason else {}))

    with FakeServer(answer) as server, Client(server.url) as client:
        assert client.session().run("go", output_type=Order).output.pieces == 1
    assert server.requests[1]["input"][0]["content"] == "go"


def test_a_result_without_a_type_has_no_output() -> None:
    with server_of([message("x")]) as server, Client(server.url) as client:
        with pytest.raises(ValueError, match="no value of an output_type"):
            _ = client.session().run("go").output


def test_warnings_of_the_server_are_events() -> None:
    def answer(request: dict[str, Any]) -> list[dict[str, Any]]:
        return turn(request, [message("x")], keepwarm={"warnings": ["cut in the middle"]})

    with FakeServer(answer) as server, Client(server.url) as client:
        events = list(client.session().stream("go"))
    assert Warned(text="cut in the middle") in events


@pytest.mark.parametrize("bad", [{"max_turns": 0}, {"max_repairs": -1}])
def test_a_plan_that_makes_no_sense_is_refused(bad: dict[str, int]) -> None:
    with Client("http://127.0.0.1:1/v1") as client, pytest.raises(ValueError, match="is below"):
        client.session().run("go", **bad)


def test_an_output_that_the_context_has_no_room_for_does_not_strand_the_session() -> None:
    @tool
    def flood() -> str:
        return "x" * 50_000

    def answer(request: dict[str, Any]) -> list[dict[str, Any]]:
        (output, *_) = [item for item in request["input"] if "output" in item] or [None]
        if output is None:
            return turn(request, [call("flood", "{}")])
        if len(output["output"]) > 1000:
            return [refusal(request, "context_length_exceeded")]
        return turn(request, [message("fine")], id="resp_2")

    with FakeServer(answer) as server, Client(server.url) as client:
        session = client.session(tools=[flood])
        with pytest.raises(Refused) as caught:
            session.run("go")
        assert caught.value.result is not None
        assert len(caught.value.result.calls) == 1
        assert session.run("and now?").text == "fine"
    assert "bytes left out" in server.requests[-1]["input"][0]["output"]


async def test_whatever_waits_for_a_context_that_has_no_room_stays_what_it_is() -> None:
    """Outputs are texts or lists of parts, and what was said while tools ran is no output."""
    short = {"type": "input_text", "text": "short"}
    long = [{"type": "input_text", "text": "x" * 5000}, short]

    @tool
    async def look() -> str:
        await session.steer("quickly")
        return "y" * 5000

    server = ScriptedServer(
        [[call_of("ask"), call_of("look")], refuse("context_length_exceeded"), "fine"]
    )
    raw = {"type": "function", "name": "ask", "parameters": {"type": "object"}}
    async with server.async_client() as client:
        session = client.session(tools=[look, raw])
        (waiting,) = (await session.run("go")).waiting
        output = {"type": "function_call_output", "call_id": waiting.call_id, "output": long}
        session.owe([output])
        with pytest.raises(Refused) as caught:
            await session.run()
        assert caught.value.code == "context_length_exceeded"
        assert (await session.run("shorter")).text == "fine"
    said, own, asked, _ = server.requests[-1]["input"]
    assert (said["content"], asked["output"][1]) == ("quickly", short)
    cut_texts = [own["output"], asked["output"][0]["text"]]
    assert all(len(text) < 1000 and "left out" in text for text in cut_texts)
    assert output["output"] is long


async def test_a_run_that_is_cancelled_twice_answers_its_calls() -> None:
    """The second cancel comes while tools that were cancelled are waited for."""
    begun, left = asyncio.Event(), asyncio.Event()

    @tool
    async def linger() -> str:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            left.set()
            await asyncio.sleep(30)
        return ""

    server = ScriptedServer([[call_of("linger"), call_of("add", a=1, b=2)], "fine"])
    async with server.async_client() as client:
        session = client.session(tools=[linger, add])
        run = asyncio.create_task(session.run("go"))
        await begun.wait()
        run.cancel()
        await left.wait()
        run.cancel()
        with pytest.raises(asyncio.CancelledError):
            await run
        assert (await session.run("on")).text == "fine"
    kinds = [item["type"] for item in server.requests[-1]["input"]]
    assert kinds == ["function_call_output", "function_call_output", "message"]


@pytest.mark.parametrize("way", ["tool", "stream", "turn", "hook"])
async def test_a_session_that_plays_is_not_taken_back_and_may_be_used(way: str) -> None:
    tried: list[str] = []

    def undo() -> None:
        with pytest.raises(RuntimeError, match="goes on"):
            session.rewind()
        session.fork().rewind()
        tried.append(way)

    @tool
    async def take_back() -> str:
        undo()
        return "no"

    async def hook(items: object) -> None:
        if way == "hook" and len(server.requests) == 1:
            undo()

    server = ScriptedServer(
        ["hello", call_of("take_back") if way == "tool" else "a b", "fine", "fine"]
    )
    async with server.async_client() as client:
        session = client.session(tools=[take_back], hooks=Hooks(before_turn=hook))
        await session.run("first")
        if way in ("tool", "hook"):
            await (session.run("go") if way == "tool" else session.respond("go"))
        else:
            events = session.stream("go") if way == "stream" else session.stream_turn("go")
            async for event in events:
                if isinstance(event, TextDelta) and not tried:
                    undo()
        assert tried == [way]
        assert (await session.run("on", tools=[take_back])).text == "fine"
        session.rewind()


async def test_a_stream_that_was_left_may_be_taken_back_at_once() -> None:
    begun = asyncio.Event()

    @tool
    async def wait() -> str:
        begun.set()
        await asyncio.Event().wait()
        return ""

    server = ScriptedServer(["hello", call_of("wait"), "fine"])
    async with server.async_client() as client:
        session = client.session(tools=[wait])
        first = await session.run("first")
        async for event in session.stream("go"):
            if isinstance(event, ToolStarted):
                break
        session.rewind(to=first.final.id)
        await asyncio.sleep(0)
        assert (await session.run("on")).text == "fine"
    assert [item["type"] for item in server.requests[-1]["input"]] == ["message"]


@pytest.mark.parametrize(("output_type", "text"), [(int | None, "null"), (type(None), "null")])
def test_an_answer_may_be_nothing(output_type: Any, text: str) -> None:
    with ScriptedServer([text, text]).client() as client:
        result = client.session().run("go", output_type=output_type)
        assert result.output is None
        with pytest.raises(ValueError, match="no value of an output_type"):
            _ = client.session().run("go").output


@pytest.mark.parametrize("room", [1, 2, 8])
@pytest.mark.parametrize("early", [True, False])
async def test_a_tool_is_told_to_begin_when_it_does(room: int, early: bool) -> None:
    """At no time do more run, as events tell it, than may; each begins behind its call."""
    log: list[str] = []

    @tool(idempotent=early)
    async def work(number: int) -> str:
        log.append(f"begin {number}")
        await asyncio.sleep(0.001 * (number % 3))
        return f"{number}"

    server = ScriptedServer([[call_of("work", number=n) for n in range(6)], "done"])
    running: set[str] = set()
    async with server.async_client() as client:
        session = client.session(tools=[work], max_parallel_tools=room)
        async for event in session.stream("go"):
            if isinstance(event, ToolStarted):
                running.add(event.call.call_id)
                assert len(running) <= room
            elif isinstance(event, ToolFinished):
                running.remove(event.record.call.call_id)
    assert not running
    assert log == [f"begin {number}" for number in range(6)]
    told = [item["output"] for item in server.requests[-1]["input"]]
    assert told == [str(number) for number in range(6)]


async def test_tools_that_had_no_room_before_a_cancel_never_began() -> None:
    begun: list[int] = []

    @tool
    async def work(number: int) -> str:
        begun.append(number)
        session.cancel()
        await asyncio.Event().wait()
        return ""

    server = ScriptedServer([[call_of("work", number=n) for n in range(3)], "fine"])
    async with server.async_client() as client:
        session = client.session(tools=[work], max_parallel_tools=1)
        assert (await session.run("go")).cancelled
        assert (await session.run("on")).text == "fine"
    assert begun == [0]
    told = [item.get("output", "") for item in server.requests[-1]["input"]]
    assert ["interrupted" in text for text in told] == [True, False, False, False]
    assert ["not run" in text for text in told] == [False, True, True, False]


async def test_a_fork_inside_a_tool_may_be_asked_though_another_call_waits() -> None:
    """For an approval, or for a tool that is not here."""

    @tool(needs_approval=True)
    def pay(amount: int) -> str:
        return "paid"

    @tool
    async def look() -> str:
        return (await session.fork().run("what now?", tools=[])).text

    raw = {"type": "function", "name": "ask", "parameters": {"type": "object"}, "strict": False}
    calls = [call_of("pay", amount=1), call_of("look"), call_of("ask")]
    server = ScriptedServer([calls, "a fork's word", "done"])
    async with server.async_client() as client:
        session = client.session(name="s", tools=[pay, look, raw])
        result = await session.run("go")
        assert result.status == "waiting"
        pending = await session.pending()
        assert [each.state for each in pending] == ["pending", "ended", "pending"]
        assert pending[1].output == "a fork's word"
        session.owe([FunctionCallOutput(call_id=pending[2].call.call_id, output="yes")])
        await session.approve(pending[0].call.call_id)
        assert (await session.run()).text == "done"
    told = [item.get("output", "")[:7] for item in server.requests[1]["input"]]
    assert told == ["waiting", "still r", "waiting", ""]


@pytest.mark.parametrize("repaired", [True, False])
def test_a_turn_that_failed_is_counted_in_what_was_used(repaired: bool) -> None:
    invalid = {"code": "output_invalid", "message": "it breaks uniqueItems"}
    usage = {"input_tokens": 7, "output_tokens": 60, "total_tokens": 67}
    told = {"reason": "output_invalid", "cost": {"session": 3.0}, "budget": {"left": {"output": 9}}}

    def answer(request: dict[str, Any]) -> list[dict[str, Any]]:
        if len(server.requests) == 1:
            fields = {"error": invalid, "usage": usage, "keepwarm": told}
            return turn(request, [], status="failed", **fields)
        return turn(request, [message("[1, 2]")], id="resp_2", usage=usage, keepwarm=told)

    with FakeServer(answer) as server, Client(server.url) as client:
        session = client.session()
        if repaired:
            used = session.run("go", output_type=set[int]).usage
        else:
            with pytest.raises(OutputInvalid) as caught:
                session.run("go", output_type=set[int], max_repairs=0)
            used = caught.value.result.usage
        stats = session.stats
    assert (stats.turns, stats.cost, stats.budget_left) == (int(repaired), 3.0, {"output": 9})
    assert used == stats.usage
    assert used.output_tokens == (120 if repaired else 60)
