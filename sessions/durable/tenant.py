"""A tenant as this server holds it: its terms, its account and quota, its sessions and responses.

There is one object for each tenant, made by ``sessions.durable.store`` when its name is met first,
and handed to whoever acts for the tenant. Rows, messages to the engine, metrics and shares of the
event loop have its name.

Always true: a lookup finds nothing of another tenant, nor what a connection keeps to itself
(``store: false``).
"""

import itertools
from collections import OrderedDict
from collections.abc import Callable, Iterable

from sessions.durable.account import NOTHING, Account
from sessions.durable.branches import Branches
from sessions.durable.budgets import TenantTerms
from sessions.durable.conversations import ConversationTable
from sessions.durable.ledger import Ledger, PriceTable
from sessions.durable.policies import FOR_EVER, PolicyAccount, PolicyAccounts, PolicyBudget
from sessions.durable.response_table import PrivateResponses, ResponseTable, StoredResponse
from sessions.durable.session import ByActivity, Session
from sessions.durable.turn_logs import EventLogs
from sessions.durable.weights import Tally
from sessions.quotas import Quota
from tools_api.limits import Limits


class ResponseTables:
    """Makes the tables of a server; what a dropped response leaves behind in the engine is released
    through ``branches``."""

    def __init__(self, *, limits: Limits, clock: Callable[[], float], branches: Branches) -> None:
        self.limits = limits
        self.clock = clock
        self.lasting = False
        """Responses dropped here are in a journal: a session keeps the name of its head."""
        self.tally = Tally()
        """Bytes of all tables together."""
        self._branches = branches

    def of_tenant(self, on_drop: Callable[[StoredResponse], None] | None = None) -> ResponseTable:
        """A table for what all clients of a tenant may continue. ``on_drop`` hears of each response
        that leaves it."""
        limits = self.limits
        return self._table(
            limits.max_stored_responses_per_tenant, limits.max_stored_bytes_per_tenant, on_drop
        )

    def of_connection(self, on_drop: Callable[[StoredResponse], None]) -> ResponseTable:
        """A table for what one connection may continue. ``on_drop`` as ``of_tenant``."""
        return self._table(
            self.limits.max_stored_responses_per_connection,
            self.limits.max_stored_bytes_per_connection,
            on_drop,
        )

    def _table(
        self, max_count: int, max_bytes: int, on_drop: Callable[[StoredResponse], None] | None
    ) -> ResponseTable:
        def dropped(response: StoredResponse) -> None:
            self._branches.drop(response.entry)
            if response.session.head_id == response.id and not self.lasting:
                response.session.head_id = None
            if on_drop is not None:
                on_drop(response)

        return ResponseTable(
            max_count=max_count,
            max_bytes=max_bytes,
            ttl_s=self.limits.stored_response_ttl_s,
            clock=self.clock,
            on_drop=dropped,
            tally=self.tally,
        )


