"""Tokens of running turns beside an open dashboard, and without one.

Part ``gaps`` of ``benchmarks.dashboard``. Eight streams of a served model; in pairs, in turns first
with and first without a page open in a browser: the gaps between a stream's tokens as its client
sees them. The browser stands back (``nice``), as it is on somebody's own machine in life.
"""

import asyncio
import statistics
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import psutil

from benchmarks.report import Bar
from benchmarks.transport_clients import create, ended, web_socket
from keepwarm.demo.child_server import child_server
from tools.screenshots import browser, chromium, opened

MODEL = "random:qwen3-100m"
STREAMS = 8
OUTPUT_TOKENS = 200
PAIRS = 5
SECONDS = 15.0
NICE = 19
SETTLED_MS = 4000
"""A browser works for some seconds when it has been started, whatever page it shows."""


async def _stream(port: int, name: str, until: float) -> list[float]:
    client = await web_socket(port)
    gaps = list[float]()
    number = 0
    while time.monotonic() < until:
        number += 1
        text = f"{name}: say something {number}"
        client.send(create(input=text, max_output_tokens=OUTPUT_TOKENS, store=False))
        await client.until(ended("ws"))
        gaps += np.diff(client.deltas_at).tolist()
    client.close()
    return gaps


def streamed_gaps(url: str, seconds: float) -> list[float]:
    """Seconds between tokens of eight streams that are played for that long."""

    async def play() -> list[float]:
        until = time.monotonic() + seconds
        port = urlsplit(url).port or 80
        streams = [_stream(port, f"stream {number}", until) for number in range(STREAMS)]
        return [gap for gaps in await asyncio.gather(*streams) for gap in gaps]

    with ThreadPoolExecutor(1) as pool:  # this thread has the browser's own event loop
        return pool.submit(asyncio.run, play()).result()


@contextmanager
def _open_page(origin: str) -> Iterator[None]:
    """While it lasts the list of sessions stands open in a browser."""
    with browser() as found:
        for child in psutil.Process().children(recursive=True):
            if "chrom" in child.name():
                child.nice(NICE)
        page = opened(found, origin, None)
        page.goto("/dashboard")
        page.wait_for_selector("tbody tr")
        page.wait_for_timeout(SETTLED_MS)
        yield
        assert page.locator("tbody tr").count() > 0


def figures(pairs: int, seconds: float) -> tuple[dict[str, Any], list[Bar]]:
    """The figures, and the bars; without ``chromium`` these have no value."""
    gaps: dict[str, list[dict[str, float]]] = {"closed": [], "open": []}
    if chromium() is not None:
        with tempfile.TemporaryDirectory(prefix="keepwarm-page-") as folder:
            options = ["--model", MODEL, "--kv-cache-mib", "256", "--threads", "1"]
            with child_server(options, log=Path(folder) / "log") as server:
                streamed_gaps(server.url, 1.0)
                for number in range(2 * pairs):
                    is_open = number % 4 in {1, 2}
                    gaps["open" if is_open else "closed"].append(
                        _measured(server.url, seconds, is_open=is_open)
                    )
    told: dict[str, Any] = {"streams": STREAMS, "pairs": pairs, "gaps_ms": gaps}
    bars = [
        Bar(name=f"gap_{which}_open_over_closed", value=_ratio(gaps, which), op="<=", bar=bar)
        for which, bar in (("p50", 1.05), ("p99", 1.25))
    ]
    return told, bars


def _measured(url: str, seconds: float, *, is_open: bool) -> dict[str, float]:
    if is_open:
        with _open_page(url.removesuffix("/v1")):
            gaps = streamed_gaps(url, seconds)
    else:
        gaps = streamed_gaps(url, seconds)
    return {f"p{part}": 1000 * float(np.percentile(gaps, part)) for part in (50, 99)}


def _ratio(gaps: dict[str, list[dict[str, float]]], which: str) -> float | None:
    """The median of the pairs' ratios."""
    pairs = zip(gaps["open"], gaps["closed"], strict=True)
    ratios = [is_open[which] / closed[which] for is_open, closed in pairs]
    return statistics.median(ratios) if ratios else None
