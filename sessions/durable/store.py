"""Sessions and responses by id: what outlives a turn, and who may see it.

Everything is kept per tenant; a lookup never sees another tenant's state, nor what another
connection keeps to itself (``store: false``). The clock is handed in. What a dropped response
leaves behind in the engine is released through ``branches``.

Always true: an entry is in at most one table, and its branch is told when it leaves.
"""

import heapq
import itertools
import sys
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial

from runtime.messages import ReleaseBranch
from sessions.durable.account import NO_BUDGET, Budget
from sessions.durable.branches import Branches
from sessions.durable.budgets import TenantAccounts, take_budgets
from sessions.durable.conversations import Conversation, ConversationTable
from sessions.durable.ledger import Ledger, PriceTable
from sessions.durable.packing import pack
from sessions.durable.residents import Residents
from sessions.durable.response_table import PrivateResponses, ResponseTable, StoredResponse
from sessions.durable.running_turns import RunningTurns
from sessions.durable.session import ByActivity, Session
from sessions.durable.session_view import SessionView, view_of
from sessions.durable.transcript import Entry, by_model
from sessions.durable.turn_logs import EventLogs
from sessions.durable.turn_stats import Pace
from sessions.durable.weights import Tally, open_requests
from tools_api.items import Item
from tools_api.limits import Limits
from tools_api.requests import KeepwarmOptions

_SESSION_BYTES, _BRANCH_BYTES = 1200, 160


class _Tenant:
    """One tenant's responses and sessions."""

    def __init__(self, responses: ResponseTable, unlisted: PrivateResponses) -> None:
        self.responses = responses
        self.unlisted = unlisted
        self.prices = PriceTable()
        """Those that its newest session began with."""
        self.sessions: OrderedDict[str, Session] = OrderedDict()
        """The one that was used last, by itself or by others, stands last."""
        self.active = ByActivity()
        """The same sessions."""


