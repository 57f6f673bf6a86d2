"""How many servers a cluster is to have, from what all of them do.

A pure function of figures and of what it said before. A server more takes new sessions only; a
server less costs its sessions a cold context each. So it goes up soon and down late, and never
below the number whose KV holds the sessions that were active lately.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from sessions.journal.members import MemberLoad

UP_S, DOWN_S = 15.0, 600.0
"""So long more, or fewer, have to be wanted."""
KV_FULL = 0.7
"""The part of a KV cache, held by requests, from which on there are to be more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScaleBounds:
    """The bounds of how many servers there may be."""

    least: int
    most: int
    turns_per_server: int

    def __post_init__(self) -> None:
        if not 1 <= self.least <= self.most or self.turns_per_server < 1:
            raise ValueError(f"{self} is not 1 <= least <= most with turns for each")


@dataclass(frozen=True, slots=True, kw_only=True)
class ScaleMemory:
    """The past, as far as it counts; moments are monotonic seconds."""

    above_since_s: float | None = None
    """Since when more are wanted than there are."""
    below_since_s: float | None = None
    most_below: int = 0
    """The most that were wanted meanwhile."""


def needed(loads: Sequence[MemberLoad], bounds: ScaleBounds) -> int:
    """How many servers turns and KV call for by themselves."""
    turns = sum(each.running + each.waiting for each in loads) / bounds.turns_per_server
    kv = sum(each.kv_permille for each in loads) / 1000 / KV_FULL
    return min(max(_whole(max(turns, kv)), bounds.least), bounds.most)


def warm(loads: Sequence[MemberLoad]) -> int:
    """As many as hold the KV of the sessions that were active lately; what several of a server's
    sessions share counts for each."""
    return _whole(sum(each.active_permille for each in loads) / 1000)


def _whole(number: float) -> int:
    return math.ceil(number - 1e-9)


def wanted(
    loads: Sequence[MemberLoad],
    current: int,
    bounds: ScaleBounds,
    memory: ScaleMemory,
    now_s: float,
) -> tuple[int, ScaleMemory]:
    """How many there are to be, and what is to be remembered of that.

    Args:
        loads: figures of the servers that serve; of one that starts there are none yet.
        current: how many there are to be so far.
        now_s: monotonic seconds.
    """
    if not bounds.least <= current <= bounds.most:
        return min(max(current, bounds.least), bounds.most), ScaleMemory()
    found = needed(loads, bounds)
    if found > current:
        since = now_s if memory.above_since_s is None else memory.above_since_s
        if now_s - since >= UP_S:
            return found, ScaleMemory()
        return current, ScaleMemory(above_since_s=since)
    found = max(found, min(warm(loads), current))
    if found == current or len(loads) < current:
        return current, ScaleMemory()  # one that starts may be needed: nothing is known of it
    since = now_s if memory.below_since_s is None else memory.below_since_s
    most = max(found, memory.most_below)
    if now_s - since >= DOWN_S:
        return most, ScaleMemory()
    return current, ScaleMemory(below_since_s=since, most_below=most)
