"""The stock ``openai`` client, sync and async, over HTTP."""

import asyncio
import itertools
from collections.abc import Iterator
from typing import Any

import httpx
import openai
import orjson
import pytest
from openai import AsyncOpenAI, OpenAI
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import BaseModel, TypeAdapter

from keepwarm.demo.child_server import ChildServer
from tests.support.openapi import Contract

EVENT: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)
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


class Size(BaseModel):
    width: int
    unit: bool


def whole_blocks(tokens: int) -> int:
    return tokens // BLOCK * BLOCK


def cached(response: Response) -> int:
    assert response.usage is not None
    return response.usage.input_tokens_details.cached_tokens


def total(response: Response) -> int:
    assert response.usage is not None
    return response.usage.total_tokens


def output_of(response: Response) -> Any:
    """Run the one call of ``response`` and give its output item."""
    (call,) = response.output
    assert call.type == "function_call"
    price = PRICES[orjson.loads(call.arguments)["product"]]
    output = orjson.dumps({"price": price}).decode()
    return {"type": "function_call_output", "call_id": call.call_id, "output": output}


def checked(events: list[Any]) -> Response:
    """Hold a stream to the protocol's order; return the finished response."""
    wire = [event.to_dict() for event in events]
    for event in wire:
        EVENT.validate_python(event)
    assert [event["sequence_number"] for event in wire] == list(range(len(wire)))
    assert wire[0]["type"] == "response.created"
    final = wire[-1]["response"]
    done = [event["item"] for event in wire if event["type"] == "response.output_item.done"]
    assert done == final["output"]
    assert isinstance(events[-1].response, Response)
    return events[-1].response


@pytest.fixture
def client(server: ChildServer) -> Iterator[OpenAI]:
    http = httpx.Client(event_hooks={"response": [Contract.of_server(server.url).look]})
    with OpenAI(base_url=server.url, api_key="none", max_retries=0, http_client=http) as client:
        yield client


def test_a_tool_loop_by_id_prefills_only_what_is_new(client: OpenAI) -> None:
    responses: list[Response] = []
    item: Any = {"role": "user", "content": "What does the desk cost?"}
    for turn in range(6):
        is_call = turn % 2 == 0
        response = client.responses.create(
            model="default",
            instructions="You sell furniture.",
            input=[item],
            tools=[GET_PRICE],
            tool_choice=CALL_IT if is_call else "none",
            max_output_tokens=192,
            previous_response_id=responses[-1].id if responses else None,
        )
        responses.append(response)
        item = output_of(response) if is_call else {"role": "user", "content": "And another one?"}
    for before, after in itertools.pairwise(responses):
        assert after.previous_response_id == before.id
        assert cached(after) >= whole_blocks(total(before) - 1)
    assert [response.status for response in responses[::2]] == ["completed"] * 3


@pytest.mark.parametrize("store", [True, False])
def test_a_tool_loop_with_a_resent_history_is_found_too(client: OpenAI, store: bool) -> None:
    history: list[Any] = [{"role": "user", "content": f"What does the lamp cost? {store}"}]
    previous: Response | None = None
    for _ in range(4):
        response = client.responses.create(
            model="default", input=history, tools=[GET_PRICE], tool_choice=CALL_IT, store=store
        )
        if previous is not None:
            assert cached(response) >= whole_blocks(total(previous) - 1)
        previous = response
        history += [item.to_dict() for item in response.output]
        history.append(output_of(response))


def test_a_stream_has_the_events_of_the_protocol(client: OpenAI) -> None:
    with client.responses.create(
        model="default", input="Cost?", tools=[GET_PRICE], tool_choice=CALL_IT, stream=True
    ) as stream:
        response = checked(list(stream))
    assert response.status == "completed"
    assert output_of(response)["call_id"].startswith("call_")


def test_the_clients_own_stream_helper_and_parser_work(client: OpenAI) -> None:
    with client.responses.stream(model="default", input="How wide?", text_format=Size) as stream:
        kinds = [event.type for event in stream]
        final = stream.get_final_response()
    assert kinds[0] == "response.created"
    assert isinstance(final.output_parsed, Size)
    parsed = client.responses.parse(model="default", input="How wide?", text_format=Size)
    assert isinstance(parsed.output_parsed, Size)


def test_responses_are_fetched_listed_and_deleted(client: OpenAI) -> None:
    made = client.responses.create(model="default", input="hello", max_output_tokens=8)
    fetched = client.responses.retrieve(made.id)
    assert fetched.to_dict() == made.to_dict()
    items = list(client.responses.input_items.list(made.id))
    assert [item.type for item in items] == ["message"]
    client.responses.delete(made.id)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(made.id)


def test_a_long_list_of_input_items_is_paged_by_the_client(client: OpenAI) -> None:
    said: Any = [{"role": "user", "content": f"{n}"} for n in range(30)]
    made = client.responses.create(model="default", input=said, max_output_tokens=1)
    items: list[Any] = list(client.responses.input_items.list(made.id, order="asc", limit=7))
    assert [item.content[0].text for item in items] == [f"{n}" for n in range(30)]


