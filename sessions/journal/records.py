"""Content of a journal, as values: turns, sessions, accounts.

A ``TurnRecord`` is what a turn leaves when it ends and goes into a journal; a ``StoredTurn`` is
what comes out. What a turn that runs may consume is a record too, of the failed turn that it
becomes if its server dies: a reservation. Knows no store and no clock.

Always true: a record of a turn whose client asked for ``store: false``, and of a turn that
cannot be continued, has neither links nor a terminal event: nothing that was said.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import orjson

from sessions.durable.account import NO_BUDGET, Amount, Budget
from sessions.durable.conversations import ConversationRead
from sessions.durable.ledger import COMPACTION, PriceTable, TurnUsage
from sessions.durable.reservation import amount_of
from sessions.durable.session import Session
from sessions.durable.transcript import Entry
from sessions.durable.usage_keys import NO_KEYS, Labels, UsageKeys, sorted_labels

DIGEST_BYTES = 16
SERVER_DIED = "server_died"
"""Why a turn failed that was running when its server died."""
SESSION_MOVED = "session_moved"
"""Why a turn failed whose session another server had taken over, with what the turn held."""
PARENT_DELETED = "parent_deleted"
"""Why a turn failed whose parent was deleted while it ran."""
JOURNAL_UNAVAILABLE = "journal_unavailable"
"""Why a turn failed whose record the journal did not take for too long."""
JOURNAL_FAILED = "journal_failed"
"""Why a turn failed whose record the journal cannot take."""
UNFENCED = 0
"""The epoch of a server that has its journal for itself: nobody can take a session from it."""


RESIDENCY = "residency"
"""The status of a record that is no turn's: what a session's KV was charged after its last one."""
NO_TURNS = frozenset({RESIDENCY, COMPACTION})
"""Statuses of records that are of no turn."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TurnRecord:
    """One ended turn. Immutable all through: it is encoded in another thread."""

    tenant: str
    session: str
    number: int
    """1 for the session's first turn."""
    response_id: str
    parent_id: str | None
    """The response it continued."""
    request_id: str | None = None
    """The client's name for the request; unique per tenant."""
    request_digest: bytes = b""
    """A digest of the request's body: the same id with another one is refused."""
    status: str
    """``completed``, ``incomplete``, ``failed`` or ``cancelled``; or one of ``NO_TURNS``."""
    reason: str | None
    """Why it did not complete, None if it did."""
    usage: TurnUsage
    price: PriceTable
    """Nano-dollars per million tokens, as they were when the turn was settled."""
    cost: int
    """Cost of the turn, in nano-dollars."""
    saved: int
    """Nano-dollars that the cache saved."""
    accounts: tuple[str, ...] = ()
    """Accounts besides the session's own that the usage is added to, e.g. its tenant's."""
    shares: tuple[tuple[str, tuple[str, ...]], ...] = ()
    """Those of ``accounts`` of which this server spends a share, and the kinds that are bounded:
    where it has no longer so much of it the turn is not written. Without kinds it is, and takes
    what there is of the share."""
    keys: UsageKeys = NO_KEYS
    """The keys under which its usage is counted."""
    computed_again: int = 0
    """Prompt tokens that were computed though they had been before."""
    created_s: float
    """When the record was made, in seconds since the epoch."""
    epoch: int = UNFENCED
    """The epoch of the claim under which the turn ran."""
    links: tuple[Entry, ...] = ()
    """The entries that this turn added to its chain, the oldest first, its own last. More than
    one only where truncation made the chain anew."""
    base_id: str | None = None
    """The response in whose entry the oldest link's parent is; None: there is no parent."""
    terminal: bytes = b""
    """The terminal event, as the client is sent it."""
    options: bytes = b""
    """Options that the session keeps from now on (``SessionRecord.options``); empty: none where it
    is a turn, else as before."""
    follows_turns: bool = False
    """Of KV: the session had turns in the journal. Where it has none there it has been deleted."""
    private: bool = False
    """Whether the turn can be asked for by its request id alone (``store: false``)."""
    conversation: ConversationRead | None = None
    """The part that it read of the conversation which goes on from it; where some of that was taken
    out meanwhile the turn is not written."""

    @property
    def entry(self) -> Entry | None:
        """The entry that can be continued."""
        return self.links[-1] if self.links else None

    @property
    def is_turn(self) -> bool:
        """Or what a session's KV was charged while nobody did anything in it, or a summary cost."""
        return self.status not in NO_TURNS

    def options_after(self, before: bytes) -> bytes:
        """The options of the session, which had those of ``before``, once this is written."""
        return self.options if self.options or self.is_turn else before

    @property
    def holds(self) -> bool:
        """Whether it is a reservation that holds anything."""
        return bool(self.usage.input_tokens or self.cost)

    @property
    def digest(self) -> bytes:
        """The digest by which a history that is resent is found: only one that ends in model output
        is proof of being the same conversation; empty for others."""
        entry = self.entry
        return b"" if entry is None or not entry.output_items else entry.digest

    @property
    def open_calls(self) -> bool | None:
        """Whether the client's tools are to answer; None: as before."""
        return None if self.entry is None else bool(self.entry.open_calls)


