"""A connection: request after request, one answer or handshake each, and nobody dawdles."""

import asyncio
import base64
import contextlib
import random
import resource
import socket
from asyncio import StreamReader, StreamWriter
from collections.abc import AsyncIterator
from typing import Any

import orjson
import pytest

from sessions.http.front_door import Admission, FrontDoor
from sessions.http.message import MAX_HEAD_BYTES, HttpRequest, HttpResponse
from sessions.tenants import ApiKey
from sessions.wire.acceptor import ACCEPTED_AT_ONCE
from sessions.wire.http_body import DROPPED_BYTES
from sessions.wire.http_connection import (
    AHEAD_BYTES,
    BODY_BYTES_PER_S,
    HttpConnection,
)
from tests.support.running_server import LOOPS, RunningServer, play
from tests.support.speaking_engine import SpeakingEngine, always
from tools_api.limits import Limits

HEAD = "GET {path} HTTP/1.1\r\nHost: localhost\r\n"
HANDSHAKE = (
    HEAD.format(path="/v1/responses") + "Connection: Upgrade\r\nUpgrade: websocket\r\n"
    "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: "
)
CLOSE = "Connection: close\r\n"
KEY = base64.b64encode(bytes(16)).decode()


def status(answer: bytes) -> int:
    return int(answer.split(b" ", 2)[1])


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_a_page_is_answered_and_the_connection_ends_if_the_client_wants_that(loop: str) -> None:
    async def scenario(server: RunningServer) -> None:
        answer = await server.http("/healthz")
        assert (answer.status, answer.body) == (200, b"ok\n")
        assert answer.headers["Connection"] == "close"
        head = await server.http("/healthz", "HEAD")
        assert (head.headers["Content-Length"], head.body) == ("3", b"")

    play(scenario, loop=loop)


def test_a_request_that_is_no_http_gets_an_answer_too() -> None:
    async def scenario(server: RunningServer) -> None:
        assert status(await server.raw(b"hello\r\n\r\n")) == 400
        assert status(await server.raw(b"\x16\x03\x01\x02\r\n\r\n")) == 400
        assert status(await server.raw(b"GET / HTTP/1.0\r\n\r\n")) == 505
        assert status(await server.raw(HEAD.format(path="/healthz").encode())) == 400

    play(scenario)


def test_a_post_with_a_body_gets_its_refusal_and_not_a_reset() -> None:
    async def scenario(server: RunningServer) -> None:
        body = b"x" * 300_000
        head = f"POST /v1/responses HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}"
        answer = await server.raw(head.encode() + b"\r\n\r\n" + body)
        assert status(answer) == 415
        assert orjson.loads(answer.partition(b"\r\n\r\n")[2])["error"]["type"]

    play(scenario)


def test_a_head_of_the_allowed_size_is_read_and_a_larger_one_refused() -> None:
    async def scenario(server: RunningServer) -> None:
        frame = HEAD.format(path="/healthz") + "X: {}\r\n\r\n"
        room = MAX_HEAD_BYTES - len(frame.format(""))
        assert status(await server.raw(frame.format("x" * room).encode())) == 200
        assert status(await server.raw(frame.format("x" * (room + 1)).encode())) == 431
        assert status(await server.raw(b"G" * (MAX_HEAD_BYTES + 1))) == 431

    play(scenario)


def test_a_head_that_comes_byte_by_byte_is_read() -> None:
    async def scenario(server: RunningServer) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        for byte in (HEAD.format(path="/healthz") + CLOSE + "\r\n").encode():
            writer.write(bytes([byte]))
            await writer.drain()
            await asyncio.sleep(0)
        assert status(await reader.read()) == 200
        writer.close()

    play(scenario)


