"""The journal in PostgreSQL: what several servers share, on as many machines.

The SQL is that of ``sql``. Rows that an ``append`` changes are locked one by one; a row that does
not exist yet is made under a lock on its name, so that two servers do not make it both. A
connection that breaks is thrown away with whatever it was doing: the call can be made again,
because a turn that is there already is not written twice.

Always true: no statement and no transaction waits for ever; both have a time limit.
"""

import contextlib
import secrets
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import psycopg

from sessions.journal import retention
from sessions.journal.errors import (
    JournalDamaged,
    JournalError,
    JournalNewer,
    JournalUnavailable,
)
from sessions.journal.ownership import Ownership, SystemWaiter
from sessions.journal.records import SessionRecord
from sessions.journal.sql import SCHEMA, VERSION, Cursor, SqlJournal

STATEMENT_MS = 5000
IDLE_IN_TRANSACTION_MS = 5000
CONNECT_S = 5
_NOW = "SELECT (extract(epoch FROM clock_timestamp()) * 1000)::bigint"
_SCHEMA_LOCK = 0x6B770001


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


class PostgresJournal(SqlJournal):
    """``Journal`` at an address ``postgresql://...``."""

    _for_update = " FOR UPDATE"

    def __init__(self, address: str, *, fingerprint: bytes, owner: str) -> None:
        """Make the tables if they are not there.

        Raises:
            JournalUnavailable, JournalNewer: it was not opened.
        """
        super().__init__(fingerprint=fingerprint, owner=owner, shared=True)
        self._address = address
        self._local = threading.local()
        self._connections: list[psycopg.Connection[Any]] = []
        try:
            self._prepare()
        except JournalError:
            self._close_connections()
            raise
        self._ownership = Ownership(
            journal=self,
            now_ms=lambda cursor: cursor.execute(_NOW).fetchone()[0],
            waiter=SystemWaiter(),
        )

    def _prepare(self) -> None:
        with self.writing() as cursor:
            cursor.execute(f"SELECT pg_advisory_xact_lock({_SCHEMA_LOCK})")
            (found,) = cursor.execute("SELECT to_regclass('journal')::text").fetchone()
            if found is None:
                for statement in SCHEMA.format(blob="BYTEA").split(";")[:-1]:
                    cursor.execute(statement)
                cursor.execute(
                    "INSERT INTO journal (id, identity, commits) VALUES (1, ?, ?)",
                    (secrets.token_bytes(16), VERSION),
                )
            row = cursor.execute("SELECT commits FROM journal WHERE id = 1").fetchone()
            if row is None:
                raise JournalDamaged("the journal in PostgreSQL has lost its first row")
            if row[0] > VERSION:
                raise JournalNewer(
                    f"the journal in PostgreSQL is of a newer version ({row[0]}, this program "
                    f"knows {VERSION}): update keepwarm"
                )

    def _connection(self) -> psycopg.Connection[Any]:
        """This thread's."""
        connection: psycopg.Connection[Any] | None = getattr(self._local, "connection", None)
        if connection is None or connection.closed:
            connection = psycopg.connect(
                self._address,
                connect_timeout=CONNECT_S,
                options=f"-c statement_timeout={STATEMENT_MS} -c synchronous_commit=on "
                f"-c idle_in_transaction_session_timeout={IDLE_IN_TRANSACTION_MS}",
            )
            self._local.connection = connection
            self._connections = [each for each in self._connections if not each.closed]
            self._connections.append(connection)
        return connection

    @contextlib.contextmanager
    def writing(self) -> Iterator[Cursor]:
        """See ``SqlJournal``."""
        with self._said():
            connection = self._connection()
            try:
                with connection.cursor() as cursor:
                    yield _Cursor(cursor)
                connection.commit()
            except BaseException:
                with contextlib.suppress(psycopg.Error):
                    connection.rollback()
                raise

    @contextlib.contextmanager
    def reading(self) -> Iterator[Cursor]:
        """See ``SqlJournal``."""
        with self._said():
            connection = self._connection()
            try:
                with connection.cursor() as cursor:
                    cursor.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
                    yield _Cursor(cursor)
            finally:
                with contextlib.suppress(psycopg.Error):
                    connection.rollback()

    @contextlib.contextmanager
    def _said(self) -> Iterator[None]:
        """The driver's errors in the journal's words; a broken connection is thrown away."""
        try:
            yield
        except psycopg.OperationalError as error:
            self._throw_away()
            raise JournalUnavailable(f"PostgreSQL: {_first_line(error)}") from error
        except psycopg.errors.UniqueViolation as error:
            raise JournalUnavailable(f"PostgreSQL: {_first_line(error)}") from error
        except psycopg.Error as error:
            raise JournalError(f"PostgreSQL: {_first_line(error)}") from error

    def _throw_away(self) -> None:
        connection: psycopg.Connection[Any] | None = getattr(self._local, "connection", None)
        if connection is not None:
            self._local.connection = None
            with contextlib.suppress(psycopg.Error):
                connection.close()

    def lock_name(self, cursor: Cursor, kind: str, tenant: str, name: str) -> None:
        """See ``SqlJournal``."""
        key = f"{kind}/{len(tenant)}/{tenant}/{name}"
        cursor.execute("SELECT pg_advisory_xact_lock(hashtextextended(?, 0))", (key,))

    # Journal

    @property
    def ownership(self) -> Ownership:
        """See ``Journal``."""
        return self._ownership

    def claim(self, tenant: str, session: str, wait_s: float) -> SessionRecord | None:
        """See ``Journal``."""
        return self._ownership.claim(tenant, session, wait_s)

    def release(self, tenant: str, sessions: Sequence[str]) -> None:
        """See ``Journal``."""
        self._ownership.release(tenant, sessions)

    def delete_session(self, tenant: str, name: str) -> tuple[str, ...]:
        """See ``Journal``."""
        with self.writing() as cursor:
            return retention.delete_session(self, cursor, tenant, name)

    def expire(self, before_s: float) -> int:
        """See ``Journal``."""
        count = 0
        while True:
            with self.writing() as cursor:
                gone = retention.expire(self, cursor, round(before_s * 1000))
            count += gone
            if not gone:
                return count

    def close(self) -> None:
        """See ``Journal``."""
        with contextlib.suppress(JournalError):
            self._ownership.leave()
        self._close_connections()

    def _close_connections(self) -> None:
        for connection in self._connections:
            connection.close()


def _first_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
