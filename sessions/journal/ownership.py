"""Which server may append to a session: claims, heartbeats, and asking to let go.

A server that wants a session writes its name into ``wanted_by`` and waits; the owner reads that
every 250 ms and lets go at the end of the turn that runs. An owner whose heartbeat is older than
two seconds, by the database's clock, is passed over: should it wake, its epoch is an old one
and its append writes nothing, so that a wrong guess costs a turn and never a record.

Always true: a session changes its owner only together with its epoch, which grows.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from sessions.journal.errors import JournalBusy
from sessions.journal.records import SessionRecord, session_account
from sessions.journal.sql import Cursor, SqlJournal

DEAD_MS = 2000
POLL_S = 0.25
HEARTBEAT_S = 0.5
ASK_AGAIN_S = 0.05


class Waiter(Protocol):
    """Time, as a claim sees it."""

    def clock(self) -> float:
        """Monotonic seconds."""
        ...

    def wait(self, seconds: float) -> None:
        """Let the owner come to it."""
        ...


@dataclass(frozen=True, slots=True)
class SystemWaiter:
    """The time of this machine."""

    def clock(self) -> float:
        """Monotonic seconds."""
        return time.monotonic()

    def wait(self, seconds: float) -> None:
        """Sleep."""
        time.sleep(seconds)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ownership:
    """One server's side of it; each call is a transaction of its own."""

    journal: SqlJournal
    now_ms: Callable[[Cursor], int]
    """The database's clock."""
    waiter: Waiter

    def claim(self, tenant: str, session: str, wait_s: float) -> SessionRecord | None:
        """See ``Journal.claim``."""
        until = self.waiter.clock() + wait_s
        while True:
            found, mine = self._try(tenant, session)
            if mine:
                return found
            if self.waiter.clock() >= until:
                raise JournalBusy(f"session {session!r} is held by another server")
            self.waiter.wait(ASK_AGAIN_S)

    def _try(self, tenant: str, session: str) -> tuple[SessionRecord | None, bool]:
        journal = self.journal
        with journal.writing() as cursor:
            row = journal.session_row(cursor, tenant, session, lock=True)
            if row is None:
                return None, True
            if row.owner != journal.owner:
                if row.owner and self._lives(cursor, row.owner):
                    self._ask(cursor, tenant, session)
                    return None, False
                row = replace(row, owner=journal.owner, epoch=row.epoch + 1)
                journal.write_session(cursor, row)
            self._mark(cursor, tenant, session, "")  # ours again: who wants it asks anew
            account = journal.account_row(cursor, tenant, session_account(session))
            return row.record(account), True

    def _lives(self, cursor: Cursor, owner: str) -> bool:
        sql = "SELECT heartbeat_ms FROM member WHERE owner = ?"
        row = cursor.execute(sql, (owner,)).fetchone()
        return row is not None and self.now_ms(cursor) - row[0] <= DEAD_MS

    def _ask(self, cursor: Cursor, tenant: str, session: str) -> None:
        self._mark(cursor, tenant, session, self.journal.owner)

    def _mark(self, cursor: Cursor, tenant: str, session: str, wanted_by: str) -> None:
        sql = "UPDATE session SET wanted_by = ? WHERE tenant = ? AND name = ?"
        cursor.execute(sql, (wanted_by, tenant, session))

    def release(self, tenant: str, sessions: Sequence[str]) -> None:
        """See ``Journal.release``."""
        journal = self.journal
        with journal.writing() as cursor:
            for name in sorted(sessions):
                row = journal.session_row(cursor, tenant, name, lock=True)
                if (
                    row is not None
                    and row.owner == journal.owner
                    and self._is_wanted(cursor, tenant, name)
                ):
                    journal.write_session(cursor, replace(row, owner=""))
                    self._mark(cursor, tenant, name, "")

    def _is_wanted(self, cursor: Cursor, tenant: str, session: str) -> bool:
        sql = "SELECT 1 FROM session WHERE tenant = ? AND name = ? AND wanted_by <> ''"
        return cursor.execute(sql, (tenant, session)).fetchone() is not None

    def wanted(self) -> list[tuple[str, str]]:
        """Tenant and name of this server's sessions that another one asks for."""
        sql = "SELECT tenant, name FROM session WHERE owner = ? AND wanted_by <> ''"
        with self.journal.reading() as cursor:
            found = cursor.execute(sql, (self.journal.owner,)).fetchall()
        return [(tenant, name) for tenant, name in found]

    def beat(self) -> None:
        """Say that this server lives."""
        with self.journal.writing() as cursor:
            cursor.execute(
                "INSERT INTO member (owner, heartbeat_ms) VALUES (?, ?) "
                "ON CONFLICT (owner) DO UPDATE SET heartbeat_ms = excluded.heartbeat_ms",
                (self.journal.owner, self.now_ms(cursor)),
            )

    def leave(self) -> None:
        """This server ends: nobody need wait for it."""
        with self.journal.writing() as cursor:
            cursor.execute("DELETE FROM member WHERE owner = ?", (self.journal.owner,))
