"""Any text: what JSON can write is served, or refused for its size by the error that agents know.

Texts of all kinds (halves of surrogate pairs, NUL, separators, long runs) go through all four APIs
in all places of a request: some into a front end whose engine writes such texts itself, some into
a server. A run of each kind is as long as a client may make it.

KEEPWARM_ANY_TEXT sets how many texts there are (10000 for a campaign); KEEPWARM_ANY_TEXT_SEED is
where they begin. A failure names its seed.
"""

import asyncio
import json
import os
import random
import re
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from keepwarm.demo.child_server import ChildServer, child_server
from runtime.messages import GenerationRequest
from tests.support.any_texts import KINDS, PLACES, SHORT_PLACES, any_text, body, run, written
from tests.support.api_clients import APIS, WEBSOCKET, Answer, ApiClients
from tests.support.running_server import RunningServer
from tests.support.sessions_rig import END
from tests.support.speaking_engine import SpeakingEngine
from tools_api.exact_json import whole_text

TEXTS = int(os.environ.get("KEEPWARM_ANY_TEXT", "300"))
SEED = int(os.environ.get("KEEPWARM_ANY_TEXT_SEED", "0"))
MOST_BYTES = 20_000
SERVED = TEXTS // 6
"""Of the texts, those that go through a server with a model."""
ROOM = 200_000
TOO_LONG = "context_length_exceeded"


def code_of(answer: Answer) -> Any:
    """What an answer is refused or fails with; None if it is neither."""
    failed = answer.body.get("status") == "failed"
    return answer.error.get("code") or answer.error.get("type") if answer.error or failed else None


def drawn(seed: int, *, tokens: int = 2) -> tuple[str, str, str, bytes]:
    """The API, the place, the text and the body of one request."""
    rng = random.Random(seed)
    api, place = APIS[seed % len(APIS)], rng.choice(PLACES)
    text = any_text(rng, MOST_BYTES)
    return api, place, text, written(body(api, place, text, tokens=tokens), rng)


# A front end and an engine that says such texts


def script(request: GenerationRequest) -> list[str]:
    rng = random.Random(request.request_id)
    said = whole_text(any_text(rng, 500)).replace("<|", "<")
    return [said, END]


def shown(stored: bytes, place: str) -> str:
    """The text where the server has it, in the items that the model read."""
    items = json.loads(stored)["data"]
    found: str = items[{"input": -1, "tool output": 0, "history": -2}[place]][
        "output" if place == "tool output" else "content"
    ]
    return found if isinstance(found, str) else "".join(part["text"] for part in found)


@pytest.mark.timeout(300 + TEXTS // 10)
async def test_any_text_is_served_in_any_place() -> None:
    server = RunningServer(SpeakingEngine(script), real=True, max_context_tokens=ROOM)
    async with server, ApiClients(f"http://127.0.0.1:{server.port}/v1") as clients:
        for seed in range(SEED, SEED + TEXTS):
            api, place, text, sent = drawn(seed, tokens=600)
            answer = await clients.ask(api, sent)
            assert answer.status == 200, f"seed {seed}, {api}, {place}: {answer.body}"
            server.engine.batches.clear()
            if place not in ("input", "tool output", "history"):
                continue
            if api in (WEBSOCKET, "/v1/responses"):
                path = f"/v1/responses/{answer.body['id']}/input_items"
                told = await server.http(path)
                assert shown(told.body, place) == whole_text(text), f"seed {seed}, {api}, {place}"


# A server


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ChildServer]:
    options = ["--kv-cache-mib", "64", "--threads", "1", "--max-context-tokens", "512"]
    log = tmp_path_factory.mktemp("server") / "server.log"
    with child_server(options, log=log) as serving:
        yield serving
        assert "Traceback" not in log.read_text()
        assert "panicked" not in log.read_text()


@pytest.mark.timeout(300 + TEXTS // 10)
async def test_a_server_serves_any_text_or_says_that_it_is_too_long(server: ChildServer) -> None:
    seen: Counter[Any] = Counter()

    async def play(first: int, step: int) -> None:
        async with ApiClients(server.url) as clients:
            for seed in range(first, SEED + SERVED, step):
                api, place, _, sent = drawn(seed)
                answer = await clients.ask(api, sent)
                code = code_of(answer)
                seen[code] += 1
                allowed = {None, TOO_LONG, *(() if api != "/v1/messages" else REFUSED)}
                assert code in allowed, f"seed {seed}, {api}, {place}: {answer.body}"
                assert answer.status in (200, 400), f"seed {seed}, {api}, {place}: {answer.body}"

    await asyncio.gather(*(play(SEED + n, 4) for n in range(4)))
    assert seen[None] > SERVED // 8, seen
    assert seen[TOO_LONG] + seen["invalid_request_error"] > SERVED // 8, seen


REFUSED = ("invalid_request_error",)
"""Messages has no codes of its own."""


@pytest.mark.timeout(600)
@pytest.mark.parametrize("length", [100_000, 1_000_000])
async def test_a_run_of_any_kind_is_too_long_or_cut(length: int, server: ChildServer) -> None:
    places = [place for place in PLACES if place not in SHORT_PLACES | {"schema"}]
    rng = random.Random(SEED)
    async with ApiClients(server.url) as clients:
        for number, kind in enumerate(KINDS):
            api, place = APIS[number % len(APIS)], places[number % len(places)]
            text = run(kind, length)
            asked = body(api, place, text)
            answer = await clients.ask(api, written(asked, rng))
            where = f"{kind}, {api}, {place}: {str(answer.body)[:300]}"
            assert answer.status == 400, where
            assert code_of(answer) in (TOO_LONG, *REFUSED), where
            assert re.search(
                "maximum context length|prompt is too long", answer.error["message"]
            ), where
            asked = body(api, "tool output", text) | {"truncation": "auto"}
            answer = await clients.ask(api, written(asked, rng))
            assert answer.status == 200, f"{kind}, {api}: {str(answer.body)[:300]}"
            assert code_of(answer) is None, f"{kind}, {api}: {str(answer.body)[:300]}"
