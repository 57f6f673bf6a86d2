"""Cost of the SDK's tool loop, and the time that it saves by starting tools early.

    python -m benchmarks.tool_loop --json

A case is a model (the shipped one, which makes one call a turn, and random weights of 100M, which
make one to six at temperature 2) and a tool's duration, 50 and 200 ms. Every turn must call, and
turns with one to four calls count. The SDK's loop and a loop of raw frames
play the same turns on the same server, one after the other, with the same seeds.

``overlap_saved``: of what an oracle could save by starting read-only tools early. Both are
reckoned from one run, from when frames arrived at the socket and when tools began: without
overlap a turn's tools end at T + d, T being the arrival of the terminal event; with an oracle at
the latest of T and a_i + d, a_i being the arrival of call i's end; in truth at the latest of T
and s_i + d, s_i being the beginning of tool i. The bar is the smallest case.
``tool_loop_over_wire``: time of the SDK's loop, tools not read-only, over that of raw frames with
the same tools: the largest case, medians of rounds. ``bytes_growth``: bytes sent in a turn,
median of the last quarter of 200 turns over that of the first quarter. ``import_ratio``: CPU time
of ``from keepwarm import AsyncClient`` over that of asyncio, pydantic's ``BaseModel`` and
websockets' client, each in a fresh process, medians. ``first_client_ratio``: the same until there
is a client with a session, so that nothing is merely put off; ``first_tool_ratio``, without a bar:
until there is a tool, over the same imports and a pydantic model with its schema.
"""

import argparse
import asyncio
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal
from unittest.mock import patch

import orjson
from websockets.asyncio.client import ClientConnection, connect

from benchmarks.report import Bar, parser, report
from keepwarm import AsyncClient, Tool, ToolContext, TooManyTurns, tool
from keepwarm.demo.child_server import child_server
from tools_api.sdk.lanes import Lanes

MODELS = ("default", "random:qwen3-100m")
DURATIONS_S = (0.05, 0.2)
SERVE = ("--threads", "2", "--kv-cache-mib", "256")
PROMPT = "What is the price of desk, of lamp, and of chair?"
MAX_CALLS = 4
MAX_OUTPUT_TOKENS = 400
TERMINAL = ("response.completed", "response.incomplete", "response.failed")
Product = Literal["lamp", "desk", "chair"]
OURS = "from keepwarm import AsyncClient"
OUR_CLIENT = f"{OURS}; AsyncClient('http://127.0.0.1:1/v1').session()"
OUR_TOOL = (
    f"{OUR_CLIENT}\nfrom keepwarm import tool\n@tool\ndef get(item: str) -> str: return item\n"
)
THEIRS = (
    "import asyncio; from pydantic import BaseModel; from websockets.asyncio.client import connect"
)
THEIR_MODEL = f"{THEIRS}\nclass Item(BaseModel):\n  item: str\nItem.model_json_schema()\n"
TIMED = "import time; began = time.process_time()\n{}\nprint(time.process_time() - began)"


@dataclass(slots=True, kw_only=True)
class Arrivals:
    """When frames arrived and tools began, in one run; seconds of ``time.perf_counter``."""

    calls: list[dict[str, float]] = field(default_factory=lambda: [{}])
    """Calls of each turn: when the call with this id was complete."""
    ends: list[float] = field(default_factory=list)
    """When each turn's terminal event came."""
    begun: dict[str, float] = field(default_factory=dict)
    """When the tool of the call with this id began."""
    sent_bytes: list[int] = field(default_factory=list)
    """Bytes of each frame that was sent."""

    def saved(self, duration_s: float) -> tuple[float, float]:
        """Seconds that were saved, and that an oracle would have saved."""
        ours = oracle = 0.0
        for calls, end in zip(self.calls, self.ends, strict=False):
            if 1 <= len(calls) <= MAX_CALLS:
                plain = end + duration_s
                begun = [self.begun[call] for call in calls if call in self.begun]
                if len(begun) == len(calls):
                    ours += plain - max(end, max(begun) + duration_s)
                    oracle += plain - max(end, max(calls.values()) + duration_s)
        return ours, oracle

    def take(self, event: dict[str, Any]) -> None:
        """Note an event that has arrived."""
        now = time.perf_counter()
        if event["type"] == "response.output_item.done":
            if event["item"]["type"] == "function_call":
                self.calls[-1][event["item"]["call_id"]] = now
        elif event["type"] in TERMINAL:
            self.ends.append(now)
            self.calls.append({})


