"""Cost of an open dashboard, with a hundred sessions and with ten thousand.

    python -m benchmarks.dashboard --json

A real server on a loopback port whose engine is silent: sessions and their turns are told to it
directly, some of them anew every second, as a busy server's would be. ``rows`` are those in the
page. ``script_ms_per_update`` is the time of scripts on the page's main thread for each update,
from the browser's trace; style and layout are told beside it. ``loop_ms_per_update`` is the
server's CPU time for one update of one page, the worst of several lists (plain, searched, filtered,
sorted), mean over updates
a second apart. ``bytes_growth`` is the bytes of an update with ten thousand
sessions over those with a hundred. Needs ``chromium``; without it the page's bars have no value.

``--parts journal`` (not without being asked for: some twelve minutes) has the lists and the sums of
a journal of 100,000 sessions over thirteen months, in every store: ``stored_months``. ``gaps`` are
those between the tokens of running turns with a page open and without: ``open_page``.
"""

import argparse
import asyncio
import json
import random
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks import open_page, stored_months
from benchmarks.report import Bar, parser, report
from sessions.durable.ledger import TurnReport, TurnUsage
from sessions.durable.miss_reasons import Miss, MissReason
from sessions.pages.event_stream import changes
from sessions.pages.session_list import ListQuery
from sessions.pages.views import Views, Wish
from sessions.tenants import Principal, Role
from tests.support.running_server import RunningServer
from tools.screenshots import browser, chromium, opened

