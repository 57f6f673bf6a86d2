"""Curves over the last hour and day, in bounded memory.

Turns and the engine's state fall into buckets of ten seconds and of five minutes. A duration is
counted in steps of a tenth, so that a percentile is right to a twentieth of itself whatever the
number of turns. Each tenant has its own tokens, money and latencies; what concerns the machine
is kept once. The clock is handed in by the caller; knows no session.

Always true: a level holds at most ``LEVELS``' number of buckets, and at most ``MAX_TENANTS``
tenants have any.
"""

import math
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from runtime.messages import StepStats
from sessions.durable.ledger import TurnReport, dollars

LEVELS = {"hour": (10.0, 360), "day": (300.0, 288)}
"""Seconds of a bucket, and how many there are."""
MAX_TENANTS = 64
"""With curves of their own; who was quiet for longest loses them first."""
_STEP = math.log(1.1)
_LEAST_S = 1e-4


class Durations:
    """Counts of durations, each step a tenth longer than the one before."""

    __slots__ = ("counts",)

    def __init__(self) -> None:
        self.counts: dict[int, int] = {}

    def add(self, seconds: float) -> None:
        """Count one."""
        step = math.floor(math.log(max(seconds, _LEAST_S)) / _STEP)
        self.counts[step] = self.counts.get(step, 0) + 1

    def merge(self, other: "Durations") -> None:
        """Count what ``other`` has counted."""
        for step, count in other.counts.items():
            self.counts[step] = self.counts.get(step, 0) + count

    def percentile(self, share: float) -> float | None:
        """Seconds that ``share`` of all stay within, to a twentieth; None: nothing was counted."""
        wanted = share * sum(self.counts.values())
        passed = 0
        for step in sorted(self.counts):
            passed += self.counts[step]
            if passed >= wanted:
                return math.exp((step + 0.5) * _STEP)
        return None


