"""How what a request names and memory lacks comes back from the journal.

Asked before anything says ``previous_response_not_found``: which sessions, responses and histories
a request may mean that memory does not know. The journal is read beside the event loop, and what
was found is put where it would be had it never fallen out.

Always true: what memory knows is not read again; a tenant is told nothing of what is another's.
"""

import logging
import time
from collections.abc import Callable
from functools import partial

from sessions.durable.account import NO_BUDGET
from sessions.durable.ledger import dollars
from sessions.durable.response_table import StoredResponse
from sessions.durable.session import Session
from sessions.durable.store import Store
from sessions.durable.tenant import Tenant
from sessions.durable.turn_logs import EventLog
from sessions.durable.turn_stats import wire_usage
from sessions.ground import RETRY_AFTER_S
from sessions.journal.adoption import LoadedChain, Loader, link_up
from sessions.journal.encoding import TurnBody
from sessions.journal.errors import (
    JournalBusy,
    JournalElsewhere,
    JournalError,
    JournalUnavailable,
)
from sessions.journal.journal import Journal
from sessions.journal.records import (
    SERVER_DIED,
    SessionRecord,
    SpendTotal,
    StoredTurn,
    options_kept,
)
from sessions.turns.commits import Commits
from sessions.turns.recalling import Claims, Recalling
from sessions.turns.sharing import SharedAccounts
from sessions.turns.wanted import Recalled, Wanted
from tools_api import errors
from tools_api.events import encode, failed
from tools_api.requests import CreateRequest
from tools_api.responses import FailureCode, ResponseObject

log = logging.getLogger(__name__)

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
        self._claims = Claims()

    @property
    def claims(self) -> list[tuple[str, str]]:
        """Tenant and name of sessions that were claimed, or are about to be, and are not in memory
        yet."""
        return self._claims.all

    @property
    def shared(self) -> SharedAccounts:
        """Accounts that other servers draw on too."""
        return self._commits.shared

    def is_claimed(self, tenant: str, session: str) -> bool:
        """Somebody is about to have the session in memory: it must not be let go."""
        return (tenant, session) in self._claims

    # Beside the event loop

    def read(self, tenant: Tenant, wanted: Wanted) -> Recalled:
        """Ask the journal. Waits for disks, and for no other server.

        Raises:
            JournalBusy: a session's owner was asked and has not let go; ``wanted`` may be read
                again, and then nothing is loaded before the session is free.
            JournalError: it cannot be asked.
        """
        return Recalling(
            tenant.name,
            wanted,
            journal=self._journal,
            loader=self._loader,
            claims=self._claims,
            max_item_bytes=self._store.limits.max_frame_bytes,
        ).read()

    def read_response(self, tenant: Tenant, response_id: str) -> Recalled:
        """One response on its own, to be shown.

        Raises:
            JournalElsewhere: it runs at another server.
        """
        ended = response_id if self._journal.shared else None
        return self.read(tenant, Wanted(responses=[response_id], ended=ended))

    # In the event loop

    def remember(self, tenant: Tenant, recalled: Recalled) -> None:
        """Put what was read where it belongs; what has come to memory meanwhile stays."""
        try:
            for record, tree in recalled.sessions:
                tenant.adopt(
                    record.name,
                    partial(self._fill, tenant, record, tree),
                    claimed=not self._journal.shared or record.name in recalled.claimed,
                )
            for chain, packed in recalled.chains:
                self._take_chain(tenant, chain, packed)
            if recalled.ended is not None:
                self._take_ended(*recalled.ended)
        finally:
            self._claims.remove(tenant.name, recalled.claimed)

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

    def _fill(
        self, tenant: Tenant, record: SessionRecord, tree: SpendTotal, session: Session
    ) -> None:
        # Whoever has not answered for as long as memory would have waited is not waited for.
        age_s = self.wall_clock() - record.updated_s
        if record.updated_s:  # else it has had no turn
            tenant.was_active(session, max(age_s, 0.0))
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
        for scope, bounded in accounts.items():
            bounded.budget, bounded.soft = options.budgets.get(scope, (NO_BUDGET, NO_BUDGET))
        session.outlives_sockets, session.labels = options.outlives_sockets, options.labels
        if options.parent is not None:
            session.parent = tenant.session(options.parent)

    def _take_chain(self, tenant: Tenant, chain: LoadedChain, packed: bytes) -> None:
        table, head = tenant.responses, chain.head
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
                session=tenant.session_of(head.row.session),
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
