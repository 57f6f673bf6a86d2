"""Rows as tables hold them, each with a checksum over everything in it.

A database notices a page that is torn, not a bit that has turned over in a row. So each row
carries xxh3-128 of its other columns, and nothing is taken from one before that agrees.

Always true: what ``read_*`` returns is what ``*_columns`` was given, or JournalDamaged is
raised.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import xxhash

from sessions.durable.ledger import TurnUsage
from sessions.journal.encoding import HeaderCache, encode_turn
from sessions.journal.errors import JournalDamaged
from sessions.journal.records import SessionRecord, SpendTotal, StoredTurn, TurnRecord
from tools_api.items import Item

Row = tuple[Any, ...]
_VIEWS = frozenset({memoryview, bytearray})

TURN = (
    "tenant, session, seq, epoch, response_id, parent_id, base_id, request_id, digest, "
    "fingerprint, created_ms, continuable, hidden, body, checksum"
)
SESSION = (
    "tenant, name, owner, epoch, head_id, head_seq, gone, turns_begun, open_calls, updated_ms, "
    "parent, bounded, failed, computed_again, missing, cost, options, checksum"
)
ACCOUNT = (
    "tenant, name, turns, input_tokens, cached_tokens, output_tokens, reasoning_tokens, "
    "forced_tokens, drafted_tokens, accepted_tokens, forwards, cost, saved, residency, checksum"
)

RESERVATION = "tenant, session, response_id, accounts, amount, checksum"
SHARE = "tenant, name, owner, amount, checksum"
_DELETED, _LEFT_AND_DELETED = 1, 2
"""In ``hidden`` of a turn that can be continued, and of one of which the usage is all that is kept;
1 says of that one that it was private."""
ITEM = "tenant, digest, created_ms, response_id"
"""No more than a hint: what it leads to is read from its turn, whose row has a checksum."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionRow:
    """A session's columns; its account is a row of its own."""

    tenant: str
    name: str
    owner: str
    epoch: int
    head_id: str | None = None
    head_seq: int = 0
    gone: int = 0
    """Rows of the session that were deleted on purpose: with those that are there they are
    ``head_seq``."""
    turns_begun: int = 0
    open_calls: bool = False
    updated_ms: int = 0
    parent: str = ""
    """The session that it is a part of; empty: none."""
    bounded: bool = False
    """Whether the session has a budget, or its tree, or one that it is in."""
    failed: int = 0
    """Number of turns that failed."""
    computed_again: int = 0
    """Prompt tokens that were computed though they had been before."""
    missing: int = 0
    """The session's hit ratio, as lists are sorted by it: ``listing.missing_part``."""
    cost: int = 0
    """Nano-dollars, as in its account."""
    options: bytes = b""

    def record(self, account: SpendTotal) -> SessionRecord:
        """The row as a ``SessionRecord``, as it leaves the journal."""
        return SessionRecord(
            tenant=self.tenant,
            name=self.name,
            owner=self.owner,
            epoch=self.epoch,
            head_id=self.head_id,
            head_seq=self.head_seq,
            turns_begun=self.turns_begun,
            open_calls=self.open_calls,
            updated_s=self.updated_ms / 1000,
            account=account,
            failed=self.failed,
            computed_again=self.computed_again,
            options=self.options,
        )


def turn_columns(
    record: TurnRecord, *, seq: int, epoch: int, fingerprint: bytes, headers: HeaderCache
) -> Row:
    """A turn's row, in the order of ``TURN``."""
    return sealed(
        (
            record.tenant,
            record.session,
            seq,
            epoch,
            record.response_id,
            record.parent_id,
            record.base_id,
            record.request_id,
            record.digest or None,
            fingerprint,
            round(record.created_s * 1000),
            int(record.entry is not None),
            int(record.private),
            encode_turn(record, headers),
        )
    )


def read_turn(row: Row) -> StoredTurn:
    """A stored turn out of its row. Raises JournalDamaged."""
    tenant, session, seq, _, response_id, parent_id, base_id, request_id, digest, *rest = _checked(
        row, "turn", row[4]
    )
    fingerprint, created_ms, continuable, hidden, body = rest
    return StoredTurn(
        tenant=tenant,
        session=session,
        seq=seq,
        response_id=response_id,
        parent_id=parent_id,
        base_id=base_id,
        request_id=request_id,
        continuable=bool(continuable) and not hidden,
        deleted=hidden == (_DELETED if continuable else _LEFT_AND_DELETED),
        digest=digest or b"",
        fingerprint=fingerprint,
        created_s=created_ms / 1000,
        body=body,
    )


