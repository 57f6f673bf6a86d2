"""A real server on this machine's device, and sessions with a tool that go on for some turns.

    python -m tools.gpu_server [--model NAME] [--sessions N] [--turns N] [--fleet-s SECONDS]

Plays 1, a quarter of and all the sessions, each turn at once behind the last, then (``--fleet-s``)
a fleet of all that takes pauses as tools do and begins a new session every few turns. Kernels
are compiled from nothing, in a cache of this server's own. Prints one line of JSON: turns a second,
the time to a turn's first event and between events, how forward passes ran, and what was compiled
after the server was ready. A turn that fails makes the exit code 1.
"""

import argparse
import asyncio
import json
import math
import os
import random
import re
import statistics
import sys
import tempfile
import time
import urllib.request
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from keepwarm.demo.child_server import child_server
from tools_api.items import FunctionCall, FunctionCallOutput
from tools_api.sdk.answers import Response
from tools_api.sdk.client import AsyncClient
from tools_api.sdk.lanes import NUM_LANES
from tools_api.sdk.options import Input

_FORWARDS = re.compile(
    r'^keepwarm_engine_forwards_total\{outcome="(\w+)",step="(\w+)"\} (\S+)$', re.MULTILINE
)
_STEPS = re.compile(
    r'^keepwarm_(engine_step_\w+_bucket|token_gap_bound_seconds)(?:\{le="(\S+)"\})? (\S+)$',
    re.MULTILINE,
)
_LONG_GAP_S = 0.1
_TURNS_OF_A_SESSION = 5
_PAUSE_S = (0.05, 1.0)
_LOG_TAIL = 6000
_TOOL = {
    "type": "function",
    "name": "look_up",
    "description": "Looks a word up.",
    "parameters": {
        "type": "object",
        "properties": {"word": {"type": "string", "maxLength": 12}},
        "required": ["word"],
        "additionalProperties": False,
    },
    "strict": True,
}
_PROMPT = "Look up a word. " + "The rules of the house are long. " * 40


async def one_session(
    client: AsyncClient,
    name: str,
    turns: int,
    times: "Times",
    *,
    pauses: random.Random | None = None,
    ends: float = math.inf,
) -> None:
    """A session whose every turn is a call of the tool, which is answered at once, or with
    ``pauses`` after one; no turn begins after ``ends``. What is measured is added to ``times``."""
    session = client.session(name=name)
    said: Input = _PROMPT
    for _ in range(turns):
        if pauses is not None:
            await asyncio.sleep(pauses.uniform(*_PAUSE_S))
        began = last = time.perf_counter()
        if began > ends:
            return
        seen = False
        calls: Sequence[FunctionCall] = ()
        events = session.stream_turn(
            said, tools=[_TOOL], tool_choice="required", max_output_tokens=96
        )
        async for event in events:
            now = time.perf_counter()
            (times.gaps_s if seen else times.first_s).append(now - (last if seen else began))
            seen, last = True, now
            if isinstance(event, Response):
                calls = event.calls
        said = [FunctionCallOutput(call_id=call.call_id, output=_PROMPT) for call in calls]


