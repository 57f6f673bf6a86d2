"""Commits in a thread: what gathered while one was under way goes into the next one.

The event loop hands over a record and a function to be told with; it waits for nothing. What is
told comes back in the event loop, all of one commit in one call. A commit that fails because
the journal is out of reach is tried again for a while: its turns wait with it.

Always true: records are written in the order in which they were handed over; each is answered
exactly once, also when the writer closes.
"""

import asyncio
import logging
import queue
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from sessions.journal.errors import JournalUnavailable
from sessions.journal.journal import Journal
from sessions.journal.records import TurnRecord

log = logging.getLogger(__name__)

MOST_AT_ONCE = 256
"""Records of one transaction."""
RETRY_S = 0.25
GIVE_UP_S = 10.0
"""Of a journal that stays out of reach; then its turns fail."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What became of one record."""

    written: bool
    reason: str = ""
    """Why not: ``stale`` (another server owns the session), ``unavailable`` or ``error``."""
    message: str = ""


WRITTEN = Verdict(written=True)
STALE = Verdict(
    written=False, reason="stale", message="Another server has taken this session over."
)

Tell = Callable[[Sequence[tuple["Ticket", Verdict]]], None]


@dataclass(frozen=True, slots=True, eq=False)
class Ticket:
    """One record that was handed over."""

    record: TurnRecord
    key: object
    """The caller's own."""


class JournalWriter:
    """The one thread that appends to a journal."""

    def __init__(
        self,
        journal: Journal,
        tell: Tell,
        *,
        clock: Callable[[], float] = time.monotonic,
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        """
        Args:
            tell: called in the event loop that makes this object.
            pause: waits that many seconds, in the writer's thread.
        """
        self._journal = journal
        self._tell = tell
        self._clock = clock
        self._pause = pause
        self._loop = asyncio.get_running_loop()
        self._queue: queue.SimpleQueue[Ticket | None] = queue.SimpleQueue()
        self._open = 0
        self._idle = asyncio.Event()
        self._idle.set()
        self._thread = threading.Thread(target=self._run, name="journal", daemon=True)
        self._thread.start()

    def append(self, record: TurnRecord, key: object) -> None:
        """Have a record written; ``tell`` will say what became of it."""
        self._open += 1
        self._idle.clear()
        self._queue.put(Ticket(record, key))

    async def drained(self) -> None:
        """Wait until everything handed over so far, and meanwhile, has been answered."""
        await self._idle.wait()

    def close(self) -> None:
        """Write what was handed over, then end the thread. What is told of it is lost."""
        self._queue.put(None)
        self._thread.join()

    def _run(self) -> None:
        ended = False
        while not ended:
            batch: list[Ticket] = []
            waiting = self._queue.get()
            while waiting is not None:
                batch.append(waiting)
                if len(batch) == MOST_AT_ONCE or self._queue.empty():
                    break
                waiting = self._queue.get()
            ended = waiting is None
            if batch:
                self._answer(batch, self._written(batch))

    def _written(self, batch: Sequence[Ticket]) -> list[Verdict]:
        records = [ticket.record for ticket in batch]
        give_up = self._clock() + GIVE_UP_S
        while True:
            try:
                owned = self._journal.append(records)
            except JournalUnavailable as error:
                log.warning("journal is out of reach turns=%d reason=%s", len(batch), error)
                if self._clock() >= give_up:
                    return [_failed("unavailable", error)] * len(batch)
                self._pause(RETRY_S)
            except Exception as error:
                log.exception("journal cannot be written turns=%d", len(batch))
                return self._one_by_one(batch, error)
            else:
                return [WRITTEN if mine else STALE for mine in owned]

    def _one_by_one(self, batch: Sequence[Ticket], error: Exception) -> list[Verdict]:
        """A record that cannot be written takes none with it that can."""
        if len(batch) == 1:
            return [_failed("error", error)]
        return [verdict for ticket in batch for verdict in self._written([ticket])]

    def _answer(self, batch: Sequence[Ticket], verdicts: Sequence[Verdict]) -> None:
        pairs = list(zip(batch, verdicts, strict=True))
        try:
            self._loop.call_soon_threadsafe(self._told, pairs)
        except RuntimeError:
            log.debug("nobody is left to be told of %d turns", len(pairs))

    def _told(self, pairs: Sequence[tuple[Ticket, Verdict]]) -> None:
        self._open -= len(pairs)
        if not self._open:
            self._idle.set()
        self._tell(pairs)


def _failed(reason: str, error: Exception) -> Verdict:
    return Verdict(written=False, reason=reason, message=str(error))
