"""Sessions and responses by id: what outlives a turn, and who may see it.

Everything is kept per tenant; a lookup never sees another tenant's state, nor what another
connection keeps to itself (``store: false``). Responses are bounded by count, by bytes and
by age, least recently used first; the clock is handed in. What a dropped response leaves
behind in the engine is released through ``branches``.

Always true: an entry is in at most one table, and its branch is told when it leaves.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from runtime.messages import ReleaseBranch
from sessions.branches import Branches
from sessions.ledger import Ledger, PriceTable
from sessions.session import Session
from sessions.transcript import ROOT_DIGEST, Entry, chain, holds, roll
from sessions.turn_stats import Pace
from tools_api.items import Item
from tools_api.limits import Limits

_MAX_TWINS = 8


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StoredResponse:
    """A finished response that can be continued."""

    id: str
    entry: Entry
    session: Session
    connection_id: str
    """Of the connection it was made on."""
    private: bool
    """Only that connection may see it, nor anything that continues it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionView:
    """One session as the dashboard shows it. Money in nano-dollars."""

    session: str
    tenant: str
    state: str
    """``idle``, ``running``, ``waiting_for_tools`` or ``closed``."""
    turns: int
    input_tokens: int
    cached_tokens: int
    output_tokens: int
    forced_tokens: int
    cost: int
    saved: int
    budget_left: dict[str, int]
    """``input_uncached``, ``output``: tokens, ``cost``: nano-dollars; only those limited."""
    idle_s: float
    """Since the last change of state."""


class ResponseTable:
    """Responses with one audience: a tenant's, or a connection's private ones."""

    def __init__(
        self,
        *,
        max_count: int,
        max_bytes: int,
        ttl_s: float,
        clock: Callable[[], float],
        on_drop: Callable[[StoredResponse], None],
    ) -> None:
        self._max_count = max_count
        self._max_bytes = max_bytes
        self._ttl_s = ttl_s
        self._clock = clock
        self._on_drop = on_drop
        self._responses: OrderedDict[str, tuple[StoredResponse, float]] = OrderedDict()
        self._by_digest: dict[bytes, list[str]] = {}
        self._holders: dict[Entry, int] = {}
        self.num_bytes = 0
        """Of all entries that a stored response can reach; shared ancestors count once."""

    def __len__(self) -> int:
        return len(self._responses)

    def put(self, response: StoredResponse) -> None:
        """Keep a response; others are dropped until the bounds hold, this one is not."""
        self._responses[response.id] = (response, self._clock())
        self._hold(response.entry)
        if response.entry.output_items:
            twins = self._by_digest.setdefault(response.entry.digest, [])
            twins.append(response.id)
            del twins[:-_MAX_TWINS]
        while len(self._responses) > 1 and (
            len(self._responses) > self._max_count or self.num_bytes > self._max_bytes
        ):
            self._drop(next(iter(self._responses)))

    def get(self, response_id: str) -> StoredResponse | None:
        """Look up and count as used."""
        self.expire()
        found = self._responses.get(response_id)
        if found is None:
            return None
        self._responses[response_id] = (found[0], self._clock())
        self._responses.move_to_end(response_id)
        return found[0]

    def knows(self, digest: bytes) -> bool:
        """Whether there may be a response whose history has this digest."""
        return digest in self._by_digest

    def with_history(
        self, digest: bytes, items: Sequence[Item], connection_id: str
    ) -> StoredResponse | None:
        """The response whose whole history is ``items``, preferring one that was made on
        this connection, then the newest."""
        self.expire()
        twins = [self._responses[response_id][0] for response_id in self._by_digest.get(digest, ())]
        twins.reverse()
        for response in sorted(twins, key=lambda twin: twin.connection_id != connection_id):
            if holds(response.entry, items):
                return self.get(response.id)
        return None

    def expire(self) -> None:
        """Drop what is older than its time to live."""
        oldest = self._clock() - self._ttl_s
        while self._responses:
            response_id, (_, used_s) = next(iter(self._responses.items()))
            if used_s >= oldest:
                break
            self._drop(response_id)

    def clear(self) -> None:
        for response_id in list(self._responses):
            self._drop(response_id)

    def _drop(self, response_id: str) -> None:
        response, _ = self._responses.pop(response_id)
        self._let_go(response.entry)
        twins = self._by_digest.get(response.entry.digest, [])
        if response_id in twins:
            twins.remove(response_id)
            if not twins:
                del self._by_digest[response.entry.digest]
        self._on_drop(response)

    def _hold(self, entry: Entry) -> None:
        """Count a holder of ``entry``: a response, or an entry that continues it."""
        for link in chain(entry):
            holders = self._holders.get(link, 0)
            self._holders[link] = holders + 1
            if holders:
                break
            self.num_bytes += link.size_bytes

    def _let_go(self, entry: Entry) -> None:
        for link in chain(entry):
            self._holders[link] -= 1
            if self._holders[link]:
                break
            del self._holders[link]
            self.num_bytes -= link.size_bytes


