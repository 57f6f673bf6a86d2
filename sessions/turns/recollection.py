"""What a request names that is no longer in memory, and how it comes back from the journal.

Asked before anything says ``previous_response_not_found``: which sessions, responses and histories
a request may mean that memory does not know. The journal is read beside the event loop, and what
was found is put where it would be had it never fallen out.

Always true: what memory knows is not read again; a tenant is told nothing of what is another's.
"""

import logging
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import accumulate
from typing import Any

import orjson

from sessions.durable.account import Account, Amount, Budget
from sessions.durable.response_table import StoredResponse
from sessions.durable.session import Session
from sessions.durable.store import ConnectionStore, Store
from sessions.durable.transcript import ROOT_DIGEST, holds, roll
from sessions.durable.turn_logs import TurnLog
from sessions.journal.adoption import LoadedChain, Loader, link_up
from sessions.journal.encoding import TurnBody, decode_turn
from sessions.journal.errors import JournalBusy, JournalError, JournalUnavailable
from sessions.journal.journal import Journal
from sessions.journal.records import Account as SpentAccount
from sessions.journal.records import SessionRecord, StoredTurn, new_session, tree_account
from sessions.turns.commits import Commits
from tools_api import errors
from tools_api.events import encode, failed, response_of
from tools_api.items import Call, Item, Message, Reasoning
from tools_api.requests import CreateRequest
from tools_api.responses import ResponseObject

log = logging.getLogger(__name__)

CLAIM_WAIT_S = 10.0
"""How long a session's owner is given to let go."""
_MAX_TWINS = 8
_BEYOND_ANY = 2**31 - 1


@dataclass(slots=True, kw_only=True)
class Wanted:
    """What a request names and memory lacks."""

    session: str | None = None
    """The one the turn will run in; None: it is known, or to be made, or that of ``response``."""
    parent: str | None = None
    """A session that the turn's own is to be a part of."""
    with_head: bool = False
    """The session's newest response is wanted too."""
    responses: list[str] = field(default_factory=list)
    """The one that is continued first."""
    owns_first: bool = False
    """The turn will run in the session of the first of them."""
    items: tuple[Item, ...] = ()
    request_id: str | None = None
    """A turn that this id may have started."""
    ended: str | None = None
    """A response whose last event is wanted."""
    histories: list[tuple[int, bytes]] = field(default_factory=list)
    """Lengths of beginnings of ``items`` that a response may have said, and their digests; the
    longest first."""

    def __bool__(self) -> bool:
        turn = self.request_id or self.ended
        return bool(self.session or self.parent or self.responses or self.histories or turn)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Recalled:
    """What the journal knew of it."""

    sessions: tuple[tuple[SessionRecord, SpentAccount], ...] = ()
    """With each what it and all below it spent; a session's parents before it."""
    chains: tuple[tuple[LoadedChain, bytes], ...] = ()
    """With each its response object, deflated."""
    ended: tuple[StoredTurn, TurnBody] | None = None
    """The turn whose last event is wanted."""


def wanted_by(
    request: CreateRequest, visible: ConnectionStore, digests: Sequence[bytes] | None = None
) -> Wanted:
    """What has to be asked of the journal before the request can be planned.

    Args:
        digests: of each prefix of the input, if they are known.
    """
    wanted = Wanted()
    name = request.keepwarm.session
    session = None if name is None else visible.known_session(name)
    if name is not None and session is None:
        wanted.session = name
    above = request.keepwarm.parent_session
    if above is not None and visible.known_session(above) is None:
        wanted.parent = above
    parent: StoredResponse | None = None
    if request.previous_response_id is not None:
        parent = visible.response(request.previous_response_id)
        if parent is None:
            wanted.responses.append(request.previous_response_id)
            wanted.owns_first = name is None
    else:
        if digests is None:
            digests = list(accumulate(request.input, roll, initial=ROOT_DIGEST))
        found = visible.history(request.input, digests)
        parent, length = (None, 0) if found is None else found
        wanted.items = request.input
        wanted.histories = _histories(request.input, length, digests)
        wanted.owns_first = bool(wanted.histories) and name is None
        if parent is None:
            wanted.with_head = name is not None
            if session is not None and visible.lacks_head(session) and session.head_id is not None:
                wanted.responses.append(session.head_id)
    if parent is not None and name is None and visible.known_session(parent.session.name) is None:
        wanted.session = parent.session.name
    options = request.prompt_cache_options
    other = None if options is None else options.comparison_response_id
    if other is not None and visible.response(other) is None:
        wanted.responses.append(other)
    return wanted


