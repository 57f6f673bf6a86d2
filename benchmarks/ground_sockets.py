"""A server with few descriptors among many sockets.

    python -m benchmarks.ground_sockets --json

For each limit (``ulimit -n`` 256 and 1,024): so many sockets say nothing, others ask for the list
of models every five seconds, and who is cut off comes again. ``health_p99_ms`` of ``/healthz``,
asked for twenty times a second by a client that connects anew, ``health_lost`` of them without an
answer; ``models`` answered. Then the engine is killed: ``replaced_s`` until there is another,
``later_s`` of it above what that takes without the crowd.
"""

import argparse
import asyncio
import contextlib
import json
import os
import re
import resource
import sys
import tempfile
import time
import urllib.request
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from benchmarks.report import Bar, parser, report
from keepwarm.demo.child_server import ChildServer, child_server

OPTIONS = ["--model", "random:qwen3-tiny", "--kv-cache-mib", "16", "--threads", "1"]
OPTIONS += ["--startup-profile-ms", "0", "--startup-profile-folder", "", "--max-draft-tokens", "0"]
LIMITS = (256, 1024)
SILENT, SPEAKING = 2000, 1200
ASK_EVERY_S, HEALTH_EVERY_S = 5.0, 0.05
PATIENCE_S = 10.0
ENGINE_S = 120.0
MOST_P99_MS, MOST_LATER_S = 100.0, 2.0


HEALTH = """
import json, socket, sys, time
port, every_s, patience_s = int(sys.argv[1]), float(sys.argv[2]), float(sys.argv[3])
ask = b"GET /healthz HTTP/1.1\\r\\nHost: 127.0.0.1\\r\\nConnection: close\\r\\n\\r\\n"
told, due_s = [], time.monotonic()
while True:
    began, how = time.perf_counter(), ""
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=patience_s) as client:
            client.sendall(ask)
            answer = b""
            while part := client.recv(4096):
                answer += part
        how = "" if answer.startswith(b"HTTP/1.1 200") else repr(answer[:40])
    except OSError as error:
        how = type(error).__name__
    print(json.dumps([(time.perf_counter() - began) * 1000, how]), flush=True)
    due_s = max(due_s + every_s, time.monotonic())
    time.sleep(max(0.0, due_s - time.monotonic()))
"""
"""Asks in a process of its own, which does not wait for the crowd's."""


@dataclass(slots=True)
class Crowd:
    """Clients of one server."""

    port: int
    models: int = 0
    cut: int = 0
    """Times a client that speaks was turned away or cut off."""

    async def silent(self) -> None:
        """Connects, says nothing, and comes again a while after it is cut off."""
        while True:
            with contextlib.suppress(OSError):
                reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
                with contextlib.closing(writer):
                    await reader.read()
            await asyncio.sleep(ASK_EVERY_S)

    async def speaking(self, first_s: float) -> None:
        """Asks on one connection, or on another where that has ended."""
        await asyncio.sleep(first_s)
        while True:
            with contextlib.suppress(OSError, asyncio.IncompleteReadError, TimeoutError):
                reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
                with contextlib.closing(writer):
                    while await self._asked(reader, writer, "/v1/models", PATIENCE_S) == 200:
                        self.models += 1
                        await asyncio.sleep(ASK_EVERY_S)
            self.cut += 1
            await asyncio.sleep(ASK_EVERY_S)

    async def _asked(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, path: str, most_s: float
    ) -> int:
        """The status of an answer, which is read whole."""
        async with asyncio.timeout(most_s):
            writer.write(f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode())
            head = await reader.readuntil(b"\r\n\r\n")
            length = re.search(rb"(?i)content-length: (\d+)", head)
            await reader.readexactly(int(length[1]) if length else 0)
            return int(head.split()[1])


