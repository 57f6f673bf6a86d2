"""A session: a chain of turns under one name, one account and one order of turns.

A session is what an agent's loop looks like from here: it is idle, runs a turn, or waits
for the client's tools. Turns that address it by name run one after the other; turns that
continue one of its responses by id are forks of the client's making and may overlap. Knows
no connection and no engine; tickets are opaque.

Always true: at most one ticket is granted at a time, and only when no turn runs. A session that
is closed holds no more than its account needs.
"""

import enum
from bisect import bisect_left, insort
from collections.abc import Hashable, Iterator

from sessions.durable.ledger import Ledger
from sessions.durable.usage_keys import NO_KEYS, Labels


class SessionState(enum.Enum):
    IDLE = "idle"
    RUNNING = "running"
    WAITING_FOR_TOOLS = "waiting_for_tools"
    CLOSED = "closed"
    """Dropped from the store; its name may be used anew."""


class Session:
    """Mutable, owned by the store."""

    __slots__ = (
        "_closed",
        "_granted",
        "_open_calls",
        "_order",
        "_running",
        "_waiting",
        "ahead",
        "claimed",
        "epoch",
        "head_id",
        "in_background",
        "keys",
        "labels",
        "last_active_s",
        "last_used_s",
        "ledger",
        "name",
        "outlives_sockets",
        "parent",
        "tenant",
        "turns_begun",
    )

    def __init__(self, *, name: str, tenant: str, ledger: Ledger, now: float) -> None:
        self.name = name
        self.tenant = tenant
        self.ledger = ledger
        self.head_id: str | None = None
        """Newest stored response; what a turn that only names the session continues."""
        self.last_active_s = now
        """When its last turn began or ended; without one when it was made. Set by ``active``."""
        self.last_used_s = now
        """When it was last of use, also to sessions below it."""
        self.turns_begun = 0
        self.parent: Session | None = None
        """Whose tree's budget its turns draw on as well."""
        self.epoch = 0
        """The epoch of this server's claim to it, where several servers share sessions."""
        self.claimed = True
        """Whether its turns are this server's to write. False: it is in memory for what its tree
        spends, and a turn in it asks the journal for it first."""
        self.outlives_sockets = False
        """``on_disconnect``: its turns go on when their client is gone."""
        self.labels: Labels = ()
        """The session's own labels, under which its usage is counted and by which it is found."""
        self.keys = NO_KEYS
        """The usage keys of its newest turn; charges beside turns are counted under them."""
        self.in_background = 0
        """How many computations for it run while no turn needs it."""
        self.ahead: object = None
        """Work that was done ahead for its next turns; opaque here."""
        # Tuples: all that are idle have the same empty one.
        self._running: tuple[Hashable, ...] = ()
        self._open_calls = False
        self._closed = False
        self._granted: Hashable | None = None
        self._waiting: tuple[Hashable, ...] = ()
        self._order: ByActivity | None = None

    @property
    def state(self) -> SessionState:
        if self._closed:
            return SessionState.CLOSED
        if self._running:
            return SessionState.RUNNING
        return SessionState.WAITING_FOR_TOOLS if self._open_calls else SessionState.IDLE

    @property
    def running(self) -> tuple[Hashable, ...]:
        """The responses of its turns that run."""
        return self._running

    @property
    def tickets(self) -> tuple[Hashable, ...]:
        """Tickets whose turns have not started: the one that is granted, then those that wait."""
        return self._waiting if self._granted is None else (self._granted, *self._waiting)

    @property
    def in_use(self) -> bool:
        """A turn runs or is about to, or something is computed for one: not to be dropped."""
        return self._is_taken or self.in_background > 0

    @property
    def _is_taken(self) -> bool:
        return bool(self._running or self._waiting or self._granted is not None)

    def parents(self) -> "Iterator[Session]":
        """The sessions that it is a part of, the nearest first."""
        above = self.parent
        while above is not None:
            yield above
            above = above.parent

    def request_turn(self, ticket: Hashable) -> bool:
        """Ask for the session's next turn; False puts the ticket into the queue, and
        ``end`` or ``withdraw`` of another one will grant it."""
        if self._is_taken:
            self._waiting += (ticket,)
            return False
        self._granted = ticket
        return True

    def withdraw(self, ticket: Hashable) -> Hashable | None:
        """Give up a ticket, granted or waiting; returns the ticket granted instead."""
        if self._granted == ticket:
            self._granted = None
            return self._grant_next()
        self._waiting = _without(self._waiting, ticket)
        return None

    def start_turn(self, response_id: str, ticket: Hashable | None, now: float) -> int:
        """A turn starts, with the granted ticket or (continuing by id) without one. Returns
        the turn's number, 1 for the first."""
        if ticket is not None:
            assert self._granted == ticket
            self._granted = None
        self._running += (response_id,)
        self.active(now)
        self.last_used_s = now
        self.turns_begun += 1
        return self.turns_begun

    def end_turn(
        self, response_id: str, now: float, *, open_calls: bool | None = None
    ) -> Hashable | None:
        """The turn is over; returns the ticket that is granted now.

        Args:
            open_calls: whether the client's tools are to answer; None leaves it as it was
                (the turn failed).
        """
        assert response_id in self._running
        self._running = _without(self._running, response_id)
        self.active(now)
        self.last_used_s = now
        if open_calls is not None:
            self._open_calls = open_calls
        return None if self._granted is not None else self._grant_next()

    def wait_no_longer(self) -> None:
        """Nobody is there any more whose tools could answer."""
        self._open_calls = False

    def active(self, now: float) -> None:
        """A turn began or ended at that time."""
        order, self._order = self._order, None
        if order is not None:
            order.remove(self)
        self.last_active_s = now
        self.stand_in(order)

    def stand_in(self, order: "ByActivity | None") -> None:
        """Keep the session's place in ``order`` from now on, and in no other."""
        if self._order is not None:
            self._order.remove(self)
        self._order = order
        if order is not None:
            order.add(self)

    def restore(self, *, head_id: str | None, turns_begun: int, open_calls: bool) -> None:
        """Go on where a journal says that it stood."""
        self.head_id, self.turns_begun, self._open_calls = head_id, turns_begun, open_calls

    def close(self) -> None:
        self._closed = True
        self.head_id = self.ahead = None
        self.ledger.share_equals()

    def _grant_next(self) -> Hashable | None:
        if self._running or not self._waiting:
            return None
        self._granted, *others = self._waiting
        self._waiting = tuple(others)
        return self._granted


class ByActivity:
    """Sessions in the order of their last activity, for whoever lists them. To find or to move one
    costs some comparisons, however many there are.

    Always true: they are sorted, as long as nobody changes the time of one that is here.
    """

    def __init__(self) -> None:
        self._sorted: list[Session] = []

    def __len__(self) -> int:
        return len(self._sorted)

    def add(self, each: Session) -> None:
        """Put a session in that is not here yet."""
        insort(self._sorted, each, key=_place)

    def remove(self, each: Session) -> None:
        """Take a session out that is here."""
        place = bisect_left(self._sorted, _place(each), key=_place)
        assert self._sorted[place] is each
        del self._sorted[place]

    def newest(self) -> Iterator[Session]:
        """The most recently active first."""
        return reversed(self._sorted)


def _place(each: Session) -> tuple[float, str]:
    return each.last_active_s, each.name


def _without(several: tuple[Hashable, ...], one: Hashable) -> tuple[Hashable, ...]:
    return tuple(each for each in several if each != one)