def _histories(
    items: Sequence[Item], known: int, digests: Sequence[bytes]
) -> list[tuple[int, bytes]]:
    """Beginnings longer than ``known`` that end in what a model says."""
    lengths = range(len(items), known, -1)
    return [(length, digests[length]) for length in lengths if _by_model(items[length - 1])]


def _by_model(item: Item) -> bool:
    if isinstance(item, Message):
        return item.role == "assistant"
    return isinstance(item, Call | Reasoning)


class Recollection:
    """A server's memory of what is in its journal."""

    def __init__(self, *, journal: Journal, loader: Loader, store: Store, commits: Commits) -> None:
        self._journal = journal
        self._loader = loader
        self._store = store
        self._commits = commits

    # Beside the event loop

    def read(self, tenant: str, wanted: Wanted) -> Recalled:
        """Ask the journal. Waits for disks, and for other servers to let go of a session.

        Raises:
            JournalError: it cannot be asked, or a session's owner did not let go.
        """
        sessions: list[SessionRecord] = []
        chains: list[LoadedChain] = []
        if wanted.session is not None:
            sessions += self._claimed(tenant, wanted.session)
        for n, response_id in enumerate(wanted.responses):
            owned = n == 0 and wanted.owns_first
            self._add(chains, sessions, tenant, response_id, owned=owned)
        if wanted.histories and self._history(tenant, wanted, chains, sessions):
            wanted.with_head = False
        if wanted.with_head and sessions and sessions[0].head_id is not None:
            self._add(chains, sessions, tenant, sessions[0].head_id, owned=False)
        if wanted.parent is not None:
            sessions.append(self._session(tenant, wanted.parent))
        return Recalled(
            sessions=tuple(self._with_parents(sessions)),
            chains=tuple((chain, _packed(chain)) for chain in chains),
            ended=self._ended(tenant, wanted),
        )

    def _ended(self, tenant: str, wanted: Wanted) -> tuple[StoredTurn, TurnBody] | None:
        row = None
        if wanted.request_id is not None:
            row = self._journal.turn_of_request(tenant, wanted.request_id)
        elif wanted.ended is not None:
            row = self._journal.turn(tenant, wanted.ended)
        return None if row is None else (row, decode_turn(row))

    def _with_parents(
        self, sessions: Sequence[SessionRecord]
    ) -> list[tuple[SessionRecord, SpentAccount]]:
        line: list[SessionRecord] = []
        for each in sessions:
            record: SessionRecord | None = each
            while record is not None and record not in line:
                line.append(record)
                parent = _options(record).get("parent")
                record = None if parent is None else self._session(each.tenant, parent)
        return [
            (record, self._journal.account(record.tenant, tree_account(record.name)))
            for record in reversed(line)
        ]

    def read_response(self, tenant: str, response_id: str) -> Recalled:
        """One response on its own, to be shown."""
        return self.read(tenant, Wanted(responses=[response_id]))

    def _claimed(self, tenant: str, name: str) -> list[SessionRecord]:
        found = self._journal.claim(tenant, name, CLAIM_WAIT_S)
        return [found or self._session(tenant, name)]

    def _session(self, tenant: str, name: str) -> SessionRecord:
        """One without a row may have sessions below it that have spent."""
        return self._journal.session(tenant, name) or new_session(tenant, name)

    def _add(
        self,
        chains: list[LoadedChain],
        sessions: list[SessionRecord],
        tenant: str,
        response_id: str,
        *,
        owned: bool,
    ) -> bool:
        chain = self._loader.load(tenant, response_id)
        if chain is None:
            return False
        chains.append(chain)
        if owned:
            sessions += self._claimed(tenant, chain.head.row.session)
        return True

    def _history(
        self,
        tenant: str,
        wanted: Wanted,
        chains: list[LoadedChain],
        sessions: list[SessionRecord],
    ) -> bool:
        for length, digest in wanted.histories:
            for response_id in self._loader.with_history(tenant, digest, _MAX_TWINS):
                chain = self._loader.load(tenant, response_id)
                if chain is None or chain.foreign is not None:
                    continue
                if holds(link_up(chain.turns, lambda _: None), wanted.items[:length]):
                    owned = wanted.owns_first
                    return self._add(chains, sessions, tenant, response_id, owned=owned)
        return False

    # In the event loop

    def take(self, tenant: str, recalled: Recalled) -> None:
        """Put what was read where it belongs; what has come to memory meanwhile stays."""
        for record, tree in recalled.sessions:
            self._store.adopt(tenant, record.name, partial(self._fill, record, tree))
        for chain, packed in recalled.chains:
            self._take_chain(tenant, chain, packed)
        if recalled.ended is not None:
            self._take_ended(*recalled.ended)

    def _take_ended(self, row: StoredTurn, body: TurnBody) -> None:
        log = TurnLog(
            tenant=row.tenant,
            owner="",
            request_id=row.request_id,
            body_digest=body.request_digest,
        )
        self._store.logs.adopt(log, row.response_id, body.terminal or _nothing_left(row))

    def _fill(self, record: SessionRecord, tree: SpentAccount, session: Session) -> None:
        session.restore(
            head_id=record.head_id, turns_begun=record.turns_begun, open_calls=record.open_calls
        )
        session.epoch = record.epoch
        ledger, account = session.ledger, record.account
        ledger.usage, ledger.cost, ledger.saved = account.usage, account.cost, account.saved
        ledger.turns = account.turns
        ledger.account.spent, ledger.tree.spent = spent_on(account), spent_on(tree)
        options = _options(record)
        _bound(ledger.account, options.get("session"))
        _bound(ledger.tree, options.get("tree"))
        session.outlives_sockets = options.get("outlives_sockets", False)
        if "parent" in options:
            session.parent = self._store.session(record.tenant, options["parent"])

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


