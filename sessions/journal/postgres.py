"""The journal in PostgreSQL: what several servers share, on as many machines.

The SQL is that of ``sql``. Rows that an ``append`` changes are locked one by one; a row that does
not exist yet is made under a lock on its name, so that two servers do not make it both. A
connection that breaks is thrown away with whatever it was doing: the call can be made again,
because a turn that is there already is not written twice.

Always true: no statement and no transaction waits for ever; both have a time limit, but for a
commit while a synchronous standby is gone. A connection that was made anew is used only where the
same journal is behind the address.
"""

import contextlib
import re
import secrets
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import psycopg

from sessions.journal import retention
from sessions.journal.bell import CHANNEL, Bell
from sessions.journal.errors import (
    JournalAbsent,
    JournalDamaged,
    JournalDisplaced,
    JournalError,
    JournalPooled,
    JournalUnavailable,
    other_version,
)
from sessions.journal.ownership import Ownership
from sessions.journal.postgres_connection import JournalConnection, connected
from sessions.journal.records import SessionRecord, TurnRecord
from sessions.journal.sql import SqlJournal
from sessions.journal.tables import NAMES, VERSION, Cursor, statements

_RIGHTS = ["SELECT", "INSERT", "UPDATE", "DELETE"]
_WRITTEN = [name for name in NAMES if name != "journal"]
_LACKING = """
SELECT kind, name FROM unnest(?::text[]) AS name, unnest(?::text[]) AS kind
WHERE has_table_privilege(to_regclass(name), kind) IS NOT TRUE LIMIT 1
"""
"""A right that this user lacks, and the table; of one that is not there it has none."""
_TRANSACTION_STATE = "25"
"""Class of errors: the transaction was ended for having been idle, e.g. where this server was
stopped inside it, or may only read, as on a server that is not the first one any more."""
_LATER = (psycopg.OperationalError, psycopg.errors.InsufficientPrivilege)
"""Errors that end without a change here: a right is granted again."""
_BUSY = re.compile(
    "starting up|shutting down|recovery mode|not yet accepting|too many|connection slots|"
    "login has been failing|cannot connect to server|no more connections|query_wait_timeout|paused"
)
"""The words of a server, or of a pooler before it, that takes nobody more just now."""
_SCHEMA_LOCK = 0x6B770001
_IN_NO_TEXT = "\x01"
"""A character that no text of a row has, as NUL is: names are printable."""


class _Cursor:
    """A cursor that takes the placeholders of ``sql``."""

    def __init__(self, cursor: psycopg.Cursor[Any]) -> None:
        self._cursor = cursor

    def execute(self, sql: str, parameters: Sequence[Any] = (), /) -> "_Cursor":
        self._cursor.execute(sql.replace("?", "%s").encode(), parameters)
        return self

    def fetchone(self) -> Any:
        return self._cursor.fetchone()

    def fetchall(self) -> list[Any]:
        return self._cursor.fetchall()


class _ReadingCursor(_Cursor):
    """One that finds nothing by a text that no row can have, instead of refusing it."""

    def execute(self, sql: str, parameters: Sequence[Any] = (), /) -> "_Cursor":
        sought = (
            each.replace("\0", _IN_NO_TEXT) if isinstance(each, str) else each
            for each in parameters
        )
        return super().execute(sql, list(sought))


