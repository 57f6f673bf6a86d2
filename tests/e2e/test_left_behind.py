"""Sockets that ended leave nothing to the collector of cyclic garbage.

It looks at what was kept for long only once an hour at most (``runtime.collection``).
"""

import asyncio
import gc
import json
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import replace

import pytest
from websockets.frames import Frame, Opcode

from sessions.wire.read_process import ReadResult
from tests.support.running_server import LOOPS, RunningServer, play

ROUNDS = 8


async def _refused_create(server: RunningServer) -> None:
    async with server.client() as client:
        create = {"type": "response.create", "previous_response_id": "resp_none", "input": "x"}
        await client.send(json.dumps(create))
        await client.recv()


async def _cut_off_in_a_turn(server: RunningServer) -> None:
    async with server.client() as client:
        await client.send(json.dumps({"type": "response.create", "input": "x"}))
        await client.recv()
        client.transport.abort()


async def _page(server: RunningServer) -> None:
    await server.http("/sessions.json")


async def _stream(server: RunningServer) -> None:
    head = f"GET /dashboard/events HTTP/1.1\r\nHost: 127.0.0.1:{server.port}\r\n\r\n"
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.write(head.encode())
    await reader.readline()
    writer.transport.abort()


async def _post(server: RunningServer) -> None:
    """A turn over HTTP whose client goes."""
    body = b'{"input":"x","stream":true}'
    head = (
        f"POST /v1/responses HTTP/1.1\r\nHost: 127.0.0.1:{server.port}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.write(head.encode() + body)
    await reader.readline()
    writer.transport.abort()


async def _reset(server: RunningServer) -> None:
    _, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.write(b"GET /he")
    writer.transport.abort()


@pytest.mark.parametrize(
    "visit", [_refused_create, _cut_off_in_a_turn, _page, _stream, _post, _reset]
)
@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_what_a_socket_had_is_gone_with_it(
    visit: Callable[[RunningServer], Awaitable[None]], loop: str
) -> None:
    async def scenario(server: RunningServer) -> None:
        async def visits(number: int) -> None:
            for _ in range(number):
                await visit(server)
            await server.until(lambda: server.server.num_sockets == 0)

        await visits(2)
        gc.collect()
        gc.disable()
        gc.garbage.clear()
        try:
            await visits(ROUNDS)
            gc.set_debug(gc.DEBUG_SAVEALL)
            gc.collect()
            left = Counter(_kind(each) for each in gc.garbage)
        finally:
            gc.set_debug(0)
            gc.garbage.clear()
            gc.enable()
        # The client's half lies in this process too; so do exceptions with their frames.
        ours = {k: n for k, n in left.items() if k.startswith("sessions.") and n >= ROUNDS}
        assert not ours
        assert "websockets.server.ServerProtocol" not in left

    play(scenario, lambda: RunningServer(real=True, real_time=True), loop)


def _kind(each: object) -> str:
    return f"{type(each).__module__}.{type(each).__qualname__}"


@pytest.mark.parametrize("loop", LOOPS)
def test_a_client_that_goes_while_much_of_it_waits_unread_is_noticed(loop: str) -> None:
    """Its end lies behind more bytes than the system holds for a server that does not read."""

    async def never(_: object) -> ReadResult:
        await asyncio.Event().wait()
        raise AssertionError

    async def scenario(server: RunningServer) -> None:
        server.hub.reading = replace(server.hub.reading, max_inline_bytes=10, read=never)
        client = await server.client()
        client.transport.write(Frame(Opcode.TEXT, b"x" * 4096).serialize(mask=True) * 8192)
        (peer,) = server.server.sockets
        await server.until(lambda: not peer.is_reading)
        client.transport.abort()
        for _ in range(5):
            server.pass_time(1.0)
            await asyncio.sleep(0.01)
        assert server.server.num_sockets == 0

    play(scenario, loop=loop)
