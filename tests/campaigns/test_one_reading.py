"""One reading: what a request says does not depend on which process reads it.

Random requests of all four APIs, right and wrong, are read here, as the event loop reads small
ones, and by the real process that reads large ones: the same request or the same refusal, with the
same digests, grammar and weight. Through a server each is sent twice, as it is and with so many
spaces that it is read beside: the same answer, and never a 500.

KEEPWARM_ONE_READING sets how many requests are read (1000000 for a campaign), of which some go
through a server; KEEPWARM_ONE_READING_SEED is where they begin. A failure names its seed.
"""

import asyncio
import json
import os
import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from keepwarm.demo.child_server import ChildServer, child_server
from sessions.turns.reading import error_fields, prepared, read_frame
from sessions.wire.http_dialects import DIALECTS, Body, ReadBody, read_body
from sessions.wire.read_process import NoText, ReadConfig, ReadProcess
from tests.support.api_clients import APIS, WEBSOCKET, Answer, ApiClients
from tests.support.random_requests import request
from tests.support.sessions_rig import TOKENIZER
from tools_api.errors import ApiError
from tools_api.limits import DEFAULT_LIMITS
from tools_api.requests import CreateRequest

REQUESTS = int(os.environ.get("KEEPWARM_ONE_READING", "2500"))
SEED = int(os.environ.get("KEEPWARM_ONE_READING_SEED", "0"))
PATIENCE_S = 120.0
"""A busy machine may be slow: what is compared is what was read."""
AT_ONCE = 3
"""Requests under way, each with a process of its own that reads it: none waits for another."""
SENT_TWICE = 500 + REQUESTS // 200
SERVED = {each.path: each for each in DIALECTS}
CONFIG = ReadConfig(
    limits=DEFAULT_LIMITS,
    models=frozenset({"default", "m"}),
    model_type="qwen3",
    specials=frozenset(TOKENIZER.specials),
)
CONTEXT = CONFIG.context()


def drawn(seed: int) -> tuple[str, bytes | Body]:
    """A request, as the process is handed it: a frame, or a body with what its headers name."""
    rng = random.Random(seed)
    api = APIS[seed % len(APIS)]
    data = request(rng, api)
    if api == WEBSOCKET:
        return api, data
    body = Body(
        served=SERVED[api],
        data=data,
        session="s" if rng.random() < 0.2 else None,
        request_id="q" if rng.random() < 0.2 else None,
        span="00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
        counted=SERVED[api].count is not None and rng.random() < 0.1,
    )
    return api, body


def here(job: bytes | Body) -> ReadBody | None:
    """Read in this process, with what the event loop works out of it; None: it is no text."""
    if isinstance(job, Body):
        found = read_body(job, CONTEXT)
        return ReadBody(read=prepared(found.read, CONTEXT), style=found.style)
    try:
        read = read_frame(str(job, "utf-8"), CONTEXT)
    except UnicodeDecodeError:
        return None
    return ReadBody(read=prepared(read, CONTEXT), style=None)


def shown(value: Any) -> Any:
    """All that there is to compare: equal values of other types differ, the order of an object's
    own fields means nothing."""
    if isinstance(value, ApiError):
        return shown(error_fields(value))
    if isinstance(value, BaseModel):
        return type(value).__name__, shown(sorted(vars(value).items()))
    if is_dataclass(value) and not isinstance(value, type):
        told = [each.name for each in fields(value) if each.name != "held_bytes"]
        return type(value).__name__, [shown(getattr(value, name)) for name in told]
    if isinstance(value, list | tuple):
        return type(value).__name__, list(map(shown, value))
    if isinstance(value, dict):
        return [(key, shown(part)) for key, part in value.items()]
    return repr(value)


def weight(found: ReadBody | None) -> int:
    """What it holds in memory: Python counts a text as longer once its UTF-8 was asked for."""
    ready = None if found is None else found.read.prepared
    return 0 if ready is None else ready.held_bytes


@pytest.mark.timeout(300 + REQUESTS // 100)
async def test_a_request_is_the_same_whichever_process_reads_it() -> None:
    seen: Counter[str] = Counter()

    async def play(first: int, reader: ReadProcess) -> None:
        for seed in range(first, SEED + REQUESTS, AT_ONCE):
            api, job = drawn(seed)
            reading = asyncio.create_task(reader.read(job))
            await asyncio.sleep(0)  # it is on its way, and both work at the same time
            inline = here(job)
            try:
                beside: ReadBody | None = (await reading).body
            except NoText:
                beside = None
            assert shown(beside) == shown(inline), f"seed {seed}, {api}: {job!r}"
            assert weight(beside) == pytest.approx(weight(inline), rel=0.05), f"seed {seed}"
            content = None if inline is None else inline.read.content
            seen[type(content).__name__] += 1
            if isinstance(content, ApiError):
                assert content.status < 500, f"seed {seed}, {api}: {content.message}"

    readers = [ReadProcess(CONFIG, limit_s=PATIENCE_S) for _ in range(AT_ONCE)]
    await asyncio.gather(*(each.start() for each in readers))
    try:
        await asyncio.gather(*(play(SEED + n, each) for n, each in enumerate(readers)))
    finally:
        await asyncio.gather(*(each.stop() for each in readers))
    assert min(seen["CreateRequest"], seen["ApiError"]) > REQUESTS // 6, seen
    assert {"NoneType", "CancelTurn", "ResumeTurn", "SteerRequest"} <= seen.keys(), seen


# Through a server


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ChildServer]:
    options = ["--kv-cache-mib", "64", "--threads", "1", "--default-output-tokens", "4"]
    log = tmp_path_factory.mktemp("server") / "server.log"
    with child_server(options, log=log) as serving:
        yield serving
        assert "Traceback" not in log.read_text()


