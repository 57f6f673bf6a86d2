"""A server's sessions where other servers of its journal may ask for them.

The server says that it lives, lets go of sessions that another one asks for, and of all that is
idle when it drains, and gives back shares of accounts on which no turn draws. A server that the
others may have taken for dead asks for its sessions anew. Heartbeats have a thread of their own: a
disk may keep every reader for seconds.

Always true: a session in which a turn runs stays until that has ended.
"""

import asyncio
import contextlib
import itertools
import logging
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TypeVar

from sessions.durable.account import NOTHING
from sessions.durable.session import Session
from sessions.durable.store import Store
from sessions.journal.errors import JournalError, JournalUnavailable
from sessions.journal.journal import Journal, Owner
from sessions.journal.ownership import DEAD_MS, HEARTBEAT_S, POLL_S
from sessions.journal.records import TurnRecord
from sessions.turns.recollection import Recollection
from sessions.wire.standing import Standing

log = logging.getLogger(__name__)

Answer = TypeVar("Answer")

HANGS_S = 5.0
"""A commit that takes longer may never end, as where a database waits for a standby."""
_AT_ONCE = 256
"""Sessions of one transaction that a server lets go when it drains."""


class SessionSharing:
    """The part of a running server that shares its sessions. Made in its event loop."""

    def __init__(
        self, journal: Journal, ownership: Owner, recollection: Recollection, store: Store
    ) -> None:
        self._journal = journal
        self._ownership = ownership
        self._recollection = recollection
        self._store = store
        self.standing: Standing | None = None
        """This server's membership of its cluster, if it has one."""
        self._keeper = ThreadPoolExecutor(1, thread_name_prefix="journal ownership")
        self.share_reader = ThreadPoolExecutor(1, thread_name_prefix="journal shares")
        """A thread for shares, not behind those who wait for other servers' sessions."""
        self._look = asyncio.Event()
        """Set when it is worth looking for what others ask for."""
        self._spare = asyncio.Event()
        """Set when it is worth looking for shares that no turn draws on."""
        self.kept = False
        """A session that another server asks for, or that is to be let go, runs a turn."""
        self._draining = False
        self._heard_at = asyncio.get_running_loop().time()
        """When the journal heard last of this server, or the sessions were asked for anew."""
        self._asked_at: float | None = None
        """When the journal was asked that has not answered yet."""

    @property
    def trouble(self) -> str | None:
        """Why turns may not be written; None: they may. Heartbeats are committed as turns are."""
        now, asked_at = asyncio.get_running_loop().time(), self._asked_at
        if asked_at is None or now - asked_at <= HANGS_S:
            return None
        return "the journal does not end a commit"

    async def _keep(self, work: Callable[[], Answer]) -> Answer:
        loop = asyncio.get_running_loop()
        self._asked_at = loop.time()
        try:
            return await loop.run_in_executor(self._keeper, work)
        finally:
            self._asked_at = None

    def recorded(self) -> None:
        """Turns have ended: sessions that were kept for them may go, and shares be given back."""
        if self.kept:
            self._look.set()
        if self._recollection.shared.idle():
            self._spare.set()

    def look(self) -> None:
        """Look now for what others ask for, instead of at the end of ``POLL_S``."""
        self._look.set()

    def drain(self) -> None:
        """Let go of every session as soon as it is idle, from now on."""
        self._draining = True
        self._look.set()

    def close(self) -> None:
        """Return when no thread asks the journal any more; the tasks are cancelled before."""
        self._keeper.shutdown(wait=True)
        self.share_reader.shutdown(wait=True)

    async def live(self, cut_short: Callable[[TurnRecord], None]) -> None:
        """Say that this server lives, and let go of what others ask for, until cancelled.
        ``cut_short`` hears of the turns of servers that have died, once they are settled here."""
        loop = asyncio.get_running_loop()
        ownership = self._ownership
        ownership.listen(partial(_set_from_thread, loop, self._look))
        beat_at = 0.0
        while True:
            with logged("heartbeat"):
                now, due = loop.time(), self.standing is not None and self.standing.due
                if due or now >= beat_at:
                    beat_at = now + HEARTBEAT_S
                    await self._beat()
                    self.awake()
                    self._heard_at = now
                for record in ownership.pop_settled():
                    cut_short(record)
                self.kept = False
                await self.let_go(await self._keep(ownership.wanted))
                if self._draining:
                    await self._let_all_go()
            await _set_or_due(self._look)

    async def _beat(self) -> None:
        ownership, standing = self._ownership, self.standing
        beat = ownership.beat if standing is None else standing.beating(ownership)
        heard = await self._keep(beat)
        self._store.journal_shows(heard.now_ms / 1000)
        if standing is not None:
            standing.heard(heard)

    def awake(self) -> None:
        """Where so long nothing was heard of this server that others may have taken its sessions,
        as when it was stopped: forget those that are idle, so that who names one asks for it."""
        now = asyncio.get_running_loop().time()
        if now - self._heard_at <= DEAD_MS / 1000:
            return
        self._heard_at = now
        self._recollection.shared.distrust_shares()
        log.warning("journal heard nothing of this server for too long, sessions are asked for")
        for session in list(self._store.any_sessions()):
            if not _in_use(session):
                self._store.tenant(session.tenant).forget_session(session.name)

    async def let_go(self, wanted: Iterable[tuple[str, str]]) -> None:
        """Let go of sessions that another server asks for, once no turn runs in them. What fails is
        tried again when they are looked for next, so that no heartbeat waits for it."""
        for tenant, name in wanted:
            if not self._forget(tenant, name):
                continue
            await self._keep(partial(self._journal.release, tenant, [name]))

    async def _let_all_go(self) -> None:
        """Let go of a part of what is idle; of the rest when it is looked for next, which is
        soon."""
        names: dict[str, list[str]] = {}
        idle_ones = (each for each in self._store.any_sessions() if not _in_use(each))
        for session in itertools.islice(idle_ones, _AT_ONCE):
            names.setdefault(session.tenant, []).append(session.name)
        self.kept = True  # of a session that is in use the turn's end is waited for
        for tenant, own in names.items():
            idle = [name for name in own if self._forget(tenant, name)]
            if idle:
                release = partial(self._journal.release, tenant, idle, unasked=True)
                await self._keep(release)
                self._look.set()

    async def return_share(self) -> None:
        """Give back shares of accounts that no turn draws on, until cancelled. They go in the order
        of what is asked for: a turn that begins meanwhile gets its share behind that. No heartbeat
        waits for it."""
        loop, shared = asyncio.get_running_loop(), self._recollection.shared
        while True:
            for key in shared.idle():
                if not shared.gone(key):
                    continue
                with logged("shares"):
                    try:
                        work = partial(self._ownership.return_share, *key)
                        await loop.run_in_executor(self.share_reader, work)
                    except Exception:
                        shared.still(key)
                        raise
            await _set_or_due(self._spare)

    def _forget(self, tenant: str, name: str) -> bool:
        """Drop a session that is to be let go; False: it is in use."""
        whose = self._store.tenant(tenant)
        session = whose.known_session(name)
        if (session is not None and session.in_use) or self._recollection.is_claimed(tenant, name):
            self.kept = True
            return False
        whose.forget_session(name)
        return True


@contextlib.contextmanager
def logged(what: str) -> Iterator[None]:
    """Log an error of what is tried again anyhow, instead of raising it."""
    try:
        yield
    except JournalUnavailable as error:
        log.debug("journal failed at=%s reason=%s", what, error)  # the desk's ``trouble`` says so
    except JournalError as error:
        log.warning("journal failed at=%s reason=%s", what, error)
    except Exception:  # a heartbeat that ends loses every session to other servers
        log.exception("journal failed at=%s", what)


def _in_use(session: Session) -> bool:
    """A turn runs in it, or in one below it."""
    return session.in_use or session.ledger.tree.held != NOTHING


async def _set_or_due(event: asyncio.Event) -> None:
    """Wait for an event, at most ``POLL_S``, and clear it."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(POLL_S):
            await event.wait()
    event.clear()


def _set_from_thread(loop: asyncio.AbstractEventLoop, event: asyncio.Event) -> None:
    with contextlib.suppress(RuntimeError):  # the loop has ended
        loop.call_soon_threadsafe(event.set)