def test_models_and_counts(client: OpenAI) -> None:
    models = list(client.models.list())
    assert "default" in [model.id for model in models]
    assert {model.owned_by for model in models} == {"keepwarm"}
    assert client.models.retrieve("default").to_dict()["max_model_len"] > 0
    counted = client.responses.input_tokens.count(model="default", input="How many?")
    made = client.responses.create(model="default", input="How many?", max_output_tokens=1)
    assert made.usage is not None
    assert counted.input_tokens == made.usage.input_tokens


def test_errors_are_the_clients_own_classes(client: OpenAI) -> None:
    for fields, kind, code, param in (
        ({"model": "other"}, openai.NotFoundError, "model_not_found", "model"),
        (
            {"previous_response_id": "resp_none"},
            openai.BadRequestError,
            "previous_response_not_found",
            "previous_response_id",
        ),
        ({"temperature": 9}, openai.BadRequestError, "invalid_value", "temperature"),
    ):
        for stream in (False, True):
            create: Any = client.responses.create
            with pytest.raises(kind) as caught:
                create(**({"model": "default", "input": "x", "stream": stream} | fields))
            assert isinstance(caught.value, openai.APIStatusError)
            assert (caught.value.code, caught.value.param) == (code, param)
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("other")


def test_the_vendor_object_goes_in_and_comes_back(client: OpenAI) -> None:
    extra = {"keepwarm": {"session": "over-http", "sampling": {"seed": 7}}}
    made = client.responses.create(
        model="default", input="x", max_output_tokens=8, extra_body=extra
    )
    assert made.model_extra is not None
    assert made.model_extra["keepwarm"]["session"] == "over-http"
    by_header = client.responses.create(
        model="default",
        input="y",
        max_output_tokens=8,
        extra_headers={"x-session-id": "over-http"},
    )
    assert by_header.previous_response_id == made.id


async def state(server: ChildServer, session: str, wanted: str) -> None:
    """Wait until a session is in that state."""
    page = server.url.removesuffix("/v1") + "/sessions.json"
    async with asyncio.timeout(60), httpx.AsyncClient() as http:
        while True:
            shown = (await http.get(page)).json()["sessions"]
            if any((each["session"], each["state"]) == (session, wanted) for each in shown):
                return
            await asyncio.sleep(0.01)


async def test_many_async_turns_at_once_and_one_cancelled(server: ChildServer) -> None:
    client = AsyncOpenAI(base_url=server.url, api_key="none", max_retries=0)
    stream: Any = await client.responses.create(
        model="default", input="talk", max_output_tokens=2000, temperature=1.9, stream=True
    )
    first: Any = await anext(aiter(stream))
    others = [
        client.responses.create(model="default", input=f"hello {n}", max_output_tokens=8)
        for n in range(16)
    ]
    cancelled = await client.responses.cancel(first.response.id)
    assert cancelled.status == "incomplete"
    assert cancelled.id == first.response.id
    events = [first, *[event async for event in stream]]
    assert checked(events).to_dict() == cancelled.to_dict()
    for response in await asyncio.gather(*others):
        assert response.status in {"completed", "incomplete"}
    await client.close()


async def test_a_task_that_is_cancelled_ends_its_turn_and_its_session_stays_usable(
    server: ChildServer,
) -> None:
    client = AsyncOpenAI(base_url=server.url, api_key="none", max_retries=0)
    options: Any = {"extra_body": {"keepwarm": {"session": "left"}}, "model": "default"}
    task = asyncio.create_task(
        client.responses.create(input="talk", max_output_tokens=2000, **options)
    )
    await state(server, "left", "running")
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    await state(server, "left", "idle")
    after = await client.responses.create(input="again", max_output_tokens=4, **options)
    assert after.status in {"completed", "incomplete"}
    await client.close()


def test_a_response_in_the_background_is_polled_streamed_and_cancelled(client: OpenAI) -> None:
    begun = client.responses.create(
        input="Hi", background=True, max_output_tokens=8, model="default"
    )
    assert begun.status == "queued"
    ended = begun
    while ended.status in ("queued", "in_progress"):
        ended = client.responses.retrieve(begun.id)
    assert ended.status in ("completed", "incomplete")
    again = list(client.responses.retrieve(begun.id, stream=True, starting_after=1))
    assert again[0].sequence_number == 2
    assert again[-1].type == f"response.{ended.status}"
    long = client.responses.create(
        input="Hi", background=True, max_output_tokens=2000, model="default"
    )
    stopped = client.responses.cancel(long.id)
    assert (stopped.id, stopped.status) == (long.id, "incomplete")


def test_a_conversation_keeps_what_its_turns_said(client: OpenAI) -> None:
    first: Any = {"type": "message", "role": "user", "content": "one"}
    conversation = client.conversations.create(items=[first], metadata={"a": "b"})
    turn = client.responses.create(
        input="two", conversation=conversation.id, max_output_tokens=8, model="default"
    )
    assert turn.conversation is not None
    assert turn.conversation.id == conversation.id
    items = list(client.conversations.items.list(conversation.id, order="asc", limit=2))
    assert [item.type for item in items] == ["message", "message", turn.output[0].type]
    client.conversations.items.delete(items[0].id or "", conversation_id=conversation.id)
    left = list(client.conversations.items.list(conversation.id, order="asc"))
    assert left == items[1:]
    assert client.conversations.retrieve(conversation.id).metadata == {"a": "b"}
    client.conversations.delete(conversation.id)
    with pytest.raises(openai.NotFoundError):
        client.conversations.retrieve(conversation.id)
