"""The tenants of a server, what they have together, and what one connection sees of its tenant.

The clock is handed in. What a dropped response leaves behind in the engine is released through
``branches``.

Always true: an entry is in at most one table, and its branch is told when it leaves.
"""

import heapq
import itertools
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from runtime.messages import ReleaseBranch
from sessions.durable.account import Amount
from sessions.durable.branches import Branches
from sessions.durable.budgets import TenantTerms, set_budgets
from sessions.durable.conversations import Conversation
from sessions.durable.ledger import PriceTable
from sessions.durable.packing import pack
from sessions.durable.residents import Residents
from sessions.durable.response_table import PrivateResponses, StoredResponse
from sessions.durable.running_turns import RunningTurns
from sessions.durable.session import Session
from sessions.durable.session_view import SessionView, view_of
from sessions.durable.tenant import ResponseTables, Tenant
from sessions.durable.transcript import Entry, by_model
from sessions.durable.turn_logs import EventLogs
from sessions.durable.turn_stats import Pace
from sessions.durable.weights import open_requests
from sessions.quotas import Quotas
from sessions.tenants import Tenants
from tools_api.items import Item
from tools_api.limits import Limits
from tools_api.requests import KeepwarmOptions

_SESSION_BYTES, _BRANCH_BYTES = 1200, 160


