"""What a window that is full costs: tool loops whose transcript is several times the window.

    python -m benchmarks.context --json

One server of the shipped model with a window of 4,096 tokens for each part. A part is a loop in one
shape of compaction: ``chain`` is Responses' ``context_management``, ``trigger`` a
``compaction_trigger`` at the same threshold, ``alone`` ``POST /v1/responses/compact`` between
turns, ``resent`` ``keepwarm.context`` for a client that resends its history, ``messages`` Messages'
compaction and ``cleared`` its clearing of tool uses (in a window of 24,576, since all calls and
notes stay); ``ahead`` is a chain whose tools take two seconds and whose cuts are computed
meanwhile. ``client`` is a summary as clients ask for it, without their tools; ``bad_input`` streams
of another tenant beside a client that sends the cases of ``benchmarks.context_bad_input``.

``..._completed`` is the share of turns that did; ``..._windows`` the transcript in windows;
``..._with_task`` the share of cuts that kept the first message; ``..._hit_ratio`` the cached share
of the prompts of turns that do not cut; ``..._half_missed`` the share of turns with less than half
of their prompt cached; ``..._behind_cut`` the most of the head that stays that a turn behind a cut
computed. ``summary_over_clients`` is what a summary on the warm chain computes, over what a
client's does. ``summary_extra_tokens`` is the most that a summary computed beyond its instruction
and what its turn had to compute anyway. ``ahead_ttft_ratio`` is the time to the first token behind
a cut over that of a turn with as many new tokens behind as many (p50). ``bad_input_answered`` is
the share of the cases that were refused or bounded as they have to be, ``bad_input_gap_p50_ratio``
the widest gap between tokens (p50) beside one of them over that beside ordinary turns.

A part that fails leaves its bars open and says why among the figures.
"""

import statistics
import sys
import tempfile
import time
import urllib.error
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks import context_neighbours
from benchmarks.context_bad_input import CASES
from benchmarks.context_loops import (
    ASKED,
    BLOCK,
    CLEARED_WINDOW,
    TASK,
    THRESHOLD,
    TOOL_S,
    WINDOW,
    Loop,
    Server,
    ahead_ratio,
    alone_loop,
    chain_loop,
    client_summary,
    messages_loop,
    resent_loop,
)
from benchmarks.report import Bar, parser, report
from keepwarm.demo.child_server import ServerDidNotStart, child_server
from sessions.turns.summaries import INSTRUCTION