class _Tenant:
    """One tenant's responses and sessions."""

    def __init__(self, responses: ResponseTable) -> None:
        self.responses = responses
        self.sessions: OrderedDict[str, Session] = OrderedDict()


class Store:
    """Shared by all connections of a server; only the event loop touches it."""

    def __init__(self, *, limits: Limits, prices: PriceTable, clock: Callable[[], float]) -> None:
        self.limits = limits
        self.branches = Branches()
        self._running: dict[str, tuple[str, str]] = {}
        """Tenant and connection of every turn that runs, by its response id."""
        self.pace = Pace()
        self._prices = prices
        self._clock = clock
        self._tenants: dict[str, _Tenant] = {}

    @property
    def running_turns(self) -> int:
        """Over all connections."""
        return len(self._running)

    def turn_began(self, response_id: str, tenant: str, connection_id: str) -> None:
        """A turn of that connection runs, until ``turn_ended``."""
        self._running[response_id] = (tenant, connection_id)

    def turn_ended(self, response_id: str) -> None:
        del self._running[response_id]

    def running_on(self, tenant: str, response_id: str) -> str | None:
        """The connection on which this turn of the tenant runs; None if there is no such turn."""
        owner, connection_id = self._running.get(response_id, (None, ""))
        return connection_id if owner == tenant else None

    def engine_lost(self) -> None:
        """The engine died and forgot all sessions: from here on no request names an earlier
        base. Called once per death, before ``Connection.engine_died``."""
        self.branches.engine_lost()

    def sweep(self) -> tuple[ReleaseBranch, ...]:
        """Drop what is older than its time to live; the releases go to the engine. To be
        called every few seconds."""
        for tenant in self._tenants.values():
            tenant.responses.expire()
            self._expire_sessions(tenant)
        return self.branches.take_releases()

    def sessions(self) -> list[SessionView]:
        """All live sessions of all tenants, most recently active first."""
        views = [
            self._view(session)
            for tenant in self._tenants.values()
            for session in tenant.sessions.values()
        ]
        return sorted(views, key=lambda view: view.idle_s)

    def tenant_responses(self, tenant: str) -> ResponseTable:
        return self._tenant(tenant).responses

    def private_responses(self, on_drop: Callable[[StoredResponse], None]) -> ResponseTable:
        """A new table for one connection's ``store: false`` responses."""

        def dropped(response: StoredResponse) -> None:
            self._dropped(response)
            on_drop(response)

        return ResponseTable(
            max_count=self.limits.max_stored_responses_per_connection,
            max_bytes=self.limits.max_stored_bytes_per_connection,
            ttl_s=self.limits.stored_response_ttl_s,
            clock=self._clock,
            on_drop=dropped,
        )

    def session(self, tenant: str, name: str) -> Session:
        """The tenant's session of that name, made if there is none; counts as used."""
        state = self._tenant(tenant)
        self._expire_sessions(state)
        session = state.sessions.get(name)
        if session is None:
            session = Session(
                name=name, tenant=tenant, ledger=Ledger(self._prices), now=self._clock()
            )
            self._make_room(state)
            state.sessions[name] = session
        state.sessions.move_to_end(name)
        return session

    def revive(self, session: Session) -> Session:
        """The live session that goes on where ``session`` was: itself, or the one that has
        taken its name since it was dropped."""
        return self.session(session.tenant, session.name)

    def _tenant(self, name: str) -> _Tenant:
        tenant = self._tenants.get(name)
        if tenant is None:
            responses = ResponseTable(
                max_count=self.limits.max_stored_responses_per_tenant,
                max_bytes=self.limits.max_stored_bytes_per_tenant,
                ttl_s=self.limits.stored_response_ttl_s,
                clock=self._clock,
                on_drop=self._dropped,
            )
            tenant = self._tenants[name] = _Tenant(responses)
        return tenant

    def _dropped(self, response: StoredResponse) -> None:
        self.branches.drop(response.entry)
        if response.session.head_id == response.id:
            response.session.head_id = None

    def _make_room(self, tenant: _Tenant) -> None:
        """For one more session; those in use stay, even beyond the bound."""
        surplus = len(tenant.sessions) + 1 - self.limits.max_sessions_per_tenant
        idle = [s for s in tenant.sessions.values() if not s.in_use]
        self._close(tenant, idle[: max(surplus, 0)])

    def _expire_sessions(self, tenant: _Tenant) -> None:
        oldest = self._clock() - self.limits.stored_response_ttl_s
        expired: list[Session] = []
        for session in tenant.sessions.values():
            if session.last_active_s >= oldest:
                break
            if not session.in_use:
                expired.append(session)
        self._close(tenant, expired)

    def _close(self, tenant: _Tenant, sessions: Iterable[Session]) -> None:
        for session in sessions:
            session.close()
            del tenant.sessions[session.name]

    def _view(self, session: Session) -> SessionView:
        ledger = session.ledger
        left = ledger.left()
        bounds = {"input_uncached": left.input_uncached, "output": left.output, "cost": left.cost}
        return SessionView(
            session=session.name,
            tenant=session.tenant,
            state=session.state.value,
            turns=ledger.turns,
            input_tokens=ledger.usage.input_tokens,
            cached_tokens=ledger.usage.cached_tokens,
            output_tokens=ledger.usage.output_tokens,
            forced_tokens=ledger.usage.forced_tokens,
            cost=ledger.cost,
            saved=ledger.saved,
            budget_left={name: max(n, 0) for name, n in bounds.items() if n is not None},
            idle_s=self._clock() - session.last_active_s,
        )


