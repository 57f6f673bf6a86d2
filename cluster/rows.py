"""The members' rows in PostgreSQL: for the one balance of a cluster, and for those who keep its
replicas or look at it.

A database in which no server has opened a journal yet has no members.

Always true: rows are written, but for burying the dead, only while this is the one balance.
"""

import contextlib
from collections.abc import Callable, Mapping, Sequence

from sessions.journal import members
from sessions.journal.errors import JournalAbsent, JournalError
from sessions.journal.members import Member, bell_of
from sessions.journal.only_one import OnlyOne
from sessions.journal.places import open_postgres
from sessions.journal.postgres import PostgresJournal
from sessions.journal.postgres_connection import connected
from sessions.pages.cluster_rows import SILENT, member_row

FORGET_MS = 3_600_000
"""Rows of members that have said nothing for so long are deleted."""


class MemberRows:
    """Rows of one cluster; ``Rows`` of the balancer, ``ReplicaRows`` of a keeper."""

    def __init__(self, address: str, cluster: str, tell: Callable[[], None] | None = None) -> None:
        """``tell``: called in another thread when something has changed; None: nobody is told."""
        self._address = address
        self._cluster = cluster
        self._tell = tell
        self._only_one = OnlyOne(lambda: connected(address), f"balance {cluster}")
        self._journal: PostgresJournal | None = None

    def look(self) -> list[Member]:
        """The servers of the cluster, whoever balances it. Raises JournalError."""
        return self.look_at()[0]

    def look_at(self) -> tuple[list[Member], int]:
        """The servers, and the milliseconds of the database's clock, by which hearts beat."""
        try:
            journal = self._opened()
        except JournalAbsent:
            return [], 0
        with journal.reading() as cursor:
            return members.cluster_members(cursor, self._cluster), journal.now_ms(cursor)

    def living(self) -> list[Member]:
        """The servers whose heart was heard lately. Raises JournalError."""
        found, now_ms = self.look_at()
        return [each for each in found if member_row(each, now_ms)["state"] != SILENT]

    def read(self) -> list[Member] | None:
        """See ``Rows``."""
        return self.look() if self._only_one.holds() else None

    def write(self, slots: Mapping[str, int], told: Sequence[str]) -> None:
        """See ``Rows``."""
        journal = self._opened()
        with journal.writing() as cursor:
            now_ms = journal.ownership.now_ms(cursor)
            members.assign_slots(cursor, slots)
            members.tell(cursor, told, now_ms)
            members.forget(cursor, self._cluster, now_ms - FORGET_MS)
            for owner in told:
                journal.tell(cursor, owner)

    def bury(self, address: str) -> None:
        """The process that advertised this address has ended. Raises JournalError."""
        journal = self._opened()
        with journal.writing() as cursor:
            members.bury(cursor, self._cluster, address)
            journal.tell(cursor, bell_of(self._cluster))

    def close(self) -> None:
        """Let another balance go on."""
        self._only_one.leave()
        if self._journal is not None:
            with contextlib.suppress(JournalError):
                self._journal.close()

    def _opened(self) -> PostgresJournal:
        if self._journal is None:
            opened = open_postgres(
                self._address, fingerprint=b"", owner=bell_of(self._cluster), beside=True
            )
            assert isinstance(opened, PostgresJournal)
            if self._tell is not None:
                opened.listen(self._tell)
            self._journal = opened
        return self._journal
