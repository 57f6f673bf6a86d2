"""A fresh connection: one request, one answer or one handshake, and nobody dawdles."""

import asyncio
import base64

import orjson
import pytest

from sessions.http_message import MAX_HEAD_BYTES
from tests.support.running_server import RunningServer, play
from tools_api.limits import Limits

HEAD = "GET {path} HTTP/1.1\r\nHost: localhost\r\n"
HANDSHAKE = (
    HEAD.format(path="/v1/responses") + "Connection: Upgrade\r\nUpgrade: websocket\r\n"
    "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: "
)
KEY = base64.b64encode(bytes(16)).decode()


def status(answer: bytes) -> int:
    return int(answer.split(b" ", 2)[1])


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_a_page_is_answered_and_the_connection_ends(loop: str) -> None:
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

    play(scenario)


def test_a_post_with_a_body_gets_its_refusal_and_not_a_reset() -> None:
    async def scenario(server: RunningServer) -> None:
        body = b"x" * 300_000
        head = f"POST /v1/responses HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}"
        answer = await server.raw(head.encode() + b"\r\n\r\n" + body)
        assert status(answer) == 405
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
        for byte in (HEAD.format(path="/healthz") + "\r\n").encode():
            writer.write(bytes([byte]))
            await writer.drain()
            await asyncio.sleep(0)
        assert status(await reader.read()) == 200
        writer.close()

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


def test_a_client_that_is_slow_with_its_head_is_cut_off() -> None:
    async def scenario(server: RunningServer) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(b"GET /healthz HTTP/1.1\r\n")
        await server.until(lambda: server.server.num_sockets == 1)
        server.pass_time(9.9)
        assert server.server.num_sockets == 1
        server.pass_time(0.1)
        with pytest.raises(ConnectionResetError):
            await reader.read()
        await server.until(lambda: server.server.num_sockets == 0)
        writer.close()

    play(scenario)


def test_a_client_that_does_not_hang_up_after_its_answer_is_cut_off() -> None:
    async def scenario(server: RunningServer) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write((HEAD.format(path="/healthz") + "\r\n").encode())
        assert status(await reader.read()) == 200
        assert server.server.num_sockets == 1
        server.pass_time(5)
        await server.until(lambda: server.server.num_sockets == 0)
        writer.close()

    play(scenario)


def test_more_connections_than_allowed_are_answered_with_503() -> None:
    async def scenario(server: RunningServer) -> None:
        async with server.client() as first, server.client() as second:
            answer = await server.http("/healthz")
            assert answer.status == 503
            assert orjson.loads(answer.body)["error"]["code"] == "server_is_overloaded"
            await first.send("say still")
            assert await first.recv() == "still"
            await second.close()
            await server.until(lambda: server.server.num_sockets == 1)
            assert (await server.http("/healthz")).status == 200

    play(scenario, lambda: RunningServer(limits=Limits(max_open_connections=2)))


def test_a_page_that_breaks_is_answered_with_500_and_says_nothing_of_the_cause() -> None:
    async def scenario(server: RunningServer) -> None:
        server.dashboard.step_finished(None)  # type: ignore[arg-type]
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
