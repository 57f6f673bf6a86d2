"""Cost of the front end per event, per idle connection, and per turn over HTTP.

    python -m benchmarks.transport --json

The front end is ``keepwarm serve`` in a process of its own; its engine is a scripted one in a
third process that speaks the real frames (``benchmarks.transport_engine``): its time is excluded
by being another process's, while reading its frames counts as the front end's. The clients are
in this process. CPU time is that of the server's process, by its own clock, which the kernel
keeps to the nanosecond, so that neither server has to be asked.

``ws_cost_per_event_*`` and ``sse_cost_per_event_64`` are CPU time per event over that of a bare
``websockets`` server in the same event loop, which sends the same texts, in the same steps, as
often and at the same pace; that the bytes are the same is checked. Both servers are measured
between the first token of the last turn and the end of the first: that is the stream, one token
for each connection and step. What a turn's beginning and end cost is told beside it (``turn_us``).
A round measures the front end and then the bare server with what it had sent; bars are medians
over the rounds.

``idle_1000_mib`` is the growth of the front end's resident memory by 1,000 connections without
a turn, WebSockets or HTTP ones that were answered once, whichever is more, each kind on a fresh
server. ``http_turn_overhead`` is the time of a whole turn of the shipped model, its real engine
behind it, over HTTP (as JSON or as a stream, whichever is longer) over that by WebSocket:
one session, all ways in turns, medians.

Linux only: it reads other processes' clocks and /proc.
"""

import argparse
import asyncio
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson
import uvloop

from benchmarks.report import Bar, parser, report
from benchmarks.transport_clients import (
    DELTA,
    Client,
    Kind,
    WrongAnswer,
    connected,
    create,
    ended,
    json_ended,
    post,
    texts_of,
    web_socket,
)
from keepwarm.demo.child_server import ChildServer, child_server

FRONT_END = "benchmarks.transport_server"
BARE = "benchmarks.transport_bare"
MANY = 1000
FEW = 64
TOKENS = 160
TOKENS_OF_MANY = 40
EDGE = 4
"""Tokens at a turn's end that are not measured."""
ROUNDS = 3
TURNS = 15
TURN_TOKENS = 24
PROMPT = "Say which day follows on Monday, and why."


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """Turns that run side by side, one for each connection."""

    kind: Kind
    connections: int
    tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """CPU time of a server under a load."""

    texts: list[list[bytes]]
    """The texts that each connection got."""
    event_us: float
    """For an event of the stream."""
    turn_us: float
    """For the beginning and the end of a turn, with what they bring."""


def cpu_s(pid: int) -> float:
    """CPU time that a process has had, by its clock (``clock_getcpuclockid`` of POSIX, which
    Linux makes of the process id like this)."""
    return time.clock_gettime((~pid << 3) | 2)


