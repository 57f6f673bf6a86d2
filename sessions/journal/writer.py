"""Commits in a thread: what gathered while one was under way goes into the next one.

The event loop hands over a record and a function to be told with; it waits for nothing. What is
told comes back in the event loop, all of one commit in one call. A commit that fails because
the journal is out of reach is tried again for a while: its turns wait with it. Then they have
failed, and what they consumed waits alone until it can be written.

What the event loop hands over in one round goes in one piece, so that it is committed together.
Reservations go with whatever is committed next, and at once, without waiting for a disk, if that
is nothing; nobody waits for them. So soon after a commit that another one is about to follow they
wait a moment for it, unless other servers read of them whose a session is. What could not be noted
is noted with what comes next.

Always true: records are written in the order in which they were handed over; each is answered
exactly once, also when the writer closes; of a turn's reservations the last one is written last,
and none after its record; what a refused turn consumed is written before what is handed over later.
"""

import asyncio
import logging
import queue
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from sessions.journal.errors import JournalParentGone, JournalUnavailable
from sessions.journal.journal import Journal
from sessions.journal.records import (
    JOURNAL_FAILED,
    JOURNAL_UNAVAILABLE,
    PARENT_DELETED,
    TurnRecord,
    usage_alone,
)
from sessions.journal.samples import Sample

log = logging.getLogger(__name__)

MOST_AT_ONCE = 256
"""Records of one transaction, beside those that came in one piece."""
TOLD_AT_ONCE = 16
"""Verdicts that are told before sockets are served again: each may begin or end a turn."""
BUSY_S, GATHER_S, FEW = 0.01, 0.003, 16
"""So soon after a commit others are about to follow, and most of what a commit costs it costs once:
fewer records than this wait so long for them."""
SOON_S = 0.05
"""Seconds that reservations wait after a commit for the next one, where nobody else reads them."""
LATER_S = 0.05
"""How long a reservation that is not urgent waits for something to go with."""
RETRY_S = 0.25
GIVE_UP_S = 10.0
"""The time after which a journal that stays out of reach is given up; then its turns fail."""
MOST_SAMPLES = 4096
"""That wait for a journal which is out of reach; the oldest ones are given up."""
MOST_UNPAID = 16384
"""Refused turns whose usage waits for the journal."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The outcome of one record."""

    written: bool
    reason: str = ""
    """Why not: ``stale`` (another server owns the session), ``parent_deleted``, ``unavailable`` or
    ``error``."""
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
    """The caller's own mark, handed back with the verdict."""


