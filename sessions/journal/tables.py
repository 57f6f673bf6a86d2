"""The tables that SQLite and PostgreSQL both have, and reading and writing single rows of them.

A row that is to be changed is read with a lock where the store locks rows one by one. Knows no
order of rows and commits nothing: ``batch`` and ``sql`` do.

Always true: a session's rows and its ``gone`` are together ``head_seq``; its epoch only grows.
"""

import abc
import contextlib
import re
from collections.abc import Iterator, Sequence
from typing import Any, Protocol, TypeVar

from sessions.journal import rows
from sessions.journal.encoding import HeaderCache
from sessions.journal.errors import contradiction
from sessions.journal.records import UNFENCED, SpendTotal, session_account
from sessions.journal.rows import SessionRow

SCHEMA = """
CREATE TABLE session (
    tenant TEXT NOT NULL, name TEXT NOT NULL, owner TEXT NOT NULL, epoch BIGINT NOT NULL,
    head_id TEXT, head_seq BIGINT NOT NULL, gone BIGINT NOT NULL, turns_begun BIGINT NOT NULL,
    open_calls BIGINT NOT NULL, updated_ms BIGINT NOT NULL, parent TEXT NOT NULL,
    bounded BIGINT NOT NULL, failed BIGINT NOT NULL, computed_again BIGINT NOT NULL,
    missing BIGINT NOT NULL, cost BIGINT NOT NULL, options {blob} NOT NULL,
    checksum {blob} NOT NULL, wanted_by TEXT NOT NULL DEFAULT '', PRIMARY KEY (tenant, name));
CREATE INDEX session_used ON session (updated_ms DESC, tenant, name);
CREATE INDEX session_cost ON session (cost DESC, tenant, name);
CREATE INDEX session_again ON session (computed_again DESC, tenant, name);
CREATE INDEX session_missing ON session (missing DESC, tenant, name);
CREATE INDEX session_failed ON session (tenant, name) WHERE failed > 0;
CREATE INDEX session_bounded ON session (tenant, name) WHERE bounded > 0;
CREATE INDEX session_several ON session (tenant, name) WHERE turns_begun > 1;
CREATE INDEX session_parent ON session (tenant, parent) WHERE parent <> '';
CREATE INDEX session_wanted ON session (owner) WHERE wanted_by <> '';
CREATE TABLE turn (
    tenant TEXT NOT NULL, session TEXT NOT NULL, seq BIGINT NOT NULL, epoch BIGINT NOT NULL,
    response_id TEXT NOT NULL, parent_id TEXT, base_id TEXT, request_id TEXT, digest {blob},
    fingerprint {blob} NOT NULL, created_ms BIGINT NOT NULL, continuable BIGINT NOT NULL,
    hidden BIGINT NOT NULL, body {blob} NOT NULL, checksum {blob} NOT NULL,
    PRIMARY KEY (tenant, session, seq), UNIQUE (tenant, response_id));
CREATE UNIQUE INDEX turn_request ON turn (tenant, request_id) WHERE request_id IS NOT NULL;
CREATE INDEX turn_digest ON turn (tenant, digest) WHERE digest IS NOT NULL;
CREATE INDEX turn_base ON turn (tenant, base_id) WHERE base_id IS NOT NULL;
CREATE INDEX turn_created ON turn (created_ms);
CREATE TABLE name (
    tenant TEXT NOT NULL, response_id TEXT NOT NULL, session TEXT NOT NULL, seq BIGINT NOT NULL,
    PRIMARY KEY (tenant, response_id));
CREATE TABLE header (digest {blob} PRIMARY KEY, body {blob} NOT NULL);
CREATE TABLE account (
    tenant TEXT NOT NULL, name TEXT NOT NULL, turns BIGINT NOT NULL,
    input_tokens BIGINT NOT NULL, cached_tokens BIGINT NOT NULL, output_tokens BIGINT NOT NULL,
    reasoning_tokens BIGINT NOT NULL, forced_tokens BIGINT NOT NULL,
    drafted_tokens BIGINT NOT NULL, accepted_tokens BIGINT NOT NULL, forwards BIGINT NOT NULL,
    cost BIGINT NOT NULL, saved BIGINT NOT NULL, residency BIGINT NOT NULL,
    checksum {blob} NOT NULL,
    PRIMARY KEY (tenant, name));
CREATE TABLE reservation (
    tenant TEXT NOT NULL, session TEXT NOT NULL, response_id TEXT NOT NULL,
    accounts TEXT NOT NULL, amount {blob} NOT NULL, checksum {blob} NOT NULL,
    PRIMARY KEY (tenant, response_id));
CREATE INDEX reservation_session ON reservation (tenant, session);
CREATE TABLE share (
    tenant TEXT NOT NULL, name TEXT NOT NULL, owner TEXT NOT NULL, amount {blob} NOT NULL,
    checksum {blob} NOT NULL, PRIMARY KEY (tenant, name, owner));
CREATE TABLE request (
    tenant TEXT NOT NULL, request_id TEXT NOT NULL, owner TEXT NOT NULL,
    PRIMARY KEY (tenant, request_id));
CREATE INDEX request_owner ON request (owner);
CREATE TABLE item (
    tenant TEXT NOT NULL, digest {blob} NOT NULL, created_ms BIGINT NOT NULL,
    response_id TEXT NOT NULL, PRIMARY KEY (tenant, digest, created_ms, response_id));
CREATE INDEX item_turn ON item (tenant, response_id);
CREATE TABLE call_state (
    tenant TEXT NOT NULL, response_id TEXT NOT NULL, call_id TEXT NOT NULL, body {blob} NOT NULL,
    checksum {blob} NOT NULL, PRIMARY KEY (tenant, response_id, call_id));
CREATE TABLE conversation (
    tenant TEXT NOT NULL, id TEXT NOT NULL, updated_ms BIGINT NOT NULL, head_id TEXT,
    edits BIGINT NOT NULL, version BIGINT NOT NULL, body {blob} NOT NULL, checksum {blob} NOT NULL,
    PRIMARY KEY (tenant, id));
CREATE INDEX conversation_used ON conversation (updated_ms);
CREATE INDEX conversation_head ON conversation (tenant, head_id) WHERE head_id IS NOT NULL;
CREATE TABLE curve (
    width_s BIGINT NOT NULL, number BIGINT NOT NULL, server TEXT NOT NULL, tenant TEXT NOT NULL,
    body {blob} NOT NULL, checksum {blob} NOT NULL,
    PRIMARY KEY (width_s, tenant, number, server));
CREATE INDEX curve_old ON curve (width_s, number);
CREATE TABLE session_label (
    name TEXT NOT NULL, value TEXT NOT NULL, tenant TEXT NOT NULL, session TEXT NOT NULL,
    PRIMARY KEY (name, value, tenant, session)) {clustered};
CREATE INDEX session_labels ON session_label (tenant, session);
CREATE TABLE session_text (
    tenant TEXT NOT NULL, session TEXT NOT NULL, text TEXT NOT NULL,
    PRIMARY KEY (tenant, session)) {clustered};
CREATE TABLE usage_hour (
    hour BIGINT NOT NULL, tenant TEXT NOT NULL, key TEXT NOT NULL, model TEXT NOT NULL,
    tool TEXT NOT NULL, {sums}, PRIMARY KEY (hour, tenant, key, model, tool)) {clustered};
CREATE TABLE usage_label (
    hour BIGINT NOT NULL, tenant TEXT NOT NULL, name TEXT NOT NULL, value TEXT NOT NULL,
    {sums}, PRIMARY KEY (name, hour, tenant, value)) {clustered};
CREATE TABLE usage_value (
    tenant TEXT NOT NULL, kind TEXT NOT NULL, value TEXT NOT NULL,
    PRIMARY KEY (tenant, kind, value)) {clustered};
CREATE TABLE member (
    owner TEXT PRIMARY KEY, heartbeat_ms BIGINT NOT NULL, cluster TEXT NOT NULL,
    address TEXT NOT NULL, identity TEXT NOT NULL, state TEXT NOT NULL,
    version TEXT NOT NULL, kv_permille BIGINT NOT NULL, active_permille BIGINT NOT NULL,
    running BIGINT NOT NULL, waiting BIGINT NOT NULL, sockets BIGINT NOT NULL,
    sessions BIGINT NOT NULL, input_tokens BIGINT NOT NULL, cached_tokens BIGINT NOT NULL,
    slot BIGINT NOT NULL DEFAULT 0,
    told_ms BIGINT NOT NULL DEFAULT 0);
CREATE INDEX member_cluster ON member (cluster);
CREATE TABLE draw (
    cluster TEXT NOT NULL, tenant TEXT NOT NULL, kind TEXT NOT NULL, level BIGINT NOT NULL,
    at_ms BIGINT NOT NULL, PRIMARY KEY (cluster, tenant, kind));
CREATE TABLE journal (id BIGINT PRIMARY KEY, identity {blob} NOT NULL, commits BIGINT NOT NULL);
"""
NAMES = tuple(re.findall(r"CREATE TABLE (\w+)", SCHEMA))
"""Names of the tables."""
_SUMS = (
    "turns BIGINT NOT NULL, failed BIGINT NOT NULL, calls BIGINT NOT NULL, "
    "input_tokens BIGINT NOT NULL, cached_tokens BIGINT NOT NULL, output_tokens BIGINT NOT NULL, "
    "reasoning_tokens BIGINT NOT NULL, forced_tokens BIGINT NOT NULL, residency BIGINT NOT NULL, "
    "cost BIGINT NOT NULL, saved BIGINT NOT NULL"
)
"""Columns with sums of usage, for the tables that have them."""
VERSION = 11
"""The version of the tables and of what their rows hold; no other is read."""
FIRST_EPOCH = 1


