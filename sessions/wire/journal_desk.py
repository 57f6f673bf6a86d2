"""Between the event loop and the journal: records go out, verdicts and memories come back.

One thread appends, a few others read, for tenants in turn; the event loop waits for none of them,
and none of them for another server. Where servers share sessions, ``session_sharing`` does what
that takes. Another thread looks twice a second whether the journal could be written; while it could
not, no turn begins (``ground``), and who wants to read waits for a second.

Always true: nothing of a journal is asked in the event loop; no thread waits until another server
lets go of a session; what was handed over is written before ``close`` returns, unless the journal
is out of reach.
"""

import asyncio
import logging
import secrets
import time
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Protocol, TypeVar

from sessions.durable.ledger import Unsettled
from sessions.durable.session import Session
from sessions.durable.store import Store
from sessions.durable.tenant import Tenant
from sessions.fair_slots import FairSlots
from sessions.ground import JOURNAL, PATIENCE_S, Ground
from sessions.journal.errors import (
    JournalBusy,
    JournalDisplaced,
    JournalElsewhere,
    JournalUnavailable,
)
from sessions.journal.journal import Journal
from sessions.journal.ownership import ASK_AGAIN_S, POLL_S
from sessions.journal.records import TurnRecord
from sessions.journal.samples import Sample
from sessions.journal.writer import JournalWriter, Tell, Ticket, Verdict
from sessions.turns.commits import residency_record
from sessions.turns.recollection import Recollection
from sessions.turns.wanted import Recalled, Wanted
from sessions.wire.session_sharing import SessionSharing, logged

log = logging.getLogger(__name__)

READERS = 2
SAMPLE_S = 1.0
EXPIRE_EVERY_S = 600.0
RETRY_S = 0.25
GIVE_UP_S = 10.0
"""The time after which a journal that cannot be read is given up; then the request is refused."""

LOOK_EVERY_S, LOOK_AGAIN_S = 0.5, 0.25
"""Between two looks at whether the journal could be written: while it could, and while not."""
LOOK_PATIENCE_S = 1.25
"""How long a look may take; then the journal does not answer."""

ELSEWHERE_S = 10.0
"""How long the end of a turn is waited for that runs at another server."""

CLAIM_WAIT_S = 10.0
"""How long a session's owner is given to let go."""

Answer = TypeVar("Answer")


class Samples(Protocol):
    """The curves' samples for the journal: of a minute that has ended, or at the end."""

    def __call__(self, *, end: bool) -> Sequence[Sample]: ...


