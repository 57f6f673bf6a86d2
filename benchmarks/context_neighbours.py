"""The gap between tokens of sessions beside a client that sends bad input.

One server of a model of random weights, which ends no summary by itself; two tenants. One streams
turns over and over; the other, in a process of its own under ``nice``, sends each case of
``benchmarks.context_bad_input`` again and again. First it plays ordinary turns, short and long,
with which the others are compared. All in turns, ``ROUNDS`` times, and medians count.
"""

import asyncio
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np

from benchmarks.context_bad_input import BASELINE, CASES, CUT, KEYS, LONG, VICTIM
from benchmarks.report import Bar
from benchmarks.transport_clients import WrongAnswer, create, ended, texts_of, web_socket
from keepwarm.demo.child_server import child_server
from sessions.tenants_file import key_row

STREAMS = 2
ROUNDS = 3
WINDOW = 8192
SERVED = ["--model", "random:qwen3-tiny", "--kv-cache-mib", "64", "--threads", "1"]


async def gaps_s(url: str, seconds: float) -> list[float]:
    """Gaps between the tokens of streamed turns, for that time."""
    seen: list[float] = []
    until = time.monotonic() + seconds

    async def stream(number: int) -> None:
        client = await web_socket(urlsplit(url).port or 80, key=VICTIM)
        while time.monotonic() < until:
            text = f"say something {number} {len(seen)}"
            client.send(create(input=text, max_output_tokens=200, store=False))
            last = json.loads(texts_of("ws", await client.until(ended("ws")))[-1])
            if last["type"] not in ("response.completed", "response.incomplete"):
                raise WrongAnswer(f"the neighbour was refused: {last}")
            seen.extend(np.diff(client.deltas_at).tolist())
        client.close()

    await asyncio.gather(*(stream(number) for number in range(STREAMS)))
    return seen


async def beside(name: str, url: str, seconds: float) -> dict[str, Any]:
    """Figures of one case.

    Raises:
        WrongAnswer: something of it was neither refused nor bounded as it has to be.
    """
    command = [sys.executable, "-m", "benchmarks.context_bad_input", name, "--url", url]
    command += ["--seconds", str(seconds)]
    pipe = asyncio.subprocess.PIPE
    asker = await asyncio.create_subprocess_exec(*command, stdout=pipe, stderr=pipe)
    assert asker.stdout is not None
    try:
        if await asker.stdout.readline():  # it begins
            gaps = await gaps_s(url, seconds)
        told, said = await asyncio.wait_for(asker.communicate(), seconds + 90)
    finally:
        if asker.returncode is None:
            asker.kill()
            await asker.wait()
    if asker.returncode:
        raise WrongAnswer(said.decode().strip().rpartition("\n")[2])
    return {"gap_p50_ms": 1000 * statistics.median(gaps), "seen": json.loads(told)["seen"]}


def measured(names: Sequence[str], seconds: float) -> dict[str, Any]:
    """Figures by the case; of one that was answered wrongly what was wrong."""
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        keys = Path(folder) / "tenants.toml"
        keys.write_text("".join(map(key_row, KEYS)))
        keys.chmod(0o600)
        options = [*SERVED, "--tenants-file", str(keys), "--max-context-tokens", str(WINDOW)]
        with child_server(options, log=Path(folder) / "log") as server:
            alone = asyncio.run(gaps_s(server.url, seconds))
            found["alone"] = {"gap_p50_ms": 1000 * statistics.median(alone)}
            gaps: dict[str, list[float]] = {}
            for name in [*names] * ROUNDS:
                try:
                    one = asyncio.run(beside(name, server.url, seconds))
                    gaps.setdefault(name, []).append(one["gap_p50_ms"])
                except WrongAnswer as wrong:
                    one = {"wrong": str(wrong)}
                print(name, json.dumps(one), file=sys.stderr, flush=True)
                if "wrong" not in found.get(name, {}):
                    found[name] = one
    for name, each in gaps.items():
        if "wrong" not in found[name]:
            found[name]["gap_p50_ms"] = statistics.median(each)
    return found


def bars_of(found: dict[str, Any]) -> list[Bar]:
    """How many cases were answered as they have to be, and the widest gap beside one of them."""
    cases = {name: seen for name, seen in found.items() if name in CASES}
    cases = {name: seen for name, seen in cases.items() if name not in (BASELINE, LONG)}
    right = sum("wrong" not in seen for seen in cases.values())
    share = right / len(cases) if cases else None
    ratios = [
        seen["gap_p50_ms"] / ordinary["gap_p50_ms"]
        for name, seen in cases.items()
        if "gap_p50_ms" in seen
        and "gap_p50_ms" in (ordinary := found.get(LONG if name in CUT else BASELINE, {}))
    ]
    ratio = max(ratios, default=None)
    return [
        Bar(name="bad_input_answered", value=share, op=">=", bar=1.0),
        Bar(name="bad_input_gap_p50_ratio", value=ratio, op="<=", bar=1.5),
    ]