class ConnectionStore:
    """What one connection may continue: its tenant's stored responses and its own."""

    def __init__(self, store: Store, *, tenant: str, connection_id: str) -> None:
        self._store = store
        self._tenant = tenant
        self._connection_id = connection_id
        self._shared = store.tenant_responses(tenant)
        self._private_heads: dict[str, str] = {}
        self._private = store.private_responses(self._private_dropped)

    def response(self, response_id: str) -> StoredResponse | None:
        return self._private.get(response_id) or self._shared.get(response_id)

    def history(self, items: Sequence[Item]) -> tuple[StoredResponse, int] | None:
        """The response whose history is the longest prefix of ``items``, and its length.

        Only histories that end in model output count: what was never answered is no proof
        of being the same conversation.
        """
        digests = [ROOT_DIGEST]
        for item in items:
            digests.append(roll(digests[-1], item))
        for length in range(len(items), 0, -1):
            for table in (self._private, self._shared):
                if not table.knows(digests[length]):
                    continue
                found = table.with_history(digests[length], items[:length], self._connection_id)
                if found is not None:
                    return found, length
        return None

    def head(self, session: Session) -> StoredResponse | None:
        """What a turn that only names the session continues."""
        private = self._private_heads.get(session.name)
        found = None if private is None else self._private.get(private)
        if found is None and session.head_id is not None:
            found = self._shared.get(session.head_id)
        return found

    def session(self, name: str) -> Session:
        return self._store.session(self._tenant, name)

    def revive(self, session: Session) -> Session:
        return self._store.revive(session)

    def keep(self, response_id: str, entry: Entry, session: Session, *, private: bool) -> None:
        """Store a finished response as its session's head."""
        response = StoredResponse(
            id=response_id,
            entry=entry,
            session=session,
            connection_id=self._connection_id,
            private=private,
        )
        if private:
            self._private_heads[session.name] = response_id
            self._private.put(response)
        else:
            self._private_heads.pop(session.name, None)
            session.head_id = response_id
            self._shared.put(response)

    def expire(self) -> None:
        """Drop what is older than its time to live of this connection's own."""
        self._private.expire()

    def close(self) -> None:
        """Forget what was this connection's own."""
        self._private.clear()

    def _private_dropped(self, response: StoredResponse) -> None:
        if self._private_heads.get(response.session.name) == response.id:
            del self._private_heads[response.session.name]
