"""The journal in SQL that SQLite and PostgreSQL both speak; the stores bring connection and lock.

All of an ``append`` is one transaction, read, changed and written back: the rows it changes are
locked, by the whole file or one by one. A response is found by two ways, its row's own index and
the table ``name``: where one of them is damaged they contradict each other, and that is said
instead of "not found".

Always true: a session's rows and its ``gone`` are together ``head_seq``; its epoch only grows.
"""

import abc
import contextlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Protocol

import orjson

from sessions.journal import rows
from sessions.journal.encoding import HeaderCache
from sessions.journal.errors import JournalDamaged
from sessions.journal.records import (
    UNFENCED,
    Account,
    Reservation,
    SessionRecord,
    StoredTurn,
    TurnRecord,
    session_account,
)
from sessions.journal.rows import Row, SessionRow

SCHEMA = """
CREATE TABLE session (
    tenant TEXT NOT NULL, name TEXT NOT NULL, owner TEXT NOT NULL, epoch BIGINT NOT NULL,
    head_id TEXT, head_seq BIGINT NOT NULL, gone BIGINT NOT NULL, turns_begun BIGINT NOT NULL,
    open_calls BIGINT NOT NULL, updated_ms BIGINT NOT NULL, options {blob} NOT NULL,
    checksum {blob} NOT NULL, wanted_by TEXT NOT NULL DEFAULT '', PRIMARY KEY (tenant, name));
CREATE INDEX session_used ON session (updated_ms);
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
    cost BIGINT NOT NULL, saved BIGINT NOT NULL, checksum {blob} NOT NULL,
    PRIMARY KEY (tenant, name));
CREATE TABLE reservation (
    tenant TEXT NOT NULL, session TEXT NOT NULL, response_id TEXT NOT NULL,
    accounts TEXT NOT NULL, amount {blob} NOT NULL, checksum {blob} NOT NULL,
    PRIMARY KEY (tenant, response_id));
CREATE INDEX reservation_session ON reservation (tenant, session);
CREATE TABLE member (owner TEXT PRIMARY KEY, heartbeat_ms BIGINT NOT NULL);
CREATE TABLE journal (id BIGINT PRIMARY KEY, identity {blob} NOT NULL, commits BIGINT NOT NULL);
"""
VERSION = 1
FIRST_EPOCH = 1


class Cursor(Protocol):
    """What both drivers have."""

    def execute(self, sql: str, parameters: Sequence[Any] = ..., /) -> Any: ...
    def fetchone(self) -> Any: ...
    def fetchall(self) -> list[Any]: ...