class Store:
    """Shared by all connections of a server; only the event loop touches it."""

    def __init__(
        self,
        *,
        limits: Limits,
        prices: PriceTable,
        clock: Callable[[], float],
        tenant_budget: Callable[[str], Budget] = lambda _: NO_BUDGET,
        tenant_warn_at: Callable[[str], float | None] = lambda _: None,
        prices_of: Callable[[str], PriceTable] | None = None,
    ) -> None:
        """
        Args:
            tenant_budget, tenant_warn_at: what a tenant may spend in all, and the part of it from
                which on that is told; asked at every turn.
            prices_of: what tokens cost a tenant; without it, ``prices``. A session keeps the
                prices that it began with here.
        """
        self.limits = limits
        self.tenant_accounts = TenantAccounts(tenant_budget, tenant_warn_at)
        self.branches = Branches()
        self.held = open_requests(limits)
        self.residents = Residents(lambda old: self.known_session(old.tenant, old.name) or old)
        self.running = RunningTurns(limits.max_queued_turns)
        self.pace = Pace()
        self.logs = EventLogs(limits=limits, clock=clock)
        self.conversations = ConversationTable(limits=limits, clock=clock)
        """Those of a server without a journal."""
        self.lasting = False
        """Responses dropped here are in a journal: a session keeps the name of its head."""
        self._prices_of = prices_of or (lambda _: prices)
        self._clock = clock
        self._tenants: dict[str, _Tenant] = {}
        self._responses = Tally()

    @property
    def response_bytes(self) -> int:
        """Memory of the responses that can be continued, of all tenants and connections, and of
        what was added to conversations."""
        return self._responses.num_bytes + self.conversations.num_bytes

    @property
    def session_bytes(self) -> int:
        """Memory of the sessions, and of which branches are theirs; roughly."""
        sessions = sum(len(tenant.sessions) for tenant in self._tenants.values())
        return sessions * _SESSION_BYTES + len(self.residents) * _BRANCH_BYTES

    def priced(self, tenants: Iterable[str]) -> bool:
        """Some token costs one of the tenants something."""
        return any(not self._prices_of(tenant).free for tenant in tenants)

    def engine_lost(self) -> None:
        """The engine died and forgot all sessions: from here on no request names an earlier
        base. Called once per death, before ``Connection.engine_died``."""
        self.branches.engine_lost()

    def sweep(self) -> tuple[ReleaseBranch, ...]:
        """Drop what is older than its time to live; the releases go to the engine. To be
        called every few seconds."""
        for tenant in self._tenants.values():
            tenant.responses.expire()
            tenant.unlisted.table.expire()
            self._expire_sessions(tenant)
        self.logs.expire()
        self.conversations.expire()
        return self.branches.take_releases()

    def live_sessions(self, tenant: str | None = None) -> tuple[int, Iterator[Session]]:
        """How many sessions are live (of one tenant; None: of all), and these, most recently
        active first."""
        orders = [each.active for each in self._states(tenant)]
        newest = (order.newest() for order in orders)
        merged = heapq.merge(*newest, key=lambda each: -each.last_active_s)
        return sum(map(len, orders)), merged

    def any_sessions(self, tenant: str | None = None) -> Iterator[Session]:
        """The same in no order of note, which is faster."""
        tables = (each.sessions.values() for each in self._states(tenant))
        return itertools.chain.from_iterable(tables)

    def _states(self, tenant: str | None) -> list[_Tenant]:
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

    def tenant_responses(self, tenant: str) -> ResponseTable:
        return self._tenant(tenant).responses

    def unlisted(self, tenant: str) -> PrivateResponses:
        """The ``store: false`` responses of all the tenant's HTTP requests: nobody can fetch
        them, but a history that is resent is found, as it would be over one WebSocket."""
        return self._tenant(tenant).unlisted

    def private(self) -> PrivateResponses:
        """For one connection's ``store: false`` responses."""
        return PrivateResponses(
            lambda on_drop: self._table(
                self.limits.max_stored_responses_per_connection,
                self.limits.max_stored_bytes_per_connection,
                on_drop,
            )
        )

    def session(self, tenant: str, name: str) -> Session:
        """The tenant's session of that name, made if there is none; counts as used."""
        state = self._tenant(tenant)
        self._expire_sessions(state)
        session = state.sessions.get(name)
        if session is None:
            session = self.new_session(tenant, name)
            self._make_room(state)
            state.sessions[name] = session
            session.stand_in(state.active)
        self.used(session)
        return session

    def used(self, session: Session) -> None:
        """A turn of the session has ended just now, or somebody draws on its accounts: others are
        forgotten before it."""
        session.last_used_s = self._clock()
        sessions = self._tenant(session.tenant).sessions
        if sessions.get(session.name) is session:
            sessions.move_to_end(session.name)

    def was_active(self, session: Session, ago_s: float) -> None:
        """A journal knows that the session's last turn ended so long ago."""
        session.active(self._clock() - ago_s)

    def known_session(self, tenant: str, name: str) -> Session | None:
        """The tenant's session of that name, None if there is none."""
        return self._tenant(tenant).sessions.get(name)

    def adopt(
        self, tenant: str, name: str, fill: Callable[[Session], None], *, claimed: bool
    ) -> None:
        """Take a session in that has fallen out, unless it is here; ``fill`` makes it what it
        was. One that is here and was not ``claimed`` becomes what it is now that it is."""
        known = self.known_session(tenant, name)
        if known is None or (claimed and not known.claimed):
            session = self.session(tenant, name)
            session.claimed = claimed
            fill(session)

    def session_of(self, tenant: str, name: str) -> Session:
        """For a response of that session: the live one, or one that is closed and only says
        its name."""
        known = self.known_session(tenant, name)
        if known is not None:
            return known
        gone = self.new_session(tenant, name)
        gone.close()
        return gone

    def above_or_before(self, tenant: str, name: str) -> Session:
        """The session of that name that others stand on. One that is made of nothing is not
        claimed where a journal may know better."""
        known = self.known_session(tenant, name)
        session = self.session(tenant, name)
        if session is not known:
            session.claimed = not self.lasting
        return session

    def forget_session(self, tenant: str, name: str) -> None:
        """Drop the session: another server has it, or it was deleted. Turns that run in it end
        as they will."""
        state = self._tenant(tenant)
        session = state.sessions.get(name)
        if session is not None:
            self._close(state, [session])

    def delete_response(self, tenant: str, response_id: str) -> bool:
        """The response can no longer be named, nor its events be asked for; what continues it
        goes on. False: there is none of that id here."""
        log = self.logs.of_response(tenant, response_id)
        if log is not None:
            self.logs.delete(log)
        responses = self._tenant(tenant).responses
        stored = responses.get(response_id)
        if stored is None:
            return False
        responses.delete(response_id)
        if stored.session.head_id == response_id:
            stored.session.head_id = None
        return True

    def new_session(self, tenant: str, name: str) -> Session:
        """One with the tenant's prices of now, which all have together that began with them."""
        state, prices = self._tenant(tenant), self._prices_of(tenant)
        if state.prices != prices:
            state.prices = prices
        return Session(name=name, tenant=tenant, ledger=Ledger(state.prices), now=self._clock())

    def _tenant(self, name: str) -> _Tenant:
        tenant = self._tenants.get(name)
        if tenant is None:
            make = partial(
                self._table,
                self.limits.max_stored_responses_per_tenant,
                self.limits.max_stored_bytes_per_tenant,
            )
            tenant = self._tenants[name] = _Tenant(make(), PrivateResponses(make))
        return tenant

    def _table(
        self,
        max_count: int,
        max_bytes: int,
        on_drop: Callable[[StoredResponse], None] | None = None,
    ) -> ResponseTable:
        def dropped(response: StoredResponse) -> None:
            self._dropped(response)
            if on_drop is not None:
                on_drop(response)

        return ResponseTable(
            max_count=max_count,
            max_bytes=max_bytes,
            ttl_s=self.limits.stored_response_ttl_s,
            clock=self._clock,
            on_drop=dropped,
            tally=self._responses,
        )

    def _dropped(self, response: StoredResponse) -> None:
        self.branches.drop(response.entry)
        if response.session.head_id == response.id and not self.lasting:
            response.session.head_id = None

    def _make_room(self, tenant: _Tenant) -> None:
        """For one more session; those in use stay, even beyond the bound."""
        surplus = len(tenant.sessions) + 1 - self.limits.max_sessions_per_tenant
        if surplus > 0:
            idle = (s for s in tenant.sessions.values() if not s.in_use)
            self._close(tenant, list(itertools.islice(idle, surplus)))

    def _expire_sessions(self, tenant: _Tenant) -> None:
        oldest = self._clock() - self.limits.stored_response_ttl_s
        expired: list[Session] = []
        for session in tenant.sessions.values():
            if session.last_used_s >= oldest:
                break
            if not session.in_use:
                expired.append(session)
        if expired:
            self._close(tenant, expired)

    def _close(self, tenant: _Tenant, sessions: Iterable[Session]) -> None:
        for session in sessions:
            session.close()
            session.stand_in(None)
            del tenant.sessions[session.name]

    def view(self, session: Session) -> SessionView:
        """The session as it stands."""
        return view_of(session, self.tenant_accounts.of(session.tenant), self._clock())


