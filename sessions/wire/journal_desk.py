"""Between the event loop and the journal: records go out, verdicts and memories come back.

One thread appends, a few others read; the event loop waits for none of them. Where servers share
sessions this one says that it lives, and lets go of what another asks for, in a thread of its
own: a reader may wait for seconds until another server lets go.

Always true: nothing of a journal is asked in the event loop; what was handed over is written
before ``close`` returns, unless the journal is out of reach.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TypeVar

from sessions.durable.store import Store
from sessions.journal.errors import JournalBusy, JournalError, JournalUnavailable
from sessions.journal.journal import Journal
from sessions.journal.ownership import HEARTBEAT_S, POLL_S
from sessions.journal.records import TurnRecord
from sessions.journal.writer import JournalWriter, Tell
from sessions.turns.recollection import Recalled, Recollection, Wanted

log = logging.getLogger(__name__)

READERS = 2
EXPIRE_EVERY_S = 600.0
RETRY_S = 0.25
GIVE_UP_S = 10.0
"""Of a journal that cannot be read; then the request is refused."""

Answer = TypeVar("Answer")


class JournalDesk:
    """A running server's. Made in its event loop."""

    def __init__(
        self,
        journal: Journal,
        recollection: Recollection,
        store: Store,
        *,
        keep_s: float,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        """``keep_s``: rows are deleted when they are older and nothing stands on them."""
        self._journal = journal
        self._recollection = recollection
        self._store = store
        self._keep_s = keep_s
        self._wall_clock = wall_clock
        self._readers = ThreadPoolExecutor(READERS, thread_name_prefix="journal reader")
        self._keeper = ThreadPoolExecutor(1, thread_name_prefix="journal ownership")
        self._writer: JournalWriter | None = None
        self._tasks: list[asyncio.Task[None]] = []

    def start(self, tell: Tell) -> None:
        """``tell`` hears what became of each record."""
        self._writer = JournalWriter(self._journal, tell)
        loop = asyncio.get_running_loop()
        self._tasks.append(loop.create_task(self._expire()))
        if self._journal.shared:
            self._tasks.append(loop.create_task(self._live()))

    def commit(self, record: TurnRecord, key: object) -> None:
        """Have a record written."""
        assert self._writer is not None
        self._writer.append(record, key)

    async def recall(self, tenant: str, wanted: Wanted) -> Recalled:
        """What the journal knows of it; it is for ``take``.

        Raises:
            JournalError: it stayed out of reach, or is damaged.
        """
        return await self._beside(partial(self._recollection.read, tenant, wanted))

    def take(self, tenant: str, recalled: Recalled) -> None:
        """Put into memory what was recalled."""
        self._recollection.take(tenant, recalled)

    async def find(self, tenant: str, response_id: str) -> None:
        """Have a response in memory, if there is one of that id. Raises as ``recall``."""
        work = partial(self._recollection.read_response, tenant, response_id)
        self.take(tenant, await self._beside(work))

    async def hide(self, tenant: str, response_id: str) -> bool:
        """Delete a response for who names it. Raises as ``recall``."""
        return await self._beside(partial(self._journal.hide, tenant, response_id))

    async def beside(self, work: Callable[[], Answer]) -> Answer:
        """Make a call on the journal, trying again while it is out of reach."""
        return await self._beside(work)

    async def close(self) -> None:
        """Write what was handed over and close the journal."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._writer is not None:
            await asyncio.to_thread(self._writer.close)
        self._readers.shutdown(wait=True)
        self._keeper.shutdown(wait=True)
        await asyncio.to_thread(self._journal.close)

    async def _beside(self, work: Callable[[], Answer]) -> Answer:
        loop = asyncio.get_running_loop()
        until = loop.time() + GIVE_UP_S
        while True:
            try:
                return await loop.run_in_executor(self._readers, work)
            except JournalBusy:
                raise
            except JournalUnavailable as error:
                if loop.time() >= until:
                    raise
                log.warning("journal is out of reach, asking again reason=%s", error)
                await asyncio.sleep(RETRY_S)

    async def _expire(self) -> None:
        while True:
            await asyncio.sleep(EXPIRE_EVERY_S)
            before_s = self._wall_clock() - self._keep_s
            with self._logged("expire"):
                count = await self._beside(partial(self._journal.expire, before_s))
                if count:
                    log.info("journal rows expired rows=%d", count)

    # Sharing sessions with other servers

    async def _live(self) -> None:
        ownership = self._journal.ownership
        assert ownership is not None
        beat_at = 0.0
        loop = asyncio.get_running_loop()
        while True:
            with self._logged("heartbeat"):
                if loop.time() >= beat_at:
                    beat_at = loop.time() + HEARTBEAT_S
                    await loop.run_in_executor(self._keeper, ownership.beat)
                await self._let_go(await loop.run_in_executor(self._keeper, ownership.wanted))
            await asyncio.sleep(POLL_S)

    async def _let_go(self, wanted: Sequence[tuple[str, str]]) -> None:
        """Of sessions that another server asks for, once no turn runs in them. What fails is
        tried again when they are looked for next, so that no heartbeat waits for it."""
        loop = asyncio.get_running_loop()
        for tenant, name in wanted:
            session = self._store.known_session(tenant, name)
            if session is not None and session.in_use:
                continue
            self._store.forget_session(tenant, name)
            await loop.run_in_executor(self._keeper, partial(self._journal.release, tenant, [name]))

    @contextlib.contextmanager
    def _logged(self, what: str) -> Iterator[None]:
        try:
            yield
        except JournalError as error:
            log.warning("journal failed at=%s reason=%s", what, error)
        except Exception:  # a heartbeat that ends loses every session to other servers
            log.exception("journal failed at=%s", what)