def _ready(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz", timeout=5) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def _engine(server: ChildServer) -> psutil.Process | None:
    for child in psutil.Process(server.process.pid).children():
        with contextlib.suppress(psutil.Error):
            if "runtime.process.engine_process" in child.cmdline():
                return child
    return None


async def _replaced_s(server: ChildServer, port: int) -> float:
    """Kill the engine; seconds until there is another that is ready."""
    engine = _engine(server)
    assert engine is not None
    engine.kill()
    began = time.monotonic()
    while time.monotonic() - began < ENGINE_S:
        other = await asyncio.to_thread(_engine, server)
        if other not in (None, engine) and await asyncio.to_thread(_ready, port):
            return time.monotonic() - began
        await asyncio.sleep(0.02)
    return float("inf")


async def play(server: ChildServer, *, share: float, seconds: float) -> dict[str, Any]:
    """One server: alone, then with a crowd of ``share``."""
    port = int(server.url.split(":")[2].split("/")[0])
    alone_s = await _replaced_s(server, port)
    crowd, many = Crowd(port), int(SPEAKING * share)
    tasks = [asyncio.create_task(crowd.silent()) for _ in range(int(SILENT * share))]
    tasks += [asyncio.create_task(crowd.speaking(ASK_EVERY_S * n / many)) for n in range(many)]
    await asyncio.sleep(ASK_EVERY_S + 1.0)  # all have come
    words = ["-S", "-c", HEALTH, str(port), str(HEALTH_EVERY_S), str(PATIENCE_S)]
    asking = await asyncio.create_subprocess_exec(
        sys.executable, *words, stdout=asyncio.subprocess.PIPE
    )
    await asyncio.sleep(seconds)
    replaced_s = await _replaced_s(server, port)
    await asyncio.sleep(1.0)
    asking.terminate()
    told, _ = await asking.communicate()
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    asked = [json.loads(line) for line in told.splitlines()]
    lost = Counter(how for _, how in asked if how)
    times = sorted(took_ms for took_ms, _ in asked)
    return {
        "health": len(times),
        "health_lost": lost.total(),
        "health_lost_to": dict(lost),
        "health_p50_ms": times[len(times) // 2],
        "health_p99_ms": times[int(len(times) * 0.99)],
        "models": crowd.models,
        "cut": crowd.cut,
        "alone_s": alone_s,
        "replaced_s": replaced_s,
        "later_s": replaced_s - alone_s,
    }


def table(
    limits: Sequence[int] = LIMITS, *, share: float = 1.0, seconds: float = 20.0
) -> list[dict[str, Any]]:
    """A row for each limit.

    Args:
        limits: descriptors that the server may have.
        share: of the crowd.
        seconds: with the crowd, before the engine is killed.
    """
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    found = []
    for limit in limits:
        os.environ["FEW_DESCRIPTORS"] = str(limit)
        with tempfile.TemporaryDirectory() as name:
            log = Path(name) / "log"
            with child_server(OPTIONS, log=log, module="tests.support.few_descriptors") as server:
                row = asyncio.run(play(server, share=share, seconds=seconds))
            lines = [line for line in log.read_text().splitlines() if " INFO " not in line]
        found.append({"limit": limit} | row | {"log_lines": len(lines)})
    return found


def options() -> argparse.ArgumentParser:
    """The command line."""
    found = parser(__doc__)
    found.add_argument("--share", type=float, default=1.0, help="of the crowd")
    found.add_argument("--seconds", type=float, default=20.0, help="default: %(default)s")
    return found


def main() -> int:
    """Measure, print, and return the exit code."""
    given = options().parse_args()
    rows = table(share=given.share, seconds=given.seconds)
    most = {"health_lost": 0.0, "health_p99_ms": MOST_P99_MS, "later_s": MOST_LATER_S}
    bars = [
        Bar(name=name, value=max(row[name] for row in rows), op="<=", bar=bar)
        for name, bar in most.items()
    ]
    return report("ground_sockets", {"rows": rows}, bars, as_json=given.json)


if __name__ == "__main__":
    raise SystemExit(main())