class ConnectionStore:
    """The part of the store that one connection may continue: its tenant's stored responses and its
    own."""

    def __init__(
        self,
        store: Store,
        *,
        tenant: str,
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
        self._tenant = tenant
        self._connection_id = connection_id
        self._shared = store.tenant_responses(tenant)
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
        """Of a server without a journal."""
        return self._store.conversations.get(self._tenant, id_)

    def session(self, name: str) -> Session:
        return self._store.session(self._tenant, name)

    def take_budgets(self, options: KeepwarmOptions, session: Session) -> None:
        """Set the budgets that a request brings, before its turn begins.

        Raises:
            ApiError: as ``budgets.take_budgets``.
        """
        parent = None
        if options.parent_session is not None:
            parent = self._store.above_or_before(self._tenant, options.parent_session)
        take_budgets(
            options,
            session,
            parent=parent,
            tenant=self._store.tenant_accounts.of(self._tenant),
            limits=self._store.limits,
        )
        if session.parent is not None:
            for above in session.parents():
                self._store.used(above)

    def claimed_session(self, name: str) -> Session | None:
        """The session of that name, if turns may run in it as it stands in memory."""
        known = self._store.known_session(self._tenant, name)
        return known if known is not None and known.claimed else None

    def known_session(self, name: str) -> Session | None:
        return self._store.known_session(self._tenant, name)

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
