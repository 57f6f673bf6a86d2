"""Sockets that are cut in the middle of a turn's stream, over the WebSocket and over HTTP.

``KEEPWARM_CUTS=500`` cuts more often, and longer turns; see CONTRIBUTING.md.
"""

import asyncio
import os
import random
import re
from typing import Any

import orjson
import pytest

from runtime.messages import GenerationRequest
from tests.support.running_server import RunningServer, play
from tests.support.sessions_rig import END
from tests.support.speaking_engine import SpeakingEngine

CUTS = int(os.environ.get("KEEPWARM_CUTS", "40"))
WORDS = [f"word {number} " for number in range(12 if CUTS <= 40 else 60)]
OPTIONS: dict[str, Any] = {"on_disconnect": "continue", "stats": False}
BODY: dict[str, Any] = {"input": "Say it.", "keepwarm": OPTIONS}


class SteadyEngine(SpeakingEngine):
    """A word a turn of the event loop, so that cuts come at any place of a turn."""

    def speak(self) -> None:
        request = self.waiting.popleft()
        asyncio.get_running_loop().create_task(self._speak(request))

    async def _speak(self, request: GenerationRequest) -> None:
        for word in WORDS:
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            self.piece(request, word)
        self.piece(request, "." + END, last=True)


def named(events: list[dict[str, Any]]) -> str:
    """The events with their ids numbered anew, so that two turns compare."""
    text = orjson.dumps(events).decode()
    ids: dict[str, str] = {}
    return re.sub(
        r"\b(resp|msg|sess)_\d+", lambda m: ids.setdefault(m[0], f"{m[1]}{len(ids)}"), text
    )


async def streamed(server: RunningServer, key: str, cut: int | None) -> tuple[bytes, int]:
    """The body of a streamed turn over HTTP, or what comes of its first ``cut`` bytes."""
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    body = orjson.dumps(BODY | {"stream": True, "keepwarm": OPTIONS | {"session": key}})
    head = (
        f"POST /v1/responses HTTP/1.1\r\nHost: 127.0.0.1:{server.port}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n"
        f"Idempotency-Key: {key}\r\nConnection: close\r\n\r\n"
    )
    writer.write(head.encode() + body)
    data = b""
    while cut is None or len(data) < cut:
        piece = await reader.read(65536 if cut is None else cut - len(data))
        if not piece:
            break
        data += piece
    writer.transport.abort()
    return data, len(data)


def http_events(data: bytes) -> list[dict[str, Any]]:
    """Of an answer in chunks, cut anywhere: the events that are whole."""
    _, _, rest = data.partition(b"\r\n\r\n")
    text = b""
    while b"\r\n" in rest:
        size, _, rest = rest.partition(b"\r\n")
        length = int(size or b"0", 16)
        text += rest[:length]
        rest = rest[length + 2 :]
    whole = text[: text.rfind(b"\n\n") + 2] if b"\n\n" in text else b""
    return [orjson.loads(line[6:]) for line in whole.split(b"\n") if line.startswith(b"data: ")]


@pytest.mark.parametrize("seed", [11])
def test_cuts_over_http(seed: int) -> None:
    rng = random.Random(seed)

    async def scenario(server: RunningServer) -> None:
        await streamed(server, "warms the cache", None)
        whole, num_bytes = await streamed(server, "whole", None)
        expected = named(http_events(whole))
        assert expected.count("response.completed") == 1
        for number in range(CUTS):
            key = f"key {number}"
            head, _ = await streamed(server, key, rng.randint(0, num_bytes))
            seen = http_events(head)
            again, _ = await streamed(server, key, None)
            events = http_events(again)
            assert events[: len(seen)] == seen
            assert named(events) == expected, number
        _, sessions = server.service.store.sessions()
        assert [view.turns for view in sessions] == [1] * (CUTS + 2)
        assert len(server.engine.sent_ids(GenerationRequest)) == CUTS + 2

    play(scenario, lambda: RunningServer(SteadyEngine(), real=True))


def read_frames(data: bytes) -> list[dict[str, Any]]:
    """Of bytes behind the handshake, cut anywhere: the frames that are whole."""
    frames = []
    while len(data) >= 4:
        length, start = data[1], 2
        if length == 126:
            length, start = int.from_bytes(data[2:4], "big"), 4
        if len(data) < start + length:
            break
        frames.append(orjson.loads(data[start : start + length]))
        data = data[start + length :]
    return frames