class SqlJournal(abc.ABC):
    """``sessions.journal.journal.Journal`` over a database."""

    _for_update = ""
    """Ends a query of rows that will be changed."""

    def __init__(self, *, fingerprint: bytes, owner: str, shared: bool) -> None:
        """``owner``: what this server calls itself in the sessions it has claimed."""
        self._fingerprint = fingerprint
        self.owner = owner
        self._shared = shared
        self._headers = HeaderCache()
        self._kept_headers: set[bytes] = set()

    @property
    def shared(self) -> bool:
        """Other servers append to it as well."""
        return self._shared

    @abc.abstractmethod
    def writing(self) -> contextlib.AbstractContextManager[Cursor]:
        """A transaction that is durable when the context ends, or undone by an exception."""

    @abc.abstractmethod
    def reading(self) -> contextlib.AbstractContextManager[Cursor]:
        """One state of the database. Both raise JournalError alone."""

    def lock_name(self, cursor: Cursor, kind: str, tenant: str, name: str) -> None:
        """Keep others from making a row of that name until the transaction ends; where only one
        transaction writes at a time there is nothing to be done."""
        del cursor, kind, tenant, name

    # Writing

    def append(self, turns: Sequence[TurnRecord]) -> list[bool]:
        """See ``Journal``."""
        new_headers: set[bytes] = set()
        with self.writing() as cursor:
            batch = _Batch(self, cursor)
            owned = [batch.add(record, new_headers) for record in turns]
            batch.write()
        self._kept_headers |= new_headers
        return owned

    def insert_turn(
        self, cursor: Cursor, record: TurnRecord, session: SessionRow, new_headers: set[bytes]
    ) -> None:
        for entry in record.links:
            digest, body = self._headers.encoded(entry.header)
            if digest not in self._kept_headers and digest not in new_headers:
                new_headers.add(digest)
                insert = "INSERT INTO header (digest, body) VALUES (?, ?) ON CONFLICT DO NOTHING"
                cursor.execute(insert, (digest, body))
        row = rows.turn_columns(
            record,
            seq=session.head_seq,
            epoch=session.epoch,
            fingerprint=self._fingerprint,
            headers=self._headers,
        )
        cursor.execute(f"INSERT INTO turn ({rows.TURN}) VALUES ({_marks(15)})", row)
        cursor.execute(
            "INSERT INTO name (tenant, response_id, session, seq) VALUES (?, ?, ?, ?)",
            (record.tenant, record.response_id, record.session, session.head_seq),
        )
        cursor.execute(
            "DELETE FROM reservation WHERE tenant = ? AND response_id = ?",
            (record.tenant, record.response_id),
        )

    def reserve(self, reservations: Sequence[Reservation]) -> None:
        """See ``Journal``."""
        with self.writing() as cursor:
            for held in reservations:
                names = orjson.dumps(held.accounts).decode()
                key = (held.tenant, held.session, held.response_id)
                cursor.execute(
                    "INSERT INTO reservation (tenant, session, response_id, accounts, amount, "
                    f"checksum) VALUES ({_marks(6)}) ON CONFLICT (tenant, response_id) DO UPDATE "
                    "SET accounts = excluded.accounts, amount = excluded.amount, "
                    "checksum = excluded.checksum",
                    rows.sealed((*key, names, held.amount)),
                )

    def set_options(self, tenant: str, name: str, options: bytes) -> None:
        """See ``Journal``."""
        with self.writing() as cursor:
            self.lock_name(cursor, "session", tenant, name)
            session = self.session_row(cursor, tenant, name, lock=True) or self.new_session(
                tenant, name
            )
            self.write_session(cursor, replace(session, options=options))

    def hide(self, tenant: str, response_id: str) -> bool:
        """See ``Journal``."""
        with self.writing() as cursor:
            row = self._turn_row(cursor, tenant, response_id)
            if row is None or not rows.read_turn(row).continuable:
                return False
            changed = rows.hidden(row)
            cursor.execute(
                "UPDATE turn SET hidden = ?, checksum = ? WHERE tenant = ? AND response_id = ?",
                (1, changed[-1], tenant, response_id),
            )
            session = self.session_row(cursor, tenant, row[1], lock=True)
            if session is not None and session.head_id == response_id:
                self.write_session(cursor, replace(session, head_id=None))
            return True

    def write_session(self, cursor: Cursor, session: SessionRow) -> None:
        changes = ", ".join(f"{name} = excluded.{name}" for name in rows.SESSION.split(", ")[2:])
        cursor.execute(
            f"INSERT INTO session ({rows.SESSION}) VALUES ({_marks(12)}) "
            f"ON CONFLICT (tenant, name) DO UPDATE SET {changes}",
            rows.session_columns(session),
        )

    def new_session(self, tenant: str, name: str) -> SessionRow:
        epoch = FIRST_EPOCH if self._shared else UNFENCED
        owner = self.owner if self._shared else ""
        return SessionRow(tenant=tenant, name=name, owner=owner, epoch=epoch)

    # Reading

    def reservations(self, tenant: str, session: str) -> list[Reservation]:
        """See ``Journal``."""
        with self.reading() as cursor:
            found = cursor.execute(
                "SELECT tenant, session, response_id, accounts, amount, checksum FROM reservation "
                "WHERE tenant = ? AND session = ? ORDER BY response_id",
                (tenant, session),
            ).fetchall()
        return [_reservation(row) for row in found]

    def session(self, tenant: str, name: str) -> SessionRecord | None:
        """See ``Journal``."""
        with self.reading() as cursor:
            row = self.session_row(cursor, tenant, name)
            if row is None:
                self._deny_rows(cursor, tenant, name)
                return None
            return row.record(self.account_row(cursor, tenant, session_account(name)))

    def _deny_rows(self, cursor: Cursor, tenant: str, name: str) -> None:
        """A session that is not there has no turns either."""
        sql = "SELECT seq FROM turn WHERE tenant = ? AND session = ? LIMIT 1"
        if cursor.execute(sql, (tenant, name)).fetchone() is not None:
            raise _contradiction(f"session {name!r} is missing, its turns are there")

    def account(self, tenant: str, name: str) -> Account:
        """See ``Journal``."""
        with self.reading() as cursor:
            return self.account_row(cursor, tenant, name)

    def accounts_named(self, name: str) -> dict[str, Account]:
        """See ``Journal``."""
        with self.reading() as cursor:
            sql = f"SELECT {rows.ACCOUNT} FROM account WHERE name = ?"
            found = cursor.execute(sql, (name,)).fetchall()
        return {row[0]: rows.read_account(row) for row in found}

    def turn(self, tenant: str, response_id: str) -> StoredTurn | None:
        """See ``Journal``."""
        with self.reading() as cursor:
            row = self._turn_row(cursor, tenant, response_id)
        turn = None if row is None else rows.read_turn(row)
        return turn if turn is not None and turn.continuable else None

    def turn_of_request(self, tenant: str, request_id: str) -> StoredTurn | None:
        """See ``Journal``."""
        sql = f"SELECT {rows.TURN} FROM turn WHERE tenant = ? AND request_id = ?"
        with self.reading() as cursor:
            row = cursor.execute(sql, (tenant, request_id)).fetchone()
        return None if row is None else rows.read_turn(row)

    def turns_with_digest(self, tenant: str, digest: bytes, most: int) -> list[StoredTurn]:
        """See ``Journal``."""
        sql = (
            f"SELECT {rows.TURN} FROM turn WHERE tenant = ? AND digest = ? AND hidden = 0 "
            "ORDER BY created_ms DESC, session DESC, seq DESC LIMIT ?"
        )
        with self.reading() as cursor:
            found = cursor.execute(sql, (tenant, digest, most)).fetchall()
        return [turn for turn in map(rows.read_turn, found) if turn.continuable]

    def chain(
        self, tenant: str, response_id: str, known: Callable[[str], bool] = lambda _: False
    ) -> list[StoredTurn]:
        """See ``Journal``."""
        turns: list[StoredTurn] = []
        with self.reading() as cursor:
            row = self._turn_row(cursor, tenant, response_id)
            if row is None or not rows.read_turn(row).continuable:
                return []
            while row is not None:
                turns.append(rows.read_turn(row))
                base = turns[-1].base_id
                if base is None or known(base):
                    return turns[::-1]
                row = self._turn_row(cursor, tenant, base)
        raise _contradiction(f"response {base}, which others stand on, is missing")

    def header(self, digest: bytes) -> bytes:
        """See ``Journal``."""
        with self.reading() as cursor:
            sql = "SELECT body FROM header WHERE digest = ?"
            row = cursor.execute(sql, (digest,)).fetchone()
        if row is None:
            raise _contradiction(f"header {digest.hex()} is missing")
        body = bytes(row[0])
        if rows.content_digest(body) != digest:
            raise _contradiction(f"header {digest.hex()} does not agree with its name")
        return body

    def session_turns(self, tenant: str, session: str) -> list[StoredTurn]:
        """See ``Journal``. Raises JournalDamaged also where a row is missing."""
        sql = f"SELECT {rows.TURN} FROM turn WHERE tenant = ? AND session = ? ORDER BY seq"
        with self.reading() as cursor:
            found = cursor.execute(sql, (tenant, session)).fetchall()
            row = self.session_row(cursor, tenant, session)
        turns = [rows.read_turn(each) for each in found]
        if len(turns) + (0 if row is None else row.gone) != (0 if row is None else row.head_seq):
            raise _contradiction(f"session {session!r} lacks some of its turns")
        return turns

    def sessions(self, tenant: str | None = None) -> list[SessionRecord]:
        """See ``Journal``."""
        where, parameters = ("", ()) if tenant is None else ("WHERE tenant = ?", (tenant,))
        sql = f"SELECT {rows.SESSION} FROM session {where} ORDER BY updated_ms DESC, name"
        with self.reading() as cursor:
            found = [rows.read_session(r) for r in cursor.execute(sql, parameters).fetchall()]
            return [
                row.record(self.account_row(cursor, row.tenant, session_account(row.name)))
                for row in found
            ]

    def session_row(
        self, cursor: Cursor, tenant: str, name: str, *, lock: bool = False
    ) -> SessionRow | None:
        sql = f"SELECT {rows.SESSION} FROM session WHERE tenant = ? AND name = ?"
        if lock:
            sql += self._for_update
        row = cursor.execute(sql, (tenant, name)).fetchone()
        return None if row is None else rows.read_session(row)

    def account_row(self, cursor: Cursor, tenant: str, name: str, *, lock: bool = False) -> Account:
        sql = f"SELECT {rows.ACCOUNT} FROM account WHERE tenant = ? AND name = ?"
        if lock:
            sql += self._for_update
        row = cursor.execute(sql, (tenant, name)).fetchone()
        return Account() if row is None else rows.read_account(row)

    def _turn_row(self, cursor: Cursor, tenant: str, response_id: str) -> Row | None:
        """By both ways."""
        key = (tenant, response_id)
        sql = f"SELECT {rows.TURN} FROM turn WHERE tenant = ? AND response_id = ?"
        row = cursor.execute(sql, key).fetchone()
        sql = "SELECT session, seq FROM name WHERE tenant = ? AND response_id = ?"
        place = cursor.execute(sql, key).fetchone()
        if (None if row is None else tuple(row[1:3])) != (None if place is None else tuple(place)):
            raise _contradiction(f"response {response_id} is found by one way alone")
        if row is not None and tuple(row[i] for i in (0, 4)) != key:
            raise _contradiction(f"response {response_id} is found under another name")
        return None if row is None else tuple(row)


