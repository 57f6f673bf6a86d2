"""Being the only one, among all that reach a database, who does something: an advisory lock.

It is held by a connection, and lost with it; so it is asked for again before each thing that only
one may do. Who does not have it waits by asking.

Always true: of two that hold it by their own account at the same time, one has lost its connection
without having asked since.
"""

import contextlib
import hashlib
from collections.abc import Callable

import psycopg

from sessions.journal.errors import JournalPooled, JournalUnavailable
from sessions.journal.postgres_connection import JournalConnection


class OnlyOne:
    """A contender for being the only one of several servers that does something."""

    def __init__(self, connect: Callable[[], JournalConnection], name: str) -> None:
        """``name``: what it is that only one may do."""
        self._connect = connect
        self._name = name
        self._connection: JournalConnection | None = None
        self._held = False

    def holds(self) -> bool:
        """Whether this is the one, now; it becomes it where nobody is.

        Raises:
            JournalUnavailable: the database cannot be asked.
        """
        try:
            if self._connection is None or self._connection.closed:
                self._held = False
                self._connection = self._connect()
                self._connection.autocommit = True
            sql = "SELECT true" if self._held else "SELECT pg_try_advisory_lock(%s)"
            key = () if self._held else (_key(self._name),)
            with self._connection.transaction():
                self._connection.begin()
                row = self._connection.execute(sql, key).fetchone()
        except JournalPooled:
            self.leave()
            raise
        except psycopg.Error as error:
            self.leave()
            said = str(error).strip().splitlines() or [type(error).__name__]
            raise JournalUnavailable(f"PostgreSQL: {said[0]}") from error
        self._held = row is not None and bool(row[0])
        return self._held

    def leave(self) -> None:
        """Let another contender be the one."""
        connection, self._connection, self._held = self._connection, None, False
        if connection is not None:
            with contextlib.suppress(psycopg.Error):
                # A connection's end is noticed there a moment later.
                connection.execute("SELECT pg_advisory_unlock(%s)", (_key(self._name),))
            connection.close()


def _key(name: str) -> int:
    """A lock's number; two names of one number would only wait for each other."""
    digest = hashlib.blake2b(name.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big", signed=True)
