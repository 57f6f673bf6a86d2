"""A real server on this machine's device, and sessions with a tool that go on for some turns.

    python -m tools.gpu_server [--model NAME] [--sessions N] [--turns N]

Prints one line of JSON: turns a second, the time to a turn's first event and between events, and
how forward passes ran. A turn that fails makes the exit code 1.
"""

import argparse
import asyncio
import json
import re
import statistics
import sys
import tempfile
import time
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from keepwarm.demo.child_server import child_server
from tools_api.items import FunctionCall, FunctionCallOutput
from tools_api.sdk.answers import Response
from tools_api.sdk.client import AsyncClient
from tools_api.sdk.options import Input

_FORWARDS = re.compile(r'^keepwarm_engine_forwards_total\{outcome="(\w+)"\} (\S+)$', re.MULTILINE)
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


async def one_session(client: AsyncClient, name: str, turns: int) -> "Times":
    """A session whose every turn is a call of the tool, which is answered at once."""
    session = client.session(name=name)
    times = Times([], [])
    said: Input = _PROMPT
    for _ in range(turns):
        began = last = time.perf_counter()
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
    return times


@dataclass(frozen=True, slots=True)
class Times:
    """Seconds, of all turns of a session."""

    first_s: list[float]
    """From a turn's beginning to its first event."""
    gaps_s: list[float]
    """Between its events."""


def forwards(url: str) -> dict[str, float]:
    """How forward passes ran, by the server's own count."""
    with urllib.request.urlopen(url.removesuffix("/v1") + "/metrics") as answer:
        text = answer.read().decode()
    return {outcome: float(count) for outcome, count in _FORWARDS.findall(text)}


async def play(url: str, sessions: int, turns: int) -> dict[str, Any]:
    """All sessions side by side, on one socket."""
    began = time.perf_counter()
    async with AsyncClient(url) as client:
        played = await asyncio.gather(
            *(one_session(client, f"{sessions} sessions, {n}", turns) for n in range(sessions))
        )
    took_s = time.perf_counter() - began
    first_s = [second for times in played for second in times.first_s]
    gaps_s = [second for times in played for second in times.gaps_s]
    return {
        "sessions": sessions,
        "turns_per_s": sessions * turns / took_s,
        "first_event_p50_ms": statistics.median(first_s) * 1e3,
        "gap_p50_ms": statistics.median(gaps_s) * 1e3,
        "gap_max_ms": max(gaps_s) * 1e3,
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Serve, play 1, a quarter of and all the sessions, and print."""
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    options.add_argument("--model", default="default", metavar="NAME")
    options.add_argument("--sessions", type=int, default=16)
    options.add_argument("--turns", type=int, default=6)
    chosen = options.parse_args(arguments)
    serving = ["--model", chosen.model, "--journal", ":memory:", "--port", "0"]
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "log"
        began = time.perf_counter()
        with child_server(serving, log=log, start_timeout_s=150) as server:
            answer: dict[str, Any] = {
                "ready_s": time.perf_counter() - began,
                "ready": server.ready_line.strip(),
            }
            for sessions in sorted({1, max(1, chosen.sessions // 4), chosen.sessions}):
                figures = asyncio.run(play(server.url, sessions, chosen.turns))
                answer[f"at_{sessions}"] = figures
            answer["forwards"] = forwards(server.url)
    print(json.dumps({"model": chosen.model} | answer))
    return 0


if __name__ == "__main__":
    sys.exit(main())
