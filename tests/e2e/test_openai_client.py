"""The stock ``openai`` client, sync and async, over its WebSocket transport."""

import asyncio
import itertools
from collections.abc import Callable
from typing import Any

import orjson
import pytest
from openai import AsyncOpenAI, OpenAI
from openai.resources.responses.responses import AsyncResponsesConnection, ResponsesConnection
from openai.types.responses import Response, ResponsesServerEvent
from pydantic import TypeAdapter

from keepwarm.demo.child_server import ChildServer

TERMINAL = {"response.completed", "response.incomplete", "response.failed", "error"}
EVENT = TypeAdapter[Any](ResponsesServerEvent)
BLOCK = 16
PRICES = {"lamp": 24, "desk": 180}
GET_PRICE: Any = {
    "type": "function",
    "name": "get_price",
    "description": "Get the price of a product.",
    "strict": True,
    "parameters": {
        "type": "object",
        "properties": {
            "product": {"type": "string", "enum": list(PRICES)},
            "note": {"type": "string", "maxLength": 8},
        },
        "required": ["product", "note"],
        "additionalProperties": False,
    },
}
CALL_IT: Any = {"type": "function", "name": "get_price"}


def whole_blocks(tokens: int) -> int:
    return tokens // BLOCK * BLOCK


def checked(events: list[Any]) -> Response:
    """Hold one response's events to the protocol's order; return the finished response."""
    wire = [event.to_dict() for event in events]
    for event in wire:
        EVENT.validate_python(event)
    assert [event["sequence_number"] for event in wire] == list(range(len(wire)))
    begin = [event["type"] for event in wire if event["type"] != "response.queued"]
    assert begin[:2] == ["response.created", "response.in_progress"]
    final = wire[-1]["response"]
    done = [event["item"] for event in wire if event["type"] == "response.output_item.done"]
    assert done == final["output"]
    for index, item in enumerate(done):
        deltas = "".join(
            event["delta"]
            for event in wire
            if event["type"].endswith(".delta") and event["output_index"] == index
        )
        text = item["arguments"] if item["type"] == "function_call" else item["content"][0]["text"]
        assert deltas == text
    assert isinstance(events[-1].response, Response)
    return events[-1].response


def finish(connection: ResponsesConnection) -> Response:
    events = []
    for event in connection:
        events.append(event)
        if event.type in TERMINAL:
            return checked(events)
    raise AssertionError("the connection closed in the middle of a response")


async def finish_async(connection: AsyncResponsesConnection) -> Response:
    events = []
    async for event in connection:
        events.append(event)
        if event.type in TERMINAL:
            return checked(events)
    raise AssertionError("the connection closed in the middle of a response")


def output_of(response: Response) -> Any:
    """Run the one call of ``response`` and give its output item."""
    (call,) = response.output
    assert call.type == "function_call"
    arguments = orjson.loads(call.arguments)
    assert set(arguments) == {"product", "note"}
    output = orjson.dumps({"price": PRICES[arguments["product"]]}).decode()
    return {"type": "function_call_output", "call_id": call.call_id, "output": output}


def cached(response: Response) -> int:
    assert response.usage is not None
    return response.usage.input_tokens_details.cached_tokens


def total(response: Response) -> int:
    assert response.usage is not None
    return response.usage.total_tokens


@pytest.fixture
def client(server: ChildServer) -> OpenAI:
    return OpenAI(base_url=server.url, api_key="none")


def test_a_tool_loop_of_ten_turns_prefills_only_what_is_new(client: OpenAI) -> None:
    responses: list[Response] = []
    with client.responses.connect() as connection:
        item: Any = {"role": "user", "content": "What does the desk cost?"}
        for turn in range(10):
            is_call = turn % 2 == 0
            connection.response.create(
                model="default",
                instructions="You sell furniture.",
                input=[item],
                tools=[GET_PRICE],
                tool_choice=CALL_IT if is_call else "none",
                max_output_tokens=192,
                **({"previous_response_id": responses[-1].id} if responses else {}),
            )
            responses.append(finish(connection))
            if is_call:
                item = output_of(responses[-1])
            else:
                item = {"role": "user", "content": "And another one?"}
    for before, after in itertools.pairwise(responses):
        assert after.previous_response_id == before.id
        assert cached(after) >= whole_blocks(total(before) - 1)
    assert [response.status for response in responses[::2]] == ["completed"] * 5


def test_history_that_is_resent_is_found_in_the_cache_too(client: OpenAI) -> None:
    history: list[Any] = [{"role": "user", "content": "What does the lamp cost?"}]
    with client.responses.connect() as connection:
        previous: Response | None = None
        for _ in range(4):
            connection.response.create(
                model="default", input=history, tools=[GET_PRICE], tool_choice=CALL_IT
            )
            response = finish(connection)
            if previous is not None:
                assert cached(response) >= whole_blocks(total(previous) - 1)
            previous = response
            history += [item.to_dict() for item in response.output]
            history.append(output_of(response))