class _Batch:
    """Sessions and accounts of one ``append``: each is read once and written once."""

    def __init__(self, journal: SqlJournal, cursor: Cursor) -> None:
        self._journal = journal
        self._cursor = cursor
        self._sessions: dict[tuple[str, str], SessionRow | None] = {}
        self._changed: dict[tuple[str, str], SessionRow] = {}
        self._accounts: dict[tuple[str, str], Account] = {}

    def add(self, record: TurnRecord, new_headers: set[bytes]) -> bool:
        """False: the session is another server's now."""
        cursor, journal = self._cursor, self._journal
        key = (record.tenant, record.session)
        sql = "SELECT seq FROM name WHERE tenant = ? AND response_id = ?"
        if cursor.execute(sql, (record.tenant, record.response_id)).fetchone() is not None:
            return True
        session = self._session(*key)
        if session is None or not self._may_write(session, record):
            return False
        session = self._changed[key] = replace(
            session,
            head_seq=session.head_seq + 1,
            head_id=session.head_id if record.entry is None else record.response_id,
            turns_begun=max(session.turns_begun, record.number),
            open_calls=session.open_calls if record.open_calls is None else record.open_calls,
            updated_ms=max(session.updated_ms, round(record.created_s * 1000)),
            options=record.options or session.options,
        )
        journal.insert_turn(cursor, record, session, new_headers)
        for name in (session_account(record.session), *record.accounts):
            self._charge((record.tenant, name), record)
        return True

    def _session(self, tenant: str, name: str) -> SessionRow | None:
        key = (tenant, name)
        if key in self._changed:
            return self._changed[key]
        if key not in self._sessions:
            journal, cursor = self._journal, self._cursor
            found = journal.session_row(cursor, tenant, name, lock=True)
            if found is None:
                journal.lock_name(cursor, "session", tenant, name)
                found = journal.session_row(cursor, tenant, name, lock=True)
            self._sessions[key] = found or journal.new_session(tenant, name)
        return self._sessions[key]

    def _may_write(self, session: SessionRow, record: TurnRecord) -> bool:
        journal = self._journal
        if not journal.shared:
            return True
        epoch = record.epoch or FIRST_EPOCH  # of a session that this server has made itself
        return session.owner == journal.owner and session.epoch == epoch

    def _charge(self, key: tuple[str, str], record: TurnRecord) -> None:
        account = self._accounts.get(key)
        if account is None:
            account = self._journal.account_row(self._cursor, *key, lock=True)
            if not account.turns:
                self._journal.lock_name(self._cursor, "account", *key)
                account = self._journal.account_row(self._cursor, *key, lock=True)
        self._accounts[key] = account.plus(record)

    def write(self) -> None:
        changes = ", ".join(f"{name} = excluded.{name}" for name in rows.ACCOUNT.split(", ")[2:])
        for session in self._changed.values():
            self._journal.write_session(self._cursor, session)
        for (tenant, name), account in self._accounts.items():
            self._cursor.execute(
                f"INSERT INTO account ({rows.ACCOUNT}) VALUES ({_marks(14)}) "
                f"ON CONFLICT (tenant, name) DO UPDATE SET {changes}",
                rows.account_columns(tenant, name, account),
            )


def _reservation(row: Row) -> Reservation:
    tenant, session, response_id, accounts, amount = rows.read_sealed(row, "reservation")
    return Reservation(
        tenant=tenant,
        session=session,
        response_id=response_id,
        accounts=tuple(orjson.loads(accounts)),
        amount=amount,
    )


def _contradiction(what: str) -> JournalDamaged:
    return JournalDamaged(
        f"the journal contradicts itself: {what}; stop the server and run 'keepwarm sessions "
        "recover'"
    )


def _marks(count: int) -> str:
    return ", ".join("?" * count)
