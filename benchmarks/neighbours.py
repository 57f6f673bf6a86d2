"""Harm to a tenant that behaves from one beside it that does not.

    python -m benchmarks.neighbours --json

A real server on loopback with two tenants. One plays two streaming turns over and over, tries a
grammar that nobody has seen, comes back to a session whose tool took a while, and asks for the
server's health; the other attacks from 64 connections, in a process of its own under ``nice``.
Each attack of ``benchmarks.attacks`` in turn (what is no client's doing, signals and broken frames
between the processes, is in ``tests/faults`` and ``tests/campaigns``); ``log_lines`` meets a server
whose log nobody reads. First come 64 connections of ordinary turns, with which the others are
compared: ``worst_gap_p50_ratio`` and ``worst_throughput_share``, in tokens a second.

``worst_gap_p99_ms`` is that of the attack that is furthest above its own run's bound (the gauge
``keepwarm_token_gap_bound_seconds``, its largest value, and 50 ms). ``victim_kept_tokens``: of the
prompt tokens that the session had left in the cache, those that it found again; it holds less than
half of its share. ``worst_new_grammar_s`` is a whole turn of one token with a new grammar.
``rss_growth_mib`` is of all the server's processes, at their largest, above what they had when the
attack began and the bytes that a tenant's open requests may hold; beside ``large_echoes``, whose
turns are stored, that its stored responses may. ``health_p99_ms`` is beside 2,048
silent sockets. Attacks on memory last ``--seconds``, the others half of it.
"""

import argparse
import asyncio
import json
import os
import re
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import numpy as np
import psutil

from benchmarks.attacks import ATTACKS
from benchmarks.report import Bar, parser, report
from benchmarks.transport_clients import WrongAnswer, create, ended, texts_of, web_socket
from keepwarm.demo.child_server import ChildServer, child_server
from sessions.tenants import ApiKey, Role
from sessions.tenants_file import key_row
from tests.support.wire_client import WireClient
from tools_api.limits import DEFAULT_LIMITS, MIB

VICTIM, HOSTILE, OPERATOR = "victim-" + "v" * 32, "hostile-" + "h" * 32, "boss-" + "b" * 32
KEYS = [
    ApiKey.of(VICTIM, tenant="victim", name="victim"),
    ApiKey.of(HOSTILE, tenant="hostile", name="hostile"),
    ApiKey.of(OPERATOR, tenant="ops", name="boss", role=Role.OPERATOR),
]
KV_MIB = 32
"""131,072 tokens of the model: half a tenant's share of two is 32,768."""
KEPT_WORDS = 700
"""Words of the kept session's prompt: some 6,200 tokens. Until it comes back the tenant's own turns
write 15,000 more on a fast processor: with less room it would push its session out by itself."""
STREAMS = 2
BASELINE = "ordinary"
SILENT = "silent_sockets"
UNREAD_LOG = "log_lines"
FOR_MEMORY = {
    "refused_items",
    "unread_pings",
    "waiting_creates",
    "partial_frames",
    "new_grammars",
    "long_headers",
    "large_echoes",
    "cache_flood",
}
STORED = "large_echoes"
HEALTH_EVERY_S, KEPT_EVERY_S, GRAMMAR_EVERY_S, LOOK_EVERY_S = 0.03, 4.0, 3.0, 0.5


@dataclass(slots=True)
class Seen:
    """The observations of the tenant that behaves in one run."""

    gaps_s: list[float] = field(default_factory=list)
    tokens: int = 0
    kept: int = 0
    expected: int = 0
    grammar_s: list[float] = field(default_factory=list)
    health_s: list[float] = field(default_factory=list)
    bounds_s: list[float] = field(default_factory=list)
    resident: list[int] = field(default_factory=list)
    lasted_s: float = 0.0

    def figures(self) -> dict[str, Any]:
        """As they are told."""
        grown = max(self.resident) - self.resident[0]
        return {
            "gap_p50_ms": _percentile(self.gaps_s, 50),
            "gap_p99_ms": _percentile(self.gaps_s, 99),
            "gap_bound_ms": 1000 * max(self.bounds_s),
            "tokens_per_s": self.tokens / self.lasted_s,
            "kept_tokens": self.kept / self.expected,
            "new_grammar_s": max(self.grammar_s),
            "health_p99_ms": _percentile(self.health_s, 99),
            "rss_growth_mib": grown / MIB,
        }