class Cursor(Protocol):
    """Methods that both drivers have."""

    def execute(self, sql: str, parameters: Sequence[Any] = ..., /) -> Any: ...
    def fetchone(self) -> Any: ...
    def fetchall(self) -> list[Any]: ...


class SqlTables(abc.ABC):
    """A database that has them; one server's."""

    for_update = ""
    """Ends a query of rows that will be changed."""
    for_share = ""
    """Ends a query of rows that have to stay until the transaction ends."""
    text_in = "instr(text, ?) > 0"
    """Whether a text stands in a session's (``listing``)."""
    request_in = "instr(amount, ?) > 0"
    """Whether bytes stand in a reservation's."""
    now_sql: str
    """The query of its clock, in milliseconds since the epoch."""
    damage: str | None = None
    """See ``Journal``."""

    def __init__(self, *, fingerprint: bytes, owner: str, shared: bool) -> None:
        """``owner``: what this server calls itself in the sessions it has claimed."""
        self.fingerprint = fingerprint
        self.owner = owner
        self._shared = shared
        self.headers = HeaderCache()
        self.kept_headers: set[bytes] = set()
        self.usage_values: set[tuple[str, str, str]] = set()
        """Tenant, kind and value of what usage is counted under, of those known to be there."""

    @property
    def shared(self) -> bool:
        """Other servers append to it as well."""
        return self._shared

    @abc.abstractmethod
    def writing(self, *, synced: bool = True) -> contextlib.AbstractContextManager[Cursor]:
        """A transaction that is durable when the context ends, or undone by an exception. Not
        ``synced``: it outlives this process, but a power cut may take it until the next one that
        is, and it waits for no disk."""

    @abc.abstractmethod
    def reading(self) -> contextlib.AbstractContextManager[Cursor]:
        """One state of the database. Both raise JournalError alone."""

    def now_ms(self, cursor: Cursor) -> int:
        """The journal's clock: milliseconds since the epoch."""
        return int(cursor.execute(self.now_sql).fetchone()[0])

    def lock_name(self, cursor: Cursor, kind: str, tenant: str, name: str) -> None:
        """Keep others from making a row of that name until the transaction ends; where only one
        transaction writes at a time there is nothing to be done."""
        del cursor, kind, tenant, name

    def write_session(self, cursor: Cursor, session: SessionRow) -> None:
        """Insert or replace the row."""
        changes = ", ".join(f"{name} = excluded.{name}" for name in rows.SESSION.split(", ")[2:])
        cursor.execute(
            f"INSERT INTO session ({rows.SESSION}) VALUES ({marks(18)}) "
            f"ON CONFLICT (tenant, name) DO UPDATE SET {changes}",
            rows.session_columns(session),
        )

    def new_session(self, tenant: str, name: str) -> SessionRow:
        """A session's row as this server would make it; nothing is written."""
        epoch = FIRST_EPOCH if self._shared else UNFENCED
        owner = self.owner if self._shared else ""
        return SessionRow(tenant=tenant, name=name, owner=owner, epoch=epoch)

    def session_row(
        self, cursor: Cursor, tenant: str, name: str, *, lock: bool = False
    ) -> SessionRow | None:
        """``lock``: until the transaction ends."""
        sql = f"SELECT {rows.SESSION} FROM session WHERE tenant = ? AND name = ?"
        if lock:
            sql += self.for_update
        row = cursor.execute(sql, (tenant, name)).fetchone()
        return None if row is None else rows.read_session(row)

    def account_row(
        self, cursor: Cursor, tenant: str, name: str, *, lock: bool = False
    ) -> SpendTotal:
        """An account's row; all zero if there is none."""
        return self._found_account(cursor, tenant, name, lock=lock) or SpendTotal()

    def _found_account(
        self, cursor: Cursor, tenant: str, name: str, *, lock: bool = False
    ) -> SpendTotal | None:
        sql = f"SELECT {rows.ACCOUNT} FROM account WHERE tenant = ? AND name = ?"
        if lock:
            sql += self.for_update
        row = cursor.execute(sql, (tenant, name)).fetchone()
        return None if row is None else rows.read_account(row)

    def account_of(self, cursor: Cursor, session: SessionRow) -> SpendTotal:
        """The session's own. Raises JournalDamaged: it has had turns, and has no account."""
        name = session_account(session.name)
        account = self._found_account(cursor, session.tenant, name)
        check_account(session, account)
        return account or SpendTotal()


def statements(blob: str) -> list[str]:
    """Statements that make the tables. ``blob``: the database's type of bytes."""
    clustered = "WITHOUT ROWID" if blob == "BLOB" else ""
    return SCHEMA.format(blob=blob, clustered=clustered, sums=_SUMS).split(";")[:-1]


def check_account(session: SessionRow, account: SpendTotal | None) -> None:
    """Raise JournalDamaged where a session that has had turns has no account."""
    if session.head_seq and account is None:
        raise contradiction(f"the account of session {session.name!r} is missing")


_MOST_ROWS = 64
"""The most rows of one statement."""
T = TypeVar("T")


def marks(count: int) -> str:
    """So many placeholders for a statement, with commas between."""
    return ", ".join("?" * count)


def slices(found: Sequence[T]) -> Iterator[Sequence[T]]:
    """A list in parts that one statement takes."""
    for first in range(0, len(found), _MOST_ROWS):
        yield found[first : first + _MOST_ROWS]