@dataclass(frozen=True, slots=True)
class Times:
    """Seconds, of all turns of a session."""

    first_s: list[float]
    """From a turn's beginning to its first event."""
    gaps_s: list[float]
    """Between its events."""

    def figures(self, took_s: float) -> dict[str, Any]:
        """Figures that are printed of turns that took ``took_s`` together."""
        gaps_s = sorted(self.gaps_s)
        if not gaps_s:
            return {"turns": len(self.first_s)}
        return {
            "turns": len(self.first_s),
            "turns_per_s": len(self.first_s) / took_s,
            "first_event_p50_ms": statistics.median(self.first_s) * 1e3,
            "first_event_max_ms": max(self.first_s) * 1e3,
            "gap_p50_ms": statistics.median(gaps_s) * 1e3,
            "gap_p99_ms": gaps_s[len(gaps_s) * 99 // 100] * 1e3,
            "gap_max_ms": gaps_s[-1] * 1e3,
            "gaps_over_100_ms": sum(gap > _LONG_GAP_S for gap in gaps_s),
        }


def metrics(url: str) -> str:
    """The server's own."""
    with urllib.request.urlopen(url.removesuffix("/v1") + "/metrics") as answer:
        text: str = answer.read().decode()
    return text


def forwards(text: str) -> dict[str, float]:
    """How forward passes ran, by the server's metrics."""
    return {f"{step} {outcome}": float(count) for outcome, step, count in _FORWARDS.findall(text)}


def steps(text: str) -> dict[str, dict[str, float]]:
    """How many steps took how long, computed how many tokens of prompts, and how far their times
    were from what was predicted, by the server's metrics: a bucket's bound and its own count."""
    found: dict[str, dict[str, float]] = {}
    below: dict[str, float] = {}
    for name, bound, count in _STEPS.findall(text):
        short = name.removeprefix("engine_step_").removesuffix("_bucket")
        more = float(count) - below.get(short, 0.0)
        below[short] = float(count)
        if more:
            found.setdefault(short, {})[bound] = more
    return found


def compiled(cache: Path) -> int:
    """Kernels in a cache of Triton's."""
    return sum(1 for _ in cache.rglob("*.cubin"))


@asynccontextmanager
async def clients(url: str, sessions: int) -> AsyncIterator[list[AsyncClient]]:
    """A client for each of ``sessions``: those on one socket share its lanes."""
    async with AsyncExitStack() as stack:
        sockets = [
            await stack.enter_async_context(AsyncClient(url))
            for _ in range(-(-sessions // NUM_LANES))
        ]
        yield [sockets[number // NUM_LANES] for number in range(sessions)]


async def play(url: str, sessions: int, turns: int) -> dict[str, Any]:
    """All sessions side by side."""
    times = Times([], [])
    async with clients(url, sessions) as given:
        began = time.perf_counter()
        await asyncio.gather(
            *(
                one_session(client, f"{sessions} sessions, {n}", turns, times)
                for n, client in enumerate(given)
            )
        )
        took_s = time.perf_counter() - began
    return {"sessions": sessions} | times.figures(took_s)


async def fleet(url: str, sessions: int, seconds: float, answer: dict[str, Any]) -> None:
    """So many sessions at a time that take pauses, new ones in the place of those that end.
    ``answer`` is told also if this is ended before its time."""
    times = Times([], [])

    async def agent(client: AsyncClient, number: int, ends: float) -> None:
        pauses, played = random.Random(number), 0
        while time.perf_counter() < ends:
            name = f"agent {number}, {played}"
            await one_session(client, name, _TURNS_OF_A_SESSION, times, pauses=pauses, ends=ends)
            played += 1

    async with clients(url, sessions) as given:
        began = time.perf_counter()
        ends = began + seconds
        try:
            await asyncio.gather(*(agent(client, n, ends) for n, client in enumerate(given)))
        finally:
            took_s = time.perf_counter() - began
            answer |= {"sessions": sessions, "seconds": took_s} | times.figures(took_s)


def main(arguments: Sequence[str] | None = None) -> int:
    """Serve, play 1, a quarter of and all the sessions, and print."""
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    options.add_argument("--model", default="default", metavar="NAME")
    options.add_argument("--sessions", type=int, default=16)
    options.add_argument("--turns", type=int, default=6)
    options.add_argument("--fleet-s", type=float, default=0, metavar="SECONDS")
    chosen = options.parse_args(arguments)
    serving = ["--model", chosen.model, "--journal", ":memory:"]
    with tempfile.TemporaryDirectory() as folder:
        log, cache = Path(folder) / "log", Path(folder) / "triton"
        os.environ["TRITON_CACHE_DIR"] = str(cache)
        answer: dict[str, Any] = {"model": chosen.model}
        try:
            serve(serving, log, cache, chosen, answer)
        finally:
            print(log.read_text(encoding="utf-8")[-_LOG_TAIL:] if log.exists() else "no log")
            print(json.dumps(answer))
    return 0


def serve(
    serving: Sequence[str],
    log: Path,
    cache: Path,
    chosen: argparse.Namespace,
    answer: dict[str, Any],
) -> None:
    """Serve and play; ``answer`` holds what is known by then when something fails."""
    began = time.perf_counter()
    with child_server(serving, log=log, start_timeout_s=150) as server:
        answer["ready_s"] = time.perf_counter() - began
        answer["ready"] = server.ready_line.strip()
        answer["compiled_until_ready"] = before = compiled(cache)
        played = sorted({1, max(1, chosen.sessions // 4), chosen.sessions})
        for sessions in played if chosen.turns else ():
            answer[f"at_{sessions}"] = asyncio.run(play(server.url, sessions, chosen.turns))
            answer["forwards"] = forwards(metrics(server.url))
        if chosen.fleet_s:
            answer["fleet"] = {}
            asyncio.run(fleet(server.url, chosen.sessions, chosen.fleet_s, answer["fleet"]))
        answer["compiled_after_ready"] = compiled(cache) - before
        said = metrics(server.url)
        answer["forwards"] = counts = forwards(said)
        answer["steps"] = steps(said)
        decodes = counts["decode replayed"] + counts["decode eager"]
        answer["share_of_decodes_replayed"] = (
            counts["decode replayed"] / decodes if decodes else None
        )


if __name__ == "__main__":
    sys.exit(main())