def _percentile(seconds: Sequence[float], of_hundred: float) -> float:
    """In milliseconds."""
    return 1000 * float(np.percentile(seconds, of_hundred))


class Neighbour:
    """The tenant that behaves: everything it does at once, until it is told to stop."""

    def __init__(self, server: ChildServer) -> None:
        self._url = server.url
        self._root = server.url.removesuffix("/v1")
        self._process = psutil.Process(server.process.pid)
        self._numbers = iter(range(1 << 30))
        self._seen = Seen()
        self._left: dict[str, Any] | None = None
        """The response that the kept session goes on from."""

    async def watch(self, seconds: float) -> Seen:
        """Watch for that time."""
        seen = self._seen = Seen()
        seen.resident.append(self._resident())
        begun = time.monotonic()
        until = begun + seconds
        async with asyncio.TaskGroup() as group:
            for _ in range(STREAMS):
                group.create_task(self._stream(until))
            group.create_task(self._grammars(until))
            group.create_task(self._come_back(until))
            group.create_task(self._ask_health(until))
            group.create_task(self._look(until))
        seen.lasted_s = time.monotonic() - begun
        return seen

    @asynccontextmanager
    async def _client(self) -> AsyncIterator[WireClient]:
        headers = {"Authorization": f"Bearer {VICTIM}"}
        client = await WireClient.open(
            self._url, additional_headers=headers, ping_interval=None, open_timeout=60
        )
        try:
            yield client
        finally:
            await client.close()

    async def _stream(self, until: float) -> None:
        client = await web_socket(urlsplit(self._url).port or 80, key=VICTIM)
        while time.monotonic() < until:
            text = f"say something {next(self._numbers)}"
            client.send(create(input=text, max_output_tokens=200, store=False))
            answer = await client.until(ended("ws"))
            last = json.loads(texts_of("ws", answer)[-1])
            if last["type"] not in ("response.completed", "response.incomplete"):
                raise WrongAnswer(f"the neighbour was refused: {last}")
            self._seen.gaps_s += np.diff(client.deltas_at).tolist()
            self._seen.tokens += last["response"]["usage"]["output_tokens"]
        client.close()

    async def _grammars(self, until: float) -> None:
        async with self._client() as client:
            while True:
                name = f"field_{os.getpid()}_{next(self._numbers)}"
                shape = {"type": "object", "properties": {name: {"type": "integer"}}}
                tool = {"type": "function", "name": "f", "parameters": shape}
                asked = {"tools": [tool], "tool_choice": "required", "max_output_tokens": 1}
                begun = time.monotonic()
                await client.response(input="call it", **asked)
                self._seen.grammar_s.append(time.monotonic() - begun)
                if begun + GRAMMAR_EVERY_S >= until:
                    return
                await asyncio.sleep(max(begun + GRAMMAR_EVERY_S - time.monotonic(), 0))

    async def _come_back(self, until: float) -> None:
        """One session, left and continued from the same place again and again."""
        async with self._client() as client:
            if self._left is None:
                text = " ".join(f"{os.getpid()}-{word}" for word in range(KEPT_WORDS))
                options = {"expected_tool_ms": int(1000 * KEPT_EVERY_S)}
                self._left = await client.response(
                    input=text, max_output_tokens=8, keepwarm=options
                )
            left = self._left["usage"]["input_tokens"]
            while self._seen.expected == 0 or time.monotonic() + 1 < until:
                await asyncio.sleep(max(min(KEPT_EVERY_S, until - time.monotonic() - 1), 0))
                again = await client.response(
                    input="done", previous_response_id=self._left["id"], max_output_tokens=8
                )
                cached = again["usage"]["input_tokens_details"]["cached_tokens"]
                self._seen.kept += min(cached, left)
                self._seen.expected += left

    async def _ask_health(self, until: float) -> None:
        a_socket_each = httpx.Limits(max_keepalive_connections=0)
        async with httpx.AsyncClient(timeout=60, limits=a_socket_each) as client:
            while time.monotonic() < until or not self._seen.health_s:
                begun = time.monotonic()
                (await client.get(self._root + "/healthz")).raise_for_status()
                self._seen.health_s.append(time.monotonic() - begun)
                await asyncio.sleep(HEALTH_EVERY_S)

    async def _look(self, until: float) -> None:
        """At the server's memory, and the gap between tokens that it aims at."""
        headers = {"Authorization": f"Bearer {OPERATOR}"}
        async with httpx.AsyncClient(headers=headers, timeout=60) as client:
            while time.monotonic() < until or not self._seen.bounds_s:
                page = (await client.get(self._root + "/metrics")).raise_for_status().text
                bound = re.search(r"^keepwarm_token_gap_bound_seconds (\S+)$", page, re.MULTILINE)
                assert bound is not None
                self._seen.bounds_s.append(float(bound[1]))
                self._seen.resident.append(self._resident())
                await asyncio.sleep(LOOK_EVERY_S)

    def _resident(self) -> int:
        """Resident memory of all the server's processes."""
        total = 0
        for process in (self._process, *self._process.children(recursive=True)):
            with suppress(psutil.NoSuchProcess):
                total += process.memory_info().rss
        return total

    def cpu_s(self) -> float:
        """That the server's front end has used."""
        times = self._process.cpu_times()
        return float(times.user + times.system)


