"""Hostile clients, each a bounded attack on one server: for the neighbours of whom they attack.

    python -m benchmarks.attacks NAME --url http://127.0.0.1:8000/v1 --key KEY --seconds 10

Each opens ``--connections`` connections on loopback, does its one bad thing over and over until the
time is over, and prints two JSON lines: one as it begins, and at the end what it did how often,
what it was answered, its own CPU time.
To be run under ``nice``, so that the attack's own computing is not what the neighbour feels. The
requests of an attack are made once and sent as bytes.
"""

import argparse
import asyncio
import json
import os
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import cache
from urllib.parse import urlsplit

from websockets.frames import Frame, Opcode

_HANDSHAKE = (
    "GET /v1/responses HTTP/1.1\r\nHost: {host}\r\nAuthorization: Bearer {key}\r\n"
    "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
    "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
)


_ENDS = (b'"type":"response.completed"', b'"type":"response.incomplete"', b'"type":"error"')
_ENDS += (b'"type":"response.failed"',)


@dataclass(slots=True)
class Target:
    """Whom to attack, and what came of it."""

    host: str
    port: int
    key: str
    until: float
    done: Counter[str] = field(default_factory=Counter)

    @property
    def over(self) -> bool:
        """The time is up."""
        return time.monotonic() >= self.until

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """A connection that has said nothing."""
        return await asyncio.open_connection(self.host, self.port)

    async def web_socket(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """One behind its handshake."""
        reader, writer = await self.connect()
        host = f"{self.host}:{self.port}"
        writer.write(_HANDSHAKE.format(host=host, key=self.key).encode())
        await reader.readuntil(b"\r\n\r\n")
        return reader, writer


def frame(fields: object) -> bytes:
    """A masked text frame of JSON."""
    return Frame(Opcode.TEXT, json.dumps(fields).encode()).serialize(mask=True)


def _create(**fields: object) -> bytes:
    return frame({"type": "response.create"} | fields)


def _message(*texts: str) -> dict[str, object]:
    parts = [{"type": "input_text", "text": text} for text in texts]
    return {"role": "user", "content": parts}


async def _send_and_read(target: Target, data: bytes) -> None:
    """Send the same frame again each time something has been answered."""
    reader, writer = await target.web_socket()
    while not target.over:
        writer.write(data)
        await writer.drain()
        target.done["sent"] += 1
        if not await reader.read(65536):
            target.done["closed"] += 1
            return


@cache
def _many_items() -> bytes:
    items = [_message("a", "b")] * 8189 + [{"role": "user", "content": [{"type": "no"}]}]
    return _create(input=items)


@cache
def _many_tools(last_name: str = "") -> bytes:
    shape = {f"p{n}": {"type": "string", "description": "words"} for n in range(350)}
    tool = {"type": "function", "parameters": {"type": "object", "properties": shape}}
    tools = [tool | {"name": f"f{n}"} for n in range(120)]
    return _create(input="hi", tools=[*tools, tool | {"name": last_name}], tool_choice="none")


def _long_header() -> bytes:
    return _many_tools("last")


@cache
def _large_schema() -> bytes:
    shape = {"ok": {"type": "boolean", "description": "w" * 250_000}}
    schema = {"type": "object", "properties": shape, "required": ["ok"]}
    schema |= {"additionalProperties": False}
    form = {"type": "json_schema", "name": "answer", "schema": schema}
    return _create(input="hi", text={"format": form}, max_output_tokens=30)


async def refused_items(target: Target) -> None:
    """8,190 messages of two parts, and a fault in the last one (F3)."""
    await _send_and_read(target, _many_items())


async def refused_tools(target: Target) -> None:
    """2.5 MiB of tools, and a fault in the last one (F3)."""
    await _send_and_read(target, _many_tools())


async def small_frames(target: Target) -> None:
    """Frames just small enough to be read in the event loop, and refused (F3)."""
    items = [{"role": "user", "content": ""}] * 250
    await _send_and_read(target, _create(input=[*items, {"role": "user", "content": 1}]))


async def unread_pings(target: Target) -> None:
    """Pings whose pongs are never read (F4)."""
    _, writer = await target.web_socket()
    pings = Frame(Opcode.PING, b"x" * 125).serialize(mask=True) * 500
    try:
        while not target.over:
            writer.write(pings)
            target.done["sent"] += 1
            await asyncio.wait_for(writer.drain(), max(target.until - time.monotonic(), 0.01))
    except TimeoutError:
        target.done["held back"] += 1


@cache
def _empty_parts() -> bytes:
    return _create(input=[_message(*[""] * 200)] * 80, max_output_tokens=4000)


async def waiting_creates(target: Target) -> None:
    """Creates of many empty parts, each behind the one before in its lane (F4)."""
    reader, writer = await target.web_socket()
    data = _empty_parts()
    answers = asyncio.create_task(_drop(reader, target))
    for _ in range(256):
        if target.over or writer.is_closing():
            break
        writer.write(data)
        target.done["sent"] += 1
        await asyncio.wait_for(writer.drain(), max(target.until - time.monotonic(), 0.01))
    while not target.over and not answers.done():
        await asyncio.sleep(0.1)
    answers.cancel()


async def _drop(reader: asyncio.StreamReader, target: Target) -> None:
    while data := await reader.read(65536):
        target.done["overloaded"] += data.count(b"server_is_overloaded")


async def silent_sockets(target: Target) -> None:
    """Thirty-two sockets that say nothing, opened again as they are cut (F5)."""
    open_ones = [await target.connect() for _ in range(32)]
    target.done["opened"] += len(open_ones)
    while not target.over:
        await asyncio.sleep(0.2)
        for number, (reader, _) in enumerate(open_ones):
            if reader.at_eof():
                target.done["cut"] += 1
                open_ones[number] = await target.connect()


async def slow_heads(target: Target) -> None:
    """A request head that comes a byte at a time (F5)."""
    reader, writer = await target.connect()
    while not target.over and not reader.at_eof() and not writer.transport.is_closing():
        writer.write(b"G")
        target.done["bytes"] += 1
        await asyncio.sleep(0.1)


async def new_grammars(target: Target) -> None:
    """Grammars nobody has seen, one after the other (F8)."""
    reader, writer = await target.web_socket()
    number = 0
    while not target.over:
        number += 1
        names = {f"p{id(writer)}_{number}_{n}": {"type": "string"} for n in range(120)}
        schema = {"type": "object", "properties": names, "additionalProperties": False}
        tool = {"type": "function", "name": "f", "parameters": schema}
        writer.write(_create(input="hi", tools=[tool], tool_choice="required", max_output_tokens=1))
        target.done["sent"] += 1
        if not await reader.read(65536):
            return


async def polls(target: Target) -> None:
    """``/sessions.json`` as fast as it is answered (F12)."""
    head = f"GET /sessions.json HTTP/1.1\r\nHost: {target.host}:{target.port}\r\n"
    request = (head + f"Authorization: Bearer {target.key}\r\n\r\n").encode()
    reader, writer = await target.connect()
    while not target.over:
        writer.write(request)
        target.done["sent"] += 1
        if not await reader.read(1 << 20):
            return


async def brackets(target: Target) -> None:
    """Sixteen thousand brackets, nested (threats: unbounded work a client controls)."""
    nested = b'{"type": "response.create", "input": ' + b"[" * 16_000 + b"]" * 16_000 + b"}"
    await _send_and_read(target, Frame(Opcode.TEXT, nested).serialize(mask=True))


async def priorities(target: Target) -> None:
    """Long turns of the highest priority whose deadlines are over at once (F2)."""
    options = {"priority": 100, "deadline_ms": 1}
    text = _long_text(target, words=40)
    data = _create(input=text, max_output_tokens=400, keepwarm=options, service_tier="priority")
    await _turns(target, data)


async def cache_flood(target: Target) -> None:
    """Long prompts that nobody has asked before, left behind as if tools were running (F11)."""
    reader, writer = await target.web_socket()
    while not target.over:
        options = {"session": _long_text(target, words=2), "expected_tool_ms": 600_000}
        text = _long_text(target, words=300)
        writer.write(_create(input=text, max_output_tokens=2, keepwarm=options))
        target.done["sent"] += 1
        if not await _ended(reader):
            return


async def log_lines(target: Target) -> None:
    """Connections that come and go: a line in the log each time (F6)."""
    while not target.over:
        _, writer = await target.web_socket()
        target.done["sent"] += 1
        writer.transport.abort()


async def partial_frames(target: Target) -> None:
    """Frames of 15 MiB that end a byte too early (bytes that are still arriving)."""
    _, writer = await target.web_socket()
    pieces, piece = 60, b" " * (1 << 18)
    length = pieces * len(piece) + 1
    writer.write(bytes((0x81, 0xFF)) + length.to_bytes(8, "big") + bytes(4))  # a mask of zeros
    try:
        for _ in range(pieces):
            writer.write(piece)
            target.done["sent"] += 1
            await asyncio.wait_for(writer.drain(), max(target.until - time.monotonic(), 0.01))
        while not target.over and not writer.is_closing():
            await asyncio.sleep(0.2)
    except TimeoutError:
        target.done["held back"] += 1


async def fragments(target: Target) -> None:
    """A message of empty fragments without an end."""
    _, writer = await target.web_socket()
    first = Frame(Opcode.TEXT, b"", fin=False).serialize(mask=True)
    more = Frame(Opcode.CONT, b"", fin=False).serialize(mask=True) * 2000
    writer.write(first)
    try:
        while not target.over and not writer.is_closing():
            writer.write(more)
            target.done["sent"] += 1
            await asyncio.wait_for(writer.drain(), max(target.until - time.monotonic(), 0.01))
    except TimeoutError:
        target.done["held back"] += 1


async def long_headers(target: Target) -> None:
    """2.5 MiB of tools, every one in order, that no context holds."""
    await _turns(target, _long_header())


async def large_echoes(target: Target) -> None:
    """Good requests with a schema of 250 KB, which each response repeats three times."""
    await _turns(target, _large_schema())


def _long_text(target: Target, words: int) -> str:
    """Text that no other call has made."""
    target.done["texts"] += 1
    number = target.done["texts"]
    return " ".join(f"{os.getpid()}-{number}-{word}" for word in range(words))


async def _turns(target: Target, data: bytes) -> None:
    """Ask for the same turn again each time it has ended."""
    reader, writer = await target.web_socket()
    while not target.over:
        writer.write(data)
        target.done["sent"] += 1
        if not await _ended(reader):
            return


async def _ended(reader: asyncio.StreamReader) -> bool:
    """Read until a turn has ended or been refused; False: the connection has."""
    last = b""
    while data := await reader.read(1 << 20):
        last = last[-64:] + data
        if any(mark in last for mark in _ENDS):
            return True
    return False


async def ordinary(target: Target) -> None:
    """No attack: ordinary turns, what the others are compared with."""
    await _turns(target, _create(input="hello", max_output_tokens=16))


ATTACKS: dict[str, Callable[[Target], Awaitable[None]]] = {
    each.__name__: each
    for each in (
        refused_items,
        refused_tools,
        small_frames,
        unread_pings,
        waiting_creates,
        silent_sockets,
        slow_heads,
        new_grammars,
        polls,
        brackets,
        priorities,
        cache_flood,
        log_lines,
        partial_frames,
        fragments,
        long_headers,
        large_echoes,
        ordinary,
    )
}


PREPARED: dict[str, Callable[[], bytes]] = {
    "refused_items": _many_items,
    "refused_tools": _many_tools,
    "waiting_creates": _empty_parts,
    "long_headers": _long_header,
    "large_echoes": _large_schema,
}
"""The attacks whose material is made before the time begins."""


async def run(name: str, target: Target, connections: int) -> dict[str, object]:
    """Make the attack from so many connections until the target's time is over."""

    async def one() -> None:
        try:
            await asyncio.wait_for(ATTACKS[name](target), target.until - time.monotonic() + 2)
        except (TimeoutError, OSError, asyncio.IncompleteReadError) as error:
            target.done[type(error).__name__] += 1

    await asyncio.gather(*(one() for _ in range(connections)))
    return {"attack": name, "cpu_s": time.process_time(), "done": dict(target.done)}


def main() -> None:
    """See the module."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("attack", choices=sorted(ATTACKS))
    options.add_argument("--url", required=True)
    options.add_argument("--key", default="")
    options.add_argument("--seconds", type=float, default=10.0)
    options.add_argument("--connections", type=int, default=64)
    asked = options.parse_args()
    os.nice(10)
    if asked.attack in PREPARED:
        PREPARED[asked.attack]()
    url = urlsplit(asked.url)
    target = Target(
        host=url.hostname or "127.0.0.1",
        port=url.port or 80,
        key=asked.key,
        until=time.monotonic() + asked.seconds,
    )
    print(json.dumps({"begun": asked.attack}), flush=True)
    print(json.dumps(asyncio.run(run(asked.attack, target, asked.connections))), flush=True)


if __name__ == "__main__":
    main()