@dataclass(slots=True)
class TurnBucket:
    """The turns that ended in one stretch of time."""

    turns: int = 0
    failed: int = 0
    input: int = 0
    cached: int = 0
    output: int = 0
    cost: int = 0
    saved: int = 0
    first_token: Durations = field(default_factory=Durations)
    whole: Durations = field(default_factory=Durations)

    def add(self, report: TurnReport) -> None:
        """Count a turn."""
        usage = report.usage
        self.turns += 1
        self.failed += report.status == "failed"
        self.input += usage.input_tokens
        self.cached += usage.cached_tokens
        self.output += usage.output_tokens
        self.cost += report.cost
        self.saved += report.saved
        if report.ttft_s is not None:
            self.first_token.add(report.ttft_s)
        self.whole.add(report.total_s)

    def merge(self, other: "TurnBucket") -> None:
        """Count what ``other`` has counted."""
        for name in ("turns", "failed", "input", "cached", "output", "cost", "saved"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.first_token.merge(other.first_token)
        self.whole.merge(other.whole)

    def numbers(self) -> dict[str, Any]:
        """For the page: tokens, dollars, seconds."""
        return {
            "turns": self.turns,
            "failed": self.failed,
            "input": self.input,
            "cached": self.cached,
            "output": self.output,
            "cost": dollars(self.cost),
            "saved": dollars(self.saved),
            "ttft_p50": _rounded(self.first_token.percentile(0.5)),
            "ttft_p95": _rounded(self.first_token.percentile(0.95)),
            "turn_p50": _rounded(self.whole.percentile(0.5)),
            "turn_p95": _rounded(self.whole.percentile(0.95)),
        }


@dataclass(slots=True)
class MachineBucket:
    """What the engine did in one stretch of time: means of samples, and counts."""

    samples: int = 0
    sums: dict[str, float] = field(default_factory=dict)
    restarts: int = 0
    steps: int = 0
    step_error: float = 0.0

    def sample(self, values: dict[str, float]) -> None:
        """Take one sample of every gauge."""
        self.samples += 1
        for name, value in values.items():
            self.sums[name] = self.sums.get(name, 0.0) + value

    def numbers(self) -> dict[str, Any]:
        """For the page: means, counts, and how far the steps' durations were off."""
        means = {name: round(total / self.samples, 4) for name, total in self.sums.items()}
        error = round(self.step_error / self.steps, 4) if self.steps else None
        return means | {"restarts": self.restarts, "step_error": error}


Bucket = TypeVar("Bucket")


class Buckets(Generic[Bucket]):
    """The last buckets of one width, by their number since the clock's start."""

    def __init__(self, make: type[Bucket], width_s: float, most: int) -> None:
        self._make = make
        self._width_s = width_s
        self._most = most
        self._buckets: OrderedDict[int, Bucket] = OrderedDict()

    def at(self, now: float) -> Bucket:
        """The bucket of this moment, made if there is none; those too old are dropped."""
        number = int(now // self._width_s)
        if number not in self._buckets:
            self._buckets[number] = self._make()
            self._drop(number)
        return self._buckets[number]

    def since(self, now: float) -> Iterator[tuple[int, Bucket]]:
        """Those that are not too old, by number."""
        self._drop(int(now // self._width_s))
        yield from self._buckets.items()

    def _drop(self, newest: int) -> None:
        while self._buckets and next(iter(self._buckets)) <= newest - self._most:
            self._buckets.popitem(last=False)


def _turn_levels() -> dict[str, Buckets[TurnBucket]]:
    return {name: Buckets(TurnBucket, *shape) for name, shape in LEVELS.items()}


class History:
    """All curves of a server."""

    def __init__(self) -> None:
        self._tenants: OrderedDict[str, dict[str, Buckets[TurnBucket]]] = OrderedDict()
        self._machine = {name: Buckets(MachineBucket, *shape) for name, shape in LEVELS.items()}

    def turn_finished(self, report: TurnReport, now: float) -> None:
        """Count a turn for its tenant."""
        levels = self._tenants.get(report.tenant)
        if levels is None:
            levels = self._tenants[report.tenant] = _turn_levels()
        self._tenants.move_to_end(report.tenant)
        while len(self._tenants) > MAX_TENANTS:
            self._tenants.popitem(last=False)
        for buckets in levels.values():
            buckets.at(now).add(report)

    def steps_finished(self, stats: StepStats, now: float) -> None:
        """Take in how far the engine's predictions were off."""
        for buckets in self._machine.values():
            bucket = buckets.at(now)
            bucket.steps += len(stats.steps_cost_ratio)
            bucket.step_error += sum(abs(ratio - 1) for ratio in stats.steps_cost_ratio)

    def engine_restarted(self, now: float) -> None:
        """Count a replaced engine."""
        for buckets in self._machine.values():
            buckets.at(now).restarts += 1

    def sample(self, stats: StepStats, now: float) -> None:
        """Take the engine's state into the curves; to be called once a second."""
        values = {
            "running": float(stats.running),
            "waiting": float(stats.waiting),
            "kv_device": _share(stats.blocks_total - stats.blocks_free, stats.blocks_total),
            "kv_running": _share(
                stats.blocks_protected + stats.blocks_reserved, stats.blocks_total
            ),
            "kv_host": _share(stats.host_blocks_used, stats.host_blocks_total),
            "kv_disk": _share(stats.disk_blocks_used, stats.disk_blocks_total),
        }
        for buckets in self._machine.values():
            buckets.at(now).sample(values)

    def turns(self, level: str, tenants: Iterable[str], now: float) -> dict[int, TurnBucket]:
        """The buckets of these tenants together, by number."""
        found: dict[int, TurnBucket] = {}
        for tenant in tenants:
            levels = self._tenants.get(tenant)
            for number, bucket in levels[level].since(now) if levels is not None else ():
                found.setdefault(number, TurnBucket()).merge(bucket)
        return found

    def machine(self, level: str, now: float) -> dict[int, MachineBucket]:
        """The engine's buckets, by number."""
        return dict(self._machine[level].since(now))

    def known_tenants(self) -> list[str]:
        """Those that have curves."""
        return list(self._tenants)


def _share(part: int, whole: int) -> float:
    return part / whole if whole else 0.0


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 5)
