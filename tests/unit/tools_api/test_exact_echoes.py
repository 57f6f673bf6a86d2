"""Numbers and halves of pairs on their way through a front end and back: nothing is rounded."""

import json
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest

from tests.support.running_server import RunningServer
from tests.support.sessions_rig import END, call, spelled
from tests.support.speaking_engine import HELLO, Script, SpeakingEngine, always
from tools_api.exact_json import dumps, loads

NUMBERS = [
    *("1190000000000000001", "18446744073709551617", "-1e400", "0.12345678901234567890", "1e-400"),
    *("123456789.12345679", "5e-324", "-9223372036854775809", "100000000000000000000000000.5"),
]
ARGUMENTS = f'{{"n": [{", ".join(NUMBERS)}], "half \\ud83d": "\\ude00", "last": true}}'
MEANT = loads(ARGUMENTS)
TOOL = {"name": "f", "description": "d"}
ANY = {"type": "object", "properties": {}}


def schema(rng: random.Random) -> dict[str, Any]:
    numbers = loads(f"[{','.join(NUMBERS)}]")
    rng.shuffle(numbers)
    least, default, *values = numbers
    described = {"enum": values, "default": default, "description": "half \ufffd"}
    bounded = {"type": "number", "minimum": least, "examples": [numbers]}
    return {"type": "object", "properties": {"a": described, "b": bounded, "c": {"const": least}}}


class Api:
    """A front end, its engine, and one client."""

    def __init__(self, server: RunningServer, client: httpx.AsyncClient) -> None:
        self.server = server
        self._client = client

    async def ask(self, path: str, body: dict[str, Any], **headers: str) -> httpx.Response:
        headers |= {"content-type": "application/json"}
        content = dumps({"model": "default"} | body)
        return await self._client.post(path, content=content, headers=headers)

    async def post(self, path: str, **body: Any) -> bytes:
        answer = await self.ask(path, body)
        assert answer.status_code == 200, answer.content
        return answer.content

    async def get(self, path: str) -> bytes:
        return (await self._client.get(path)).content


@asynccontextmanager
async def serving(script: Script = HELLO) -> AsyncIterator[Api]:
    server = RunningServer(SpeakingEngine(script), real=True, max_context_tokens=20_000)
    async with server, httpx.AsyncClient(base_url=f"http://127.0.0.1:{server.port}") as client:
        yield Api(server, client)


def streamed(answer: bytes) -> list[Any]:
    lines = [line[6:] for line in answer.split(b"\n") if line.startswith(b"data: {")]
    return list(map(loads, lines))


@pytest.mark.parametrize("seed", range(5))
async def test_tools_and_formats_are_echoed_to_the_last_digit(seed: int) -> None:
    sent = schema(random.Random(seed))
    form = {"type": "json_schema", "name": "n", "schema": sent, "strict": False}
    tool = TOOL | {"type": "function", "parameters": sent, "strict": False}
    body = {"input": "hi", "tools": [tool], "tool_choice": "none", "text": {"format": form}}
    async with serving() as api:
        whole = await api.post("/v1/responses", **body)
        stored = await api.get(f"/v1/responses/{loads(whole)['id']}")
        events = streamed(await api.post("/v1/responses", stream=True, **body))
    for response in (loads(whole), loads(stored), events[0]["response"], events[-1]["response"]):
        assert response["tools"][0]["parameters"] == sent
        assert response["text"]["format"]["schema"] == sent


async def test_a_schema_is_read_by_the_model_to_the_last_digit() -> None:
    sent = schema(random.Random(0))
    async with serving() as api:
        tool = TOOL | {"type": "function", "parameters": sent, "strict": False}
        await api.post("/v1/responses", input="hi", tools=[tool])
        engine = api.server.engine
        assert isinstance(engine, SpeakingEngine)
        prompt = spelled(engine.scripted.last.new_tokens)
    shown = prompt.split("<tools>\n")[1].split("\n</tools>")[0]
    assert loads(shown)["function"]["parameters"] == sent


@pytest.mark.parametrize("stream", [False, True])
async def test_arguments_are_given_as_they_were_written(stream: bool) -> None:
    """As text where an API has text, to the last digit where it has an object."""
    parameters = ANY | {"default": MEANT}
    function = {"type": "function", "function": TOOL | {"parameters": parameters}}
    used = TOOL | {"input_schema": parameters}
    asked = [{"role": "user", "content": "hi"}]
    async with serving(always(call("f", ARGUMENTS) + END)) as api:
        chat = await api.post(
            "/v1/chat/completions", messages=asked, tools=[function], stream=stream
        )
        message = await api.post(
            "/v1/messages", messages=asked, tools=[used], stream=stream, max_tokens=2000
        )
    if stream:
        chunks = [chunk["choices"][0]["delta"] for chunk in streamed(chat) if chunk["choices"]]
        calls = [call for delta in chunks for call in delta.get("tool_calls", ())]
        assert "".join(call["function"].get("arguments", "") for call in calls) == ARGUMENTS
        parts = [event.get("delta", {}).get("partial_json", "") for event in streamed(message)]
        assert "".join(parts) == ARGUMENTS
    else:
        (made,) = loads(chat)["choices"][0]["message"]["tool_calls"]
        assert made["function"]["arguments"] == ARGUMENTS
        assert loads(message)["content"][0]["input"] == MEANT


async def test_arguments_sent_back_as_an_object_are_the_ones_that_were_written() -> None:
    """A client that holds them to the last digit continues the transcript, one that rounds them
    tells of another call."""
    rounded = json.loads(json.dumps(MEANT, default=float))
    assert rounded != MEANT
    cached = []
    for given in (MEANT, rounded):
        async with serving(always(call("f", ARGUMENTS) + END)) as api:
            asked: list[dict[str, Any]] = [{"role": "user", "content": "hi"}]
            tools = [TOOL | {"input_schema": ANY}]
            first = loads(
                await api.post("/v1/messages", messages=asked, tools=tools, max_tokens=2000)
            )
            used = first["content"][0] | {"input": given}
            result = {"type": "tool_result", "tool_use_id": used["id"], "content": "done"}
            asked += [{"role": "assistant", "content": [used]}]
            asked += [{"role": "user", "content": [result]}]
            second = loads(
                await api.post("/v1/messages", messages=asked, tools=tools, max_tokens=2000)
            )
            read = second["usage"]["cache_read_input_tokens"]
            cached.append(read > first["usage"]["input_tokens"])
    assert cached == [True, False]


async def test_a_request_is_the_same_request_only_to_the_last_digit() -> None:
    """By its id it starts one turn, and is refused where a digit of its schema differs."""
    async with serving() as api:

        async def answer(number: str) -> Any:
            parameters = ANY | {"default": {"a": loads(number)}}
            tool = TOOL | {"type": "function", "parameters": parameters}
            asked = await api.ask(
                "/v1/responses", {"input": "hi", "tools": [tool]}, **{"Idempotency-Key": "q"}
            )
            return loads(asked.content)

        first = await answer("0.12345678901234567890")
        assert first["status"] == "completed"
        assert (await answer("0.12345678901234567890"))["id"] == first["id"]
        assert (await answer("0.12345678901234567891"))["error"]["code"] == "request_id_reused"
