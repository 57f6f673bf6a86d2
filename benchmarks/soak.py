"""Growth of server and engine in tool loops with a fixed number of living sessions.

    python -m benchmarks.soak --json --minutes 36
    python -m benchmarks.soak --json --minutes 36 --fault-every-s 10

So many agents play turns that call a tool; a session ends after ``TURNS`` and another takes its
place. What nobody continues is kept for a ninth of the time, so that what a server keeps on purpose
stops to grow before the last third. A fault kills the engine, a probe of grammars or the reader by
turns; without faults both processes are judged, with them the server alone, since a kill makes the
engine young again.

``growth_*_mib``: of resident memory over the last third. ``early_*_mib``: since all agents had
played their tenth turn, and ``parts_*_mib`` what the parts of ``/metrics`` have grown by meanwhile.
``explained_*``: the smaller of the two over the larger; 1 where memory grew by less than the bar of
the last third, which is noise. The bars are for 36 minutes.
"""

import argparse
import asyncio
import contextlib
import itertools
import os
import re
import statistics
import tempfile
import time
import urllib.request
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson
import psutil
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import WebSocketException

from benchmarks.report import Bar, parser, report
from keepwarm.demo.child_server import ChildServer, child_server
from runtime.heap_pages import with_large_pages

OPTIONS = ["--model", "random:qwen3-tiny", "--kv-cache-mib", "64", "--threads", "1"]
OPTIONS += ["--startup-profile-ms", "0", "--startup-profile-folder", ""]
AGENTS, TURNS, TENTH = 8, 24, 10
PAUSE_S = 0.05
"""A tool takes so long."""
EVERY_S = 2.0
"""Between two looks at memory."""
WINDOW = 10
"""Looks whose median is the memory of a moment."""
MOST_MIB = {"server": 4.0, "engine": 8.0}
MIB = 1 << 20
VICTIMS = {
    "engine": "runtime.process.engine_process",
    "probe": "runtime.grammar.probe_process",
    "reader": "sessions.wire.read_process",
}
TOOL = {
    "type": "function",
    "name": "look",
    "parameters": {
        "type": "object",
        "properties": {"place": {"enum": ["desk", "lamp", "chair"]}, "n": {"type": "boolean"}},
        "required": ["place", "n"],
        "additionalProperties": False,
    },
}
TERMINAL = {"response.completed", "response.incomplete", "response.failed", "error"}
GAUGE = re.compile(
    r'^keepwarm_(memory|resident_memory)_bytes\{(?:part="(\w+)",)?process="(\w+)"\} (\S+)$', re.M
)


@dataclass(frozen=True, slots=True)
class Look:
    """Memory of one moment, MiB."""

    at_s: float
    resident: dict[str, float]
    """By process."""
    parts: dict[str, dict[str, float]]
    """By process and part."""


@dataclass(slots=True)
class Soak:
    """A server and those who use it."""

    server: ChildServer
    began_s: float
    looks: list[Look] = field(default_factory=list)
    played: list[int] = field(default_factory=lambda: [0] * AGENTS)
    """Turns of each agent."""
    failed: int = 0
    faults: int = 0

    @property
    def grown_up(self) -> bool:
        """Every agent has played its tenth turn."""
        return min(self.played) >= TENTH

    async def agent(self, number: int) -> None:
        """Session after session."""
        url = self.server.url.replace("http", "ws") + "/responses"
        for session in itertools.count():
            with contextlib.suppress(OSError, WebSocketException, TimeoutError):
                async with connect(url, compression=None, max_size=None) as client:
                    await self._session(client, number, f"agent{number}.{session}")
            await asyncio.sleep(PAUSE_S)

    async def _session(self, client: ClientConnection, number: int, name: str) -> None:
        """A tool loop; it ends early where a turn fails."""
        said: list[dict[str, Any]] = [_message(f"{name}: what is on the desk?")]
        for turn in range(TURNS):
            frame = {
                "type": "response.create",
                "input": said,
                "keepwarm": {"session": name},
                "max_output_tokens": 96,
                "tools": [TOOL],
                "tool_choice": "required" if turn % 4 else "auto",
            }
            await client.send(orjson.dumps(frame).decode())
            ended = await _terminal(client)
            if ended["type"] in ("error", "response.failed"):
                self.failed += 1
                return
            self.played[number] += 1
            calls = [each for each in ended["response"]["output"] if each["type"].endswith("_call")]
            said = [
                {
                    "type": "function_call_output",
                    "call_id": each["call_id"],
                    "output": f"{turn} " * 9,
                }
                for each in calls
            ] or [_message(f"and in turn {turn}?")]
            await asyncio.sleep(PAUSE_S)

    async def watch(self) -> None:
        """Look at memory now and then."""
        while True:
            with contextlib.suppress(OSError, ValueError):
                self.looks.append(await asyncio.to_thread(self._look))
            await asyncio.sleep(EVERY_S)

    def _look(self) -> Look:
        base = self.server.url.removesuffix("/v1")
        with urllib.request.urlopen(base + "/metrics", timeout=20) as answer:
            text = answer.read().decode()
        look = Look(time.monotonic() - self.began_s, {}, {"server": {}, "engine": {}})
        for kind, part, process, value in GAUGE.findall(text):
            if kind == "memory":
                look.parts[process][part] = float(value) / MIB
            else:
                look.resident[process] = float(value) / MIB
        return look

    async def harm(self, every_s: float) -> None:
        """Kill a child of the server's again and again."""
        for who in itertools.cycle(VICTIMS):
            await asyncio.sleep(every_s)
            for child in psutil.Process(self.server.process.pid).children():
                with contextlib.suppress(psutil.Error):
                    if VICTIMS[who] in child.cmdline():
                        child.kill()
                        self.faults += 1
                        break