def _nothing_left(row: StoredTurn) -> bytes:
    """The last event of a turn of which the journal has the usage only: it failed, or was left
    or kept private. Its number is beyond any, so that whoever missed something gets it."""
    response = ResponseObject(
        id=row.response_id,
        request=CreateRequest(),
        model="",
        created_at=int(row.created_s),
        previous_response_id=row.parent_id,
    )
    message = "The turn ended, and nothing of it was kept."
    wire = response.wire(status="failed", error=("server_error", message))
    return encode(failed(_BEYOND_ANY, wire))


def _options(record: SessionRecord) -> dict[str, Any]:
    options: dict[str, Any] = orjson.loads(record.options) if record.options else {}
    return options


def spent_on(account: SpentAccount) -> Amount:
    """What a journal's account says was spent, as budgets count it."""
    usage = account.usage
    return Amount(
        input_uncached=usage.uncached_tokens,
        input_cached=usage.cached_tokens,
        output=usage.output_tokens,
        reasoning=usage.reasoning_tokens,
        cost=account.cost,
    )


def _bound(account: Account, bounds: list[dict[str, int]] | None) -> None:
    if bounds is not None:
        account.budget, account.soft = (Budget(**each) for each in bounds)


def journal_error(error: Exception) -> Exception:
    """What a client is told where the journal could not be asked."""
    if isinstance(error, JournalUnavailable):
        busy = isinstance(error, JournalBusy)
        why = "another server holds the session" if busy else "its journal is out of reach"
        return errors.overloaded(why)
    if isinstance(error, JournalError):
        log.error("journal cannot be read reason=%s", error)
        return errors.internal_error()
    return error


def _packed(chain: LoadedChain) -> bytes:
    return zlib.compress(response_of(chain.head.body.terminal), level=1)