@contextmanager
def watched() -> Iterator[Arrivals]:
    """Frames that arrive at and leave the SDK's socket while the block runs."""
    seen, dispatch, post = Arrivals(), Lanes._dispatch, Lanes.post

    def noted(lanes: Lanes, event: dict[str, Any]) -> None:
        seen.take(event)
        dispatch(lanes, event)

    def counted(lanes: Lanes, frame: str) -> None:
        seen.sent_bytes.append(len(frame.encode()))
        post(lanes, frame)

    with patch.object(Lanes, "_dispatch", noted), patch.object(Lanes, "post", counted):
        yield seen


def price_tool(seen: Arrivals | None, duration_s: float, *, early: bool) -> Tool:
    """A tool that takes so long; ``early``: it is read-only."""

    @tool(read_only=early)
    async def get_price(product: Product, context: ToolContext[None]) -> dict[str, int]:
        """Get the price of a product."""
        if seen is not None:
            seen.begun[context.call_id] = time.perf_counter()
        await asyncio.sleep(duration_s)
        return {"price": 180}

    return get_price


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A server, and what is played on it."""

    url: str
    duration_s: float
    turns: int

    def options(self, seed: int) -> dict[str, Any]:
        """Options of every turn, for either loop."""
        sampling = {"sampling": {"seed": seed}}
        return {"max_output_tokens": MAX_OUTPUT_TOKENS, "temperature": 2, "keepwarm": sampling}


async def play_sdk(case: Case, seed: int, *, early: bool) -> tuple[float, Arrivals]:
    """Seconds that the SDK's loop takes for the turns, and what was seen on the way."""
    with watched() as seen:
        async with AsyncClient(case.url) as client:
            session = client.session(tools=[price_tool(seen, case.duration_s, early=early)])
            await session.warm("Hello.")
            first = Arrivals()
            seen.calls, seen.ends, seen.sent_bytes = first.calls, first.ends, first.sent_bytes
            began = time.perf_counter()
            with suppress(TooManyTurns):
                await session.run(
                    PROMPT,
                    tool_choice=lambda number: "required",
                    max_turns=case.turns,
                    **case.options(seed),
                )
            return time.perf_counter() - began, seen


async def play_raw(case: Case, seed: int) -> float:
    """Seconds that the same turns take with frames alone; its tools begin when a turn ended."""
    definition = price_tool(None, case.duration_s, early=False).definition.to_wire()
    url = case.url.replace("http", "ws", 1) + "/responses"
    async with connect(url, compression=None, max_size=None) as socket:
        common = {"type": "response.create", "tools": [definition]}
        warm = common | {"input": "Hello.", "generate": False}
        head, _ = await _raw_turn(socket, warm)
        items: Any = PROMPT
        began = time.perf_counter()
        for number in range(case.turns):
            frame = common | case.options(seed) | {"input": items, "tool_choice": "required"}
            head, calls = await _raw_turn(socket, frame | {"previous_response_id": head})
            if not calls or number + 1 == case.turns:
                break
            await asyncio.gather(*(asyncio.sleep(case.duration_s) for _ in calls))
            done = {"type": "function_call_output", "output": '{"price":180}'}
            items = [done | {"call_id": call} for call in calls]
        return time.perf_counter() - began


async def _raw_turn(socket: ClientConnection, frame: dict[str, Any]) -> tuple[str, list[str]]:
    """The response's id and the ids of its calls; none if it was cut short."""
    await socket.send(orjson.dumps(frame).decode())
    while True:
        event = orjson.loads(await socket.recv())
        if event["type"] == "error":
            raise RuntimeError(event["error"]["message"])
        if event["type"] in TERMINAL:
            response = event["response"]
            calls = [item["call_id"] for item in response["output"] if "call_id" in item]
            return response["id"], calls if response["status"] == "completed" else []