def _message(text: str) -> dict[str, Any]:
    return {"type": "message", "role": "user", "content": text}


async def _terminal(client: ClientConnection) -> dict[str, Any]:
    async with asyncio.timeout(60):
        while True:
            event: dict[str, Any] = orjson.loads(await client.recv())
            if event["type"] in TERMINAL:
                return event


async def play(server: ChildServer, minutes: float, fault_every_s: float | None) -> Soak:
    """The whole of it."""
    soak = Soak(server, time.monotonic())
    tasks = [asyncio.create_task(soak.agent(number)) for number in range(AGENTS)]
    while not soak.grown_up:
        await asyncio.sleep(EVERY_S / 4)
    tasks.append(asyncio.create_task(soak.watch()))
    if fault_every_s is not None:
        tasks.append(asyncio.create_task(soak.harm(fault_every_s)))
    await asyncio.sleep(60 * minutes)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    return soak


def median(looks: list[Look], process: str, part: str | None = None) -> float:
    """Memory of a process, or of a part of it, in the middle of these looks, MiB."""
    of = [each.resident[process] if part is None else each.parts[process][part] for each in looks]
    return statistics.median(of)


def figures(soak: Soak) -> dict[str, Any]:
    """What the looks say."""
    looks, first = soak.looks, soak.looks[:WINDOW]
    third = [each for each in looks if each.at_s >= looks[-1].at_s * 2 / 3][:WINDOW]
    last = looks[-WINDOW:]
    found: dict[str, Any] = {"turns": sum(soak.played), "failed": soak.failed}
    found |= {"faults": soak.faults, "minutes": looks[-1].at_s / 60}
    for process, noise in MOST_MIB.items():
        grown = median(last, process) - median(first, process)
        parts = {
            part: round(median(last, process, part) - median(first, process, part), 2)
            for part in looks[0].parts[process]
        }
        told = sum(parts.values())
        found |= {
            f"first_{process}_mib": median(first, process),
            f"last_{process}_mib": median(last, process),
            f"growth_{process}_mib": median(last, process) - median(third, process),
            f"early_{process}_mib": grown,
            f"parts_{process}_mib": told,
            f"parts_of_{process}": parts,
            f"explained_{process}": share(grown, told, noise),
        }
    return found


def share(grown: float, told: float, noise: float) -> float:
    """How much of a growth its parts explain, or it of them where they tell more; 1 where there was
    none above the noise."""
    if abs(grown) < noise and abs(told) < noise:
        return 1.0
    if grown * told <= 0.0:
        return 0.0
    return min(abs(grown), abs(told)) / max(abs(grown), abs(told))


def options() -> argparse.ArgumentParser:
    """The command line."""
    found = parser(__doc__)
    found.add_argument("--minutes", type=float, default=36.0, help="default: %(default)s")
    found.add_argument("--fault-every-s", type=float, metavar="S", help="default: no faults")
    return found


def main() -> int:
    """Measure, print, and return the exit code."""
    given = options().parse_args()
    with tempfile.TemporaryDirectory() as name:
        os.environ["FAULT_SUITE_FORGET_S"] = f"{given.minutes * 60 / 9:g}"
        os.environ.update(with_large_pages(os.environ))  # as a server that is typed begins
        os.environ["FAULT_SUITE_REPORT"] = f"{name}/tasks"
        module = "tests.support.fault_launcher"
        with child_server(OPTIONS, log=Path(name) / "log", module=module) as server:
            soak = asyncio.run(play(server, given.minutes, given.fault_every_s))
    found = figures(soak)
    judged = ["server"] if given.fault_every_s is not None else list(MOST_MIB)
    bars = [Bar(name="turns", value=found["turns"], op=">=", bar=AGENTS * TENTH)]
    for process in judged:
        growth = found[f"growth_{process}_mib"]
        bars.append(Bar(name=f"growth_{process}_mib", value=growth, op="<=", bar=MOST_MIB[process]))
        explained = found[f"explained_{process}"]
        bars.append(Bar(name=f"explained_{process}", value=explained, op=">=", bar=0.85))
    return report("soak", found, bars, as_json=given.json)


if __name__ == "__main__":
    raise SystemExit(main())
