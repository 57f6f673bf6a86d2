"""Figures that a server says of itself in its cluster, read where they are kept.

What takes a look at many sessions is read again every ``ACTIVE_EVERY_S`` only: hearts beat twice a
second, in the event loop.
"""

import itertools
from collections.abc import Callable

from sessions.durable.session import Session
from sessions.durable.store import Store
from sessions.journal.members import MemberLoad
from sessions.pages.dashboard import Dashboard

ACTIVE_S = 600.0
"""A session that was active since counts as one whose KV is worth keeping."""
ACTIVE_EVERY_S = 10.0
MOST_LOOKED_AT = 2000
"""Sessions of one look; of more, those that were active last stand for all."""


class LoadReader:
    """One server's; only the event loop uses it."""

    def __init__(
        self, dashboard: Dashboard, num_sockets: Callable[[], int], clock: Callable[[], float]
    ) -> None:
        """``clock``: monotonic seconds, the store's."""
        self._dashboard = dashboard
        self._num_sockets = num_sockets
        self._clock = clock
        self._active_permille = 0
        self._look_at: float | None = None

    def read(self) -> MemberLoad:
        """The figures as they are now."""
        board, now = self._dashboard, self._clock()
        engine, prompts = board.engine_state(), board.prompts()
        if self._look_at is None or now >= self._look_at:
            capacity = board.kv_capacity_tokens
            held = active_tokens(board.store, now - ACTIVE_S)
            self._active_permille = 1000 * held // capacity if capacity else 0
            self._look_at = now + ACTIVE_EVERY_S
        return MemberLoad(
            kv_permille=round(1000 * engine["kv_usage"]),
            active_permille=self._active_permille,
            running=engine["running"],
            waiting=engine["waiting"],
            sockets=self._num_sockets(),
            sessions=board.store.live_sessions()[0],
            input_tokens=prompts[0],
            cached_tokens=prompts[1],
        )


def active_tokens(store: Store, since_s: float) -> int:
    """Tokens of the contexts of all sessions that were active since; what several share counts for
    each."""
    _, newest = store.live_sessions()
    active = itertools.takewhile(lambda each: each.last_active_s >= since_s, newest)
    looked_at = list(itertools.islice(active, MOST_LOOKED_AT))
    held = sum(context_tokens(store, each) for each in looked_at)
    more = sum(1 for _ in itertools.islice(active, MOST_LOOKED_AT))
    return held if not more else held * (len(looked_at) + more) // len(looked_at)


def context_tokens(store: Store, session: Session) -> int:
    """Tokens of the context that the session's next turn continues, as far as that is known."""
    if session.head_id is None:
        return 0
    entry = store.tenant(session.tenant).responses.entry(session.head_id)
    return 0 if entry is None else len(entry.header.ids) + entry.num_tokens