async def play_case(case: Case, rounds: int) -> dict[str, Any]:
    """Figures of one case, from rounds in which each loop plays the same turns."""
    ours = oracle = 0.0
    over_wire: list[float] = []
    counts: Counter[int] = Counter()
    for seed in range(rounds):
        _, seen = await play_sdk(case, seed, early=True)
        saved = seen.saved(case.duration_s)
        ours, oracle = ours + saved[0], oracle + saved[1]
        counts.update(len(calls) for calls in seen.calls if calls)
        raw_s = await play_raw(case, seed)
        sdk_s, _ = await play_sdk(case, seed, early=False)
        over_wire.append(sdk_s / raw_s)
    return {
        "saved_s": ours,
        "oracle_s": oracle,
        "overlap_saved": ours / oracle if oracle else None,
        "over_wire": statistics.median(over_wire),
        "turns_by_calls": {str(calls): turns for calls, turns in sorted(counts.items())},
    }


async def bytes_growth(url: str, turns: int) -> float:
    """Bytes sent in a turn at the end of a session over those at its beginning."""
    with watched() as seen:
        async with AsyncClient(url) as client:
            session = client.session(max_output_tokens=2)
            for number in range(turns):
                await session.respond(f"Say {number:05}.")
    quarter = max(turns // 4, 1)
    first, last = seen.sent_bytes[1 : quarter + 1], seen.sent_bytes[-quarter:]
    return statistics.median(last) / statistics.median(first)


def import_ratio(times: int, compiled: Path, ours: str = OURS, theirs: str = THEIRS) -> float:
    """CPU time of one program over that of another: of importing the client over that of what it
    is built on. All of it is compiled before, into that folder, as an installed package is."""
    environment = {**os.environ, "PYTHONPYCACHEPREFIX": str(compiled)}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)

    def cpu_s(statement: str) -> float:
        program = [sys.executable, "-c", TIMED.format(statement)]
        ran = subprocess.run(program, capture_output=True, text=True, check=True, env=environment)
        return float(ran.stdout)

    pairs = [(cpu_s(ours), cpu_s(theirs)) for _ in range(times + 1)][1:]
    our_s, their_s = zip(*pairs, strict=True)
    return statistics.median(our_s) / statistics.median(their_s)


def measure(options: argparse.Namespace) -> tuple[dict[str, Any], list[Bar]]:
    """All figures and the bars."""
    figures: dict[str, Any] = {}
    growth = 0.0
    with tempfile.TemporaryDirectory() as folder:
        for model in options.models:
            log = Path(folder) / "server.log"
            with child_server(["--model", model, *SERVE], log=log) as server:
                for duration_s in DURATIONS_S:
                    case = Case(url=server.url, duration_s=duration_s, turns=options.turns)
                    name = f"{model} {1000 * duration_s:.0f} ms"
                    figures[name] = asyncio.run(play_case(case, options.rounds))
                growth = max(growth, asyncio.run(bytes_growth(server.url, options.long_turns)))
        ratio = partial(import_ratio, options.imports, Path(folder) / "compiled")
        figures["bytes_growth"], figures["import_ratio"] = growth, ratio()
        figures["first_client_ratio"] = ratio(OUR_CLIENT)
        figures["first_tool_ratio"] = ratio(OUR_TOOL, THEIR_MODEL)
    cases = [figure for figure in figures.values() if isinstance(figure, dict)]
    saved = [case["overlap_saved"] for case in cases]
    return figures, [
        Bar(name="overlap_saved", value=None if None in saved else min(saved), op=">=", bar=0.8),
        Bar(
            name="tool_loop_over_wire",
            value=max(case["over_wire"] for case in cases),
            op="<=",
            bar=1.1,
        ),
        Bar(name="bytes_growth", value=growth, op="<=", bar=1.02),
        Bar(name="import_ratio", value=figures["import_ratio"], op="<=", bar=1.3),
        Bar(name="first_client_ratio", value=figures["first_client_ratio"], op="<=", bar=1.3),
    ]


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print, and return the exit code."""
    options = parser(__doc__)
    options.add_argument("--models", nargs="+", default=MODELS, metavar="MODEL")
    options.add_argument("--turns", type=int, default=6, help="of each round")
    options.add_argument("--rounds", type=int, default=5)
    options.add_argument("--long-turns", type=int, default=200, help="of bytes_growth")
    options.add_argument("--imports", type=int, default=7)
    chosen = options.parse_args(arguments)
    figures, bars = measure(chosen)
    return report("tool_loop", figures, bars, as_json=chosen.json)


if __name__ == "__main__":
    sys.exit(main())