def both_ways(data: bytes) -> tuple[bytes, bytes]:
    """A body as it is, and read beside the event loop: spaces behind it say nothing."""
    return data, data + b" " * DEFAULT_LIMITS.max_inline_bytes


def told(answer: Answer) -> Any:
    """What two answers to one request have in common; where it is no JSON depends on the spaces."""
    if "is not a JSON object" in answer.error.get("message", ""):
        return answer.status, "no JSON"
    if answer.status != 200 or not answer.body.get("usage"):
        return answer.status, answer.error
    return answer.status, answer.body.get("status") == "failed", answer.prompt[0]


def is_answered(data: bytes, api: str) -> bool:
    """Whether a client waits for something: nothing answers an acknowledgement, a text frame that
    is none closes the socket."""
    try:
        text = str(data, "utf-8")
    except UnicodeDecodeError:
        return api != WEBSOCKET
    read = read_frame(text, CONTEXT).content if api == WEBSOCKET else None
    return api != WEBSOCKET or isinstance(read, CreateRequest | ApiError)


@pytest.mark.timeout(300 + REQUESTS // 100)
async def test_a_server_answers_alike_and_never_with_an_internal_error(server: ChildServer) -> None:
    statuses: Counter[int] = Counter()

    async def play(first: int, step: int) -> None:
        async with ApiClients(server.url) as clients:
            for seed in range(first, SEED + SENT_TWICE, step):
                api = APIS[seed % len(APIS)]
                data = request(random.Random(seed), api)
                if not is_answered(data, api):
                    continue
                inline, beside = [await clients.ask(api, each) for each in both_ways(data)]
                if any("try again later" in str(each.body) for each in (inline, beside)):
                    continue  # it asked for its first token sooner than a busy machine has it
                for answer in (inline, beside):
                    statuses[answer.status] += 1
                    assert answer.status != 500, f"seed {seed}, {api}: {answer.body} to {data!r}"
                assert told(beside) == told(inline), f"seed {seed}, {api}: {data!r}"

    clients = 5  # so that each of them speaks all APIs
    await asyncio.gather(*(play(SEED + n, clients) for n in range(clients)))
    assert statuses[200] > SENT_TWICE // 3, statuses
    assert statuses[400] > SENT_TWICE // 3, statuses


LONG = "lorem ipsum dolor sit amet " * 200
THOUGHT = {"type": "reasoning", "summary": []}
SEALED = {**THOUGHT, "encrypted_content": "x" * 9000}
OPEN = {**THOUGHT, "content": [{"type": "reasoning_text", "text": LONG}]}
ASKED = {"role": "user", "content": LONG}
REASONING_FIRST: list[tuple[str, dict[str, Any]]] = [
    ("/v1/responses", {"input": [THOUGHT, ASKED]}),
    ("/v1/responses", {"input": [SEALED, {"role": "user", "content": "hi"}]}),
    ("/v1/responses", {"input": [THOUGHT, SEALED, OPEN, {"role": "user", "content": "hi"}]}),
    ("/v1/responses", {"input": [OPEN, {"role": "assistant", "content": "a"}, ASKED]}),
    ("/v1/responses", {"input": [SEALED] * 20}),
    ("/v1/chat/completions", {"messages": [
        {"role": "assistant", "content": "t", "reasoning_content": LONG}, ASKED]}),
    ("/v1/messages", {"messages": [
        {"role": "assistant", "content": [
            {"type": "thinking", "thinking": LONG, "signature": ""},
            {"type": "text", "text": "t"}]},
        {"role": "user", "content": "hi"}]}),
]  # fmt: skip


@pytest.mark.parametrize(("api", "body"), REASONING_FIRST)
async def test_a_long_request_that_begins_with_reasoning_is_a_turn(
    server: ChildServer, api: str, body: dict[str, Any]
) -> None:
    limit = {"max_output_tokens": 4} if "input" in body else {"max_tokens": 4}
    ways = [(api, body | limit)]
    if "input" in body:
        ways.append((WEBSOCKET, {"type": "response.create"} | body | limit))
    async with ApiClients(server.url) as clients:
        for way, sent in ways:
            answer = await clients.ask(way, both_ways(_json(sent))[1])
            assert answer.status == 200, answer.body
            assert answer.prompt[0] > 0


CASES = (
    Path(__file__).parents[3] / "shared" / "cases" / "turn3_reliability" / "large_requests.jsonl"
)


@pytest.mark.skipif(not CASES.exists(), reason="needs the cases of the workshop")
async def test_each_of_the_workshops_large_requests_is_a_turn(server: ChildServer) -> None:
    async with ApiClients(server.url) as clients:
        for line in CASES.read_text().splitlines():
            case = json.loads(line)
            for api in APIS:
                if api in case["endpoint"] or (
                    api == WEBSOCKET and "response.create" in case["endpoint"]
                ):
                    sent = case["body"] | ({"type": "response.create"} if api == WEBSOCKET else {})
                    answer = await clients.ask(api, _json(sent))
                    assert answer.status == 200, (case["name"], answer.body)


def _json(body: dict[str, Any]) -> bytes:
    return json.dumps(body).encode()