class Store:
    """Shared by all connections of a server; only the event loop touches it."""

    def __init__(
        self,
        *,
        limits: Limits,
        prices: PriceTable,
        clock: Callable[[], float],
        tenants: Tenants | None = None,
        cluster: str | None = None,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        """
        Args:
            prices: what tokens cost those that have no prices of their own. A session keeps the
                prices that it began with here.
            tenants: their policies, asked at every turn; without it nobody is bounded.
            cluster: whose servers draw on the same quotas; None: this server stands alone.
            wall_clock: seconds since the epoch.
        """
        self.limits = limits
        self.branches = Branches()
        self.held = open_requests(limits)
        self.residents = Residents(
            lambda old: self.tenant(old.tenant).known_session(old.name) or old
        )
        self.running = RunningTurns(limits.max_queued_turns)
        self.pace = Pace()
        self.logs = EventLogs(limits=limits, clock=clock)
        self._policies = tenants or Tenants([])
        self.quotas = Quotas(self._policies, clock, cluster=cluster)
        self.wall_clock = wall_clock
        self._clock_offset_s = 0.0
        self._prices = prices
        self._clock = clock
        self._tables = ResponseTables(limits=limits, clock=clock, branches=self.branches)
        self._tenants: dict[str, Tenant] = {}

    def tenant(self, name: str) -> Tenant:
        """The tenant of that name: the same object each time."""
        tenant = self._tenants.get(name)
        if tenant is None:
            tenant = self._tenants[name] = Tenant(
                name,
                terms=TenantTerms(self._policies.policy_of(name), self._prices),
                quota=self.quotas.for_tenant(name),
                tables=self._tables,
                logs=self.logs,
                journal_clock=self.journal_clock,
            )
        return tenant

    def journal_clock(self) -> float:
        """Seconds since the epoch by the clock that the servers of a journal have in common;
        without a journal by this machine's."""
        return self.wall_clock() + self._clock_offset_s

    def journal_shows(self, now_s: float) -> None:
        """The journal's clock was looked at just now."""
        self._clock_offset_s = now_s - self.wall_clock()

    def lasts(self) -> None:
        """There is a journal: what is dropped here comes back, and a session keeps the name of its
        head."""
        self._tables.lasting = self.logs.lasting = True

    def load_spent(
        self,
        in_all: Mapping[str, Amount],
        by_policy: Mapping[tuple[str, str], Amount],
        *,
        clock_offset_s: float = 0.0,
    ) -> None:
        """A journal was opened.

        Args:
            in_all: what tenants have spent, by name.
            by_policy: what they have of budgets by day, month and key, by tenant and account.
            clock_offset_s: how far its clock is before this server's.
        """
        for name, amount in in_all.items():
            self.tenant(name).account.spent = amount
        spent: dict[str, dict[str, Amount]] = {}
        for (name, account), amount in by_policy.items():
            spent.setdefault(name, {})[account] = amount
        for name, accounts in spent.items():
            self.tenant(name).policies.load(accounts)
        self._clock_offset_s = clock_offset_s

    @property
    def response_bytes(self) -> int:
        """Memory of the responses that can be continued, of all tenants and connections, and of
        what was added to conversations."""
        conversations = sum(each.conversations.num_bytes for each in self._tenants.values())
        return self._tables.tally.num_bytes + conversations

    @property
    def session_bytes(self) -> int:
        """Memory of the sessions, and of which branches are theirs; roughly."""
        sessions = sum(len(tenant.sessions) for tenant in self._tenants.values())
        return sessions * _SESSION_BYTES + len(self.residents) * _BRANCH_BYTES

    def priced(self, tenants: Iterable[str]) -> bool:
        """Whether some token costs one of the tenants something."""
        return any(not self.tenant(name).terms.prices.free for name in tenants)

    def engine_lost(self) -> None:
        """The engine died and forgot all sessions: from here on no request names an earlier
        base. Called once per death, before ``Connection.engine_died``."""
        self.branches.engine_lost()

    def sweep(self) -> tuple[ReleaseBranch, ...]:
        """Drop what is older than its time to live; the releases go to the engine. To be
        called every few seconds."""
        for tenant in self._tenants.values():
            tenant.expire()
        self.logs.expire()
        return self.branches.pop_releases()

    def live_sessions(self, tenant: str | None = None) -> tuple[int, Iterator[Session]]:
        """How many sessions are live (of one tenant; None: of all), and these, most recently
        active first."""
        orders = [each.active for each in self._shown(tenant)]
        newest = (order.newest() for order in orders)
        merged = heapq.merge(*newest, key=lambda each: -each.last_active_s)
        return sum(map(len, orders)), merged

    def any_sessions(self, tenant: str | None = None) -> Iterator[Session]:
        """Live sessions in no order of note, which is faster."""
        tables = (each.sessions.values() for each in self._shown(tenant))
        return itertools.chain.from_iterable(tables)

    def _shown(self, tenant: str | None) -> list[Tenant]:
        if tenant is None:
            return list(self._tenants.values())
        found = self._tenants.get(tenant)
        return [] if found is None else [found]

    def sessions(
        self, tenant: str | None = None, most: int = sys.maxsize
    ) -> tuple[int, list[SessionView]]:
        """How many sessions are live, and the most recently active of them.

        Costs as much as what it shows, however many there are.

        Args:
            tenant: only this one's; None: those of all.
            most: so many are shown.
        """
        count, newest = self.live_sessions(tenant)
        return count, list(map(self.view, itertools.islice(newest, most)))

    def private(self) -> PrivateResponses:
        """A table for one connection's ``store: false`` responses."""
        return PrivateResponses(self._tables.of_connection)

    def view(self, session: Session) -> SessionView:
        """A session as it stands, for whoever shows it."""
        return view_of(session, self.tenant(session.tenant).account, self._clock())


class ConnectionStore:
    """The part of the store that one connection may continue: its tenant's stored responses and its
    own."""

    def __init__(
        self,
        store: Store,
        *,
        tenant: Tenant,
        connection_id: str,
        private: PrivateResponses | None = None,
        continues_heads: bool = True,
    ) -> None:
        """
        Args:
            private: responses that outlive the connection; without it they die with it.
            continues_heads: a turn that only names a session goes on where that stands. False
                for a client that sends whole histories.
        """
        self._store = store
        self.tenant = tenant
        self._connection_id = connection_id
        self._shared = tenant.responses
        self.continues_heads = continues_heads
        self._owns_private = private is None
        self._closed = False
        private = private or store.private()
        self._private, self._private_heads = private.table, private.heads

    def response(self, response_id: str) -> StoredResponse | None:
        return self._private.get(response_id) or self._shared.get(response_id)

    def stored_id(self, entry: Entry | None) -> str | None:
        """The response of an entry, if the tenant's connections may continue it."""
        return None if entry is None else self._shared.id_of(entry)

    def item(self, item_id: str) -> tuple[Item, bool] | None:
        """The stored item of that id, and whether it is not for the whole tenant."""
        shared = self._shared.item(item_id)
        found = shared or self._private.item(item_id)
        return None if found is None else (found, shared is None)

    def history(
        self, items: Sequence[Item], digests: Sequence[bytes]
    ) -> tuple[StoredResponse, int] | None:
        """The response whose history is the longest prefix of ``items``, and its length.
        ``digests``: ``roll`` of each prefix of ``items``.

        Only histories that end in model output count: what was never answered is no proof
        of being the same conversation.
        """
        for length in range(len(items), 0, -1):
            if not by_model(items[length - 1]):
                continue
            for table in (self._private, self._shared):
                if not table.knows(digests[length]):
                    continue
                found = table.with_history(digests[length], items[:length], self._connection_id)
                if found is not None:
                    return found, length
        return None

    def head(self, session: Session) -> StoredResponse | None:
        """The response that a turn continues which only names the session."""
        return self._head(session) if self.continues_heads else None

    def last_said(self, session: Session) -> Entry | None:
        """Where the session stood when its last stored turn ended; None: unknown."""
        found = self._head(session)
        return None if found is None else found.entry

    def _head(self, session: Session) -> StoredResponse | None:
        private = self._private_heads.get(session.name)
        found = None if private is None else self._private.get(private)
        if found is None and session.head_id is not None:
            found = self._shared.get(session.head_id)
        return found

    def lacks_head(self, session: Session) -> bool:
        """The session has a newest response that is not in memory."""
        return self.continues_heads and session.head_id is not None and self.head(session) is None

    def conversation(self, id_: str) -> Conversation | None:
        """The conversation of that id; None also where a journal keeps them."""
        return self.tenant.conversations.get(id_)

    def session(self, name: str) -> Session:
        return self.tenant.session(name)

    def set_budgets(self, options: KeepwarmOptions, session: Session) -> None:
        """Set the budgets that a request brings, before its turn begins.

        Raises:
            ApiError: as ``budgets.set_budgets``.
        """
        parent = None
        if options.parent_session is not None:
            parent = self.tenant.ancestor_session(options.parent_session)
        set_budgets(
            options,
            session,
            parent=parent,
            tenant=self.tenant.account,
            limits=self._store.limits,
        )
        if session.parent is not None:
            for above in session.parents():
                self.tenant.used(above)

    def claimed_session(self, name: str) -> Session | None:
        """The session of that name, if turns may run in it as it stands in memory."""
        known = self.tenant.known_session(name)
        return known if known is not None and known.claimed else None

    def known_session(self, name: str) -> Session | None:
        return self.tenant.known_session(name)

    def keep(
        self,
        response_id: str,
        entry: Entry,
        session: Session,
        *,
        private: bool,
        wire: bytes = b"",
    ) -> None:
        """Store a finished response as its session's head; ``wire`` is its response object."""
        response = StoredResponse(
            id=response_id,
            entry=entry,
            session=session,
            connection_id=self._connection_id,
            private=private,
            packed=b"" if private else pack(wire),
        )
        if private:
            self._private_heads[session.name] = response_id
            self._private.put(response)
            if self._closed and self._owns_private:
                self._private.clear()
        else:
            self._private_heads.pop(session.name, None)
            session.head_id = response_id
            self._shared.put(response)

    def expire(self) -> None:
        """Drop what is older than its time to live of this connection's own."""
        self._private.expire()

    def close(self) -> None:
        """Forget what was this connection's own."""
        self._closed = True
        if self._owns_private:
            self._private.clear()
