"""Curves as the journal's database has them, for the page.

The last hour and day of this server are in its memory (``sessions.pages.history``); the database
adds what other servers did, and this one before it was started. Of a week and a month it has
everything, as of the last minute. It is read beside the event loop, at most once a minute for
what somebody looks at; until then nothing is shown of it.

Always true: a tenant's curves are made of its own rows alone.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from functools import partial

import orjson

from sessions.journal.errors import JournalError
from sessions.journal.journal import Journal
from sessions.journal.samples import HOUR_S, MINUTE_S, Sample
from sessions.pages.buckets import MachineBucket, TurnBucket
from sessions.pages.history import LEVELS as IN_MEMORY

log = logging.getLogger(__name__)

READ_EVERY_S = 60.0
MOST_KEPT = 64
"""Answers in memory: one for each tenant and level that is looked at."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Level:
    """How much of the past is shown, and how finely."""

    width_s: float
    buckets: int
    row_s: int
    """The width of the stretches of which it is made."""
    own: bool
    """Also of this server's rows."""


LEVELS = {
    **{
        name: Level(width_s=width_s, buckets=buckets, row_s=MINUTE_S, own=False)
        for name, (width_s, buckets) in IN_MEMORY.items()
    },
    "week": Level(width_s=3600.0, buckets=168, row_s=HOUR_S, own=True),
    "month": Level(width_s=7200.0, buckets=360, row_s=HOUR_S, own=True),
}


@dataclass(slots=True)
class Curves:
    """Buckets by the number of their width since the epoch."""

    turns: dict[int, TurnBucket] = field(default_factory=dict)
    machine: dict[int, MachineBucket] = field(default_factory=dict)


NOTHING = Curves()

Beside = Callable[[str, Callable[[], Curves]], Awaitable[Curves]]
"""Makes a call on the journal beside the event loop, when it is the tenant's turn."""


class PastCurves:
    """Only the event loop touches it."""

    def __init__(
        self,
        journal: Journal,
        beside: Beside,
        *,
        clock: Callable[[], float],
        wall_clock: Callable[[], float],
    ) -> None:
        """``clock``: monotonic seconds; ``wall_clock``: seconds since the epoch."""
        self._journal = journal
        self._beside = beside
        self._clock = clock
        self._wall_clock = wall_clock
        self._kept: dict[tuple[str, str], tuple[float, Curves]] = {}
        self._asking: dict[tuple[str, str], asyncio.Task[None]] = {}

    def curves(self, level: str, tenant: str) -> Curves:
        """The curves as they were read last; an empty ``tenant`` stands for the whole server. What
        is older than ``READ_EVERY_S`` is read anew meanwhile."""
        key = (level, tenant)
        read_at, found = self._kept.get(key, (None, NOTHING))
        if key not in self._asking and (read_at is None or self._clock() - read_at >= READ_EVERY_S):
            self._asking[key] = asyncio.get_running_loop().create_task(self._ask(key))
        return found

    async def _ask(self, key: tuple[str, str]) -> None:
        level, tenant = key
        now = self._wall_clock()
        _, found = self._kept.get(key, (0.0, NOTHING))
        try:
            work = partial(read, self._journal, tenant, LEVELS[level], now)
            found = await self._beside(tenant, work)
        except JournalError as error:
            log.warning("curves cannot be read from the journal reason=%s", error)
        except Exception:  # asked anew in a minute, not with each look
            log.exception("curves of the journal cannot be added up")
        finally:
            del self._asking[key]
        self._kept.pop(key, None)
        while len(self._kept) >= MOST_KEPT:
            del self._kept[next(iter(self._kept))]
        self._kept[key] = (self._clock(), found)


def read(journal: Journal, tenant: str, level: Level, now: float) -> Curves:
    """The level's buckets of the journal's rows. Raises JournalError."""
    first = int((now - level.width_s * level.buckets) // level.row_s)
    return added_up(journal.samples(tenant, level.row_s, first, own=level.own), level, now)


def added_up(samples: Iterable[Sample], level: Level, now: float) -> Curves:
    """Rows that are longer than the level's buckets are spread evenly over them: that of a server
    which ended in this minute over those that have begun, so that all of it is seen."""
    curves = Curves()
    most = max(int(level.row_s // level.width_s), 1)
    newest = int(now // level.width_s)
    for sample in samples:
        row = orjson.loads(sample.body)
        turns = TurnBucket.of_row(row["turns"])
        machine = MachineBucket.of_row(row["machine"]) if "machine" in row else None
        first = int(sample.number * level.row_s // level.width_s)
        parts = max(min(most, newest + 1 - first), 1)
        for index in range(parts):
            at = first + index
            if turns.turns:
                curves.turns.setdefault(at, TurnBucket()).merge(turns.part(index, parts))
            if machine is not None:
                merged = curves.machine.setdefault(at, MachineBucket())
                merged.merge(machine.part(index, parts))
    return curves