class Tenant:
    """A tenant. Only the event loop touches it, but for its name."""

    def __init__(
        self,
        name: str,
        *,
        terms: TenantTerms,
        quota: Quota,
        tables: ResponseTables,
        logs: EventLogs,
        journal_clock: Callable[[], float],
    ) -> None:
        """``journal_clock``: seconds since the epoch, as the journal counts them."""
        self.name = name
        self.terms = terms
        self.quota = quota
        """The models it may use, and its turns and tokens a minute."""
        self.policies = PolicyAccounts(name, terms.policies, journal_clock)
        """The accounts of its budgets by day, month and key."""
        self.responses = tables.of_tenant()
        self.unlisted = PrivateResponses(tables.of_tenant)
        """The ``store: false`` responses of all its HTTP requests: nobody can fetch them, but a
        history that is resent is found, as it would be over one WebSocket."""
        self.conversations = ConversationTable(limits=tables.limits, clock=tables.clock)
        """The tenant's conversations, on a server without a journal."""
        self.read_now: dict[str, frozenset[str]] = {}
        """By conversation, in which a turn runs here: the ids of the turn's input, which nothing
        that is added meanwhile may have."""
        self.sessions: OrderedDict[str, Session] = OrderedDict()
        """The one that was used last, by itself or by others, stands last."""
        self.active = ByActivity()
        """The same sessions, in the order of their last turns."""
        self._prices = PriceTable()
        """The prices that its newest session began with."""
        self._account = PolicyAccount(
            PolicyBudget(scope="tenant"), name="", owner=name, period=FOR_EVER, spent=NOTHING
        )
        self._tables = tables
        self._logs = logs

    @property
    def account(self) -> Account:
        """The account of its budget in all, with the bounds of the moment."""
        account, terms = self._account, self.terms
        account.budget, account.warn_at = terms.budget, terms.warn_at
        return account

    def session(self, name: str) -> Session:
        """The session of that name, made if there is none; counts as used."""
        self._expire_sessions()
        session = self.sessions.get(name)
        if session is None:
            session = self.new_session(name)
            self._make_room()
            self.sessions[name] = session
            session.stand_in(self.active)
        self.used(session)
        return session

    def new_session(self, name: str) -> Session:
        """One with the prices of now, which all have together that began with them."""
        prices = self.terms.prices
        if self._prices != prices:
            self._prices = prices
        ledger = Ledger(self._prices)
        return Session(name=name, tenant=self.name, ledger=ledger, now=self._tables.clock())

    def used(self, session: Session) -> None:
        """A turn of the session has ended just now, or somebody draws on its accounts: others are
        forgotten before it."""
        session.last_used_s = self._tables.clock()
        if self.sessions.get(session.name) is session:
            self.sessions.move_to_end(session.name)

    def was_active(self, session: Session, ago_s: float) -> None:
        """A journal knows that the session's last turn ended so long ago."""
        session.active(self._tables.clock() - ago_s)

    def known_session(self, name: str) -> Session | None:
        """The session of that name, None if there is none."""
        return self.sessions.get(name)

    def adopt(self, name: str, fill: Callable[[Session], None], *, claimed: bool) -> None:
        """Take a session in that has fallen out, unless it is here; ``fill`` makes it what it
        was. One that is here and is not claimed becomes what it is now."""
        known = self.known_session(name)
        if known is None or not known.claimed:
            session = self.session(name)
            session.claimed = claimed
            fill(session)

    def session_of(self, name: str) -> Session:
        """The session of a response: the live one, or one that is closed and only says its name."""
        known = self.known_session(name)
        if known is not None:
            return known
        gone = self.new_session(name)
        gone.close()
        return gone

    def ancestor_session(self, name: str) -> Session:
        """The session of that name that others stand on. One that is made of nothing is not
        claimed where a journal may know better."""
        known = self.known_session(name)
        session = self.session(name)
        if session is not known:
            session.claimed = not self._tables.lasting
        return session

    def forget_session(self, name: str) -> None:
        """Drop the session: another server has it, or it was deleted. Turns that run in it end
        as they will."""
        session = self.sessions.get(name)
        if session is not None:
            self._close([session])

    def delete_response(self, response_id: str) -> bool:
        """The response can no longer be named, nor its events be asked for; what continues it
        goes on. False: there is none of that id here, nor the end of one that left nothing."""
        log = self._logs.by_response(self.name, response_id)
        if log is not None:
            self._logs.delete(log)
        stored = self.responses.get(response_id)
        if stored is None:
            return log is not None and log.ended
        self.responses.delete(response_id)
        if stored.session.head_id == response_id:
            stored.session.head_id = None
        return True

    def expire(self) -> None:
        """Drop sessions, responses and conversations that are older than their time to live."""
        self.responses.expire()
        self.unlisted.table.expire()
        self._expire_sessions()
        self.conversations.expire()

    def _make_room(self) -> None:
        """Close idle sessions for one more; those in use stay, even beyond the bound."""
        surplus = len(self.sessions) + 1 - self._tables.limits.max_sessions_per_tenant
        if surplus > 0:
            idle = (each for each in self.sessions.values() if not each.in_use)
            self._close(list(itertools.islice(idle, surplus)))

    def _expire_sessions(self) -> None:
        oldest = self._tables.clock() - self._tables.limits.stored_response_ttl_s
        expired: list[Session] = []
        for session in self.sessions.values():
            if session.last_used_s >= oldest:
                break
            if not session.in_use:
                expired.append(session)
        if expired:
            self._close(expired)

    def _close(self, sessions: Iterable[Session]) -> None:
        for session in sessions:
            session.close()
            session.stand_in(None)
            del self.sessions[session.name]