class PostgresJournal(SqlJournal):
    """``Journal`` at an address ``postgresql://...``."""

    now_sql = "SELECT (extract(epoch FROM clock_timestamp()) * 1000)::bigint"
    for_update = " FOR UPDATE"
    for_share = " FOR KEY SHARE"
    text_in = "position(? IN text) > 0"
    request_in = "position(? IN amount) > 0"

    def __init__(
        self,
        address: str,
        *,
        fingerprint: bytes,
        owner: str,
        beside: bool = False,
        patient: bool = False,
    ) -> None:
        """Make the tables if they are not there.

        Args:
            patient: a database that does not answer is asked again with each call.
            beside: to look at it or delete something, also while servers use it: no table is made
                or changed, and no turn appended.

        Raises:
            JournalUnavailable, JournalOtherVersion: it was not opened.
        """
        super().__init__(fingerprint=fingerprint, owner=owner, shared=True)
        self._address = address
        self._beside = beside
        self._closed = False
        self._to_probe = True
        """Whether the next connection asks a pooler if it gives sessions away."""
        self._local = threading.local()
        self._connections: list[JournalConnection] = []
        self._bell = Bell(self._connect, owner)
        self._identity: bytes | None = None
        """The identity of the journal that was found there first."""
        self._preparing = threading.Lock()
        try:
            self._prepare()
        except JournalError as error:
            self._close_connections()
            if not (patient and _silent(error)):
                raise
        self._ownership = Ownership(
            journal=self,
            now_ms=self.now_ms,
            waiter=self._bell,
        )

    def look(self) -> None:
        """See ``Journal``."""
        sql = "SELECT pg_is_in_recovery() OR current_setting('transaction_read_only') = 'on'"
        with self.reading() as cursor:
            (only_read,) = cursor.execute(sql).fetchone()
            if only_read:
                raise JournalUnavailable("PostgreSQL: it can only be read")
            self._refuse_another(cursor)
            lacking = cursor.execute(_LACKING, (_WRITTEN, _RIGHTS)).fetchone()
            if lacking is not None:
                raise JournalUnavailable(
                    "PostgreSQL: this user may not {} in the table {!r}".format(*lacking)
                )

    def _refuse_another(self, cursor: Cursor) -> None:
        try:
            row = cursor.execute("SELECT identity FROM journal WHERE id = 1").fetchone()
        except psycopg.errors.UndefinedTable:
            row = None
        if row is None or bytes(row[0]) != self._identity:
            raise JournalDisplaced(
                "another journal, or none, is at this address of PostgreSQL since it was reached "
                "again"
            )

    def _prepare(self) -> None:
        with self._said(), self._transaction(self._connection(), synced=True) as cursor:
            cursor.execute(f"SELECT pg_advisory_xact_lock({_SCHEMA_LOCK})")
            (found,) = cursor.execute("SELECT to_regclass('journal')::text").fetchone()
            if found is None and self._beside:
                raise _absent(cursor)
            if found is None:
                _refuse_encoding(cursor)
                for statement in statements("BYTEA"):
                    cursor.execute(statement)
                cursor.execute(
                    "INSERT INTO journal (id, identity, commits) VALUES (1, ?, ?)",
                    (secrets.token_bytes(16), VERSION),
                )
            sql = "SELECT commits, identity FROM journal WHERE id = 1"
            row = cursor.execute(sql).fetchone()
            if row is None:
                raise JournalDamaged("the journal in PostgreSQL has lost its first row")
            if row[0] != VERSION:
                raise other_version("the journal in PostgreSQL", row[0], VERSION)
            identity = bytes(row[1])
        self._identity = identity

    def _connection(self) -> JournalConnection:
        """This thread's connection, opened if it has none."""
        connection: JournalConnection | None = getattr(self._local, "connection", None)
        if connection is None or connection.closed:
            connection = self._connect()
            if self._identity is not None:
                self._ask_identity(connection)
            self._local.connection = connection
            self._connections = [each for each in self._connections if not each.closed]
            self._connections.append(connection)
        return connection

    def _ask_identity(self, connection: JournalConnection) -> None:
        try:
            connection.begin()
            with connection.cursor() as cursor:
                self._refuse_another(_Cursor(cursor))
            connection.rollback()
        except BaseException:
            connection.close()
            raise

    def _prepared(self) -> None:
        """A journal that could not be reached at the start is made ready when it is reached
        first."""
        if self._identity is None:
            with self._preparing:
                if self._identity is None:
                    self._prepare()

    def _connect(self) -> JournalConnection:
        connection = connected(self._address, probe=self._to_probe)
        self._to_probe = False
        return connection

    @contextlib.contextmanager
    def writing(self, *, synced: bool = True) -> Iterator[Cursor]:
        """See ``SqlTables``. What is not synced is on the disk within three of PostgreSQL's
        ``wal_writer_delay``."""
        self._prepared()
        with self._said(), self._transaction(self._connection(), synced=synced) as cursor:
            yield cursor

    @contextlib.contextmanager
    def _transaction(self, connection: JournalConnection, *, synced: bool) -> Iterator[Cursor]:
        try:
            connection.begin("" if synced else "SET LOCAL synchronous_commit TO off")
            with connection.cursor() as cursor:
                yield _Cursor(cursor)
            connection.commit()
        except BaseException:
            with contextlib.suppress(psycopg.Error):
                connection.rollback()
            raise

    @contextlib.contextmanager
    def reading(self) -> Iterator[Cursor]:
        """See ``SqlTables``."""
        self._prepared()
        with self._said():
            connection = self._connection()
            try:
                connection.begin("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
                with connection.cursor() as cursor:
                    yield _ReadingCursor(cursor)
            finally:
                with contextlib.suppress(psycopg.Error):
                    connection.rollback()

    @contextlib.contextmanager
    def _said(self) -> Iterator[None]:
        """The driver's errors in the journal's words; a broken connection is thrown away."""
        try:
            yield
        except JournalPooled:
            self._to_probe = True
            self._throw_away()
            raise
        except psycopg.errors.UniqueViolation as error:
            raise JournalUnavailable(f"PostgreSQL: {_first_line(error)}") from error
        except psycopg.Error as error:
            if isinstance(error, _LATER) or (error.sqlstate or "").startswith(_TRANSACTION_STATE):
                self._throw_away()
                raise JournalUnavailable(f"PostgreSQL: {_first_line(error)}") from error
            raise JournalError(f"PostgreSQL: {_first_line(error)}") from error

    def _throw_away(self) -> None:
        connection: JournalConnection | None = getattr(self._local, "connection", None)
        if connection is not None:
            self._local.connection = None
            with contextlib.suppress(psycopg.Error):
                connection.close()

    def lock_name(self, cursor: Cursor, kind: str, tenant: str, name: str) -> None:
        """See ``SqlTables``."""
        key = f"{kind}/{len(tenant)}/{tenant}/{name}"
        cursor.execute("SELECT pg_advisory_xact_lock(hashtextextended(?, 0))", (key,))

    def tell(self, cursor: Cursor, server: str) -> None:
        """See ``SqlJournal``."""
        cursor.execute("SELECT pg_notify(?, ?)", (CHANNEL, server))

    def listen(self, tell: Callable[[], None]) -> None:
        """See ``SqlJournal``."""
        self._bell.start(tell)

    # Journal

    @property
    def ownership(self) -> Ownership:
        """See ``Journal``."""
        return self._ownership

    def claim(self, tenant: str, session: str, wait_s: float) -> SessionRecord | None:
        """See ``Journal``."""
        return self._ownership.claim(tenant, session, wait_s)

    def release(self, tenant: str, sessions: Sequence[str], *, unasked: bool = False) -> None:
        """See ``Journal``."""
        self._ownership.release(tenant, sessions, unasked=unasked)

    def settle_left(self) -> list[TurnRecord]:
        """See ``Journal``."""
        return self._ownership.settle_left()

    def delete_session(self, tenant: str, name: str) -> tuple[str, ...]:
        """See ``Journal``."""
        return retention.delete_session(self, tenant, name)

    def expire(self, before_s: float) -> int:
        """See ``Journal``."""
        return retention.expire(self, round(before_s * 1000))

    def close(self) -> None:
        """See ``Journal``."""
        if self._closed:
            return
        self._closed = True
        if not self._beside:
            with contextlib.suppress(JournalError):
                self._ownership.leave()
        self._bell.close()
        self._close_connections()

    def _close_connections(self) -> None:
        for connection in self._connections:
            connection.close()


def _refuse_encoding(cursor: Cursor) -> None:
    """Raise JournalError where the database cannot hold every text."""
    (encoding,) = cursor.execute("SELECT current_setting('server_encoding')").fetchone()
    if encoding != "UTF8":
        raise JournalError(
            f"the database in PostgreSQL has the encoding {encoding}, and a journal needs UTF8: "
            "CREATE DATABASE ... ENCODING 'UTF8' TEMPLATE template0"
        )


def _absent(cursor: Cursor) -> JournalUnavailable:
    (may,) = cursor.execute("SELECT has_schema_privilege(current_schema(), 'CREATE')").fetchone()
    if may:
        return JournalAbsent("there is no journal at this address of PostgreSQL")
    return JournalUnavailable(
        "there is no journal at this address of PostgreSQL, and this user may not make one: grant "
        "CREATE on the schema"
    )


def _silent(error: JournalError) -> bool:
    """Nobody answered at the address; who answers and refuses does so tomorrow."""
    said = str(error)
    if isinstance(error, JournalPooled):
        return False
    if "FATAL" in said:
        return _BUSY.search(said) is not None
    if isinstance(error.__cause__, psycopg.errors.InsufficientPrivilege):
        return False
    return (
        isinstance(error, JournalUnavailable) and "resolve" not in said and "translate" not in said
    )


def _first_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