async def attacked(
    neighbour: Neighbour, name: str, *, url: str, seconds: float, connections: int
) -> dict[str, Any]:
    """Figures of one attack, the attacker's own among them."""
    command = [sys.executable, "-m", "benchmarks.attacks", name, "--url", url, "--key", HOSTILE]
    command += ["--seconds", str(seconds), "--connections", str(connections)]
    attacker = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    assert attacker.stdout is not None
    try:
        await attacker.stdout.readline()  # it begins
        before = neighbour.cpu_s()
        seen = await neighbour.watch(seconds)
        front_end = (neighbour.cpu_s() - before) / seen.lasted_s
        told = json.loads(await asyncio.wait_for(attacker.stdout.readline(), seconds + 60))
        await attacker.wait()
    finally:
        if attacker.returncode is None:
            attacker.kill()
            await attacker.wait()
    return seen.figures() | {
        "front_end_cpu_share": front_end,
        "attack_cpu_s": told["cpu_s"],
        "attack_done": told["done"],
        "seconds": seen.lasted_s,
    }


@contextmanager
def served(folder: Path, *, log_is_read: bool = True) -> Iterator[ChildServer]:
    """The server; its log goes to a file, or to a pipe that nobody reads."""
    keys, log = folder / "tenants.toml", folder / ("log" if log_is_read else "unread")
    keys.write_text("".join(map(key_row, KEYS)))
    keys.chmod(0o600)
    options = ["--model", "random:qwen3-tiny", "--kv-cache-mib", str(KV_MIB), "--threads", "1"]
    with ExitStack() as stack:
        if not log_is_read:
            os.mkfifo(log)
            reader = os.open(log, os.O_RDONLY | os.O_NONBLOCK)
            stack.callback(os.close, reader)
        yield stack.enter_context(child_server([*options, "--tenants-file", str(keys)], log=log))


