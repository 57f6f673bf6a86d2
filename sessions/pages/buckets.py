"""Counts of the curves in one stretch of time, and how they are added up, cut and stored.

A duration is counted in steps of a tenth, so that a percentile is right to a twentieth of itself
whatever the number of turns. Knows no clock.

Always true: buckets that are merged count everything once, whatever the order.
"""

import math
from dataclasses import dataclass, field
from typing import Any

from sessions.durable.ledger import TurnReport, dollars

TOGETHER = frozenset({"running", "waiting"})
"""Gauges of which several servers have the sum, and of the others the mean."""
_STEP = math.log(1.1)
_LEAST_S = 1e-4
_COUNTS = ("turns", "failed", "input", "cached", "output", "cost", "saved")
_MACHINE_COUNTS = ("samples", "restarts", "steps", "step_error")


@dataclass(slots=True)
class Durations:
    """Counts of durations, each step a tenth longer than the one before."""

    counts: dict[int, int] = field(default_factory=dict)

    def add(self, seconds: float) -> None:
        """Count one duration."""
        step = math.floor(math.log(max(seconds, _LEAST_S)) / _STEP)
        self.counts[step] = self.counts.get(step, 0) + 1

    def merge(self, other: "Durations") -> None:
        """Count what ``other`` has counted."""
        for step, count in other.counts.items():
            self.counts[step] = self.counts.get(step, 0) + count

    def to_row(self) -> list[tuple[int, int]]:
        """Steps and how many there are of each."""
        return list(self.counts.items())

    @classmethod
    def of_row(cls, row: list[tuple[int, int]]) -> "Durations":
        """Read a row that ``to_row`` made."""
        return cls(counts=dict(row))

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
        """Count a turn in the bucket."""
        usage = report.usage
        self.turns += report.is_turn
        self.failed += report.status == "failed"
        self.input += usage.input_tokens
        self.cached += usage.cached_tokens
        self.output += usage.output_tokens
        self.cost += report.cost
        self.saved += report.saved
        if not report.is_turn:
            return
        if report.ttft_s is not None:
            self.first_token.add(report.ttft_s)
        self.whole.add(report.total_s)

    def merge(self, other: "TurnBucket") -> None:
        """Count what ``other`` has counted."""
        for name in _COUNTS:
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.first_token.merge(other.first_token)
        self.whole.merge(other.whole)

    def plus(self, other: "TurnBucket | None") -> "TurnBucket":
        """Both together; neither is changed."""
        if other is None:
            return self
        both = TurnBucket()
        both.merge(self)
        both.merge(other)
        return both

    def part(self, index: int, parts: int) -> "TurnBucket":
        """The ``index``-th of so many equal stretches, if all of it was spread evenly: together
        they have every turn and token once, and each has the durations of all."""
        share = TurnBucket(first_token=self.first_token, whole=self.whole)
        for name in _COUNTS:
            whole = getattr(self, name)
            setattr(share, name, whole * (index + 1) // parts - whole * index // parts)
        return share

    def to_row(self) -> dict[str, Any]:
        """The whole bucket, for a database."""
        counts = {name: getattr(self, name) for name in _COUNTS}
        return counts | {"first": self.first_token.to_row(), "whole": self.whole.to_row()}

    @classmethod
    def of_row(cls, row: dict[str, Any]) -> "TurnBucket":
        """Read a row that ``to_row`` made."""
        counts = {name: row.get(name, 0) for name in _COUNTS}
        first, whole = Durations.of_row(row["first"]), Durations.of_row(row["whole"])
        return cls(**counts, first_token=first, whole=whole)

    def numbers(self) -> dict[str, Any]:
        """The bucket's numbers for a page: tokens, dollars, seconds."""
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
    """The engine's work in one stretch of time: means of samples, and counts."""

    samples: float = 0
    sums: dict[str, float] = field(default_factory=dict)
    restarts: int = 0
    steps: float = 0
    step_error: float = 0.0

    def sample(self, values: dict[str, float]) -> None:
        """Take one sample of every gauge."""
        self.samples += 1
        for name, value in values.items():
            self.sums[name] = self.sums.get(name, 0.0) + value

    def merge(self, other: "MachineBucket") -> None:
        """Take in what another server, or this one in another life, saw in the same stretch."""
        for name, value in other.sums.items():
            self.sums[name] = self.sums.get(name, 0.0) + value
        for name in _MACHINE_COUNTS:
            setattr(self, name, getattr(self, name) + getattr(other, name))

    def plus(self, other: "MachineBucket | None") -> "MachineBucket":
        """The sum with another bucket; as ``TurnBucket.plus``."""
        if other is None:
            return self
        both = MachineBucket()
        both.merge(self)
        both.merge(other)
        return both

    def part(self, index: int, parts: int) -> "MachineBucket":
        """The part of it for a page; as ``TurnBucket.part``."""
        return MachineBucket(
            sums={name: value / parts for name, value in self.sums.items()},
            samples=self.samples / parts,
            restarts=self.restarts if index == 0 else 0,
            steps=self.steps / parts,
            step_error=self.step_error / parts,
        )

    def to_row(self) -> dict[str, Any]:
        """The whole bucket, for a database."""
        return {name: getattr(self, name) for name in (*_MACHINE_COUNTS, "sums")}

    @classmethod
    def of_row(cls, row: dict[str, Any]) -> "MachineBucket":
        """Read a row that ``to_row`` made."""
        counts = {name: row.get(name, 0) for name in _MACHINE_COUNTS}
        return cls(**counts, sums=row["sums"])

    def numbers(self, seconds: float) -> dict[str, Any]:
        """For the page: means, counts, and how far the steps' durations were off.

        Args:
            seconds: of the bucket; a server takes one sample in each, several servers more.
        """
        once = max(min(self.samples, seconds), 1)
        means = {
            name: round(total / (once if name in TOGETHER else self.samples), 4)
            for name, total in self.sums.items()
            if self.samples
        }
        error = round(self.step_error / self.steps, 4) if self.steps else None
        return means | {"restarts": self.restarts, "step_error": error}


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 5)