def test_a_structured_answer_is_a_value_of_its_schema(client: OpenAI) -> None:
    schema: dict[str, object] = {
        "type": "object",
        "properties": {
            "name": {"type": "string", "maxLength": 12},
            "size": {"type": "integer", "minimum": 0, "maximum": 99},
            "tags": {"type": "array", "items": {"enum": ["a", "b"]}, "maxItems": 3},
        },
        "required": ["name", "size", "tags"],
        "additionalProperties": False,
    }
    with client.responses.connect() as connection:
        connection.response.create(
            model="default",
            input="Describe it.",
            text={"format": {"type": "json_schema", "name": "t", "schema": schema, "strict": True}},
        )
        response = finish(connection)
    value = orjson.loads(response.output_text)
    assert list(value) == ["name", "size", "tags"]
    assert 0 <= value["size"] <= 99
    assert set(value["tags"]) <= {"a", "b"}


def test_a_refused_request_leaves_the_connection_open(client: OpenAI) -> None:
    with client.responses.connect() as connection:
        connection.response.create(model="default", input="x", previous_response_id="resp_none")
        error: Any = connection.recv()
        assert error.type == "error"
        assert error.status == 400
        assert error.error.code == "previous_response_not_found"
        assert error.error.param == "previous_response_id"
        connection.response.create(model="default", input="x", max_output_tokens=8)
        assert finish(connection).status in {"completed", "incomplete"}


def test_the_vendor_object_goes_in_and_comes_back(client: OpenAI) -> None:
    extended: Any = {
        "type": "response.create",
        "model": "default",
        "input": "x",
        "max_output_tokens": 8,
        "keepwarm": {"session": "from-openai", "sampling": {"seed": 7, "top_k": 5}},
    }
    with client.responses.connect() as connection:
        texts = []
        for _ in range(2):
            connection.send(extended | {"keepwarm": {"sampling": {"seed": 7}}})
            texts.append(finish(connection).output_text)
        connection.send(extended)
        response = finish(connection)
    assert texts[0] == texts[1]
    assert response.model_extra is not None
    assert response.model_extra["keepwarm"]["session"] == "from-openai"


async def test_an_async_tool_loop(server: ChildServer) -> None:
    client = AsyncOpenAI(base_url=server.url, api_key="none")
    async with client.responses.connect() as connection:
        create: Callable[..., Any] = connection.response.create
        await create(model="default", input="Cost?", tools=[GET_PRICE], tool_choice=CALL_IT)
        first = await finish_async(connection)
        await create(
            model="default",
            input=[output_of(first)],
            previous_response_id=first.id,
            tools=[GET_PRICE],
            tool_choice="none",
            max_output_tokens=32,
        )
        second = await finish_async(connection)
    assert cached(second) >= whole_blocks(total(first) - 1)
    assert [item.type for item in second.output] == ["message"]


async def test_two_lanes_fork_one_warmed_up_session(server: ChildServer) -> None:
    client = AsyncOpenAI(base_url=server.url, api_key="none")
    async with client.responses.connect() as connection:
        create: Callable[..., Any] = connection.response.create
        rules = " ".join(f"rule {n}" for n in range(60))
        await create(model="default", instructions=rules, generate=False, input=[])
        warm = await finish_async(connection)
        assert warm.output == []
        for lane in ("left", "right"):
            await create(
                model="default",
                instructions=rules,
                input=f"Go {lane}.",
                previous_response_id=warm.id,
                stream_id=lane,
                max_output_tokens=16,
            )
        events: dict[str, list[Any]] = {"left": [], "right": []}
        while not all(found and found[-1].type in TERMINAL for found in events.values()):
            event: Any = await asyncio.wait_for(connection.recv(), 60)
            events[event.stream_id].append(event)
    for found in events.values():
        assert cached(checked(found)) >= whole_blocks(total(warm) - 1)


def test_a_result_of_fifty_kilobytes_does_not_strand_a_session(client: OpenAI) -> None:
    with client.responses.connect() as connection:
        connection.response.create(
            model="default",
            input="What does the desk cost?",
            tools=[GET_PRICE],
            tool_choice=CALL_IT,
        )
        first = finish(connection)
        result: Any = output_of(first) | {"output": "<<" + "x" * 50_000 + ">>"}
        more: Any = {"model": "default", "tools": [GET_PRICE], "max_output_tokens": 16}
        more["previous_response_id"] = first.id
        connection.response.create(input=[result], **more)
        assert next(iter(connection)).type == "error", "it does not fit"
        connection.response.create(input=[result], truncation="auto", **more)
        second = finish(connection)
        extra = second.model_extra or {}
        (warning,) = extra["keepwarm"]["warnings"]
        assert warning.startswith("truncation: a function_call_output of 50004 characters was cut")
        more["previous_response_id"] = second.id
        connection.response.create(input="Thanks.", **more)
        third = finish(connection)
    assert cached(third) >= whole_blocks(total(second) - 1)