def measure(names: Sequence[str], *, seconds: float, connections: int) -> dict[str, Any]:
    """Figures of each attack, by name."""
    found: dict[str, Any] = {}
    for log_is_read in (True, False):
        mine = [name for name in names if (name != UNREAD_LOG) == log_is_read]
        if not mine:
            continue
        with (
            tempfile.TemporaryDirectory() as folder,
            served(Path(folder), log_is_read=log_is_read) as server,
        ):
            neighbour = Neighbour(server)
            for name in mine:
                lasts = seconds if name in FOR_MEMORY else seconds / 2
                run = attacked(
                    neighbour, name, url=server.url, seconds=lasts, connections=connections
                )
                found[name] = asyncio.run(run)
                print(name, json.dumps(found[name]), file=sys.stderr, flush=True)
    return found


def bars_of(found: dict[str, Any]) -> list[Bar]:
    """Open where nothing was measured."""
    attacks = {name: seen for name, seen in found.items() if name != BASELINE}
    ordinary = found.get(BASELINE)

    def worst(figure: str, pick: Callable[[Iterable[float]], float] = max) -> float | None:
        return pick(seen[figure] for seen in attacks.values()) if attacks else None

    def compared(figure: str, pick: Callable[[Iterable[float]], float]) -> float | None:
        value = worst(figure, pick)
        return None if value is None or ordinary is None else value / ordinary[figure]

    furthest = max(
        attacks.values(), key=lambda seen: seen["gap_p99_ms"] - seen["gap_bound_ms"], default=None
    )
    held = dict.fromkeys(attacks, DEFAULT_LIMITS.max_held_per_tenant / MIB)
    held |= {STORED: DEFAULT_LIMITS.max_stored_bytes_per_tenant / MIB}
    grown = [seen["rss_growth_mib"] - held[name] for name, seen in attacks.items()]
    silent = attacks.get(SILENT)
    return [
        Bar(
            name="worst_gap_p99_ms",
            value=None if furthest is None else furthest["gap_p99_ms"],
            op="<=",
            bar=50 + (0 if furthest is None else furthest["gap_bound_ms"]),
        ),
        Bar(name="worst_gap_p50_ratio", value=compared("gap_p50_ms", max), op="<=", bar=3),
        Bar(name="worst_throughput_share", value=compared("tokens_per_s", min), op=">=", bar=0.4),
        Bar(name="victim_kept_tokens", value=worst("kept_tokens", min), op=">=", bar=0.9),
        Bar(name="worst_new_grammar_s", value=worst("new_grammar_s"), op="<=", bar=3),
        Bar(
            name="rss_growth_mib",
            value=max(*grown, 0) if grown else None,
            op="<=",
            bar=256,
        ),
        Bar(
            name="health_p99_ms",
            value=None if silent is None else silent["health_p99_ms"],
            op="<=",
            bar=100,
        ),
    ]


def options() -> argparse.ArgumentParser:
    """The command's options."""
    found = parser(__doc__)
    found.add_argument("--seconds", type=float, default=60.0, help="of an attack on memory")
    found.add_argument("--connections", type=int, default=64, help="of the attacker")
    found.add_argument(
        "--only", action="append", choices=sorted(ATTACKS), help="this attack alone; repeatable"
    )
    found.add_argument(
        "--quick", action="store_true", help="four seconds, or two, and eight connections"
    )
    return found


def main(words: Sequence[str] | None = None) -> int:
    """Entry point; returns the exit code."""
    asked = options().parse_args(words)
    names = [BASELINE, *(name for name in ATTACKS if name != BASELINE)]
    names = [name for name in names if not asked.only or name in {BASELINE, *asked.only}]
    seconds, connections = (4.0, 8) if asked.quick else (asked.seconds, asked.connections)
    found = measure(names, seconds=seconds, connections=connections)
    figures = {"seconds": seconds, "connections": connections, "attacks": found}
    return report("neighbours", figures, bars_of(found), as_json=asked.json)


if __name__ == "__main__":
    raise SystemExit(main())