def resident_mib(pid: int) -> float:
    """Resident memory of a process."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / (1 << 20)


# Servers


@contextmanager
def front_end(folder: Path) -> Iterator[ChildServer]:
    """``keepwarm serve`` over the scripted engine."""
    with child_server((), log=folder / "front_end.log", module=FRONT_END) as server:
        yield server


@contextmanager
def bare_server(folder: Path, texts: Sequence[Sequence[bytes]]) -> Iterator[ChildServer]:
    """A server that does nothing but send ``texts``."""
    path = folder / "texts.json"
    path.write_bytes(orjson.dumps([[text.decode() for text in each] for each in texts]))
    with child_server((str(path),), log=folder / "bare.log", module=BARE) as server:
        yield server


def _port(server: ChildServer) -> int:
    return int(server.url.rpartition(":")[2].partition("/")[0])


# CPU time per event


async def measure_front_end(server: ChildServer, load: Load) -> Measured:
    """The front end under ``load``."""
    fields: dict[str, Any] = {
        "input": PROMPT,
        "max_output_tokens": load.tokens,
        "store": False,
    }
    if load.kind == "ws":
        clients = [await web_socket(_port(server)) for _ in range(load.connections)]
        question = create(**fields)
    else:
        clients = [await connected(_port(server)) for _ in range(load.connections)]
        question = post(stream=True, **fields)
    asked = [(client, question) for client in clients]
    return await _measure(server, load, clients, asked, load.kind)


async def measure_bare(server: ChildServer, load: Load, texts: list[list[bytes]]) -> Measured:
    """The bare server, which sends ``texts``. Raises WrongAnswer if others arrive."""
    clients = [await web_socket(_port(server), f"/{n}") for n in range(load.connections)]
    found = await _measure(server, load, clients, [(clients[0], create())], "ws")
    if found.texts != texts:
        raise WrongAnswer("the bare server has not sent the same bytes")
    return found


async def _measure(
    server: ChildServer,
    load: Load,
    clients: Sequence[Client],
    asked: Sequence[tuple[Client, bytes]],
    framing: Kind,
) -> Measured:
    """Ask, and read the clock before, where the stream begins, where it ends, and behind."""
    pid = server.process.pid
    marks: list[tuple[float, list[int]]] = []

    def mark() -> None:
        marks.append((cpu_s(pid), [len(client.received) for client in clients]))

    whole = ended(framing)
    began_s = cpu_s(pid)
    for client, question in asked:
        client.send(question)
    for client in clients:
        await client.until(lambda data: DELTA in data)
    mark()
    await clients[0].until(lambda data: data.count(DELTA) >= load.tokens - EDGE)
    mark()
    answers = [await client.until(whole) for client in clients]
    total_s = cpu_s(pid) - began_s
    for client in clients:
        client.close()
    (first_s, first), (last_s, last) = marks
    streamed = sum(
        len(texts_of(framing, answer[:end])) - len(texts_of(framing, answer[:begin]))
        for answer, begin, end in zip(answers, first, last, strict=True)
    )
    stream_s = last_s - first_s
    return Measured(
        texts=[texts_of(framing, answer) for answer in answers],
        event_us=1e6 * stream_s / streamed,
        turn_us=1e6 * (total_s - stream_s) / len(clients),
    )


async def cost_of(server: ChildServer, folder: Path, load: Load) -> tuple[Measured, Measured]:
    """One round: the front end, then a bare server with what it had sent."""
    ours = await measure_front_end(server, load)
    with bare_server(folder, ours.texts) as bare:
        return ours, await measure_bare(bare, load, ours.texts)


# Memory of idle connections


async def idle_mib(server: ChildServer, kind: Kind, connections: int) -> float:
    """Growth of the resident memory by so many idle connections."""
    open_one = _open_web_socket if kind == "ws" else _open_http
    clients = [await open_one(_port(server)) for _ in range(4)]
    before = resident_mib(server.process.pid)
    clients += [await open_one(_port(server)) for _ in range(connections)]
    grown = resident_mib(server.process.pid) - before
    for client in clients:
        client.close()
    return grown


async def _open_web_socket(port: int) -> Client:
    return await web_socket(port)


async def _open_http(port: int) -> Client:
    client = await connected(port)
    client.send(b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
    await client.until(json_ended)
    return client


# Turns


async def turn_s(server: ChildServer, turns: int) -> dict[str, float]:
    """Median seconds of a turn by each way."""
    fields: dict[str, Any] = {
        "input": PROMPT,
        "max_output_tokens": TURN_TOKENS,
        "keepwarm": {"session": "transport"},
    }
    port = _port(server)
    ways: dict[str, tuple[Client, bytes, Callable[[bytearray], bool]]] = {
        "ws": (await web_socket(port), create(**fields), ended("ws")),
        "sse": (await connected(port), post(stream=True, **fields), ended("sse")),
        "json": (await connected(port), post(**fields), json_ended),
    }
    times: dict[str, list[float]] = {way: [] for way in ways}
    for turn in range(turns + 2):
        for way, (client, question, whole) in ways.items():
            began_s = time.perf_counter()
            client.send(question)
            answer = await client.until(whole)
            if turn >= 2:  # the first ones fill the cache
                times[way].append(time.perf_counter() - began_s)
            if b'"error":null' not in answer:
                raise WrongAnswer(answer.decode(errors="replace")[-400:])
    for client, _, _ in ways.values():
        client.close()
    return {way: statistics.median(taken) for way, taken in times.items()}


# All of it


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """How much is measured."""

    few: int
    many: int
    idle: int
    tokens: int
    tokens_of_many: int
    rounds: int
    turns: int


async def run(sizes: Sizes, folder: Path) -> dict[str, float]:
    """All figures, the bars' among them."""
    figures: dict[str, float] = {}
    with front_end(folder) as server:
        figures["idle_ws_mib"] = await idle_mib(server, "ws", sizes.idle)
    with front_end(folder) as server:
        figures["idle_http_mib"] = await idle_mib(server, "sse", sizes.idle)
        for name, load in _loads(sizes).items():
            rounds = sizes.rounds if load.connections == sizes.few else 1
            found = [await cost_of(server, folder, load) for _ in range(rounds)]
            figures |= _costs(name, found)
    log = folder / "served.log"
    with child_server((), log=log) as server:
        taken = await turn_s(server, sizes.turns)
    figures |= {f"turn_{way}_ms": 1000 * seconds for way, seconds in taken.items()}
    figures["http_turn_overhead"] = max(taken["sse"], taken["json"]) / taken["ws"]
    figures["idle_1000_mib"] = max(figures["idle_ws_mib"], figures["idle_http_mib"])
    return figures