Handed = list[Ticket | TurnRecord | tuple[Sample, ...]]
"""Records that are to be answered, reservations, and samples of the curves."""


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
        self._queue: queue.SimpleQueue[Handed | None] = queue.SimpleQueue()
        self._gathering: Handed = []
        """The records that this round of the event loop hands over."""
        self._due: asyncio.Handle | None = None
        self._committed_s: float | None = None
        """When the last commit ended."""
        self._reserved: dict[tuple[str, str], TurnRecord] = {}
        """Notes yet to be made of turns that run; the thread's own."""
        self._samples: dict[tuple[int, int, str], Sample] = {}
        """Samples that are not yet written; the thread's own."""
        self._samples_due = False
        self._unpaid: list[TurnRecord] = []
        """Consumption of refused turns, not yet written; the thread's own."""
        self.lost = 0
        """Refused turns whose usage was not kept, or cannot be written."""
        self.trouble: str | None = None
        """Why the journal could not be written twice in a row; until it could, something waits."""
        self._failures = 0
        self._open = 0
        self._idle = asyncio.Event()
        self._idle.set()
        self._thread = threading.Thread(target=self._run, name="journal", daemon=True)
        self._thread.start()

    def append(self, record: TurnRecord, key: object) -> None:
        """Have a record written; ``tell`` will say what became of it."""
        self._open += 1
        self._idle.clear()
        self._gathering.append(Ticket(record, key))
        self._schedule()

    def reserve(self, record: TurnRecord, *, urgent: bool = True) -> None:
        """Have noted what a turn holds that runs, as ``Journal.reserve``; what is not ``urgent``
        waits a while for something to go with."""
        self._gathering.append(record)
        if urgent:
            self._schedule()
        elif self._due is None:
            self._due = self._loop.call_later(LATER_S, self._hand_over)

    def _schedule(self) -> None:
        if isinstance(self._due, asyncio.TimerHandle):
            self._due.cancel()
            self._due = None
        if self._due is None:
            self._due = self._loop.call_soon(self._hand_over)

    def _hand_over(self) -> None:
        self._due = None
        if self._gathering:
            self._queue.put(self._gathering)
            self._gathering = []

    def keep(self, samples: Sequence[Sample]) -> None:
        """Have samples of the curves written, behind the records that wait; nobody is told. What
        cannot be written is tried again with the next ones."""
        self._gathering.append(tuple(samples))
        self._schedule()

    @property
    def num_queued(self) -> int:
        """Batches that the thread has not taken yet."""
        return self._queue.qsize()

    async def drained(self) -> None:
        """Wait until everything handed over so far, and meanwhile, has been answered."""
        await self._idle.wait()

    def close(self) -> None:
        """Write what was handed over, then end the thread. What is told of it is lost. May be
        called from another thread once the event loop hands over no more."""
        self._hand_over()
        self._queue.put(None)
        self._thread.join()

    def _run(self) -> None:
        ended = False
        while not ended:
            batch, ended = self._gathered()
            for ticket in batch:
                self._reserved.pop(_key(ticket.record), None)
            if batch:
                verdicts = self._written(batch)
                self._committed_s = self._clock()
                self._answer(batch, verdicts)
            elif self._reserved:
                self._note()
            if self._unpaid and (ended or not batch):
                self._pay_later(ended)
            if self._samples_due or (ended and self._samples):
                self._write_samples()

    def _gathered(self) -> tuple[list[Ticket], bool]:
        """The records that wait, at least one thing if none does; True: there will be no more."""
        batch: list[Ticket] = []
        try:
            # What could not be noted is tried again, though nothing else should come.
            first = self._queue.get(timeout=RETRY_S if self._reserved or self._unpaid else None)
        except queue.Empty:
            return batch, False
        ended = self._take(first, batch)
        while not (batch or ended or self._journal.shared) and self._reserved:
            wait_s = self._since_commit(SOON_S)
            if wait_s <= 0:
                break
            try:
                ended = self._take(self._queue.get(timeout=wait_s), batch)
            except queue.Empty:
                break
        if 0 < len(batch) < FEW and self._since_commit(BUSY_S) > 0:
            self._pause(GATHER_S)
            ended = ended or self._take([], batch)
        return batch, ended

    def _since_commit(self, most_s: float) -> float:
        """The rest of so many seconds since the last commit ended; 0: nothing is."""
        if self._committed_s is None:
            return 0.0
        return max(self._committed_s + most_s - self._clock(), 0.0)

    def _take(self, first: Handed | None, batch: list[Ticket]) -> bool:
        """Take in what was handed over and what waits behind it; True: it was the last."""
        waiting = first
        while waiting is not None:
            for each in waiting:
                if isinstance(each, Ticket):
                    batch.append(each)
                elif isinstance(each, tuple):
                    self._samples |= {(s.width_s, s.number, s.tenant): s for s in each}
                    self._samples_due = True
                else:
                    self._reserved[_key(each)] = each
            if len(batch) >= MOST_AT_ONCE or self._queue.empty():
                return False
            waiting = self._queue.get()
        return True

    def _note(self) -> None:
        """Note what turns hold, on its own, behind what refused turns consumed: until that is
        written the journal has them hold more, and what they gave back may be held by others
        now."""
        try:
            self._pay()
            self._journal.reserve(list(self._reserved.values()))
        except JournalUnavailable as error:
            self._out_of_reach(error)
        except Exception:
            log.exception("journal cannot be written running=%d", len(self._reserved))
            self._reserved.clear()
        else:
            self._in_reach()
            self._reserved.clear()

    def _write_samples(self) -> None:
        self._samples_due = False
        try:
            self._journal.keep_samples(list(self._samples.values()))
        except JournalUnavailable as error:
            log.debug("samples of the curves wait rows=%d reason=%s", len(self._samples), error)
            for key in list(self._samples)[:-MOST_SAMPLES]:
                del self._samples[key]
        except Exception:
            log.exception("samples of the curves are lost rows=%d", len(self._samples))
            self._samples.clear()
        else:
            self._samples.clear()

    def _written(self, batch: Sequence[Ticket], *, with_reserved: bool = True) -> list[Verdict]:
        records = [ticket.record for ticket in batch]
        reserved = list(self._reserved.values()) if with_reserved else []
        give_up = self._clock() + GIVE_UP_S
        while True:
            try:
                self._pay()
                owned = self._journal.append(records, reserved)
            except JournalUnavailable as error:
                self._out_of_reach(error)
                if self._clock() >= give_up:
                    for record in records:
                        self._owe(record, JOURNAL_UNAVAILABLE)
                    return [_failed("unavailable", error)] * len(batch)
                self._pause(RETRY_S)
            except Exception as error:
                self._in_reach()
                if not isinstance(error, JournalParentGone):
                    log.exception("journal cannot be written turns=%d", len(batch))
                if len(batch) == 1 and not reserved:
                    return [self._refused(batch[0], error)]
                # A record that cannot be written takes none with it that can.
                singly = (self._written([ticket], with_reserved=False) for ticket in batch)
                return [verdict for verdicts in singly for verdict in verdicts]
            else:
                self._in_reach()
                if with_reserved:
                    self._reserved.clear()
                return [WRITTEN if mine else STALE for mine in owned]

    def _out_of_reach(self, error: JournalUnavailable) -> None:
        """``JournalDesk`` says when that begins and ends."""
        log.debug("journal is out of reach reason=%s", error)
        self._failures += 1
        if self._failures > 1:
            self.trouble = str(error)

    def _in_reach(self) -> None:
        self._failures, self.trouble = 0, None

    def _refused(self, ticket: Ticket, error: Exception) -> Verdict:
        gone = isinstance(error, JournalParentGone)
        if gone:
            log.warning("a turn's parent was deleted while it ran reason=%s", error)
        self._owe(ticket.record, PARENT_DELETED if gone else JOURNAL_FAILED)
        self._pay_later(False)
        return _failed(PARENT_DELETED if gone else "error", error)

    def _owe(self, record: TurnRecord, reason: str) -> None:
        """The turn has failed, and what it consumed is spent all the same."""
        if len(self._unpaid) < MOST_UNPAID:
            self._unpaid.append(usage_alone(record, reason=reason))
        else:
            self._lose(f"that of {len(self._unpaid)} others waits")

    def _pay(self) -> None:
        """Write what refused turns consumed. Raises JournalUnavailable: the rest waits."""
        while self._unpaid:
            some = self._unpaid[:MOST_AT_ONCE]
            try:
                self._journal.append(some)
            except JournalUnavailable:
                raise
            except Exception:
                some = some[:1]  # what cannot be written takes nothing with it that can
                self._pay_one(some[0])
            self._in_reach()
            log.info("usage of refused turns is written turns=%d", len(some))
            del self._unpaid[: len(some)]

    def _pay_one(self, record: TurnRecord) -> None:
        try:
            self._journal.append([record])
        except JournalUnavailable:
            raise
        except Exception:
            try:  # its request may have been sent again, and ended
                self._journal.append([replace(record, request_id=None)])
            except JournalUnavailable:
                raise
            except Exception as error:
                self._lose(str(error))

    def _pay_later(self, ended: bool) -> None:
        try:
            self._pay()
        except JournalUnavailable as error:
            self._out_of_reach(error)
            self.lost += len(self._unpaid) if ended else 0
        if ended and self.lost:
            log.error("usage of refused turns is not in the journal turns=%d", self.lost)

    def _lose(self, why: str) -> None:
        if not self.lost:
            log.error("usage of a refused turn is not in the journal, nor of others reason=%s", why)
        self.lost += 1

    def _answer(self, batch: Sequence[Ticket], verdicts: Sequence[Verdict]) -> None:
        pairs = list(zip(batch, verdicts, strict=True))
        try:
            self._loop.call_soon_threadsafe(self._told, pairs)
        except RuntimeError:
            log.debug("nobody is left to be told of %d turns", len(pairs))

    def _told(self, pairs: Sequence[tuple[Ticket, Verdict]]) -> None:
        some, rest = pairs[:TOLD_AT_ONCE], pairs[TOLD_AT_ONCE:]
        if rest:
            self._loop.call_soon(self._told, rest)
        self._open -= len(some)
        if not self._open:
            self._idle.set()
        self._tell(some)


def _key(record: TurnRecord) -> tuple[str, str]:
    return record.tenant, record.response_id


def _failed(reason: str, error: Exception) -> Verdict:
    return Verdict(written=False, reason=reason, message=str(error))