PARTS = ("page", "gaps", "journal")
MANY, FEW = 10_000, 100
CHANGED = 20
"""Sessions with a turn between two updates."""
OPERATOR = Principal(tenant="default", role=Role.OPERATOR)
LISTS = {
    "plain": ListQuery(),
    "searched": ListQuery(search="77"),
    "filtered": ListQuery(several=True, failed=True),
    "sorted": ListQuery(sort="cost"),
    "worst": ListQuery(sort="missed", several=True),
}
SCRIPT = {"FunctionCall", "EventDispatch", "TimerFire", "RunMicrotasks", "FireAnimationFrame"}
LAYOUT = {"UpdateLayoutTree", "Layout", "PrePaint"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Loop:
    """The server's side."""

    ms: dict[str, float]
    bytes_per_update: float


def turn(session: str, number: int, dice: random.Random) -> TurnReport:
    """One ended turn."""
    cached = dice.randrange(900)
    usage = TurnUsage(input_tokens=1000, cached_tokens=cached, output_tokens=dice.randrange(1, 200))
    return TurnReport(
        tenant="default",
        session=session,
        turn=number,
        response_id=f"resp_{session}_{number}",
        status="failed" if dice.random() < 0.02 else "completed",
        reason=None,
        usage=usage,
        cost=usage.output_tokens * 1000,
        saved=cached * 100,
        queue_s=0.001,
        ttft_s=dice.random(),
        total_s=1.0 + dice.random(),
        misses=(Miss(reason=MissReason.EVICTED, tokens=1000 - cached),),
    )


class Crowd:
    """Sessions whose turns go by."""

    def __init__(self, server: RunningServer, count: int, seed: int) -> None:
        self._server = server
        self._dice = random.Random(seed)
        self._names = [f"session-{number}" for number in range(count)]
        for name in self._names:
            self.end_turn(name)

    def end_turn(self, name: str) -> None:
        """A turn of the session ends."""
        session = self._server.service.store.tenant("default").session(name)
        ended = turn(name, session.turns_begun + 1, self._dice)
        session.start_turn(ended.response_id, None, self._server.service.clock())
        session.end_turn(ended.response_id, self._server.service.clock(), open_calls=False)
        session.ledger.settled(ended.usage, ended.cost)
        self._server.dashboard.turn_finished(ended)

    def go_on(self) -> None:
        """Play the events between two updates."""
        for name in self._dice.sample(self._names, CHANGED):
            self.end_turn(name)


def measure_loop(server: RunningServer, crowd: Crowd, updates: int) -> Loop:
    """Milliseconds of an update by list, and bytes of one of the plain list."""
    ms: dict[str, float] = {}
    sizes: list[int] = []
    views = Views(dashboard=server.dashboard, wall_clock=time.time, num_connections=lambda: 1)
    for name, query in LISTS.items():
        taken = []
        before: Any = {}
        for _ in range(updates):
            server.now += 1.0
            crowd.go_on()
            began = time.thread_time()
            after = views.parts(OPERATOR, Wish(view="sessions", query=query))
            news = changes(before, after)
            taken.append(1000 * (time.thread_time() - began))
            if name == "plain" and before:
                sizes.append(len(news))
            before = after
        ms[name] = statistics.fmean(taken)
    return Loop(ms=ms, bytes_per_update=statistics.mean(sizes))


def watch(origin: str, seconds: float) -> dict[str, float]:
    """Work of an open page: rows, updates, and milliseconds of script and of layout for each."""
    with browser() as found, tempfile.TemporaryDirectory() as scratch:
        page = opened(found, origin, None)
        page.goto("/dashboard")
        page.wait_for_selector("tbody tr")
        page.evaluate(
            "() => { window.updates = 0; new MutationObserver(() => window.updates++)"
            ".observe(document.getElementById('hit-sub'), {childList: true, subtree: true,"
            " characterData: true}) }"
        )
        trace = Path(scratch) / "trace.json"
        found.start_tracing(page=page, path=trace, categories=["devtools.timeline", "v8.execute"])
        page.wait_for_timeout(1000 * seconds)
        updates = max(int(page.evaluate("window.updates")), 1)
        rows = page.locator("#view tbody tr").count()
        found.stop_tracing()
        events = json.loads(trace.read_text())["traceEvents"]
    return {
        "rows": rows,
        "updates": updates,
        "script_ms_per_update": busiest(events, SCRIPT) / updates,
        "layout_ms_per_update": busiest(events, LAYOUT) / updates,
    }


def busiest(events: Sequence[dict[str, Any]], names: set[str]) -> float:
    """Milliseconds in such events, nested ones once, on the thread that had most of them."""
    spans: dict[tuple[int, int], list[tuple[float, float]]] = {}
    for event in events:
        if event.get("ph") == "X" and event["name"] in names:
            span = (event["ts"], event["ts"] + event.get("dur", 0))
            spans.setdefault((event["pid"], event["tid"]), []).append(span)
    return max((_together(each) for each in spans.values()), default=0.0) / 1000


def _together(spans: list[tuple[float, float]]) -> float:
    whole, reached = 0.0, 0.0
    for begin, end in sorted(spans):
        whole += max(end - max(begin, reached), 0.0)
        reached = max(reached, end)
    return whole


async def _measure(count: int, arguments: argparse.Namespace, *, in_browser: bool) -> Any:
    async with RunningServer() as server:
        loop = measure_loop(server, Crowd(server, count, arguments.seed), arguments.updates)
    if not in_browser:
        return loop, None
    async with RunningServer(real_time=True) as server:
        crowd = Crowd(server, count, arguments.seed)
        going_on = asyncio.get_running_loop().create_task(_every_second(crowd.go_on))
        with ThreadPoolExecutor(1) as pool:
            origin = f"http://127.0.0.1:{server.port}"
            watched = pool.submit(watch, origin, arguments.seconds)
            page = await asyncio.wrap_future(watched)
        going_on.cancel()
        return loop, page


async def _every_second(call: Callable[[], None]) -> None:
    while True:
        await asyncio.sleep(1.0)
        call()


def main(words: Sequence[str] | None = None) -> int:
    """Entry point; returns the exit code."""
    options = parser(__doc__)
    options.add_argument("--seconds", type=float, default=20.0, help="of the page's trace")
    options.add_argument("--updates", type=int, default=30, help="of the server's measurement")
    options.add_argument("--seed", type=int, default=1)
    options.add_argument("--parts", nargs="+", choices=PARTS, default=["page", "gaps"])
    options.add_argument(
        "--sessions", type=int, default=stored_months.SESSIONS, help="of the journal"
    )
    arguments = options.parse_args(words)
    figures, bars = dict[str, Any](), list[Bar]()
    if "page" in arguments.parts:
        figures, bars = _page(arguments)
    if "gaps" in arguments.parts:
        figures["gaps"], more = open_page.figures(open_page.PAIRS, open_page.SECONDS)
        bars += more
    if "journal" in arguments.parts:
        figures["journal"], more = stored_months.figures(
            arguments.sessions, arguments.seed, stored_months.ROUNDS
        )
        bars += more
    return report("dashboard", figures, bars, as_json=arguments.json)


def _page(arguments: argparse.Namespace) -> tuple[dict[str, Any], list[Bar]]:
    small, _ = asyncio.run(_measure(FEW, arguments, in_browser=False))
    in_browser = chromium() is not None
    large, page = asyncio.run(_measure(MANY, arguments, in_browser=in_browser))
    page = page or {}
    loop_ms = max(large.ms.values())
    growth = large.bytes_per_update / small.bytes_per_update
    figures = {
        "sessions": MANY,
        "changed_per_update": CHANGED,
        "loop_ms": large.ms,
        "loop_ms_100_sessions": small.ms,
        "bytes_per_update": large.bytes_per_update,
        "bytes_per_update_100_sessions": small.bytes_per_update,
        "page": page,
        "seed": arguments.seed,
    }
    bars = [
        Bar(name="rows", value=page.get("rows"), op="<=", bar=200),
        Bar(
            name="script_ms_per_update",
            value=page.get("script_ms_per_update"),
            op="<=",
            bar=20.0,
        ),
        Bar(name="loop_ms_per_update", value=loop_ms, op="<=", bar=3.0),
        Bar(name="bytes_growth", value=growth, op="<=", bar=1.2),
    ]
    return figures, bars


if __name__ == "__main__":
    raise SystemExit(main())
