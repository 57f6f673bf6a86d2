"""Clients that cost the server nothing it does not owe: raw sockets that keep what they read.

A ``Client`` is one connection, of a WebSocket or of HTTP. It keeps the bytes as they come, so
that reading takes little of the machine while the server is measured; what they say is read
afterwards. Knows the two framings as far as servers use them here, and no figures.
"""

import asyncio
import json
import time
from collections.abc import Callable
from typing import Any, Literal, cast

from websockets.frames import Frame, Opcode

Kind = Literal["ws", "sse"]

DELTA = b'"type":"response.output_text.delta"'
ENDS = tuple(b'"type":"response.%b"' % name for name in (b"completed", b"incomplete", b"failed"))
LAST_BYTES = 16 * 1024
"""The last event of an answer is not longer."""
TIMEOUT_S = 60.0

_HANDSHAKE = (
    "GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
    "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
    "{more}\r\n"
)
_POST = (
    "POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
    "Content-Length: {length}\r\n\r\n"
)


class WrongAnswer(Exception):
    """A server said something else than it was to say."""


class Client(asyncio.Protocol):
    """One connection; ``received`` is what came since the last question."""

    def __init__(self) -> None:
        self.received = bytearray()
        self.deltas_at: list[float] = []
        """When text came, since the last question."""
        self._transport: asyncio.Transport | None = None
        self._waits: tuple[Callable[[bytearray], bool], asyncio.Future[None]] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self.received += data
        if DELTA in data:
            self.deltas_at.append(time.monotonic())
        if self._waits is not None and self._waits[0](self.received):
            self._waits[1].set_result(None)
            self._waits = None

    def connection_lost(self, exc: Exception | None) -> None:
        if self._waits is not None:
            self._waits[1].set_exception(WrongAnswer("the connection has ended"))
            self._waits = None

    def send(self, data: bytes) -> None:
        """Send bytes; what came before is forgotten."""
        assert self._transport is not None
        self.received.clear()
        self.deltas_at.clear()
        self._transport.write(data)

    async def until(self, come: Callable[[bytearray], bool]) -> bytes:
        """Wait until ``come`` says of what was received that it is all; returns it."""
        if not come(self.received):
            self._waits = come, asyncio.get_running_loop().create_future()
            async with asyncio.timeout(TIMEOUT_S):
                await self._waits[1]
        return bytes(self.received)

    def close(self) -> None:
        """Drop the connection."""
        if self._transport is not None:
            self._transport.abort()


async def connected(port: int) -> Client:
    """A connection that has said nothing."""
    loop = asyncio.get_running_loop()
    _, client = await loop.create_connection(Client, "127.0.0.1", port)
    return client


async def web_socket(port: int, path: str = "/v1/responses", key: str | None = None) -> Client:
    """A connection behind its handshake."""
    client = await connected(port)
    more = "" if key is None else f"Authorization: Bearer {key}\r\n"
    client.send(_HANDSHAKE.format(path=path, more=more).encode())
    head = await client.until(lambda data: b"\r\n\r\n" in data)
    if not head.startswith(b"HTTP/1.1 101 "):
        raise WrongAnswer(head.decode())
    client.received.clear()
    return client


def create(**fields: Any) -> bytes:
    """A ``response.create`` as a masked frame."""
    data = json.dumps({"type": "response.create"} | fields).encode()
    return Frame(Opcode.TEXT, data).serialize(mask=True)


def post(path: str = "/v1/responses", **fields: Any) -> bytes:
    """The same as a request over HTTP."""
    body = json.dumps(fields).encode()
    return _POST.format(path=path, length=len(body)).encode() + body


def ended(kind: Kind) -> Callable[[bytearray], bool]:
    """Says of the bytes of an answer whether its last event is there, whole."""

    def whole(data: bytearray) -> bool:
        since = max(len(data) - LAST_BYTES, 0)
        if not any(data.find(end, since) >= 0 for end in ENDS):
            return False
        if kind == "sse":
            return data.endswith(b"0\r\n\r\n")
        last = b"".join(texts_of(kind, bytes(data))[-1:])
        return any(end in last for end in ENDS)

    return whole


def json_ended(data: bytearray) -> bool:
    """Whether an answer of HTTP with its length in the head is there, whole."""
    head, _, body = data.partition(b"\r\n\r\n")
    length = head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0]
    return bool(length) and len(body) >= int(length)


def texts_of(kind: Kind, data: bytes) -> list[bytes]:
    """The whole events among the bytes of an answer: payloads of frames, or server-sent events
    with all their lines."""
    if kind == "ws":
        return _payloads(data)
    body = _chunks(data.partition(b"\r\n\r\n")[2])
    return [event + b"\n\n" for event in body.split(b"\n\n")[:-1]]


def _payloads(data: bytes) -> list[bytes]:
    found, at = [], 0
    while at + 2 <= len(data):
        length, head = data[at + 1], 2
        if length >= 126:
            head = 4 if length == 126 else 10
            length = int.from_bytes(data[at + 2 : at + head], "big")
        if at + head + length > len(data):
            break
        if data[at] == 0x81:  # whole texts; pings and the like are no events
            found.append(data[at + head : at + head + length])
        at += head + length
    return found


def _chunks(data: bytes) -> bytes:
    found, at = [], 0
    while (line := data.find(b"\r\n", at)) >= 0:
        length = int(data[at:line], 16)
        if not length or line + 2 + length > len(data):
            break
        found.append(data[line + 2 : line + 2 + length])
        at = line + 2 + length + 2
    return b"".join(found)
