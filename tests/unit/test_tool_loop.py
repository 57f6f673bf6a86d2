"""Schemas from type hints, and loops that run calls until the model is done."""

import asyncio
import threading
from collections.abc import Callable
from enum import Enum
from typing import Annotated, Any, Literal

import orjson
import pytest
from pydantic import BaseModel, Field

from tests.support.fake_server import FakeServer, call, message, turn
from tools_api.sdk.client import AsyncClient, Client
from tools_api.sdk.tool_loop import Tool, TooManyTurns, run_tools, run_tools_async, tool


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


def test_a_tool_is_strict_and_described_by_its_docstring() -> None:
    assert add.definition.to_wire() == {
        "type": "function",
        "name": "add",
        "description": "Add two whole numbers.",
        "parameters": {
            "type": "object",
            "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
            "required": ["a", "b"],
            "additionalProperties": False,
        },
        "strict": True,
    }


def test_a_tool_is_still_a_function() -> None:
    assert add(2, b=3) == 5


class Unit(Enum):
    KELVIN = "K"
    CELSIUS = "C"


class Place(BaseModel):
    name: str


@pytest.mark.parametrize(
    ("hint", "schema", "argument", "value"),
    [
        (str, {"type": "string"}, '"x"', "x"),
        (float, {"type": "number"}, "1.5", 1.5),
        (bool, {"type": "boolean"}, "true", True),
        (list[int], {"type": "array", "items": {"type": "integer"}}, "[1]", [1]),
        (Literal["a", "b"], {"type": "string", "enum": ["a", "b"]}, '"a"', "a"),
        (int | None, {"anyOf": [{"type": "integer"}, {"type": "null"}]}, "null", None),
        (Annotated[str, Field(max_length=3)], {"type": "string", "maxLength": 3}, '"x"', "x"),
        (
            Annotated[int, Field(ge=1, description="how many")],
            {"type": "integer", "minimum": 1, "description": "how many"},
            "2",
            2,
        ),
        (Unit, {"$ref": "#/$defs/Unit"}, '"K"', Unit.KELVIN),
        (Place, {"$ref": "#/$defs/Place"}, '{"name": "Oslo"}', Place(name="Oslo")),
    ],
)
def test_type_hints_become_a_schema_and_json_becomes_the_type(
    hint: Any, schema: dict[str, Any], argument: str, value: Any
) -> None:
    def take(value: Any) -> None: ...

    take.__annotations__["value"] = hint
    made = tool(take)
    assert made.definition.parameters["properties"]["value"] == schema
    assert made.bind(f'{{"value": {argument}}}') == {"value": value}


def test_names_that_pydantic_uses_itself_are_fine() -> None:
    @tool
    def odd(schema: str, copy: int, model_config: str) -> str:
        return f"{schema}{copy}{model_config}"

    bound = odd.bind('{"schema": "s", "copy": 1, "model_config": "m"}')
    assert odd(**bound) == "s1m"
    assert list(odd.definition.parameters["properties"]) == ["schema", "copy", "model_config"]


def test_an_argument_with_a_default_is_required_of_the_model() -> None:
    @tool
    def greet(name: str = "you") -> str:
        return name

    assert greet.definition.parameters["required"] == ["name"]
    assert "default" not in greet.definition.parameters["properties"]["name"]


def test_a_tool_without_arguments_takes_an_empty_object() -> None:
    @tool
    def now() -> str:
        return "12:00"

    assert now.bind("{}") == {}
    assert now.definition.parameters["properties"] == {}


def without_type(a) -> None: ...
def positional(a: int, /) -> None: ...
def starred(*a: int) -> None: ...


@pytest.mark.parametrize(
    ("function", "complaint"),
    [
        (without_type, "argument a has no type"),
        (positional, "cannot be passed by name"),
        (starred, "cannot be passed by name"),
    ],
)
def test_a_function_that_cannot_be_a_tool_is_refused(
    function: Callable[..., Any], complaint: str
) -> None:
    with pytest.raises(TypeError, match=f"tool {function.__name__}: .*{complaint}"):
        tool(function)


def test_the_loop_answers_calls_until_there_are_none() -> None:
    rounds = [call("add", '{"a": 1, "b": 2}')], [call("add", '{"a": 3, "b": 4}', 2)]
    with server_of(*rounds, [message("seven")]) as server, Client(server.url) as client:
        result = run_tools(client.session(), "go", [add], tool_choice="required")
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
        run_tools(client.session(), "go", [add], tool_choice=lambda n: [named, "none"][n])
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
        result = run_tools(client.session(), "go", [add, fail])
    assert orjson.loads(result.calls[0].output) == output
    assert result.calls[0].failed


def test_text_goes_back_as_it_is_and_objects_as_json() -> None:
    @tool
    def look_up(name: str) -> dict[str, Any]:
        return {"name": name, "unit": Unit.KELVIN}

    @tool
    def say(name: str) -> str:
        return name

    rounds = [call("look_up", '{"name": "a"}'), call("say", '{"name": "b"}', 2)]
    with server_of(rounds, [message("ok")]) as server, Client(server.url) as client:
        run_tools(client.session(), "go", [look_up, say])
    assert outputs(server.requests[1]) == ['{"name":"a","unit":"K"}', "b"]


def test_the_loop_is_bounded_and_calls_of_the_last_turn_are_not_run() -> None:
    ran: list[int] = []

    @tool
    def count(n: int) -> str:
        ran.append(n)
        return "ok"

    rounds = [[call("count", f'{{"n": {n}}}', n)] for n in range(3)]
    with server_of(*rounds) as server, Client(server.url) as client:
        with pytest.raises(TooManyTurns, match="after 3 turns") as caught:
            run_tools(client.session(), "go", [count], max_turns=3)
    assert ran == [0, 1]
    assert len(caught.value.result.responses) == 3


def test_a_turn_cut_short_ends_the_loop_without_running_its_calls() -> None:
    def answer(request: dict[str, Any]) -> list[dict[str, Any]]:
        return turn(request, [call("add", '{"a": 1')], status="incomplete")

    with FakeServer(answer) as server, Client(server.url) as client:
        result = run_tools(client.session(), "go", [add])
    assert result.final.status == "incomplete"
    assert result.calls == ()


def test_async_tools_need_the_async_loop() -> None:
    with FakeServer(lambda request: []) as server, Client(server.url) as client:
        with pytest.raises(TypeError, match=r"async tools \['add_slowly'\]"):
            run_tools(client.session(), "go", [add_slowly])


async def run_async(rounds: list[list[dict[str, Any]]], tools: list[Tool]) -> list[str]:
    """Outputs that the second request carries."""
    with server_of(*rounds) as server:
        async with AsyncClient(server.url) as client:
            await run_tools_async(client.session(), "go", tools)
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
    met = threading.Barrier(2, timeout=5)
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
                await run_tools_async(client.session(), "go", [add], max_turns=2)


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
            run_tools(session, "go", [add, interrupt])
        assert session.respond("never mind").text == "fine"
        session.respond("go on")
    answered = server.requests[1]["input"]
    assert [item.get("call_id") for item in answered] == ["call_1", "call_2", "call_3", None]
    assert answered[0]["output"] == "3"
    assert all("interrupted" in item["output"] for item in answered[1:3])
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
            task = asyncio.create_task(run_tools_async(session, "go", [add_slowly, wait]))
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
            run_tools(session, "go", [interrupt])
        fork = session.fork()
        session.respond("one")
        fork.respond("two")
    assert [len(request["input"]) for request in server.requests] == [1, 2, 2]