async def over_websocket(server: RunningServer, frame: dict[str, Any], cut: int | None) -> bytes:
    """What the server says to one frame, or its first ``cut`` bytes, then no socket any more."""
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.write(
        f"GET /v1/responses HTTP/1.1\r\nHost: 127.0.0.1:{server.port}\r\nUpgrade: websocket\r\n"
        "Connection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
        "Sec-WebSocket-Key: MDEyMzQ1Njc4OWFiY2RlZg==\r\n\r\n".encode()
    )
    await reader.readuntil(b"\r\n\r\n")
    payload = orjson.dumps(frame)
    assert 126 <= len(payload) < 65536
    writer.write(b"\x81\xfe" + len(payload).to_bytes(2, "big") + bytes(4) + payload)
    data = b""
    while cut is None or len(data) < cut:
        data += await reader.read(65536 if cut is None else cut - len(data))
        if cut is None and any(e["type"] == "response.completed" for e in read_frames(data)):
            break
    writer.transport.abort()
    return data


@pytest.mark.parametrize("seed", [12])
def test_cuts_over_the_websocket(seed: int) -> None:
    rng = random.Random(seed)

    def create(key: str) -> dict[str, Any]:
        options = OPTIONS | {"session": key, "request_id": key}
        return {"type": "response.create"} | BODY | {"keepwarm": options}

    async def scenario(server: RunningServer) -> None:
        await over_websocket(server, create("warms the cache"), None)
        whole = await over_websocket(server, create("whole"), None)
        expected = named(read_frames(whole))
        for number in range(CUTS):
            key = f"key {number}"
            first = await over_websocket(server, create(key), rng.randint(1, len(whole)))
            events = read_frames(first)
            if number % 2 or not events:
                again = read_frames(await over_websocket(server, create(key), None))
                events += again[len(events) :]
            elif events[-1]["type"] != "response.completed":
                wish = {"type": "keepwarm:response.resume", "request_id": key}
                wish |= {"after_sequence": len(events) - 1, "comment": "x" * 100}
                events += read_frames(await over_websocket(server, wish, None))
            assert named(events) == expected, number
        _, sessions = server.service.store.sessions()
        assert [view.turns for view in sessions] == [1] * (CUTS + 2)
        assert len(server.engine.sent_ids(GenerationRequest)) == CUTS + 2

    play(scenario, lambda: RunningServer(SteadyEngine(), real=True))


def test_the_events_of_a_response_can_be_had_again_over_http() -> None:
    async def scenario(server: RunningServer) -> None:
        whole, _ = await streamed(server, "a key", None)
        events = http_events(whole)
        path = f"/v1/responses/{events[0]['response']['id']}?stream=true"
        assert http_events(await got(server, path)) == events
        assert http_events(await got(server, path + "&starting_after=5")) == events[6:]
        assert (await server.http(path + "&starting_after=x")).status == 400
        assert (await server.http("/v1/responses/resp_none?stream=true")).status == 404

    play(scenario, lambda: RunningServer(SteadyEngine(), real=True))


async def got(server: RunningServer, path: str) -> bytes:
    head = f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1:{server.port}\r\nConnection: close\r\n\r\n"
    return await server.raw(head.encode(), ends=False)


def test_an_unstreamed_turn_that_is_asked_for_twice_is_one_turn() -> None:
    async def scenario(server: RunningServer) -> None:
        body = orjson.dumps(BODY)

        async def post(key: str, data: bytes = body) -> bytes:
            head = (
                f"POST /v1/responses HTTP/1.1\r\nHost: 127.0.0.1:{server.port}\r\n"
                f"Content-Type: application/json\r\nContent-Length: {len(data)}\r\n"
                f"Idempotency-Key: {key}\r\nConnection: close\r\n\r\n"
            )
            return await server.raw(head.encode() + data, ends=False)

        first, second = await post("one"), await post("one")
        assert first.partition(b"\r\n\r\n")[2] == second.partition(b"\r\n\r\n")[2]
        other = await post("one", orjson.dumps(BODY | {"input": "Another."}))
        assert other.startswith(b"HTTP/1.1 409 ")
        assert b"request_id_reused" in other
        keepwarm = OPTIONS | {"request_id": "two"}
        both = await post("one", orjson.dumps(BODY | {"keepwarm": keepwarm}))
        assert both.startswith(b"HTTP/1.1 400 ")
        assert len(server.engine.sent_ids(GenerationRequest)) == 1

    play(scenario, lambda: RunningServer(SteadyEngine(), real=True))
