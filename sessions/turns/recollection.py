"""How what a request names and memory lacks comes back from the journal.

Asked before anything says ``previous_response_not_found``: which sessions, responses and histories
a request may mean that memory does not know. The journal is read beside the event loop, and what
was found is put where it would be had it never fallen out.

Always true: what memory knows is not read again; a tenant is told nothing of what is another's.
"""

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from sessions.durable.ledger import dollars
from sessions.durable.packing import pack
from sessions.durable.response_table import StoredResponse
from sessions.durable.session import Session
from sessions.durable.store import Store
from sessions.durable.transcript import holds
from sessions.durable.turn_logs import EventLog
from sessions.durable.turn_stats import wire_usage
from sessions.ground import RETRY_AFTER_S
from sessions.journal.adoption import LoadedChain, Loader, link_up
from sessions.journal.encoding import TurnBody, decode_turn
from sessions.journal.errors import (
    JournalBusy,
    JournalElsewhere,
    JournalError,
    JournalUnavailable,
)
from sessions.journal.journal import Journal, Owner
from sessions.journal.records import (
    SERVER_DIED,
    SessionRecord,
    SpendTotal,
    StoredTurn,
    new_session,
    options_kept,
    tree_account,
)
from sessions.turns.commits import Commits
from sessions.turns.sharing import SharedAccounts
from sessions.turns.wanted import Recalled, Wanted
from tools_api import errors
from tools_api.events import encode, failed, response_of
from tools_api.requests import CreateRequest
from tools_api.responses import FailureCode, ResponseObject

log = logging.getLogger(__name__)

_MAX_TWINS = 8
_BEYOND_ANY = 2**31 - 1


