"""The soak: agents go on while a random fault comes every 30 seconds.

Off unless KEEPWARM_SOAK_MINUTES says for how long (90 and more for a judgement);
KEEPWARM_SOAK_EVERY_S is the time between faults, KEEPWARM_SOAK_SEED says which. It fails if what
was acknowledged cannot be continued, if something is held at a quiet point, if the engine's account
of its cache is ever wrong when it has no work, or if the server's resident memory grows too fast
over the last hour. It prints what it saw, a line at every quiet point (``-s`` shows them as they
come).
"""

import asyncio
import json
import os
import random
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.faults.test_signals import CASES, harm
from tests.support.faults import PAD, Faulty, Turn, faulty_server, until

MINUTES = float(os.environ.get("KEEPWARM_SOAK_MINUTES", "0"))
EVERY_S = float(os.environ.get("KEEPWARM_SOAK_EVERY_S", "30"))
SEED = int(os.environ.get("KEEPWARM_SOAK_SEED", "1"))
MOST_MIB_PER_HOUR = 4.0
FORGET_S = 120.0
"""What nobody continues is kept so long, not an hour: what a server holds on purpose has stopped
to grow when the last hour begins."""
AGENTS = 4
TURNS_PER_CHAIN = 6
TURN_EVERY_S = 0.5
"""Of an agent, at most: what is kept for ``FORGET_S`` must not follow the machine's other load."""


AUDIT = """
if b"runtime.process.engine_process" in open("/proc/self/cmdline", "rb").read():
    from runtime.engine.engine import Engine

    step = Engine.step

    def audited(self):
        output = step(self)
        if not self.has_work:
            self.check()
        return output

    Engine.step = audited
"""
"""Run by the engine's process before anything else, by way of Python's ``sitecustomize``."""


class Agents:
    """Agents that play chains of turns, and count what became of them."""

    def __init__(self, faulty: Faulty, rng: random.Random) -> None:
        self._faulty, self._rng = faulty, rng
        self.completed = self.failed = self.lost = 0
        self.longest_s = 0.0
        self.stop = asyncio.Event()

    async def run(self) -> None:
        await asyncio.gather(*(self._agent(number) for number in range(AGENTS)))

    async def _agent(self, number: int) -> None:
        next_s = time.monotonic()
        while not self.stop.is_set():
            async with self._faulty.socket() as client:
                last: str | None = None
                for _ in range(TURNS_PER_CHAIN):
                    if self.stop.is_set():
                        return
                    turn = Turn(client)
                    next_s = max(next_s + TURN_EVERY_S, time.monotonic())
                    await asyncio.sleep(next_s - time.monotonic())
                    text = f"{number} " + "x" * self._rng.randrange(1, 400)
                    fields: dict[str, Any] = {"input": text, "max_output_tokens": 30}
                    fields["pad"] = PAD * (self._rng.random() < 0.25)
                    if last is not None:
                        fields["previous_response_id"] = last
                    sent_s = time.monotonic()
                    await turn.send(**fields)
                    event = await turn.terminal()
                    self.longest_s = max(self.longest_s, time.monotonic() - sent_s)
                    if event["type"] == "error":  # the parent is gone: it had been acknowledged
                        self.lost += event["error"]["code"] == "previous_response_not_found"
                        last = None
                    elif event["type"] == "response.failed":
                        self.failed += 1
                    else:
                        self.completed += 1
                        last = event["response"]["id"]


def slope_mib_per_hour(samples: list[tuple[float, float]]) -> float:
    """Least squares over (hours, MiB)."""
    count = len(samples)
    mean_x = sum(x for x, _ in samples) / count
    mean_y = sum(y for _, y in samples) / count
    spread = sum((x - mean_x) ** 2 for x, _ in samples)
    return sum((x - mean_x) * (y - mean_y) for x, y in samples) / spread


def test_a_slope_is_that_of_the_line() -> None:
    assert slope_mib_per_hour([(0.0, 5.0), (0.5, 7.0), (1.0, 9.0)]) == pytest.approx(4.0)


async def soak(faulty: Faulty, minutes: float) -> dict[str, Any]:
    rng = random.Random(SEED)
    began = time.monotonic()
    samples: list[tuple[float, float]] = []
    totals = {"completed": 0, "failed": 0, "lost": 0, "faults": 0}
    longest_s = 0.0
    while time.monotonic() - began < 60 * minutes:
        agents = Agents(faulty, rng)
        playing = asyncio.create_task(agents.run())
        await asyncio.sleep(EVERY_S / 2)
        await asyncio.to_thread(until, lambda: _has_engine(faulty))
        who, number, _ = rng.choice(CASES)
        harm(who, number)(faulty)
        totals["faults"] += 1
        await asyncio.sleep(EVERY_S / 2)
        agents.stop.set()
        await playing
        for name in ("completed", "failed", "lost"):
            totals[name] += getattr(agents, name)
        longest_s = max(longest_s, agents.longest_s)
        # A quiet point.
        await asyncio.to_thread(until, lambda: _rests(faulty))
        hours = (time.monotonic() - began) / 3600
        samples.append((hours, faulty.process.memory_info().rss / 2**20))
        for each in (*faulty.probes, *faulty.readers):  # stopped, and nobody has asked since
            each.resume()
        print(json.dumps(account(totals, longest_s, samples)), flush=True)
    return account(totals, longest_s, samples)


def account(
    totals: dict[str, int], longest_s: float, samples: list[tuple[float, float]]
) -> dict[str, Any]:
    last = [sample for sample in samples if sample[0] >= samples[-1][0] - 1.0]
    slope = slope_mib_per_hour(last) if len(last) > 2 else 0.0
    return totals | {
        "minutes": round(samples[-1][0] * 60, 2),
        "seed": SEED,
        "longest_turn_s": round(longest_s, 1),
        "rss_mib": [round(samples[0][1], 1), round(last[0][1], 1), round(samples[-1][1], 1)],
        "rss_slope_mib_per_hour": round(slope, 2),
    }


def _has_engine(faulty: Faulty) -> bool:
    return len(faulty.engines) == 1


def _rests(faulty: Faulty) -> bool:
    if not _has_engine(faulty):
        return False
    now = faulty.rest()
    return not (now["protected blocks"] or now["running turns"] or now["waiting turns"])


@pytest.mark.timeout(0)
@pytest.mark.skipif(not MINUTES, reason="a soak: set KEEPWARM_SOAK_MINUTES, e.g. to 90")
def test_memory_and_blocks_stay_where_they_are_and_nothing_acknowledged_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sitecustomize.py").write_text(AUDIT)
    monkeypatch.setenv("FAULT_SUITE_FORGET_S", f"{FORGET_S:g}")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), *filter(None, sys.path)]))
    with faulty_server(tmp_path / "server") as faulty:
        seen = asyncio.run(soak(faulty, MINUTES))
        print(json.dumps(seen))
        assert seen["lost"] == 0, seen
        assert seen["completed"] > seen["faults"], seen
        if seen["minutes"] >= 60:
            assert seen["rss_slope_mib_per_hour"] < MOST_MIB_PER_HOUR, seen
        log = faulty.log.read_text()
        assert "Traceback" not in log, log
        assert "engine ends" not in log, log