@pytest.mark.parametrize(
    ("spoil", "expected"),
    [
        (("Version: 13", "Version: 8"), 426),
        (("Connection: Upgrade", "Connection: keep-alive"), 426),
        (("Upgrade: websocket", "Upgrade: h2c"), 426),
        ((KEY, "short"), 400),
    ],
)
def test_a_handshake_that_is_refused_says_what_is_spoken(
    spoil: tuple[str, str], expected: int
) -> None:
    async def scenario(server: RunningServer) -> None:
        async with connected(server) as http:
            http.writer.write((HANDSHAKE + KEY + "\r\n\r\n").replace(*spoil).encode())
            status, headers = await http.head()
            assert status == expected
            assert (headers.get("upgrade") == "websocket") is (expected == 426)
            if "Upgrade: h2c" not in spoil:  # nobody asks for a WebSocket there
                assert headers["sec-websocket-version"] == "13"

    play(scenario)


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        (KEY + "\r\n\r\n", 101),
        ("short\r\n\r\n", 400),
        (KEY + "\r\nContent-Length: 4\r\n\r\n", 400),
    ],
)
def test_a_handshake_is_checked(lines: str, expected: int) -> None:
    async def scenario(server: RunningServer) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write((HANDSHAKE + lines).encode())
        assert status(await reader.readuntil(b"\r\n\r\n")) == expected
        writer.close()

    play(scenario)


def test_compression_is_declined() -> None:
    async def scenario(server: RunningServer) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        offer = "\r\nSec-WebSocket-Extensions: permessage-deflate\r\n\r\n"
        writer.write((HANDSHAKE + KEY + offer).encode())
        answer = await reader.readuntil(b"\r\n\r\n")
        assert status(answer) == 101
        assert b"extensions" not in answer.lower()
        writer.close()

    play(scenario)


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_a_frame_sent_together_with_the_handshake_is_not_lost(loop: str) -> None:
    async def scenario(server: RunningServer) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        masked = b"\x81\x85" + bytes(4) + b"say x"
        writer.write((HANDSHAKE + KEY + "\r\n\r\n").encode() + masked)
        await reader.readuntil(b"\r\n\r\n")
        assert await reader.readexactly(3) == b"\x81\x01x"
        writer.close()

    play(scenario, loop=loop)


def _has_begun(each: object) -> bool:
    """A part of a request's head has been read."""
    return isinstance(each, HttpConnection) and each.has_begun


def test_a_client_that_is_slow_with_its_head_is_cut_off() -> None:
    async def scenario(server: RunningServer) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(b"GET /healthz HTTP/1.1\r\n")
        await server.until(lambda: any(map(_has_begun, server.server.sockets)))
        server.pass_time(9.9)
        assert server.server.num_sockets == 1
        server.pass_time(0.1)
        assert await reader.read() == b""
        await server.until(lambda: server.server.num_sockets == 0)
        writer.close()

    play(scenario)


def test_a_client_that_does_not_hang_up_after_its_answer_is_cut_off() -> None:
    async def scenario(server: RunningServer) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write((HEAD.format(path="/healthz") + CLOSE + "\r\n").encode())
        assert status(await reader.read()) == 200
        assert server.server.num_sockets == 1
        server.pass_time(5)
        await server.until(lambda: server.server.num_sockets == 0)
        writer.close()

    play(scenario)


def test_more_connections_than_allowed_are_answered_with_503() -> None:
    async def scenario(server: RunningServer) -> None:
        async with server.client() as first, server.client() as second:
            answer = await server.http("/v1/models")
            assert answer.status == 503
            assert (await server.http("/healthz")).status == 200, "a health check is answered"
            assert orjson.loads(answer.body)["error"]["code"] == "server_is_overloaded"
            await first.send("say still")
            assert await first.recv() == "still"
            await second.close()
            await server.until(lambda: server.server.num_sockets == 1)
            assert (await server.http("/healthz")).status == 200

    play(scenario, lambda: RunningServer(limits=Limits(max_open_connections=2)))


@pytest.mark.parametrize("asked_before", ["", "/healthz"])
def test_a_tenant_at_its_bound_gets_no_further_connection_by_a_health_check(
    asked_before: str,
) -> None:
    keys = {name: f"{name}-key-0123456789" for name in ("acme", "other")}
    upgrade = {"Connection": "Upgrade", "Upgrade": "websocket", "Sec-WebSocket-Version": "13"}
    upgrade |= {"Sec-WebSocket-Key": KEY}

    async def scenario(server: RunningServer) -> None:
        async def open_beside(key: str) -> int:
            async with connected(server) as http:
                if asked_before:
                    assert await http.get(asked_before) == 200
                http.send("GET", "/v1/responses", Authorization=f"Bearer {key}", **upgrade)
                return (await http.head())[0]

        mine = {"Authorization": f"Bearer {keys['acme']}"}
        async with server.client(additional_headers=mine):
            assert await open_beside(keys["acme"]) == 503
            assert await open_beside(keys["other"]) == 101

    play(
        scenario,
        lambda: RunningServer(
            keys=[ApiKey.of(key, tenant=name) for name, key in keys.items()],
            limits=Limits(max_connections_per_tenant=1),
        ),
    )