CLEAR = {
    "type": "clear_tool_uses_20250919",
    "trigger": {"type": "input_tokens", "value": CLEARED_WINDOW * 3 // 4},
    "clear_at_least": {"type": "input_tokens", "value": CLEARED_WINDOW // 8},
}
COMPACT = {"type": "compact_20260112", "trigger": {"type": "input_tokens", "value": THRESHOLD}}
LOOPS: dict[str, Callable[[Server, int], Loop]] = {
    "chain": chain_loop,
    "trigger": lambda server, turns: chain_loop(server, turns, triggers=True),
    "alone": alone_loop,
    "resent": resent_loop,
    "messages": lambda server, turns: messages_loop(server, turns, COMPACT),
    "cleared": lambda server, turns: messages_loop(server, turns, CLEAR),
    "ahead": lambda server, turns: chain_loop(server, turns, tool_s=TOOL_S),
}
TURNS, WINDOWS = 200, 4.0
"""Of a whole loop, and what its transcript comes to at least."""
PARTS = (*LOOPS, "client", "bad_input")
FAULTS = (OSError, ServerDidNotStart, LookupError, ValueError, AssertionError)
"""What a part that fails ends with."""


class Played:
    """What came of the parts so far."""

    def __init__(self, turns: int, threads: int, seconds: float) -> None:
        self._turns = turns
        self._threads = threads
        self._seconds = seconds
        self.figures: dict[str, Any] = {}
        self.loops: dict[str, Loop] = {}
        self.head = self.instruction = 0
        """Tokens of the head that stays, and of the question for a summary."""
        self.ratio: float | None = None
        self.client_computed: int | None = None

    def play(self, part: str) -> None:
        """One part; a failure is told among the figures."""
        begun = time.monotonic()
        try:
            if part == "bad_input":
                found = context_neighbours.measured(list(CASES), self._seconds)
                self.figures["bad_input"] = found
            else:
                self._served(part)
        except FAULTS as fault:
            body = fault.read()[:500].decode() if isinstance(fault, urllib.error.HTTPError) else ""
            self.figures.setdefault("failed", {})[part] = f"{type(fault).__name__}: {fault} {body}"
        took = {part: round(time.monotonic() - begun, 1)}
        self.figures["seconds"] = self.figures.get("seconds", {}) | took
        print(part, took[part], self.figures.get("failed", {}).get(part, ""), file=sys.stderr)

    def _served(self, part: str) -> None:
        window = CLEARED_WINDOW if part == "cleared" else WINDOW
        options = ["--max-context-tokens", str(window), "--threads", str(self._threads)]
        with (
            tempfile.TemporaryDirectory() as folder,
            child_server(options, log=Path(folder) / "log") as child,
        ):
            server = Server(child.url)
            self.head = server.count(ASKED | {"input": TASK}) - BLOCK
            self.instruction = server.count({"input": INSTRUCTION})
            if part == "client":
                self.client_computed = client_summary(server, min(30, self._turns))
                return
            loop = LOOPS[part](server, self._turns)
            if part == "ahead":
                self.ratio = ahead_ratio(server, loop)
            self.loops[part] = loop
            self.figures[part] = _figures(loop, window)


def _figures(loop: Loop, window: int) -> dict[str, Any]:
    computed = [cut["computed"] for cut in loop.cuts if cut["computed"] + cut["cached"]]
    return {
        "turns": len(loop.statuses),
        "completed": loop.statuses.count("completed"),
        "windows": round(loop.transcript / window, 2),
        "cuts": len(loop.cuts),
        "summarised": sum(cut["summarised"]["turns"] > 0 for cut in loop.cuts),
        "ahead": sum("ahead" in cut for cut in loop.cuts),
        "hit_ratio": round(loop.hit_ratio, 4),
        "half_missed": round(loop.half_missed, 4),
        "with_task": statistics.mean(loop.with_task) if loop.with_task else None,
        "summary_computed": computed,
    }


def _loop_bars(name: str, measured: Played, turns: int) -> list[Bar]:
    """Those of one loop; open where it was not played to its end."""
    loop = measured.loops.get(name)
    window = CLEARED_WINDOW if name == "cleared" else WINDOW

    def bar(what: str, op: Any, least: float, value: Callable[[Loop], float]) -> Bar:
        found = None if loop is None else value(loop)
        return Bar(name=f"{name}_{what}", value=found, op=op, bar=least)

    bars = [
        bar("completed", ">=", 1.0, lambda each: each.statuses.count("completed") / turns),
        bar("windows", ">=", WINDOWS * turns / TURNS, lambda each: each.transcript / window),
        bar("cuts", ">=", 3, lambda each: len(each.cuts)),
        bar("hit_ratio", ">=", 0.95, lambda each: each.hit_ratio),
        bar("half_missed", "<=", 0.1, lambda each: each.half_missed),
        bar("behind_cut", "<=", BLOCK, lambda each: each.not_shared(measured.head)),
    ]
    if name not in ("resent", "cleared"):  # they show nothing of what their model reads
        task = bar("with_task", ">=", 1.0, lambda each: statistics.mean(each.with_task or [0]))
        bars.append(task)
    return bars


def bars_of(measured: Played, parts: Sequence[str], turns: int) -> list[Bar]:
    """All of those parts."""
    bars = [bar for name in LOOPS if name in parts for bar in _loop_bars(name, measured, turns)]
    cuts = [cut for loop in measured.loops.values() for cut in loop.cuts]
    summaries = [cut for cut in cuts if cut["computed"] + cut["cached"]]
    if set(LOOPS) & set(parts):
        over = [cut["computed"] - cut.get("anyway", 0) for cut in summaries]
        extra = max(over) - measured.instruction if over else None
        bars.append(Bar(name="summary_extra_tokens", value=extra, op="<=", bar=2 * BLOCK))
    if "ahead" in parts:
        loop = measured.loops.get("ahead")
        ahead = None if loop is None else sum("ahead" in cut for cut in loop.cuts)
        bars += [
            Bar(name="cuts_ahead", value=ahead, op=">=", bar=3),
            Bar(name="ahead_ttft_ratio", value=measured.ratio, op="<=", bar=1.5),
        ]
    if "client" in parts:
        own, clients = [cut["computed"] for cut in summaries], measured.client_computed
        share = statistics.median(own) / clients if own and clients else None
        bars.append(Bar(name="summary_over_clients", value=share, op="<=", bar=0.05))
    if "bad_input" in parts:
        bars += context_neighbours.bars_of(measured.figures.get("bad_input", {}))
    return bars


def main(argv: list[str] | None = None) -> int:
    """Play the parts and say what they cost."""
    options = parser(__doc__)
    add = options.add_argument
    add("--turns", type=int, default=TURNS, help="of each loop")
    add("--threads", type=int, default=1, help="of the server")
    add("--seconds", type=float, default=4.0, help="of each case of bad input")
    add("--parts", nargs="+", choices=PARTS, default=PARTS, help="default: all")
    add("--small", action="store_true", help="80 turns, and half a second of bad input")
    asked = options.parse_args(argv)
    turns, seconds = (80, 0.5) if asked.small else (asked.turns, asked.seconds)
    measured = Played(turns, asked.threads, seconds)
    for part in asked.parts:
        measured.play(part)
    figures = {"turns": turns, "window": WINDOW, "instruction": measured.instruction}
    figures |= measured.figures | {"client_summary_computed": measured.client_computed}
    return report("context", figures, bars_of(measured, asked.parts, turns), as_json=asked.json)


if __name__ == "__main__":
    sys.exit(main())