class Recollection:
    """A server's memory of what is in its journal."""

    def __init__(
        self,
        *,
        journal: Journal,
        loader: Loader,
        store: Store,
        commits: Commits,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self._journal = journal
        self._loader = loader
        self._store = store
        self._commits = commits
        self.wall_clock = wall_clock
        self._claims: Counter[tuple[str, str]] = Counter()
        """Sessions that were claimed, or are about to be, and are not in memory yet."""
        self._lock = threading.Lock()

    @property
    def claims(self) -> list[tuple[str, str]]:
        """Tenant and name of sessions that were claimed, or are about to be, and are not in memory
        yet."""
        return list(self._claims)

    @property
    def shared(self) -> SharedAccounts:
        """Accounts that other servers draw on too."""
        return self._commits.shared

    def in_hand(self, tenant: str, session: str) -> bool:
        """Somebody is about to have the session in memory: it must not be let go."""
        return (tenant, session) in self._claims

    # Beside the event loop

    def read(self, tenant: str, wanted: Wanted) -> Recalled:
        """Ask the journal. Waits for disks, and for no other server.

        Raises:
            JournalBusy: a session's owner was asked and has not let go; ``wanted`` may be read
                again, and then nothing is loaded before the session is free.
            JournalError: it cannot be asked.
        """
        claimed: list[str] = []
        try:
            recalled = self._read(tenant, wanted, claimed)
        except BaseException as error:
            if isinstance(error, JournalBusy) and not isinstance(error, JournalElsewhere):
                wanted.session = wanted.session or claimed[-1]
            self._let_out_of_hand(tenant, claimed)
            raise
        return replace(recalled, claimed=tuple(claimed))

    def _read(self, tenant: str, wanted: Wanted, claimed: list[str]) -> Recalled:
        """Adds to ``claimed`` what it claims."""
        if wanted.shares:
            ownership = self._journal.ownership
            assert ownership is not None
            return Recalled(shares=ownership.take_shares(tenant, wanted.shares))
        if wanted.draws:
            ownership = self._journal.ownership
            assert ownership is not None
            return Recalled(draws=ownership.draw(tenant, wanted.draws))
        if wanted.conversation is not None:
            return Recalled(conversation=self._journal.conversation(tenant, wanted.conversation))
        if wanted.item_ids:
            most = self._store.limits.max_frame_bytes
            return Recalled(items=self._loader.items(tenant, wanted.item_ids, most))
        sessions: list[SessionRecord] = []
        chains: list[LoadedChain] = []
        ended, taken_id = None, None
        if wanted.request_id or wanted.ended:
            if self._journal.ownership is None:
                ended = self._ended(tenant, wanted)
            else:
                own = self._journal.ownership
                ended, taken_id = self._anywhere(tenant, wanted, own, sessions, claimed)
        if wanted.session is not None:
            sessions += self._claim(tenant, wanted.session, claimed)
        for n, response_id in enumerate(wanted.responses):
            owned = n == 0 and wanted.owns_first
            chain = self._add(chains, tenant, response_id)
            if chain is not None and owned:
                sessions += self._claim(tenant, chain.head.row.session, claimed)
        chain = self._history(tenant, wanted)
        if chain is not None:
            wanted.with_head = False
            chains.append(chain)
            if wanted.owns_first:
                sessions += self._claim(tenant, chain.head.row.session, claimed)
        head_id = None
        if wanted.head_of is not None:
            head_id = self._session(tenant, wanted.head_of).head_id
            if head_id is not None:
                self._add(chains, tenant, head_id)
        if wanted.with_head and sessions and sessions[0].head_id is not None:
            self._add(chains, tenant, sessions[0].head_id)
        if wanted.parent is not None:
            sessions.append(self._session(tenant, wanted.parent))
        return Recalled(
            sessions=tuple(self._with_parents(sessions)),
            chains=tuple((chain, pack(response_of(chain.head.body.terminal))) for chain in chains),
            ended=ended,
            head_id=head_id,
            taken_id=taken_id,
        )

    def _anywhere(
        self,
        tenant: str,
        wanted: Wanted,
        own: Owner,
        sessions: list[SessionRecord],
        claimed: list[str],
    ) -> tuple[tuple[StoredTurn, TurnBody] | None, str | None]:
        """The turn's end, on whichever server it ran, or the request id that nobody has used.

        Raises:
            JournalElsewhere: it has not ended; its server lives.
        """
        id_ = wanted.request_id
        if id_ is None or not wanted.takes_id:
            elsewhere = id_ is not None and own.request_elsewhere(tenant, id_)
            return self._ended_anywhere(tenant, wanted, elsewhere, sessions, claimed), None
        mine = own.take_request(tenant, id_)
        try:
            ended = self._ended_anywhere(tenant, wanted, not mine, sessions, claimed)
        except BaseException:
            own.free_requests(tenant, [id_])
            raise
        if ended is None:
            return None, id_
        own.free_requests(tenant, [id_])
        return ended, None

    def _ended_anywhere(
        self,
        tenant: str,
        wanted: Wanted,
        elsewhere: bool,
        sessions: list[SessionRecord],
        claimed: list[str],
    ) -> tuple[StoredTurn, TurnBody] | None:
        """``elsewhere``: another server has the request's id."""
        # What a turn holds is asked for before its record: it has one of them while it has an id.
        running = self._journal.session_running(tenant, wanted.request_id, wanted.ended)
        ended = self._ended(tenant, wanted)
        if ended is None and running is not None:  # it ends there, or has died with its server
            own = self._journal.ownership
            if own is not None and own.held_elsewhere(tenant, running):
                raise JournalElsewhere(f"session {running!r} is another server's")
            try:
                sessions += self._claim(tenant, running, claimed)
            except JournalBusy as error:
                raise JournalElsewhere(str(error)) from error
            ended = self._ended(tenant, wanted)
        if ended is None and elsewhere:
            raise JournalElsewhere(f"request {wanted.request_id!r} is another server's")
        return ended

    def _ended(self, tenant: str, wanted: Wanted) -> tuple[StoredTurn, TurnBody] | None:
        row = None
        if wanted.request_id is not None:
            row = self._journal.turn_of_request(tenant, wanted.request_id)
        elif wanted.ended is not None:
            row = self._journal.ended_turn(tenant, wanted.ended)
        return None if row is None else (row, decode_turn(row))

    def _with_parents(
        self, sessions: Sequence[SessionRecord]
    ) -> list[tuple[SessionRecord, SpendTotal]]:
        line: list[SessionRecord] = []
        for each in sessions:
            record: SessionRecord | None = each
            while record is not None and record not in line:
                line.append(record)
                parent = options_kept(record.options).parent
                record = None if parent is None else self._session(each.tenant, parent)
        return [
            (record, self._journal.account(record.tenant, tree_account(record.name)))
            for record in reversed(line)
        ]

    def read_response(self, tenant: str, response_id: str) -> Recalled:
        """One response on its own, to be shown.

        Raises:
            JournalElsewhere: it runs at another server.
        """
        ended = response_id if self._journal.shared else None
        return self.read(tenant, Wanted(responses=[response_id], ended=ended))

    def _claim(self, tenant: str, name: str, claimed: list[str]) -> list[SessionRecord]:
        claimed.append(name)
        with self._lock:
            self._claims[tenant, name] += 1
        found = self._journal.claim(tenant, name, 0.0)
        return [found or self._session(tenant, name)]

    def _let_out_of_hand(self, tenant: str, claimed: Sequence[str]) -> None:
        with self._lock:
            for name in claimed:
                self._claims[tenant, name] -= 1
                if not self._claims[tenant, name]:
                    del self._claims[tenant, name]

    def _session(self, tenant: str, name: str) -> SessionRecord:
        """One without a row may have sessions below it that have spent."""
        return self._journal.session(tenant, name) or new_session(tenant, name)

    def _add(self, chains: list[LoadedChain], tenant: str, response_id: str) -> LoadedChain | None:
        chain = self._loader.load(tenant, response_id)
        if chain is not None:
            chains.append(chain)
        return chain

    def _history(self, tenant: str, wanted: Wanted) -> LoadedChain | None:
        """That of the response which said most of the input."""
        for length, digest in wanted.histories:
            for response_id in self._loader.with_history(tenant, digest, _MAX_TWINS):
                chain = self._loader.load(tenant, response_id)
                if chain is None or chain.foreign is not None:
                    continue
                if holds(link_up(chain.turns, lambda _: None), wanted.items[:length]):
                    return chain
        return None

    # In the event loop

    def remember(self, tenant: str, recalled: Recalled) -> None:
        """Put what was read where it belongs; what has come to memory meanwhile stays."""
        try:
            for record, tree in recalled.sessions:
                self._store.adopt(
                    tenant,
                    record.name,
                    partial(self._fill, record, tree),
                    claimed=not self._journal.shared or record.name in recalled.claimed,
                )
            for chain, packed in recalled.chains:
                self._take_chain(tenant, chain, packed)
            if recalled.ended is not None:
                self._take_ended(*recalled.ended)
        finally:
            self._let_out_of_hand(tenant, recalled.claimed)

    def _take_ended(self, row: StoredTurn, body: TurnBody) -> None:
        log = EventLog(
            tenant=row.tenant,
            owner="",
            request_id=row.request_id,
            body_digest=body.request_digest,
            recorded=True,
            deleted=row.deleted,
        )
        self._store.logs.adopt(log, row.response_id, body.terminal or _nothing_left(row, body))

    def _fill(self, record: SessionRecord, tree: SpendTotal, session: Session) -> None:
        # Whoever has not answered for as long as memory would have waited is not waited for.
        age_s = self.wall_clock() - record.updated_s
        if record.updated_s:  # else it has had no turn
            self._store.was_active(session, max(age_s, 0.0))
        awaited = record.open_calls and age_s <= self._store.limits.stored_response_ttl_s
        session.restore(head_id=record.head_id, turns_begun=record.turns_begun, open_calls=awaited)
        session.epoch = record.epoch
        ledger, account = session.ledger, record.account
        ledger.usage, ledger.cost, ledger.saved = account.usage, account.cost, account.saved
        ledger.turns = account.turns
        ledger.account.spent = account.spent
        ledger.tree.spent = ledger.tree.spent.most(tree.spent)  # below it turns may have run
        options = options_kept(record.options)
        accounts = {"session": ledger.account, "tree": ledger.tree}
        for scope, bounds in options.budgets.items():
            accounts[scope].budget, accounts[scope].soft = bounds
        session.outlives_sockets, session.labels = options.outlives_sockets, options.labels
        if options.parent is not None:
            session.parent = self._store.session(record.tenant, options.parent)

    def _take_chain(self, tenant: str, chain: LoadedChain, packed: bytes) -> None:
        table, head = self._store.tenant_responses(tenant), chain.head
        if table.get(head.row.response_id) is not None:
            return
        if chain.foreign is not None:
            entry = chain.foreign
            self._commits.rendered_anew(entry)
        else:
            entry = link_up(chain.turns, table.entry)
        self._store.branches.recalled(entry, foreign=chain.foreign is not None)
        table.put(
            StoredResponse(
                id=head.row.response_id,
                entry=entry,
                session=self._store.session_of(tenant, head.row.session),
                connection_id="",
                private=False,
                packed=packed,
            )
        )


def _nothing_left(row: StoredTurn, body: TurnBody) -> bytes:
    """The last event of a turn of which the journal has the usage only: it failed, or was left
    or kept private. Its number is beyond any, so that whoever missed something gets it."""
    response = ResponseObject(
        id=row.response_id,
        request=CreateRequest(),
        model="",
        created_at=int(row.created_s),
        previous_response_id=row.parent_id,
    )
    code: FailureCode = "server_error"
    message = "The turn ended, and nothing of it was kept."
    if body.reason == SERVER_DIED:
        message = "The server died while this turn ran."
    elif body.reason == "budget_exhausted":
        code, message = "rate_limit_exceeded", "A budget of this turn was exhausted."
    keepwarm = {
        "session": row.session,
        "turn": body.number,
        "reason": body.reason or "not_kept",
        "cost": {"turn": dollars(body.cost)},
    }
    usage = wire_usage(body.usage)
    wire = response.wire(status="failed", usage=usage, error=(code, message), keepwarm=keepwarm)
    return encode(failed(_BEYOND_ANY, wire))


def journal_error(error: Exception) -> Exception:
    """The error for a client where the journal could not be asked."""
    if isinstance(error, JournalElsewhere):
        return errors.runs_elsewhere()
    if isinstance(error, JournalUnavailable):
        busy = isinstance(error, JournalBusy)
        if busy:
            return errors.overloaded("another server holds the session")
        return errors.overloaded("its journal is out of reach", retry_after_s=RETRY_AFTER_S)
    if isinstance(error, JournalError):
        log.error("journal cannot be read reason=%s", error)
        return errors.internal_error()
    return error