def test_a_page_that_breaks_is_answered_with_500_and_says_nothing_of_the_cause() -> None:
    async def scenario(server: RunningServer) -> None:
        server.dashboard._stats = None  # type: ignore[assignment]
        answer = await server.http("/sessions.json")
        assert answer.status == 500
        assert b"NoneType" not in answer.body
        assert (await server.http("/healthz")).status == 200

    play(scenario)


def test_a_handshake_that_comes_during_the_end_is_refused() -> None:
    async def scenario(server: RunningServer) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(HANDSHAKE.encode())
        await server.until(lambda: server.server.num_sockets == 1)
        stopping = asyncio.get_running_loop().create_task(server.server.stop(0))
        await server.until(lambda: server.hub.draining)
        writer.write((KEY + "\r\n\r\n").encode())
        assert status(await reader.read()) == 503
        writer.close()
        await stopping
        assert server.connections == []

    play(scenario)


# Request after request


class Http:
    """A client that reads answers off one connection, as they come."""

    def __init__(self, reader: StreamReader, writer: StreamWriter) -> None:
        self._reader = reader
        self.writer = writer

    def send(self, method: str, path: str, body: bytes = b"", **headers: str) -> None:
        given = {"Host": "localhost"} | headers
        if body:
            given = {"Content-Type": "application/json", "Content-Length": str(len(body))} | given
        lines = [f"{method} {path} HTTP/1.1", *(f"{k}: {v}" for k, v in given.items())]
        self.writer.write(("\r\n".join(lines) + "\r\n\r\n").encode() + body)

    async def head(self) -> tuple[int, dict[str, str]]:
        lines = (await self._reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")[:-2]
        pairs = (line.partition(": ") for line in lines[1:])
        return int(lines[0].split()[1]), {name.lower(): value for name, _, value in pairs}

    async def answer(self) -> tuple[int, bytes]:
        status, headers = await self.head()
        if "content-length" in headers:
            return status, await self._reader.readexactly(int(headers["content-length"]))
        body = b""
        while piece := await self.piece():
            body += piece
        return status, body

    async def piece(self) -> bytes:
        size = int((await self._reader.readuntil(b"\r\n")), 16)
        return (await self._reader.readexactly(size + 2))[:-2]

    async def ended(self) -> bool:
        """The server ends the connection, and sends nothing before."""
        try:
            return not await self._reader.read()
        except ConnectionResetError:
            return True

    async def rest(self) -> bytes:
        """All that still comes; then the client ends, too."""
        rest = await self._reader.read()
        self.writer.close()
        return rest

    async def get(self, path: str) -> int:
        self.send("GET", path)
        return (await self.answer())[0]


@contextlib.asynccontextmanager
async def connected(server: RunningServer) -> AsyncIterator[Http]:
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    try:
        yield Http(reader, writer)
    finally:
        writer.transport.abort()


def json(**fields: Any) -> bytes:
    return orjson.dumps(fields)


TURN = json(model="m", input="hi")
CHUNKED = {"Transfer-Encoding": "chunked", "Content-Type": "application/json"}
POST_TURN = (
    HEAD.format(path="/v1/responses").replace("GET", "POST")
    + "Content-Type: application/json\r\nContent-Length: "
)


async def caught_up(server: RunningServer) -> None:
    """The server has read what was sent before, since it has read what is sent now."""
    async with connected(server) as other:
        for _ in range(3):
            assert await other.get("/healthz") == 200


def slow_reader(server: RunningServer) -> socket.socket:
    """A client with little room for what it does not read."""
    slow = socket.socket()
    slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    slow.connect(("127.0.0.1", server.port))
    return slow


def speaking() -> RunningServer:
    return RunningServer(SpeakingEngine())


def text_of(body: bytes) -> str:
    text = orjson.loads(body)["output"][0]["content"][0]["text"]
    assert isinstance(text, str)
    return text


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_a_connection_answers_request_after_request(loop: str) -> None:
    async def scenario(server: RunningServer) -> None:
        async with connected(server) as http:
            for _ in range(3):
                assert await http.get("/healthz") == 200
                assert await http.get("/nowhere") == 404
                http.send("POST", "/v1/responses", TURN)
                status, body = await http.answer()
                assert (status, text_of(body)) == (200, "Hello")
            assert server.server.num_sockets == 1

    play(scenario, speaking, loop)


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_a_pipeline_is_answered_in_its_order(loop: str) -> None:
    async def scenario(server: RunningServer) -> None:
        async with connected(server) as http:
            for _ in range(20):
                http.send("GET", "/healthz")
                http.send("POST", "/v1/responses", TURN)
                http.send("GET", "/nowhere")
                http.send("POST", "/v1/responses", json(model="m", input="hi", stream=True))
                http.send("POST", "/v1/responses", b"no json")
            for _ in range(20):
                found = [await http.answer() for _ in range(5)]
                assert [status for status, _ in found] == [200, 200, 404, 200, 400]
                assert text_of(found[1][1]) == "Hello"
                assert found[3][1].count(b"event: ") > 5

    play(scenario, speaking, loop)


def test_who_sends_far_ahead_of_an_answer_is_not_read_until_it_is_there() -> None:
    async def scenario(server: RunningServer) -> None:
        engine = server.engine
        assert isinstance(engine, SpeakingEngine)
        async with connected(server) as http:
            http.send("POST", "/v1/responses", TURN)
            await server.until(lambda: bool(engine.waiting))
            http.writer.get_extra_info("socket").setsockopt(
                socket.SOL_SOCKET, socket.SO_SNDBUF, AHEAD_BYTES
            )
            number = 600
            for _ in range(number):
                http.send("GET", "/healthz", X="x" * 8000)
            for _ in range(10):
                await caught_up(server)
            assert http.writer.transport.get_write_buffer_size() > 0, "all of it was taken"
            engine.speak()
            assert (await http.answer())[0] == 200
            for _ in range(number):
                assert await http.answer() == (200, b"ok\n")

    play(scenario, lambda: RunningServer(SpeakingEngine(holds=True)))


@pytest.mark.parametrize("size", [1, 1000, 100_000])
def test_a_body_in_chunks_is_put_together(size: int) -> None:
    body = json(model="m", input="x" * 300)

    async def scenario(server: RunningServer) -> None:
        async with connected(server) as http:
            http.send("POST", "/v1/responses", **CHUNKED)
            for start in range(0, len(body), size):
                piece = body[start : start + size]
                http.writer.write(b"%x\r\n%b\r\n" % (len(piece), piece))
            http.writer.write(b"0\r\n\r\n")
            status, answer = await http.answer()
            assert (status, text_of(answer)) == (200, "Hello")
            assert await http.get("/healthz") == 200

    play(scenario, speaking)


def test_a_client_that_asks_before_it_sends_its_body_is_told_to_go_on() -> None:
    async def scenario(server: RunningServer) -> None:
        async with connected(server) as http:
            length = {"Content-Length": str(len(TURN)), "Content-Type": "application/json"}
            http.send("POST", "/v1/responses", Expect="100-continue", **length)
            assert (await http.head())[0] == 100
            http.writer.write(TURN)
            assert (await http.answer())[0] == 200
            assert await http.get("/healthz") == 200

    play(scenario, speaking)


def test_a_client_that_asks_in_vain_is_refused_without_its_body() -> None:
    async def scenario(server: RunningServer) -> None:
        for path, length, expected in (("/nowhere", 5, 404), ("/v1/responses", 10**9, 413)):
            async with connected(server) as http:
                headers = {"Content-Length": str(length), "Content-Type": "application/json"}
                http.send("POST", path, Expect="100-continue", **headers)
                assert (await http.answer())[0] == expected
                assert await http.ended()

    play(scenario)


def test_a_body_of_the_allowed_size_is_read_and_a_larger_one_refused() -> None:
    limit = 200_000

    async def scenario(server: RunningServer) -> None:
        for chunked in (False, True):
            for size, expected in ((limit, 400), (limit + 1, 413)):
                async with connected(server) as http:
                    body = b"x" * size
                    if chunked:
                        http.send("POST", "/v1/responses", **CHUNKED)
                        http.writer.write(b"%x\r\n%b\r\n0\r\n\r\n" % (size, body))
                    else:
                        http.send("POST", "/v1/responses", body)
                    status, answer = await http.answer()
                    assert status == expected
                    assert orjson.loads(answer)["error"]["type"] == "invalid_request_error"
                    if expected == 400:
                        assert await http.get("/healthz") == 200
                    else:
                        assert await http.ended()

    play(scenario, lambda: RunningServer(limits=Limits(max_frame_bytes=limit)))


@pytest.mark.parametrize("bound", ["connection", "tenant", "bytes"])
def test_a_body_may_arrive_up_to_the_limit_and_one_byte_beyond_is_refused(bound: str) -> None:
    most = 20_000
    name = f"max_arriving_{bound}" if bound == "bytes" else f"max_arriving_per_{bound}"
    length = {"Content-Length": "9000", "Content-Type": "application/json"}

    async def scenario(server: RunningServer) -> None:
        account = server.server.arriving.account
        for size, expected in ((most, 400), (most + 1, 503)):
            async with connected(server) as http:
                http.send("POST", "/v1/responses", b" " * (size - 1) + b"{")
                assert (await http.answer())[0] == expected
                assert account.total == 0
        async with connected(server) as http:
            http.send("POST", "/v1/responses", **length)
            http.writer.write(b" " * 8000)
            await server.until(lambda: account.total == 8000)
        await server.until(lambda: account.total == 0)

    play(scenario, lambda: RunningServer(limits=Limits(**{name: most})))


def test_a_refused_body_is_dropped_and_the_connection_goes_on_if_it_is_not_long() -> None:
    async def scenario(server: RunningServer) -> None:
        async with connected(server) as http:
            http.send("POST", "/nowhere", b"x" * DROPPED_BYTES)
            assert (await http.answer())[0] == 404
            assert await http.get("/healthz") == 200
            http.send("POST", "/nowhere", b"x" * (DROPPED_BYTES + 1))
            assert (await http.answer())[0] == 404
            assert await http.ended()

    play(scenario)


def test_half_a_body_gets_its_answer_when_the_client_ends_and_when_time_is_up() -> None:
    async def scenario(server: RunningServer) -> None:
        async with connected(server) as http:
            http.send("POST", "/v1/responses", b"{", **{"Content-Length": "2"})
            await caught_up(server)
            http.writer.write_eof()
            assert (await http.answer())[0] == 400
            assert await http.ended()
        async with connected(server) as http:
            http.send("POST", "/v1/responses", b"{", **{"Content-Length": "2"})
            await caught_up(server)
            server.pass_time(29.9)
            server.pass_time(0.2)
            status, answer = await http.answer()
            assert status == 408
            assert orjson.loads(answer)["error"]["message"] == "The body took too long."
            assert await http.ended()

    play(scenario)


def test_a_long_body_gets_more_time_as_it_comes() -> None:
    async def scenario(server: RunningServer) -> None:
        async with connected(server) as http:
            size = 40 * BODY_BYTES_PER_S
            headers = {"Content-Length": str(size), "Content-Type": "application/json"}
            http.send("POST", "/v1/responses", **headers)
            for _ in range(4):
                http.writer.write(b"x" * (size // 4))
                await http.writer.drain()
                await server.until(lambda: not http.writer.transport.get_write_buffer_size())
                await caught_up(server)
                server.pass_time(15)
            assert (await http.answer())[0] == 400

    play(scenario)


def test_an_idle_connection_is_closed_after_its_time_and_not_before() -> None:
    async def scenario(server: RunningServer) -> None:
        async with connected(server) as http:
            assert await http.get("/healthz") == 200
            server.pass_time(74.9)
            assert await http.get("/healthz") == 200
            server.pass_time(75)
            assert await http.ended()
        await server.until(lambda: server.server.num_sockets == 0)

    play(scenario)


def test_an_empty_line_behind_a_body_begins_no_request_and_earns_no_time() -> None:
    async def scenario(server: RunningServer) -> None:
        async with connected(server) as http:
            http.writer.write(b"\r\n")
            for together in (True, False):
                http.send("POST", "/v1/responses", TURN)
                http.writer.write(b"\r\n" * together)
                assert (await http.answer())[0] == 200
                server.pass_time(70)
                http.writer.write(b"\r\n" * (not together))
                await caught_up(server)
                server.pass_time(4.9)
                assert await http.get("/healthz") == 200
            server.pass_time(60)
            http.writer.write(b"\r\n")
            await caught_up(server)
            server.pass_time(15)
            assert await http.ended()

    play(scenario, speaking)


def test_the_next_request_has_as_long_for_its_head_as_the_first() -> None:
    async def scenario(server: RunningServer) -> None:
        async with connected(server) as http:
            assert await http.get("/healthz") == 200
            http.writer.write(b"GET /healthz HTTP/1.1\r\n")
            await caught_up(server)
            await server.until(lambda: server.server.num_sockets == 1)
            server.pass_time(9.9)
            assert server.server.num_sockets == 1
            server.pass_time(0.2)
            assert await http.ended()

    play(scenario)


def test_idle_connections_give_way_to_new_ones_the_longest_idle_first() -> None:
    async def scenario(server: RunningServer) -> None:
        async with contextlib.AsyncExitStack() as stack:
            idle = []
            for _ in range(3):
                http = await stack.enter_async_context(connected(server))
                assert await http.get("/healthz") == 200
                idle.append(http)
                server.pass_time(1)
            assert await idle[0].get("/healthz") == 200
            async with connected(server) as fourth:
                assert await fourth.get("/healthz") == 200
            assert await idle[1].ended()
            assert await idle[0].get("/healthz") == 200
            assert await idle[2].get("/healthz") == 200

    play(scenario, lambda: RunningServer(limits=Limits(max_open_connections=3)))


def test_a_connection_that_waits_for_its_turn_does_not_give_way() -> None:
    async def scenario(server: RunningServer) -> None:
        engine = server.engine
        assert isinstance(engine, SpeakingEngine)
        async with connected(server) as busy:
            busy.send("POST", "/v1/responses", TURN)
            await server.until(lambda: bool(engine.waiting))
            async with connected(server) as other:
                assert await other.get("/v1/models") == 503
            engine.speak()
            assert (await busy.answer())[0] == 200

    play(
        scenario,
        lambda: RunningServer(SpeakingEngine(holds=True), limits=Limits(max_open_connections=1)),
    )


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_a_client_that_goes_away_cancels_its_turn(loop: str) -> None:
    async def scenario(server: RunningServer) -> None:
        engine = server.engine
        assert isinstance(engine, SpeakingEngine)
        for number, stream in enumerate((False, True), start=1):
            async with connected(server) as http:
                http.send("POST", "/v1/responses", json(model="m", input="hi", stream=stream))
                await server.until(lambda: bool(engine.waiting))
                engine.waiting.clear()
                http.writer.close()
                await server.until(lambda n=number: len(engine.scripted.cancelled) == n)
                await server.until(lambda: server.hub.num_connections == 0)
        await server.until(lambda: server.server.num_sockets == 0)

    play(scenario, lambda: RunningServer(SpeakingEngine(holds=True)), loop)


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_a_client_that_does_not_read_its_stream_is_cut_and_harms_no_one(loop: str) -> None:
    limits = Limits(max_unsent_bytes=200_000)

    async def scenario(server: RunningServer) -> None:
        engine = server.engine
        assert isinstance(engine, SpeakingEngine)
        slow = slow_reader(server)
        body = json(model="m", input="hi", stream=True)
        slow.sendall(f"{POST_TURN}{len(body)}\r\n\r\n".encode() + body)
        await server.until(lambda: bool(engine.waiting))
        request = engine.waiting.popleft()
        steps = 0
        async with connected(server) as other:
            while not engine.scripted.cancelled:
                if request.request_id in engine.scripted.open and steps < 3000:
                    engine.piece(request, "x")
                    steps += 1
                assert await other.get("/healthz") == 200
            assert await other.get("/healthz") == 200
        await server.until(lambda: server.server.num_sockets == 0)
        slow.close()

    play(scenario, lambda: RunningServer(SpeakingEngine(holds=True), limits=limits), loop)


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_a_client_that_takes_nothing_of_a_long_answer_is_cut_after_its_time(loop: str) -> None:
    script = always("x" * 3000 + "<|im_end|>")

    async def scenario(server: RunningServer) -> None:
        slow = slow_reader(server)
        for _ in range(200):
            slow.sendall(f"{POST_TURN}{len(TURN)}\r\n\r\n".encode() + TURN)
        await server.until(lambda: server.server.num_sockets == 1)
        (stalls,) = server.server.sockets
        assert isinstance(stalls, HttpConnection)
        await server.until(lambda: stalls.is_stalled)
        server.pass_time(59.9)
        assert server.server.num_sockets == 1
        server.pass_time(60.1)
        await server.until(lambda: server.server.num_sockets == 0)
        slow.close()

    play(scenario, lambda: RunningServer(SpeakingEngine(script)), loop)


def test_a_thousand_idle_connections_do_no_harm() -> None:
    number = 1000  # or as many as there are descriptors for, two each

    async def scenario(server: RunningServer) -> None:
        async with contextlib.AsyncExitStack() as stack:
            idle = []
            for _ in range(number):
                idle.append(await stack.enter_async_context(connected(server)))
                assert await idle[-1].get("/healthz") == 200
            assert server.server.num_sockets == number
            async with connected(server) as busy:
                for _ in range(20):
                    busy.send("POST", "/v1/responses", TURN)
                    assert (await busy.answer())[0] == 200
                server.pass_time(1)
            assert await idle[0].get("/healthz") == 200
            assert await idle[-1].get("/healthz") == 200
        await server.until(lambda: server.server.num_sockets == 0)

    allowed, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    if most != resource.RLIM_INFINITY:
        number = min(number, (most - 100) // 2)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(allowed, 2 * number + 100), most))
    play(scenario, speaking)


def test_silent_connections_keep_nobody_out_and_the_oldest_are_cut() -> None:
    limits = Limits(max_unread_connections=20, max_open_connections=5)

    async def scenario(server: RunningServer) -> None:
        async with contextlib.AsyncExitStack() as stack:
            silent = [await stack.enter_async_context(connected(server)) for _ in range(100)]
            await server.until(lambda: server.server.num_sockets == 100)
            server.pass_time(0.2)
            assert server.server.num_sockets == 100, "none had the time to speak yet"
            server.pass_time(0.1)
            await server.until(lambda: server.server.num_sockets == 20)
            for _ in range(10):
                async with connected(server) as busy:
                    assert await busy.get("/healthz") == 200
                    busy.send("POST", "/v1/responses", TURN)
                    assert (await busy.answer())[0] == 200
            assert await silent[0].ended()
            assert await silent[-1].get("/healthz") == 200

    play(scenario, lambda: RunningServer(SpeakingEngine(), limits=limits))


def test_a_burst_of_silent_connections_cuts_nobody_whose_request_has_come() -> None:
    limits = Limits(max_unread_connections=20)

    async def scenario(server: RunningServer) -> None:
        with contextlib.ExitStack() as stack:
            asking, *silent = [
                stack.enter_context(socket.create_connection(("127.0.0.1", server.port)))
                for _ in range(101)
            ]
            await server.until(lambda: server.server.num_sockets == 101)
            asking.sendall(HEAD.format(path="/healthz").encode() + b"\r\n")
            server.pass_time(1)  # in the same turn of the loop: the request is not read yet
            await server.until(lambda: server.server.num_sockets == 20)
            asking.setblocking(False)
            answer = await asyncio.get_running_loop().sock_recv(asking, 1024)
            assert answer.startswith(b"HTTP/1.1 200 ")
            assert {each.recv(1, socket.MSG_DONTWAIT) for each in silent[:81]} == {b""}

    play(scenario, lambda: RunningServer(SpeakingEngine(), limits=limits))


@pytest.mark.parametrize("loop", LOOPS)
def test_a_burst_of_connections_is_taken_in_few_turns_of_the_loop(loop: str) -> None:
    number = 12 * ACCEPTED_AT_ONCE

    async def scenario(server: RunningServer) -> None:
        with contextlib.ExitStack() as stack:
            for _ in range(number):  # the server looks at none of them meanwhile
                stack.enter_context(socket.create_connection(("127.0.0.1", server.port)))
            turns = 0
            while server.server.num_sockets < number:
                await asyncio.sleep(0)
                turns += 1
                assert turns < number // 4, server.server.num_sockets

    play(scenario, lambda: RunningServer(SpeakingEngine()), loop)


@pytest.mark.parametrize("loop", LOOPS)
def test_a_health_check_does_not_wait_behind_all_pages_of_a_tenant(
    loop: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that asks for pages over and over on many connections, from the same address."""
    number, order = 20, list[str]()
    key = "k" * 32
    page = HEAD.format(path="/sessions.json") + f"Authorization: Bearer {key}\r\n\r\n"
    answered = FrontDoor.answer

    def noting(door: FrontDoor, request: HttpRequest) -> HttpResponse | Admission:
        order.append(request.path)
        return answered(door, request)

    async def scenario(server: RunningServer) -> None:
        async with contextlib.AsyncExitStack() as stack:
            clients = []
            for _ in range(number):
                reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
                stack.callback(writer.close)
                writer.write(page.encode())
                await reader.readuntil(b"\r\n\r\n")
                clients.append(writer)
            _, probe = await asyncio.open_connection("127.0.0.1", server.port)
            stack.callback(probe.close)
            await server.until(lambda: server.server.num_sockets == number + 1)
            order.clear()
            for writer in clients:
                writer.write(page.encode())
            probe.write(HEAD.format(path="/healthz").encode() + b"\r\n")
            await server.until(lambda: len(order) == number + 1)
        assert order.index("/healthz") < number // 2, order

    def make() -> RunningServer:
        return RunningServer(keys=[ApiKey.of(key, tenant="acme", name="a")])

    monkeypatch.setattr("sessions.wire.arriving.TENANT_S", 0.0)
    monkeypatch.setattr(FrontDoor, "answer", noting)
    play(scenario, make, loop)


def test_at_the_end_idle_connections_are_closed_and_running_turns_end() -> None:
    async def scenario(server: RunningServer) -> None:
        engine = server.engine
        assert isinstance(engine, SpeakingEngine)
        async with connected(server) as idle, connected(server) as busy:
            assert await idle.get("/healthz") == 200
            busy.send("POST", "/v1/responses", TURN)
            await server.until(lambda: bool(engine.waiting))
            stopping = asyncio.get_running_loop().create_task(server.server.stop(20))
            assert await idle.ended()
            engine.speak()
            status, headers = await busy.head()
            assert (status, headers["connection"]) == (200, "close")
            await busy.rest()
            await stopping
            assert server.server.num_sockets == 0

    play(scenario, lambda: RunningServer(SpeakingEngine(holds=True)))


def test_a_flood_of_tiny_chunks_is_read_while_others_are_served() -> None:
    number = 40_000

    async def scenario(server: RunningServer) -> None:
        async with connected(server) as flooding, connected(server) as other:
            flooding.send("POST", "/v1/responses", **CHUNKED)
            flooding.writer.write(b"1\r\nx\r\n" * number + b"0\r\n\r\n")
            refused = asyncio.get_running_loop().create_task(flooding.answer())
            answers = 0
            while not refused.done():
                assert await other.get("/healthz") == 200
                answers += 1
            assert answers > 1, "the flood was handled in one go"
            assert refused.result()[0] == 400
            assert await flooding.get("/healthz") == 200

    play(scenario, lambda: RunningServer(real_time=True))


@pytest.mark.parametrize("seed", range(10))
def test_whatever_comes_is_answered_or_cut_and_harms_no_one(
    seed: int, caplog: pytest.LogCaptureFixture
) -> None:
    rng = random.Random(seed)
    whole = f"{POST_TURN}{len(TURN)}\r\n\r\n".encode() + TURN
    upgrade = (HANDSHAKE + KEY + "\r\n\r\n").encode() + b"\x81\x85" + bytes(4) + b"say x"
    pieces = [whole, upgrade, b"\r\n", b"\x00", b"\xff" * 9, b"Transfer-Encoding: chunked\r\n"]

    def mutated() -> bytes:
        data = bytearray(rng.choice(pieces) + rng.choice(pieces) + rng.choice(pieces))
        for _ in range(rng.randrange(4)):
            place = rng.randrange(len(data))
            match rng.randrange(3):
                case 0:
                    data[place] = rng.randrange(256)
                case 1:
                    del data[place : place + rng.randrange(1, 20)]
                case _:
                    data[place:place] = rng.choice(pieces)
            data = data or bytearray(b"x")
        return bytes(data)

    async def scenario(server: RunningServer) -> None:
        async with connected(server) as well:
            for _ in range(40):
                async with connected(server) as http:
                    http.writer.write(mutated())
                    await caught_up(server)
                    if rng.random() < 0.5:
                        http.writer.write_eof()
                well.send("POST", "/v1/responses", TURN)
                assert (await well.answer())[0] == 200
        await server.until(lambda: server.server.num_sockets == 0)
        await server.until(lambda: server.hub.num_connections == 0)
        assert len(server.service.store.running) == 0

    play(scenario, speaking)
    assert [record for record in caplog.records if record.levelname == "ERROR"] == []
