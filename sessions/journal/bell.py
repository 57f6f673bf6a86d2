"""How servers that share a PostgreSQL wake each other: ``NOTIFY``, and a thread that listens.

A server is told by its name, in one channel, of two things: another one asks for a session of
its own, or a session that it asked for is free. Neither has to come: who waits looks by itself
as well, so that a connection that is lost costs time and nothing else.

Always true: what was told while nobody listened is looked for when the connection is there again.
"""

import contextlib
import logging
import threading
import time
from collections.abc import Callable

import psycopg

from sessions.journal.errors import JournalError
from sessions.journal.postgres_connection import JournalConnection

log = logging.getLogger(__name__)

CHANNEL = "keepwarm"
RETRY_S = 1.0
_LOOK_EVERY_S = 1.0
"""How long the thread does not notice that it is to end, where nobody can tell it."""


class Bell:
    """One server's. A ``Waiter``: who waits for a session goes on when it is told."""

    def __init__(self, connect: Callable[[], JournalConnection], server: str) -> None:
        self._connect = connect
        self._server = server
        self._tell: Callable[[], None] = lambda: None
        self.rung = threading.Condition()
        self._rings = 0
        self._local = threading.local()
        """State of a thread that waits: ``heard``, how many rings it knows of."""
        self._closing = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self, tell: Callable[[], None]) -> None:
        """Listen, in a thread; ``tell`` is called there."""
        self._tell = tell
        self._thread = threading.Thread(target=self._listen, name="journal bell", daemon=True)
        self._thread.start()

    def clock(self) -> float:
        """See ``Waiter``."""
        return time.monotonic()

    def wait(self, seconds: float) -> None:
        """See ``Waiter``; less where this server is told something meanwhile."""
        with self.rung:
            if self._rings == getattr(self._local, "heard", 0):
                self.rung.wait(seconds)
            self._local.heard = self._rings

    def close(self) -> None:
        """End the thread, with a word to itself."""
        self._closing.set()
        if self._thread is None:
            return
        failed = contextlib.suppress(psycopg.Error, JournalError)
        with failed, contextlib.closing(self._connect()) as connection:
            connection.autocommit = True
            connection.execute("SELECT pg_notify(%s, %s)", (CHANNEL, self._server))
        self._thread.join()

    def _listen(self) -> None:
        while not self._closing.is_set():
            try:
                with contextlib.closing(self._connect()) as connection:
                    connection.autocommit = True
                    connection.execute(f"LISTEN {CHANNEL}".encode())
                    self._ring()
                    self._hear(connection)
            except (psycopg.Error, JournalError) as error:
                log.debug("journal cannot be listened to reason=%s", type(error).__name__)
                self._closing.wait(RETRY_S)

    def _hear(self, connection: JournalConnection) -> None:
        while not self._closing.is_set():
            for notice in connection.notifies(timeout=_LOOK_EVERY_S):
                if notice.payload == self._server:
                    self._ring()
                if self._closing.is_set():
                    return
            connection.begin()  # a pooler that gave its session away took the ear with it

    def _ring(self) -> None:
        with self.rung:
            self._rings += 1
            self.rung.notify_all()
        self._tell()
