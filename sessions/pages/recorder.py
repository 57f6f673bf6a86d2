"""Rows of the curves for the journal's database: this minute's and this hour's counts.

A minute that has ended is handed out once, and with it what its hour has had so far. A clock
that is set back by no more than ``SLACK`` minutes ends none, so that nothing is written in place
of what it belongs to.

Always true: in a stretch at most ``MOST_TENANTS`` have counts of their own; those of the whole
server are complete.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import orjson

from sessions.journal.samples import HOUR_S, MINUTE_S, Sample
from sessions.pages.buckets import MachineBucket, TurnBucket

MOST_TENANTS = 64
SLACK = 5
WHOLE = ""
"""Stands for the whole server in the place of a tenant."""


@dataclass(slots=True)
class _Stretch:
    width_s: int
    number: int
    machine: MachineBucket = field(default_factory=MachineBucket)
    turns: dict[str, TurnBucket] = field(default_factory=lambda: {WHOLE: TurnBucket()})

    def buckets(self, tenant: str) -> Iterator[TurnBucket]:
        yield self.turns[WHOLE]
        if tenant in self.turns or len(self.turns) <= MOST_TENANTS:
            yield self.turns.setdefault(tenant, TurnBucket())

    def samples(self) -> Iterator[Sample]:
        for tenant, bucket in self.turns.items():
            row = {"turns": bucket.to_row()}
            if tenant == WHOLE:
                row["machine"] = self.machine.to_row()
            yield Sample(
                width_s=self.width_s, number=self.number, tenant=tenant, body=orjson.dumps(row)
            )


class Recorder:
    """Writes down the curves of one server."""

    def __init__(self, wall_clock: Callable[[], float]) -> None:
        """``wall_clock``: seconds since the epoch."""
        self._wall_clock = wall_clock
        now = wall_clock()
        self._minute = _Stretch(MINUTE_S, int(now // MINUTE_S))
        self._hour = _Stretch(HOUR_S, int(now // HOUR_S))

    def turns_now(self, tenant: str) -> Iterator[TurnBucket]:
        """Where what the tenant's turns do is counted."""
        yield from self._minute.buckets(tenant)
        yield from self._hour.buckets(tenant)

    def machine_now(self) -> Iterator[MachineBucket]:
        """Where what the engine does is counted."""
        yield self._minute.machine
        yield self._hour.machine

    def ended(self) -> list[Sample]:
        """The rows to be written now; empty until a minute has ended."""
        now = self._wall_clock()
        minute = int(now // MINUTE_S)
        if 0 <= self._minute.number - minute <= SLACK:
            return []
        written = self.so_far()
        self._minute = _Stretch(MINUTE_S, minute)
        if (hour := int(now // HOUR_S)) != self._hour.number:
            self._hour = _Stretch(HOUR_S, hour)
        return written

    def so_far(self) -> list[Sample]:
        """The minute and the hour as they are, also at the server's end."""
        return [*self._minute.samples(), *self._hour.samples()]