def is_hidden(row: Row) -> bool:
    """Whether the turn can no longer be named."""
    return bool(row[12])


def hidden(row: Row) -> Row:
    """A turn's row that can no longer be named."""
    return sealed((*row[:12], _DELETED if row[11] else _LEFT_AND_DELETED, row[13]))


def session_columns(row: SessionRow) -> Row:
    """A session's columns, in the order of ``SESSION``."""
    return sealed(
        (
            row.tenant,
            row.name,
            row.owner,
            row.epoch,
            row.head_id,
            row.head_seq,
            row.gone,
            row.turns_begun,
            int(row.open_calls),
            row.updated_ms,
            row.parent,
            int(row.bounded),
            row.failed,
            row.computed_again,
            row.missing,
            row.cost,
            row.options,
        )
    )


def read_session(row: Row) -> SessionRow:
    """A session out of its row. Raises JournalDamaged."""
    columns = _checked(row, "session", row[1])
    return SessionRow(
        tenant=columns[0],
        name=columns[1],
        owner=columns[2],
        epoch=columns[3],
        head_id=columns[4],
        head_seq=columns[5],
        gone=columns[6],
        turns_begun=columns[7],
        open_calls=bool(columns[8]),
        updated_ms=columns[9],
        parent=columns[10],
        bounded=bool(columns[11]),
        failed=columns[12],
        computed_again=columns[13],
        missing=columns[14],
        cost=columns[15],
        options=columns[16],
    )


def account_columns(tenant: str, name: str, account: SpendTotal) -> Row:
    """An account's columns, in the order of ``ACCOUNT``."""
    usage = account.usage
    counts = (
        usage.input_tokens,
        usage.cached_tokens,
        usage.output_tokens,
        usage.reasoning_tokens,
        usage.forced_tokens,
        usage.drafted_tokens,
        usage.accepted_tokens,
        usage.forwards,
    )
    return sealed(
        (tenant, name, account.turns, *counts, account.cost, account.saved, usage.residency)
    )


def read_account(row: Row) -> SpendTotal:
    """An account's sums out of their row. Raises JournalDamaged."""
    columns = _checked(row, "account", row[1])
    usage = TurnUsage(
        input_tokens=columns[3],
        cached_tokens=columns[4],
        output_tokens=columns[5],
        reasoning_tokens=columns[6],
        forced_tokens=columns[7],
        drafted_tokens=columns[8],
        accepted_tokens=columns[9],
        forwards=columns[10],
        residency=columns[13],
    )
    return SpendTotal(turns=columns[2], usage=usage, cost=columns[11], saved=columns[12])


def sealed(columns: Row) -> Row:
    """The columns and their checksum."""
    return (*columns, _checksum(columns))


def read_sealed(row: Row, what: str) -> Row:
    """The columns of a row that ``sealed`` made. Raises JournalDamaged."""
    return _checked(row, what, row[0])


def _checked(row: Row, what: str, name: object) -> Row:
    columns = row
    if not _VIEWS.isdisjoint(map(type, row)):
        columns = tuple(bytes(c) if isinstance(c, memoryview | bytearray) else c for c in row)
    if columns[-1] != _checksum(columns[:-1]):
        raise JournalDamaged(
            f"the journal's {what} {name!r} does not agree with its checksum: stop the server and "
            "run 'keepwarm sessions recover'"
        )
    return columns[:-1]


def _checksum(columns: Row) -> bytes:
    state = xxhash.xxh3_128()
    last = columns[-1]
    if isinstance(last, bytes):  # the long one: without a copy in text
        state.update(repr((*columns[:-1], len(last))).encode("utf-8", "surrogatepass"))
        state.update(last)
    else:
        state.update(repr(columns).encode("utf-8", "surrogatepass"))
    return state.digest()


def item_columns(
    tenant: str, response_id: str, created_s: float, items: Iterable[Item]
) -> list[Row]:
    """Rows of ``ITEM``, one for each id that an item of the turn has."""
    ids = {item.id for item in items if item.id is not None}
    created_ms = round(created_s * 1000)
    return [(tenant, item_digest(id_), created_ms, response_id) for id_ in sorted(ids)]


def item_digest(item_id: str) -> bytes:
    """The digest by which an item is looked up: ids are a client's, and may be any text."""
    return xxhash.xxh3_128_digest(item_id.encode())


def content_digest(body: bytes) -> bytes:
    """The name of a header's row."""
    return xxhash.xxh3_128_digest(body)
