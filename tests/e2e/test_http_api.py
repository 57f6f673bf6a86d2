"""The HTTP APIs over real sockets: turns, sessions, histories, counts, errors and their words."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Coroutine
from dataclasses import replace
from typing import Any

import httpx
import orjson
import pytest
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter
from websockets.asyncio.client import ClientConnection

from runtime.messages import GenerationRequest
from sessions.tenants import ApiKey
from sessions.wire import http_api
from sessions.wire.http_api import DIALECTS, SESSION_HEADER, Served
from tests.support.openapi import Contract
from tests.support.running_server import RunningServer, play
from tests.support.sessions_rig import END, call, tool
from tests.support.speaking_engine import SpeakingEngine, always
from tools_api.dialects.dialect import DialectRequest
from tools_api.dialects.responses_http import RESPONSES
from tools_api.errors import ApiError
from tools_api.limits import Limits

STREAM_EVENT: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)
ACME_KEY, BOSS_KEY = "key-of-acme", "key-of-boss"
ACME = ApiKey.of(ACME_KEY, tenant="acme")
BOSS = ApiKey.of(BOSS_KEY, tenant="boss")
BLOCK = 16
FIND = tool("find", query={"type": "string"})

HI = [{"role": "user", "content": "hi"}]
PAGE = "https://ok.example"

Scenario = Callable[[RunningServer, httpx.AsyncClient], Coroutine[Any, Any, None]]


def run(
    scenario: Scenario,
    engine: Callable[[], SpeakingEngine] = SpeakingEngine,
    *,
    loop: str = "asyncio",
    **options: Any,
) -> None:
    async def with_client(server: RunningServer) -> None:
        async with client_of(server) as client:
            await scenario(server, client)

    play(with_client, lambda: RunningServer(engine(), **options), loop)


@contextlib.asynccontextmanager
async def client_of(server: RunningServer, **headers: str) -> AsyncIterator[httpx.AsyncClient]:
    """A client of which every request and answer has to be as ``/openapi.json`` says."""
    base_url = f"http://127.0.0.1:{server.port}"
    hooks = {"response": [Contract.of(server.routes).look_later]}
    async with httpx.AsyncClient(
        base_url=base_url, headers=headers, timeout=20, event_hooks=hooks
    ) as client:
        yield client


async def turn(client: httpx.AsyncClient, **fields: Any) -> dict[str, Any]:
    answer = await client.post("/v1/responses", json={"model": "m", "input": "hi"} | fields)
    assert answer.status_code == 200, answer.text
    response = answer.json()
    assert isinstance(response, dict)
    return response


async def streamed(client: httpx.AsyncClient, **fields: Any) -> list[dict[str, Any]]:
    """The events of a turn; their names and types are the same."""
    body = {"model": "m", "input": "hi", "stream": True} | fields
    events, name = [], ""
    async with client.stream("POST", "/v1/responses", json=body) as answer:
        assert answer.status_code == 200
        assert answer.headers["content-type"] == "text/event-stream"
        async for line in answer.aiter_lines():
            if line.startswith("event: "):
                name = line.removeprefix("event: ")
            elif line.startswith("data: "):
                events.append(orjson.loads(line.removeprefix("data: ")))
                assert events[-1]["type"] == name
    return events


def text_of(response: dict[str, Any]) -> str:
    text = response["output"][0]["content"][0]["text"]
    assert isinstance(text, str)
    return text


def cached(response: dict[str, Any]) -> int:
    found = response["usage"]["input_tokens_details"]["cached_tokens"]
    assert isinstance(found, int)
    return found


def total(response: dict[str, Any]) -> int:
    found = response["usage"]["total_tokens"]
    assert isinstance(found, int)
    return found


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_a_turn_is_answered_whole_or_streamed_with_the_same_events_as_on_a_websocket(
    loop: str,
) -> None:
    async def scenario(server: RunningServer, client: httpx.AsyncClient) -> None:
        whole = await turn(client)
        Response.model_validate(whole)
        assert (whole["status"], text_of(whole)) == ("completed", "Hello")
        events = await streamed(client)
        for event in events:
            STREAM_EVENT.validate_python(event)
        async with server.client() as socket:
            await socket.send('{"type":"response.create","model":"m","input":"hi"}')
            frames = [orjson.loads(await socket.recv()) for _ in events]
        assert [e["type"] for e in events] == [f["type"] for f in frames]
        assert [e["sequence_number"] for e in events] == list(range(len(events)))
        assert text_of(events[-1]["response"]) == "Hello"
        assert server.hub.num_connections == 0 or await gone(server)

    run(scenario, loop=loop, real=True)


async def gone(server: RunningServer) -> bool:
    await server.until(lambda: server.hub.num_connections == 0)
    return True


def test_a_chain_goes_on_by_id_and_finds_its_tokens() -> None:
    async def scenario(server: RunningServer, client: httpx.AsyncClient) -> None:
        first = await turn(client, input="x" * 100)
        second = await turn(client, input="y", previous_response_id=first["id"])
        assert second["previous_response_id"] == first["id"]
        assert cached(second) >= total(first) // BLOCK * BLOCK - BLOCK
        async with server.client() as socket:
            ask = {"type": "response.create", "input": "z", "previous_response_id": second["id"]}
            await socket.send(orjson.dumps(ask).decode())
            while (event := orjson.loads(await socket.recv()))["type"] != "response.completed":
                assert event["type"] != "error"
            assert event["response"]["previous_response_id"] == second["id"]

    run(scenario, real=True)


@pytest.mark.parametrize("by", ["header", "body", "metadata"])
@pytest.mark.parametrize("store", [True, False])
def test_a_session_goes_on_by_its_name(by: str, store: bool) -> None:
    async def scenario(_: RunningServer, client: httpx.AsyncClient) -> None:
        ways: dict[str, Any] = {
            "header": {},
            "body": {"keepwarm": {"session": "s"}},
            "metadata": {"metadata": {"keepwarm.session": "s"}},
        }
        if by == "header":
            client.headers[SESSION_HEADER] = "s"
        previous = None
        for number in range(1, 4):
            response = await turn(client, input="hi", store=store, **ways[by])
            assert response["keepwarm"]["session"] == "s"
            assert response["keepwarm"]["turn"] == number
            assert response["previous_response_id"] == previous
            previous = response["id"]

    run(scenario)


def test_what_the_body_names_comes_before_the_header() -> None:
    async def scenario(_: RunningServer, client: httpx.AsyncClient) -> None:
        client.headers[SESSION_HEADER] = "header"
        response = await turn(client, keepwarm={"session": "body"})
        assert response["keepwarm"]["session"] == "body"
        response = await turn(client, keepwarm={"stats": True})
        assert response["keepwarm"]["session"] == "header"
        refused = await client.post("/v1/responses", json={"input": "x", "keepwarm": 3})
        assert refused.json()["error"]["param"] == "keepwarm"

    run(scenario)


async def websocket_turn(socket: ClientConnection, **fields: Any) -> dict[str, Any]:
    await socket.send(orjson.dumps({"type": "response.create", "model": "m"} | fields).decode())
    while True:
        event = orjson.loads(await socket.recv())
        assert event["type"] != "error", event
        if event["type"] in ("response.completed", "response.incomplete"):
            response = event["response"]
            assert isinstance(response, dict)
            return response


def speaker() -> SpeakingEngine:
    """Calls a tool in every second turn, and says what no tokenizer would cut like that."""

    def script(request: GenerationRequest) -> list[str]:
        number = int(request.request_id.split("_")[1].split(".")[0])
        if number % 2:
            return [call("find", f'{{"query": "q{number}"}}') + END]
        return [f"answer {number} ", "is" + "!" * (number % 7), END]

    return SpeakingEngine(script)


def next_items(response: dict[str, Any], number: int) -> list[dict[str, Any]]:
    items = list(response["output"])
    calls = [item for item in items if item["type"] == "function_call"]
    for made in calls:
        output = f"found {number} " * 5
        items.append({"type": "function_call_output", "call_id": made["call_id"], "output": output})
    if not calls:
        items.append({"role": "user", "content": f"question {number}, please"})
    return items


@pytest.mark.parametrize("store", [True, False])
def test_a_history_of_20_turns_that_is_resent_hits_what_it_hits_on_a_websocket(store: bool) -> None:
    async def turns(ask: Callable[..., Coroutine[Any, Any, dict[str, Any]]]) -> list[int]:
        history: list[dict[str, Any]] = [{"role": "user", "content": "find me something red"}]
        hits = []
        for number in range(20):
            response = await ask(input=history, instructions="You find.", tools=[FIND], store=store)
            hits.append(cached(response))
            history += next_items(response, number)
        return hits

    hits: dict[str, list[int]] = {}

    async def over_http(_: RunningServer, client: httpx.AsyncClient) -> None:
        hits["http"] = await turns(lambda **fields: turn(client, **fields))

    async def over_websocket(server: RunningServer, _: httpx.AsyncClient) -> None:
        async with server.client() as socket:
            hits["websocket"] = await turns(lambda **fields: websocket_turn(socket, **fields))

    limits = replace(Limits(), max_inline_bytes=2000)
    for scenario in (over_http, over_websocket):
        run(scenario, speaker, real=True, limits=limits)
    assert hits["websocket"][1:] == sorted(hits["websocket"][1:])
    assert hits["websocket"][-1] > 1000
    for ours, theirs in zip(hits["http"], hits["websocket"], strict=True):
        assert ours >= theirs - BLOCK


def test_parallel_requests_of_one_session_run_one_after_another() -> None:
    async def scenario(server: RunningServer, client: httpx.AsyncClient) -> None:
        engine = server.engine
        assert isinstance(engine, SpeakingEngine)
        asked = [asyncio.create_task(turn(client, keepwarm={"session": "s"})) for _ in range(5)]
        for number in range(1, 6):
            await server.until(lambda: bool(engine.waiting))
            assert len(engine.waiting) == 1
            engine.speak()
            await server.until(lambda n=number: sum(task.done() for task in asked) == n)
        turns = sorted(task.result()["keepwarm"]["turn"] for task in asked)
        assert turns == [1, 2, 3, 4, 5]

    run(scenario, lambda: SpeakingEngine(holds=True))


@pytest.mark.parametrize("stream", [False, True])
def test_a_turn_is_cancelled_by_another_client_of_its_tenant(stream: bool) -> None:
    async def scenario(server: RunningServer, client: httpx.AsyncClient) -> None:
        engine = server.engine
        assert isinstance(engine, SpeakingEngine)
        asked = asyncio.create_task(
            streamed(client, store=False) if stream else turn(client, store=False)
        )
        await server.until(lambda: bool(engine.waiting))
        response_id = engine.waiting.popleft().request_id.rpartition(".")[0]
        async with client_of(server) as other:
            ended = await other.post(f"/v1/responses/{response_id}/cancel")
            assert ended.status_code == 200
            assert ended.json()["status"] == "incomplete"
            again = await other.post(f"/v1/responses/{response_id}/cancel")
            assert again.status_code == 404
            assert again.json()["error"]["code"] == "response_not_found"
        found: Any = await asked
        final = found[-1]["response"] if stream else found
        assert final == ended.json()

    run(scenario, lambda: SpeakingEngine(holds=True))


def test_what_is_stored_is_shown_listed_and_deleted() -> None:
    async def scenario(_: RunningServer, client: httpx.AsyncClient) -> None:
        made = await turn(client, input="hi", metadata={"a": "b"})
        path = f"/v1/responses/{made['id']}"
        assert (await client.get(path)).json() == made
        items = (await client.get(f"{path}/input_items")).json()["data"]
        assert [item["content"][0]["text"] for item in items] == ["hi"]
        assert (await client.delete(path)).json()["deleted"]
        assert (await client.get(path)).status_code == 404
        assert (await client.head(path)).status_code == 404
        private = await turn(client, store=False)
        assert (await client.get(f"/v1/responses/{private['id']}")).status_code == 404

    run(scenario)


def test_tenants_do_not_see_each_others_responses() -> None:
    async def scenario(server: RunningServer, _: httpx.AsyncClient) -> None:
        async with (
            client_of(server, Authorization=f"Bearer {ACME_KEY}") as acme,
            client_of(server, **{"X-Api-Key": BOSS_KEY}) as boss,
        ):
            made = await turn(acme, input="x" * 200, store=False)
            stored = await turn(acme, input="x" * 200)
            history = [{"role": "user", "content": "x" * 200}, *made["output"]]
            again = {"role": "user", "content": "again"}
            ours = await turn(acme, input=[*history, again])
            theirs = await turn(boss, input=[*history, again])
            assert cached(ours) > 200
            assert cached(theirs) == 0
            for path in ("", "/input_items"):
                assert (await boss.get(f"/v1/responses/{stored['id']}{path}")).status_code == 404
            refused = await boss.post(
                "/v1/responses", json={"input": "x", "previous_response_id": stored["id"]}
            )
            assert refused.json()["error"]["code"] == "previous_response_not_found"

    run(scenario, keys=[ACME, BOSS])


@pytest.mark.parametrize("size", [10, 500])
def test_a_prompt_is_counted_as_the_turn_counts_it(size: int) -> None:
    fields = {
        "model": "m",
        "instructions": "Be brief.",
        "input": "word " * size,
        "tools": [FIND],
    }

    async def scenario(_: RunningServer, client: httpx.AsyncClient) -> None:
        counted = await client.post("/v1/responses/input_tokens", json=fields)
        assert counted.json()["object"] == "response.input_tokens"
        made = await turn(client, **fields)
        assert counted.json()["input_tokens"] == made["usage"]["input_tokens"]
        more = {"model": "m", "input": "more", "previous_response_id": made["id"]}
        counted = await client.post("/v1/responses/input_tokens", json=more)
        made = await turn(client, **more)
        assert counted.json()["input_tokens"] == made["usage"]["input_tokens"]

    run(scenario, limits=replace(Limits(), max_inline_bytes=1000))


def test_counting_makes_no_turn_and_no_session_and_refuses_what_a_turn_would() -> None:
    async def scenario(server: RunningServer, client: httpx.AsyncClient) -> None:
        path = "/v1/responses/input_tokens"
        client.headers[SESSION_HEADER] = "s"
        assert (await client.post(path, json={"input": "hi"})).status_code == 200
        too_long = {"input": "x" * 5000}
        assert (await client.post(path, json=too_long)).json()["input_tokens"] > 5000
        for fields, code in (
            ({"input": "hi", "model": "other"}, "model_not_found"),
            ({"input": "hi", "previous_response_id": "resp_none"}, "previous_response_not_found"),
            ({"model": "m"}, "missing_required_parameter"),
        ):
            assert (await client.post(path, json=fields)).json()["error"]["code"] == code
        assert server.engine.sent == []
        assert server.service.store.sessions()[1] == []

    run(scenario)


@pytest.mark.parametrize(
    ("content", "code"),
    [
        (b"", "invalid_json"),
        (b"no", "invalid_json"),
        (b"[]", "invalid_json"),
        (b'"x"', "invalid_json"),
        (b"\xff", "invalid_json"),
        (b"[" * 100, "invalid_json"),
        (b"{}", "missing_required_parameter"),
        (b'{"input": "x", "stream": "yes"}', "invalid_type"),
        (b'{"input": [{"type": "input_image"}]}', "unsupported_parameter"),
    ],
)
def test_a_bad_body_is_refused_and_the_connection_goes_on(content: bytes, code: str) -> None:
    async def scenario(_: RunningServer, client: httpx.AsyncClient) -> None:
        headers = {"Content-Type": "application/json"}
        refused = await client.post("/v1/responses", content=content, headers=headers)
        assert refused.status_code == 400
        assert set(refused.json()["error"]) == {"message", "type", "param", "code"}
        assert refused.json()["error"]["code"] == code
        assert "frame" not in refused.json()["error"]["message"]
        assert "connection" not in refused.headers
        assert text_of(await turn(client)) == "Hello"

    run(scenario)


@pytest.mark.parametrize(
    ("method", "path", "headers", "status", "allow"),
    [
        ("POST", "/v1/responses", {"Content-Type": "text/plain"}, 415, None),
        ("PUT", "/v1/responses", {"Content-Type": "application/json"}, 405, "GET, POST"),
        ("POST", "/v1/responses/x", {"Content-Type": "application/json"}, 405, "GET, HEAD, DELETE"),
        ("POST", "/v1/models", {"Content-Type": "application/json"}, 405, "GET, HEAD"),
        ("POST", "/v1/nothing", {"Content-Type": "application/json"}, 404, None),
        ("POST", "/v1/responses", {"Origin": "https://evil.example"}, 403, None),
        ("POST", "/v1/responses", {"Host": "evil.example"}, 403, None),
    ],
)
def test_a_request_that_may_not_be_is_refused_and_the_connection_goes_on(
    method: str, path: str, headers: dict[str, str], status: int, allow: str | None
) -> None:
    async def scenario(_: RunningServer, client: httpx.AsyncClient) -> None:
        refused = await client.request(method, path, content=b'{"input": "hi"}', headers=headers)
        assert refused.status_code == status
        assert refused.headers.get("allow") == allow
        assert refused.json()["error"]["type"] == "invalid_request_error"
        assert "connection" not in refused.headers
        assert text_of(await turn(client)) == "Hello"

    run(scenario)


@pytest.mark.parametrize("name", ["Idempotency-Key", "X-Session-Id"])
@pytest.mark.parametrize("path", ["/v1/responses", "/v1/chat/completions", "/v1/messages"])
def test_a_name_that_headers_tell_in_two_ways_starts_nothing(path: str, name: str) -> None:
    async def scenario(server: RunningServer, client: httpx.AsyncClient) -> None:
        messages = [{"role": "user", "content": "hi"}]
        body = {"model": "m", "max_tokens": 9, "messages": messages}
        twice = [(name, "a"), (name, "b")]
        refused = await client.post(path, json=body, headers=twice)
        assert refused.status_code == 400
        assert name.lower() in refused.json()["error"]["message"].lower()
        assert not server.service.store.sessions()[1]
        assert text_of(await turn(client)) == "Hello"

    run(scenario)


def test_too_many_turns_are_told_to_come_back() -> None:
    async def scenario(server: RunningServer, client: httpx.AsyncClient) -> None:
        engine = server.engine
        assert isinstance(engine, SpeakingEngine)
        first = asyncio.create_task(turn(client))
        await server.until(lambda: bool(engine.waiting))
        for stream in (False, True):
            refused = await client.post("/v1/responses", json={"input": "hi", "stream": stream})
            assert refused.status_code == 503
            assert refused.headers["retry-after"] == "1"
            assert refused.json()["error"]["code"] == "server_is_overloaded"
        engine.speak()
        assert text_of(await first) == "Hello"

    run(scenario, lambda: SpeakingEngine(holds=True), limits=replace(Limits(), max_queued_turns=1))


@pytest.mark.parametrize(
    ("path", "fields", "status", "kind"),
    [
        ("/v1/responses", {"input": "hi"}, 503, "server_error"),
        ("/v1/chat/completions", {"messages": HI}, 503, "server_error"),
        ("/v1/messages", {"messages": HI, "max_tokens": 9}, 529, "overloaded_error"),
    ],
)
def test_an_overloaded_server_answers_as_each_api_does(
    path: str, fields: dict[str, Any], status: int, kind: str
) -> None:
    async def scenario(server: RunningServer, client: httpx.AsyncClient) -> None:
        engine = server.engine
        assert isinstance(engine, SpeakingEngine)
        first = asyncio.create_task(turn(client))
        await server.until(lambda: bool(engine.waiting))
        for stream in (False, True):
            body = {"model": "default", "stream": stream} | fields
            refused = await client.post(path, json=body)
            assert (refused.status_code, refused.headers["retry-after"]) == (status, "1")
            assert refused.json()["error"]["type"] == kind
        engine.speak()
        assert text_of(await first) == "Hello"

    run(scenario, lambda: SpeakingEngine(holds=True), limits=replace(Limits(), max_queued_turns=1))


@pytest.mark.parametrize("keys", [(), (ACME,)])
def test_pages_of_allowed_origins_alone_may_use_any_endpoint(keys: tuple[ApiKey, ...]) -> None:
    asks = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "x-a,x-b"}

    async def scenario(server: RunningServer, client: httpx.AsyncClient) -> None:
        for route in server.routes:
            path = route.path.replace("{id}", "x").replace("{name}", "x")
            ours = await client.options(path, headers={"Origin": PAGE} | asks)
            assert (ours.status_code, ours.content) == (204, b""), path
            assert ours.headers["access-control-allow-origin"] == PAGE
            assert ours.headers["access-control-allow-methods"] == ", ".join(route.methods)
            assert ours.headers["access-control-allow-headers"] == "x-a,x-b"
            assert "content-length" not in ours.headers
            for method in ("OPTIONS", "GET", "POST"):
                headers = {"Origin": "https://evil.example"} | asks
                foreign = await client.request(method, path, headers=headers)
                assert foreign.status_code == 403, path
                assert not any(name.startswith("access-control") for name in foreign.headers)
        answers = [
            await client.get("/v1/models", headers={"Origin": PAGE}),
            await client.post("/v1/responses", json={"input": 1}, headers={"Origin": PAGE}),
        ]
        key = {"Authorization": f"Bearer {ACME_KEY}"}
        body = {"input": "hi", "stream": True}
        for origin in ({"Origin": PAGE}, {}):
            headers = key | origin
            answers.append(await client.post("/v1/responses", json=body, headers=headers))
            assert answers[-1].headers["content-type"] == "text/event-stream"
        told = [answer.headers.get("access-control-allow-origin") for answer in answers]
        assert told == [PAGE, PAGE, PAGE, None]

    run(scenario, keys=keys, allowed_origins=[PAGE])


def test_while_the_engine_starts_again_turns_are_told_to_come_back() -> None:
    async def scenario(server: RunningServer, client: httpx.AsyncClient) -> None:
        engine = server.engine
        assert isinstance(engine, SpeakingEngine)
        running = asyncio.create_task(turn(client))
        await server.until(lambda: bool(engine.waiting))
        server.engine_may_return.clear()
        engine.die()
        failed = await running
        assert (failed["status"], failed["error"]["code"]) == ("failed", "server_error")
        refused = await client.post("/v1/responses", json={"input": "hi"})
        assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")
        assert (await client.get("/v1/models")).status_code == 200
        server.engine_may_return.set()
        await server.until(lambda: server.hub.ready)
        engine.waiting.clear()
        engine.holds = False
        engine.scripted.restart()
        assert text_of(await turn(client)) == "Hello"

    run(scenario, lambda: SpeakingEngine(holds=True))


def test_a_budget_that_is_used_up_is_told_as_on_a_websocket() -> None:
    async def scenario(_: RunningServer, client: httpx.AsyncClient) -> None:
        keepwarm = {"session": "s", "budget": {"output": 2}}
        await turn(client, keepwarm=keepwarm)
        refused = await turn(client, keepwarm={"session": "s"})
        assert (refused["status"], refused["error"]["code"]) == ("failed", "rate_limit_exceeded")
        assert refused["keepwarm"]["budget"]["exhausted"]

    run(scenario, lambda: SpeakingEngine(always("a", END)))


class Shouts:
    """A second API: its own words, whole histories."""

    def read(self, body: Any) -> DialectRequest:
        create = {"input": body["said"]} | body.get("more", {})
        return DialectRequest(create=create, streamed=body.get("flow", False), writer=self)

    def writer(self, **settings: bool) -> "Shouts":
        return self

    def feed(self, event: dict[str, Any]) -> bytes:
        return f"data: {event['delta'].upper()}\n\n".encode() if "delta" in event else b""

    def whole(self, response: dict[str, Any]) -> dict[str, Any]:
        return {"SHOUT": text_of(response).upper(), "from": response["previous_response_id"]}

    def status(self, error: ApiError) -> int:
        return error.status

    def error(self, error: ApiError) -> dict[str, Any]:
        return {"SORRY": error.status}

    def error_event(self, error: ApiError) -> bytes:
        return b"data: SORRY\n\n"


def test_another_api_has_its_own_words_for_the_same_turns_and_errors(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shouts = Served(path="/v1/shouts", dialect=Shouts(), whole_histories=True)
    monkeypatch.setattr(http_api, "DIALECTS", (*DIALECTS, shouts))

    async def scenario(server: RunningServer, _: httpx.AsyncClient) -> None:
        async with client_of(server) as stranger:
            assert (await stranger.post("/v1/shouts", json={})).json() == {"SORRY": 401}
        async with client_of(server, **{"X-Api-Key": ACME_KEY, SESSION_HEADER: "s"}) as client:
            first = await client.post("/v1/shouts", json={"said": "hi"})
            assert first.json() == {"SHOUT": "HELLO", "from": None}
            unlike = await client.post("/v1/shouts", json={"said": "something else"})
            assert unlike.json() == {"SHOUT": "HELLO", "from": None}, "it went on with a head"
            (view,) = server.service.store.sessions()[1]
            assert (view.session, view.turns) == ("s", 2)
            history = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "Hello"}]
            again = [*history, {"role": "user", "content": "again"}]
            found = (await client.post("/v1/shouts", json={"said": again})).json()
            assert found["from"] is not None
            stream = await client.post("/v1/shouts", json={"said": "hi", "flow": True})
            assert stream.text == "data: HEL\n\ndata: LO\n\n"
            for content, kind, status in (
                (b"no", "application/json", 400),
                (b"{}", "text/plain", 415),
                (b'{"said": "x", "more": {"model": "other"}}', "application/json", 404),
                (b"x" * 5001, "application/json", 413),
            ):
                refused = await client.post(
                    "/v1/shouts", content=content, headers={"Content-Type": kind}
                )
                assert (refused.status_code, refused.json()) == (status, {"SORRY": status})
            wrong = await client.get("/v1/shouts")
            assert (wrong.status_code, wrong.headers["allow"]) == (405, "POST")

    run(scenario, keys=[ACME], limits=replace(Limits(), max_frame_bytes=5000))


def test_the_table_has_the_responses_api() -> None:
    (responses,) = [served for served in DIALECTS if served.dialect is RESPONSES]
    assert responses.path == "/v1/responses"
    assert responses.count is not None
    paths = [served.path for served in DIALECTS]
    assert len(set(paths)) == len(paths)