def usage_alone(record: TurnRecord, *, reason: str) -> TurnRecord:
    """The turn failed after all: what it consumed, and nothing that was said. It is spent, whatever
    has become of the shares. What is no turn's stays as it is."""
    if not record.is_turn:
        return record
    return replace(
        record,
        status="failed",
        reason=reason,
        request_digest=b"",
        shares=tuple((name, ()) for name, _ in record.shares),
        links=(),
        base_id=None,
        terminal=b"",
        conversation=None,
    )


class StoredTurn(NamedTuple):
    """One row of a journal, its checksum found right. ``body`` is read by ``encoding``."""

    tenant: str
    session: str
    seq: int
    """The turn's place in its session's rows, from 1, without gaps."""
    response_id: str
    parent_id: str | None
    base_id: str | None
    request_id: str | None
    continuable: bool
    """A response that can be named; not a turn that left its usage only."""
    digest: bytes
    """Rolling digest of a history that ends in model output; otherwise empty."""
    fingerprint: bytes
    """Fingerprint of tokenizer and chat format."""
    created_s: float
    body: bytes
    deleted: bool = False
    """Whether somebody deleted it, so that it can no longer be named."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SpendTotal:
    """The total spent under one name. Only ever added to."""

    turns: int = 0
    usage: TurnUsage = field(default_factory=TurnUsage)
    cost: int = 0
    saved: int = 0

    @property
    def spent(self) -> Amount:
        """The sums as budgets count them."""
        spent = amount_of(self.usage, self.cost)
        return spent._replace(residency=self.usage.residency)

    def plus(self, record: TurnRecord) -> "SpendTotal":
        return SpendTotal(
            turns=self.turns + record.is_turn,
            usage=self.usage + record.usage,
            cost=self.cost + record.cost,
            saved=self.saved + record.saved,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionRecord:
    """One session as the journal has it."""

    tenant: str
    name: str
    owner: str
    """The server that may append; empty: none."""
    epoch: int
    head_id: str | None
    """The newest response that can be continued."""
    head_seq: int
    """Rows that were ever appended to it."""
    turns_begun: int
    open_calls: bool
    updated_s: float
    """When its last turn ended; 0: it has had none."""
    account: SpendTotal
    failed: int = 0
    """Number of turns that failed."""
    computed_again: int = 0
    """Prompt tokens that were computed though they had been before."""
    options: bytes = b""
    """Options for its later turns: see ``options_kept``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptOptions:
    """Options of a session that hold for its later turns."""

    parent: str | None
    """The session that it is a part of."""
    outlives_sockets: bool
    budgets: Mapping[str, tuple[Budget, Budget]]
    """Budgets among ``session`` and ``tree`` that were told, the bounds and the soft ones."""
    labels: Labels


TENANT_ACCOUNT = "tenant"
"""The name of a tenant's account."""


def session_account(session: str) -> str:
    """The name of a session's own account."""
    return f"session/{session}"


def tree_account(session: str) -> str:
    """The name of the account of a session and all below it."""
    return f"tree/{session}"


def account_names(session: Session) -> tuple[str, ...]:
    """Names of the accounts that the session draws on besides its own, in the order of
    ``Ledger.accounts`` behind that."""
    own, policies = tree_account(session.name), policy_names(session)
    if session.parent is None:
        return own, TENANT_ACCOUNT, *policies
    trees = (tree_account(above.name) for above in session.parents())
    return own, *trees, TENANT_ACCOUNT, *policies


def policy_names(session: Session) -> tuple[str, ...]:
    """Names of the accounts that the operator's budgets by day, month and key have."""
    return tuple(account.name for account in session.ledger.policies)


def options_told(session: Session) -> bytes:
    """The session's options that hold for its later turns, as its row keeps them; empty:
    nothing."""
    options: dict[str, Any] = {}
    for scope, account in (("session", session.ledger.account), ("tree", session.ledger.tree)):
        if account.budget is not NO_BUDGET or account.soft is not NO_BUDGET:
            bounds = [account.budget.bounds(), account.soft.bounds()]
            if any(bounds):
                options[scope] = bounds
    if session.outlives_sockets:
        options["outlives_sockets"] = True
    if session.parent is not None:
        options["parent"] = session.parent.name
    if session.labels:
        options["labels"] = dict(session.labels)
    # A copy of its own size: it is kept, and what encoded it made room for several thousand bytes.
    return bytes(memoryview(orjson.dumps(options))) if options else b""


def options_kept(options: bytes) -> KeptOptions:
    """Read what ``options_told`` wrote."""
    told: dict[str, Any] = orjson.loads(options) if options else {}
    return KeptOptions(
        parent=told.get("parent"),
        outlives_sockets=told.get("outlives_sockets", False),
        labels=sorted_labels(told.get("labels", {})),
        budgets={
            scope: (Budget(**told[scope][0]), Budget(**told[scope][1]))
            for scope in ("session", "tree")
            if scope in told
        },
    )


def new_session(tenant: str, name: str) -> SessionRecord:
    """The record of a session that has had no turn."""
    return SessionRecord(
        tenant=tenant,
        name=name,
        owner="",
        epoch=UNFENCED,
        head_id=None,
        head_seq=0,
        turns_begun=0,
        open_calls=False,
        updated_s=0.0,
        account=SpendTotal(),
    )
