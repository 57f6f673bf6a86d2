"""A server's work between two looks at it: rates, and a bounded past of them.

Pure: snapshots and seconds in, numbers out. A server that was started anew counts from 0 again;
its first rates are those since its start.
"""

import math
from collections import deque
from collections.abc import Mapping, Sequence

from keepwarm.top.feed import Snapshot

POINTS = 300
_BARS = "_▁▂▃▄▅▆▇█"
"""Characters of a curve by their height; a blank is nothing at all."""

RATES = {
    "out/s": "streamed_tokens",
    "in/s": "input_tokens",
    "cached/s": "cached_tokens",
}
"""Curves that are a count's growth per second, by the count's name in ``totals``."""


class Curves:
    """The last points of every curve, the newest last."""

    def __init__(self) -> None:
        self._points: dict[str, deque[float]] = {}
        self._before: tuple[float, Snapshot] | None = None
        self._buckets: deque[tuple[tuple[float, float], ...]] = deque(maxlen=60)

    def add(self, snapshot: Snapshot, now: float) -> None:
        """Take what the server said at ``now`` (monotonic seconds)."""
        before, self._before = self._before, (now, snapshot)
        if before is not None and now > before[0]:
            for name, rate in _rates(before[1], snapshot, now - before[0]).items():
                self._add(name, rate)
        engine: Mapping[str, object] = snapshot.engine or {}
        for name, key in (("running", "running"), ("KV %", "kv_usage")):
            value = engine.get(key)
            if isinstance(value, int | float):
                self._add(name, value * (100 if name == "KV %" else 1))
        if self._buckets and _went_back(self._buckets[-1], snapshot.first_tokens):
            self._buckets.clear()
        self._buckets.append(snapshot.first_tokens)

    def points(self, name: str) -> Sequence[float]:
        """A curve's points; none if there is no such curve for this key."""
        return tuple(self._points.get(name, ()))

    def first_token_s(self, share: float) -> float | None:
        """Within how many seconds that share of recent turns had its first token: the upper end of
        its bucket. None without turns or without an operator's key."""
        if len(self._buckets) < 2:
            return None
        old = dict(self._buckets[0])
        grown = [(bound, count - old.get(bound, 0.0)) for bound, count in self._buckets[-1]]
        if not grown or grown[-1][1] <= 0:
            return None
        return next(bound for bound, count in grown if count >= share * grown[-1][1])

    def _add(self, name: str, value: float) -> None:
        self._points.setdefault(name, deque(maxlen=POINTS)).append(value)


def _rates(before: Snapshot, now: Snapshot, seconds: float) -> dict[str, float]:
    grown = {}
    for name, key in RATES.items():
        start, end = before.total(key), now.total(key)
        grown[name] = (end - start if end >= start else end) / seconds
    return grown


def _went_back(
    before: tuple[tuple[float, float], ...], now: tuple[tuple[float, float], ...]
) -> bool:
    return bool(before) and (not now or now[-1][1] < before[-1][1])


def drawn(points: Sequence[float], width: int) -> str:
    """The last ``width`` points as a line of bars from 0 up to the largest of them."""
    shown = points[-width:] if width > 0 else ()
    largest = max(shown, default=0.0)
    if largest <= 0:
        return _BARS[0] * len(shown)
    steps = len(_BARS) - 1
    return "".join(_BARS[math.ceil(max(point, 0.0) / largest * steps)] for point in shown)