class JournalDesk:
    """A running server's. Made in its event loop."""

    def __init__(
        self,
        journal: Journal,
        recollection: Recollection,
        store: Store,
        *,
        keep_s: float,
        ground: Ground | None = None,
        rescue: Callable[[], None] | None = None,
        wall_clock: Callable[[], float] = time.time,
        pause: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        """
        Args:
            keep_s: rows are deleted when they are older and nothing stands on them.
            ground: is told whether the journal could be written; None: nobody is.
            rescue: saves what is committed of a journal whose path names it no more.
            pause: waits so many seconds before another server is asked again.
        """
        self.left: Sequence[TurnRecord] = ()
        """Turns that a server cut short which has died, as they were settled at the start."""
        self._journal = journal
        ownership = journal.ownership
        self.sharing = (
            None if ownership is None else SessionSharing(journal, ownership, recollection, store)
        )
        """The sharing of sessions, where servers share the journal."""
        self._recollection = recollection
        self._store = store
        self._keep_s = keep_s
        self._ground = ground
        self._rescue = rescue
        self._not_looked_yet()
        self._wall_clock, self.pause = wall_clock, pause
        self._readers = ThreadPoolExecutor(READERS, thread_name_prefix="journal reader")
        self._places = FairSlots(READERS)
        """Places at the readers, shared fairly among tenants."""
        self._looker = ThreadPoolExecutor(1, thread_name_prefix="journal look")
        self._writer: JournalWriter | None = None
        self._samples: Samples | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._freeing: set[asyncio.Task[None]] = set()
        """Request ids that are to be another server's."""

    def _not_looked_yet(self) -> None:
        """Set the state of a journal of which nothing is known yet."""
        self._cut_short: Callable[[TurnRecord], None] | None = None
        self._found: str | None = None
        """Why the journal could not be written when it was looked at last."""
        self._readable = True
        self.to_begin: Callable[[], Callable[[], None]] | None = None
        """Reads the rest of a journal that could not be opened for writing at the start; it is
        called beside the event loop, and what it returns in it."""

    @property
    def damaged(self) -> bool:
        """The journal was found damaged: nothing is read or written any more."""
        return self._journal.damage is not None

    def note_settled(self, left: Sequence[TurnRecord]) -> None:
        """Turns were cut short by a server that died; they are settled."""
        self.left = left
        if self._cut_short is not None:
            for record in left:
                self._cut_short(record)

    def not_opened(self, why: str) -> None:
        """The journal could not be opened for writing so far."""
        self._found = why

    @property
    def trouble(self) -> str | None:
        """Why the journal cannot be written; None: it can."""
        told = None if self._writer is None else self._writer.trouble
        hangs = None if self.sharing is None else self.sharing.trouble
        return self._journal.damage or self._found or told or hangs

    def start(self, tell: Tell, samples: Samples, cut_short: Callable[[TurnRecord], None]) -> None:
        """``tell`` hears what became of each record; ``samples`` is asked every second for what
        is to be kept of the curves, and at the end for the rest; ``cut_short`` hears of the turns
        of other servers that have died, once they are settled here, but for those in ``left``."""

        def told(pairs: Sequence[tuple[Ticket, Verdict]]) -> None:
            tell(pairs)
            if self.sharing is not None:
                self.sharing.recorded()

        self._writer = JournalWriter(self._journal, told)
        self._samples = samples
        self._cut_short = cut_short
        loop = asyncio.get_running_loop()
        self._tasks.append(loop.create_task(self._sample()))
        self._tasks.append(loop.create_task(self._expire()))
        if self._ground is not None:
            self._ground.stands_on(JOURNAL, lambda: self.trouble)
            self._tasks.append(loop.create_task(self._look_at_journal(self._ground)))
        if self.sharing is not None:
            self._tasks.append(loop.create_task(self.sharing.live(cut_short)))
            self._tasks.append(loop.create_task(self.sharing.return_share()))

    def commit(self, record: TurnRecord, key: object) -> None:
        """Have a turn's record written."""
        assert self._writer is not None
        self._writer.append(record, key)

    def reserve(self, record: TurnRecord, *, urgent: bool) -> None:
        """Have noted what a running turn holds."""
        assert self._writer is not None
        self._writer.reserve(record, urgent=urgent)

    def settle(self, session: Session, unsettled: Unsettled) -> None:
        """Have what a session's KV was charged written, for which no turn will come."""
        record_id, created_s = f"kv_{secrets.token_hex(16)}", self._wall_clock()
        self.commit(
            residency_record(session, unsettled, record_id=record_id, created_s=created_s), None
        )

    async def recall(self, tenant: Tenant, wanted: Wanted) -> Recalled:
        """Recall what the journal knows of it; it is for ``remember``. The end of a turn that runs
        at another server is waited for, for a while, and that it lets go of a session; in no
        reader's thread, which others need meanwhile.

        Raises:
            JournalError: it stayed out of reach, or is damaged, or the turn goes on elsewhere,
                or the session's owner keeps it.
        """
        work = partial(self._recollection.read, tenant, wanted)
        loop = asyncio.get_running_loop()

        def make() -> Awaitable[Recalled]:
            if self.sharing is not None and (wanted.shares or wanted.draws):
                return loop.run_in_executor(self.sharing.share_reader, work)
            return self._in_turn(tenant.name, work)

        began = loop.time()
        while True:
            if wanted.takes_id and self._freeing:
                await asyncio.wait(self._freeing)  # or an id is taken before it is freed
            try:
                return await self._patiently(make)
            except JournalElsewhere:
                if loop.time() - began >= ELSEWHERE_S:
                    raise
                again_s = POLL_S
            except JournalBusy:
                if loop.time() - began >= CLAIM_WAIT_S:
                    raise
                again_s = ASK_AGAIN_S
            await self.pause(again_s)

    def free(self, tenant: str, ids: Sequence[str]) -> None:
        """Let other servers start turns with these request ids."""
        if self._journal.ownership is not None:
            work = partial(self._journal.ownership.free_requests, tenant, ids)
            task = asyncio.get_running_loop().create_task(self._free(tenant, work))
            self._freeing.add(task)
            task.add_done_callback(self._freeing.discard)

    async def _free(self, tenant: str, work: Callable[[], None]) -> None:
        with logged("request ids"):
            await self.beside(tenant, work)

    def remember(self, tenant: Tenant, recalled: Recalled) -> None:
        """Put into memory what was recalled."""
        self._recollection.remember(tenant, recalled)

    async def find(self, tenant: Tenant, response_id: str) -> None:
        """Have a response in memory, if there is one of that id. Raises as ``recall``."""
        work = partial(self._recollection.read_response, tenant, response_id)
        self.remember(tenant, await self.beside(tenant.name, work))

    async def stands(self, tenant: str, response_id: str) -> bool:
        """Whether a response can still be named: it may have been deleted at another server, or
        by a command. Raises as ``recall``."""
        row = await self.beside(tenant, partial(self._journal.turn, tenant, response_id))
        return row is not None

    async def hide(self, tenant: str, response_id: str) -> bool:
        """Delete a response for who names it. Raises as ``recall``."""
        return await self.beside(tenant, partial(self._journal.hide, tenant, response_id))

    async def beside(self, tenant: str, work: Callable[[], Answer]) -> Answer:
        """Make a call on the journal when it is the tenant's turn, trying again while the journal
        is out of reach."""
        return await self._patiently(partial(self._in_turn, tenant, work))

    async def on_journal(self, tenant: str, work: Callable[[Journal], Answer]) -> Answer:
        """Make a call that is handed the journal, as ``beside``. Raises as ``recall``."""
        return await self.beside(tenant, partial(work, self._journal))

    def drain(self) -> None:
        """Let go of every session as soon as it is idle, from now on."""
        if self.sharing is not None:
            self.sharing.drain()

    async def close(self) -> None:
        """Write what was handed over and close the journal."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, *self._freeing, return_exceptions=True)
        if self._writer is not None and self._samples is not None:
            if samples := self._samples(end=True):
                self._writer.keep(samples)
            await asyncio.to_thread(self._writer.close)
        self._readers.shutdown(wait=True)
        self._looker.shutdown(wait=False)
        if self.sharing is not None:
            self.sharing.close()
        await asyncio.to_thread(self._journal.close)

    async def _in_turn(self, tenant: str, work: Callable[[], Answer]) -> Answer:
        """A caller that gives up leaves its place when its reader is free."""
        async with self._places.place(tenant):
            reading = asyncio.get_running_loop().run_in_executor(self._readers, work)
            try:
                return await asyncio.shield(reading)
            except asyncio.CancelledError:
                await asyncio.wait([reading])
                raise

    async def _patiently(self, make: Callable[[], Awaitable[Answer]]) -> Answer:
        loop = asyncio.get_running_loop()
        asked = loop.time()
        while True:
            try:
                if not self._readable:  # a thread that asks might hang as long as that lasts
                    raise JournalUnavailable(self._found or "it does not answer")
                return await make()
            except JournalBusy:
                raise
            except JournalUnavailable as error:
                patience_s = GIVE_UP_S if self._found is None else PATIENCE_S
                if loop.time() >= asked + patience_s:
                    raise
                log.debug("journal is out of reach, asking again reason=%s", error)
                await asyncio.sleep(RETRY_S)

    async def _look_at_journal(self, ground: Ground) -> None:
        loop = asyncio.get_running_loop()
        looking: asyncio.Future[Callable[[], None] | None] | None = None
        displaced = False
        while True:
            looking = looking or loop.run_in_executor(self._looker, self._looked)
            await asyncio.wait({looking}, timeout=LOOK_PATIENCE_S)
            if looking.done():
                error = looking.exception()
                if error is None and (begin := looking.result()) is not None:
                    self.to_begin = None
                    begin()
                self._found = None if error is None else str(error)
                # What is open can be read, on a disk that is full too.
                self._readable = not (
                    self._journal.shared and isinstance(error, JournalUnavailable)
                )
                if displaced and isinstance(error, JournalDisplaced) and self._rescue is not None:
                    await loop.run_in_executor(self._looker, self._rescue)
                displaced, looking = isinstance(error, JournalDisplaced), None
            else:
                self._found, self._readable = "the journal does not answer", False
            ground.look()
            await asyncio.sleep(LOOK_EVERY_S if self._found is None else LOOK_AGAIN_S)

    def _looked(self) -> Callable[[], None] | None:
        self._journal.look()
        return None if self.to_begin is None else self.to_begin()

    async def _sample(self) -> None:
        assert self._writer is not None
        assert self._samples is not None
        while True:
            await asyncio.sleep(SAMPLE_S)
            if samples := self._samples(end=False):
                self._writer.keep(samples)

    async def _expire(self) -> None:
        while True:
            await asyncio.sleep(EXPIRE_EVERY_S)
            with logged("expire"):
                count = await self.beside("", self._expired)
                if count:
                    log.info("journal rows expired rows=%d", count)

    def _expired(self) -> int:
        """How many rows went. By the journal's clock: this machine's may be wrong, and would take
        what all servers have."""
        return self._journal.expire(self._journal.clock_s() - self._keep_s)
