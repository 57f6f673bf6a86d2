"""Words that the parts of ``benchmarks.replicas`` share: sizes, answers, a long turn, HAProxy."""

import asyncio
import contextlib
import socket
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote

from websockets.asyncio.client import ClientConnection, connect

from benchmarks.report import Bar
from cluster.haproxy import Haproxy, find_program
from cluster.haproxy_file import Listening, text
from cluster.membership import Seen, plan
from keepwarm import AsyncClient, AsyncSession, Response, TextDelta, TurnRestarted
from sessions.journal.members import Member, MemberState, Presence
from tests.support.clusters import Cluster

OPTIONS = ["--threads", "1", "--kv-cache-mib", "64", "--dtype", "float32"]
SHORT: dict[str, Any] = {"max_output_tokens": 16, "temperature": 0}
_TEXT = {"type": "string", "minLength": 600, "maxLength": 600}
_SHAPE = {"type": "object", "properties": {"text": _TEXT}, "required": ["text"]}
LONG: dict[str, Any] = {
    "text": {"format": {"type": "json_schema", "name": "long", "schema": _SHAPE}},
    "max_output_tokens": 1500,
    "temperature": 0,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """How much of each is done."""

    replicas: int = 4
    sessions: int = 24
    turns: int = 6
    roots: int = 60
    kills: int = 20
    stalls: int = 10
    moved: int = 50
    echoes: int = 2000
    quota_s: float = 180.0
    ray_kills: int = 10
    updated: int = 16
    """Sessions that are there as every server is replaced."""


SMALL = Sizes(
    replicas=2,
    sessions=4,
    turns=3,
    roots=8,
    kills=2,
    stalls=1,
    moved=4,
    echoes=200,
    quota_s=20.0,
    ray_kills=2,
    updated=4,
)


@dataclass(slots=True)
class Answer:
    """Figures by name, and the bars that they have."""

    figures: dict[str, Any] = field(default_factory=dict)
    bars: list[Bar] = field(default_factory=list)

    def bar(self, name: str, value: float, op: Any, bar: float) -> None:
        self.figures[name] = value
        self.bars.append(Bar(name=name, value=value, op=op, bar=bar))


def client(url: str, key: str = "") -> AsyncClient:
    return AsyncClient(url, api_key=key, sockets="session")


async def told(session: AsyncSession, runs: asyncio.Event) -> tuple[Response, float, int]:
    """A long turn's end, the longest silence in it, and how often it began again."""
    silent_s, restarts, at = 0.0, 0, time.monotonic()
    async for event in session.stream_turn("go on", **LONG):
        silent_s, at = max(silent_s, time.monotonic() - at), time.monotonic()
        restarts += isinstance(event, TurnRestarted)
        if isinstance(event, TextDelta):
            runs.set()
    assert isinstance(event, Response)
    return event, silent_s, restarts


@contextlib.asynccontextmanager
async def open_sockets(url: str, count: int, name: str) -> AsyncIterator[list[ClientConnection]]:
    """So many that say nothing, each of a session of its own."""
    address = url.replace("http://", "ws://") + "/responses"
    async with contextlib.AsyncExitStack() as stack:
        yield [
            await stack.enter_async_context(connect(f"{address}?session={quote(f'{name} {n}')}"))
            for n in range(count)
        ]


def num_cut(opened: Sequence[ClientConnection]) -> int:
    """How many are not open any more."""
    return sum(each.close_code is not None for each in opened)


def replace_dead(cluster: Cluster, sizes: Sizes, *options: str) -> None:
    """As many servers that are ready as there were."""
    for dead in [each for each in cluster.replicas if not each.lives]:
        dead.end()
        cluster.replicas.remove(dead)
    while len(cluster.replicas) < sizes.replicas:
        cluster.start(*options, log=f"later {time.monotonic()}")
    cluster.until(lambda: all(map(cluster.serves, cluster.replicas)), "all serve")


@contextlib.contextmanager
def haproxy_before(
    addresses: Sequence[str], write: Callable[[Listening], str] = text
) -> Iterator[int]:
    """An HAProxy with these servers in its slots; its port."""
    with tempfile.TemporaryDirectory(prefix="keepwarm-hp-", dir="/tmp") as folder:
        port = free_port()
        haproxy = Haproxy(find_program(None), Path(folder), bind=f"127.0.0.1:{port}", write=write)
        haproxy.take()
        try:
            seen = [
                Seen(member=Member(owner=each, heartbeat_ms=1, presence=present(each)), fresh=True)
                for each in addresses
            ]
            for step in plan("replicas", seen, haproxy.socket.slots("replicas")).steps:
                for command in step.commands:
                    haproxy.socket.do(command)
            yield port
        finally:
            haproxy.end()


def present(address: str) -> Presence:
    return Presence(cluster="c", address=address, identity="m", state=MemberState.READY)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as found:
        return int(found.getsockname()[1])