def _loads(sizes: Sizes) -> dict[str, Load]:
    few, many = sizes.few, sizes.many
    return {
        "ws_{}_64": Load(kind="ws", connections=few, tokens=sizes.tokens),
        "sse_{}_64": Load(kind="sse", connections=few, tokens=sizes.tokens),
        "ws_{}_1000": Load(kind="ws", connections=many, tokens=sizes.tokens_of_many),
    }


def _costs(name: str, found: Sequence[tuple[Measured, Measured]]) -> dict[str, float]:
    """Medians over the rounds. ``name`` has braces where the figure's own name goes."""
    median = statistics.median
    return {
        name.format("event_us"): median(ours.event_us for ours, _ in found),
        name.format("bare_event_us"): median(bare.event_us for _, bare in found),
        name.format("turn_us"): median(ours.turn_us for ours, _ in found),
        name.format("cost_per_event"): median(o.event_us / b.event_us for o, b in found),
    }


BARS = {
    "ws_cost_per_event_64": 4.0,
    "sse_cost_per_event_64": 5.0,
    "ws_cost_per_event_1000": 5.0,
    "idle_1000_mib": 40.0,
    "http_turn_overhead": 1.15,
}


def options() -> argparse.ArgumentParser:
    """The options of the command line."""
    words = parser(__doc__)
    words.formatter_class = argparse.RawDescriptionHelpFormatter
    add = words.add_argument
    add("--few", type=int, default=FEW, help="connections of the bars named 64")
    add("--many", type=int, default=MANY, help="connections of the bar named 1000")
    add("--idle", type=int, default=MANY, help="idle connections")
    add("--tokens", type=int, default=TOKENS, help="of a turn, few connections")
    add("--tokens-of-many", type=int, default=TOKENS_OF_MANY, help="of a turn, many connections")
    add("--rounds", type=int, default=ROUNDS, help="of the front end and the bare server")
    add("--turns", type=int, default=TURNS, help="of the shipped model by each way")
    return words


def main() -> int:
    words = options().parse_args()
    sizes = Sizes(**{name: getattr(words, name) for name in Sizes.__dataclass_fields__})
    with (
        tempfile.TemporaryDirectory() as folder,
        asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
    ):
        found = runner.run(run(sizes, Path(folder)))
    figures = {name: round(value, 2) for name, value in found.items() if name not in BARS}
    bars = [
        Bar(name=name, value=round(found[name], 3), op="<=", bar=bar) for name, bar in BARS.items()
    ]
    return report("transport", figures, bars, as_json=words.json)


if __name__ == "__main__":
    raise SystemExit(main())
