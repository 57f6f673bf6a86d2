"""Which server may append to a session: claims, heartbeats, and asking to let go.

A server that wants a session writes its name into ``wanted_by`` and waits; the owner reads that
every 250 ms, or as soon as it is told where the store can tell, and lets go at the end of the
turn that runs. A server that drains lets go unasked. An owner whose heartbeat is more than
two seconds away from the database's clock is passed over: should it wake, its epoch is an old
one and its append writes nothing, so that a wrong guess costs a turn and never a record. Who
takes a session over writes what its running turns held as spent.

The database's clock may be set. Forward or back, a server that lives may be taken for dead until
its next heartbeat, and one that is dead for alive only if its last heartbeat's time comes again,
until that has passed. No server that has beaten takes itself for dead.

Always true: a session changes its owner only together with its epoch, which grows.
"""

import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Protocol

from sessions.journal import members, request_ids, shares
from sessions.journal.batch import Batch, drop_empty, sessions_with_reservations
from sessions.journal.draws import draw
from sessions.journal.errors import AddressTaken, ClusterRefused, JournalBusy
from sessions.journal.members import Heard, Member, Presence
from sessions.journal.records import SessionRecord, TurnRecord
from sessions.journal.rows import SessionRow
from sessions.journal.shares import Share, Want
from sessions.journal.sql import SqlJournal
from sessions.journal.tables import Cursor
from sessions.quotas import Draw, Drawn

DEAD_MS = 2000
POLL_S = 0.25
HEARTBEAT_S = 0.5
ASK_AGAIN_S = 0.05


class Waiter(Protocol):
    """Time as a claim sees it: it reads a clock, and waits."""

    def clock(self) -> float:
        """Monotonic seconds of the waiter's clock."""
        ...

    def wait(self, seconds: float) -> None:
        """Wait until a session's owner may have let it go."""
        ...


@dataclass(frozen=True, slots=True)
class SystemWaiter:
    """A ``Waiter`` with the time of this machine."""

    def clock(self) -> float:
        """Monotonic seconds of this machine."""
        return time.monotonic()

    def wait(self, seconds: float) -> None:
        """Sleep for so many seconds."""
        time.sleep(seconds)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ownership:
    """One server's side of it; each call is a transaction of its own."""

    journal: SqlJournal
    now_ms: Callable[[Cursor], int]
    """Milliseconds since the epoch by the database's clock."""
    waiter: Waiter
    _settled: deque[TurnRecord] = field(default_factory=deque, init=False)
    """Nobody has been told of them; any thread appends."""

    def claim(self, tenant: str, session: str, wait_s: float) -> SessionRecord | None:
        """See ``Journal.claim``."""
        until = self.waiter.clock() + wait_s
        while True:
            settled: list[TurnRecord] = []
            found, mine = self._try(tenant, session, settled)
            self._settled.extend(settled)
            if mine:
                return found
            if self.waiter.clock() >= until:
                raise JournalBusy(f"session {session!r} is held by another server")
            self.waiter.wait(ASK_AGAIN_S)

    def _try(
        self, tenant: str, session: str, settled: list[TurnRecord]
    ) -> tuple[SessionRecord | None, bool]:
        """``settled`` gets what counts once the transaction is committed."""
        journal = self.journal
        with journal.writing() as cursor:
            row = journal.session_row(cursor, tenant, session, lock=True)
            if row is None:
                return None, True
            if row.owner != journal.owner:
                if row.owner and self._lives(cursor, row.owner):
                    self._ask(cursor, row)
                    return None, False
                if self._left_empty(cursor, row):
                    return None, True
                row, cut_short = self._taken(cursor, replace(row, owner=journal.owner))
                settled += cut_short
            self._mark(cursor, tenant, session, "")  # ours again: who wants it asks anew
            return row.record(journal.account_of(cursor, row)), True

    def _left_empty(self, cursor: Cursor, row: SessionRow) -> bool:
        """Nobody has the session, and it has kept nothing: its row goes."""
        if row.head_seq or row.options:
            return False
        if row.owner:
            self.journal.write_session(cursor, replace(row, owner=""))
        return drop_empty(self.journal, cursor, row.tenant, row.name)

    def _taken(self, cursor: Cursor, row: SessionRow) -> tuple[SessionRow, list[TurnRecord]]:
        """The session changes its owner: whatever turns still ran in it have failed."""
        batch = Batch(self.journal, cursor)
        batch.change(replace(row, epoch=row.epoch + 1))
        settled = batch.settle(row.tenant, row.name)
        batch.write()
        return batch.session(row.tenant, row.name), settled

    def pop_settled(self) -> list[TurnRecord]:
        """See ``Owner``."""
        return [self._settled.popleft() for _ in range(len(self._settled))]

    def settle_left(self) -> list[TurnRecord]:
        """See ``Journal``."""
        self._settle_left()
        return self.pop_settled()

    def _settle_left(self) -> None:
        """Settle the sessions whose owner is dead: nobody has them then, and their turns have
        failed."""
        with self.journal.reading() as cursor:
            left = sessions_with_reservations(cursor)
            servers = request_ids.owners(cursor)
            dead = [server for server in servers if not self._lives(cursor, server)]
        if dead:
            with self.journal.writing() as cursor:
                request_ids.leave(cursor, (each for each in dead if not self._lives(cursor, each)))
        for tenant, name in left:
            settled: list[TurnRecord] = []
            with self.journal.writing() as cursor:
                row = self.journal.session_row(cursor, tenant, name, lock=True)
                if row is not None and not (row.owner and self._lives(cursor, row.owner)):
                    settled = self._taken(cursor, replace(row, owner=""))[1]
            self._settled.extend(settled)

    def _lives(self, cursor: Cursor, owner: str) -> bool:
        sql = "SELECT heartbeat_ms FROM member WHERE owner = ?"
        row = cursor.execute(sql, (owner,)).fetchone()
        if row is None:
            return False
        return owner == self.journal.owner or abs(self.now_ms(cursor) - int(row[0])) <= DEAD_MS

    def _ask(self, cursor: Cursor, row: SessionRow) -> None:
        """Ask a session's owner to let go. It is told once; whoever asked last is told when it
        does."""
        journal = self.journal
        if self._wanted_by(cursor, row.tenant, row.name) != journal.owner:
            self._mark(cursor, row.tenant, row.name, journal.owner)
            journal.tell(cursor, row.owner)

    def _mark(self, cursor: Cursor, tenant: str, session: str, wanted_by: str) -> None:
        sql = "UPDATE session SET wanted_by = ? WHERE tenant = ? AND name = ?"
        cursor.execute(sql, (wanted_by, tenant, session))

    def release(self, tenant: str, sessions: Sequence[str], *, unasked: bool = False) -> None:
        """See ``Journal.release``."""
        journal = self.journal
        with journal.writing() as cursor:
            for name in sorted(sessions):
                row = journal.session_row(cursor, tenant, name, lock=True)
                if row is None or row.owner != journal.owner:
                    continue
                wanted_by = self._wanted_by(cursor, tenant, name)
                if wanted_by or unasked:
                    journal.write_session(cursor, replace(row, owner=""))
                    self._mark(cursor, tenant, name, "")
                    drop_empty(journal, cursor, tenant, name)
                if wanted_by:
                    journal.tell(cursor, wanted_by)

    def _wanted_by(self, cursor: Cursor, tenant: str, session: str) -> str:
        sql = "SELECT wanted_by FROM session WHERE tenant = ? AND name = ?"
        (found,) = cursor.execute(sql, (tenant, session)).fetchone()
        return str(found)

    def wanted(self) -> list[tuple[str, str]]:
        """Tenant and name of this server's sessions that another one asks for."""
        sql = "SELECT tenant, name FROM session WHERE owner = ? AND wanted_by <> ''"
        with self.journal.reading() as cursor:
            found = cursor.execute(sql, (self.journal.owner,)).fetchall()
        return [(tenant, name) for tenant, name in found]

    def listen(self, tell: Callable[[], None]) -> None:
        """Call ``tell``, in a thread of the store's own, whenever another server asks for one
        of this server's sessions. Where the store cannot tell it is never called."""
        self.journal.listen(tell)

    def beat(self, presence: Presence | None = None, *, changed: bool = False) -> Heard:
        """See ``Owner``."""
        journal = self.journal
        with journal.writing() as cursor:
            now_ms = self.now_ms(cursor)
            told_ms = members.beat(cursor, journal.owner, now_ms, presence)
            if presence is None:
                return Heard(now_ms=now_ms)
            if changed:
                journal.tell(cursor, members.bell_of(presence.cluster))
            ready = members.count_ready(cursor, presence.cluster, now_ms - DEAD_MS)
            return Heard(told=told_ms > 0, num_ready=ready, now_ms=now_ms)

    def join(self, presence: Presence) -> None:
        """See ``Owner``."""
        journal, cluster, address = self.journal, presence.cluster, presence.address
        with journal.writing() as cursor:
            journal.lock_name(cursor, "cluster", "", cluster)
            now_ms = self.now_ms(cursor)
            for each in members.cluster_members(cursor, cluster):
                other = each.presence
                if each.owner == journal.owner or abs(now_ms - each.heartbeat_ms) > DEAD_MS:
                    continue
                if other.identity != presence.identity:
                    raise ClusterRefused(
                        f"the cluster {cluster!r} serves {other.identity} (at {other.address}), "
                        f"this server {presence.identity}: give it a cluster of its own"
                    )
                if other.address == address:
                    raise AddressTaken(
                        f"the address {address} is that of a server of the cluster {cluster!r} "
                        f"which lives ({each.owner}): --advertise names another one"
                    )
            members.bury(cursor, cluster, address)  # whoever was there has ended
            members.beat(cursor, journal.owner, now_ms, presence)

    def members(self, cluster: str) -> tuple[list[Member], int]:
        """See ``Owner``."""
        with self.journal.reading() as cursor:
            return members.cluster_members(cursor, cluster), self.now_ms(cursor)

    def addresses(self) -> dict[str, str]:
        """See ``Owner``."""
        with self.journal.reading() as cursor:
            return members.addresses(cursor)

    def draw(self, tenant: str, draws: Sequence[Draw]) -> tuple[Drawn, ...]:
        """See ``Owner``. It waits for no disk: a power cut gives a few turns back."""
        with self.journal.writing(synced=False) as cursor:
            now_ms = self.now_ms(cursor)
            ordered = sorted(draws, key=lambda each: each.kind)
            return tuple(draw(self.journal, cursor, tenant, now_ms, each) for each in ordered)

    def claim_shares(self, tenant: str, wants: Sequence[Want]) -> tuple[Share, ...]:
        """Have this server spend of accounts that others draw on too: what there is of what is
        asked for. What servers had that are dead goes back first."""
        journal, names = self.journal, [want.name for want in wants]
        with journal.reading() as cursor:
            others = shares.owners(cursor, tenant, names) - {journal.owner}
            dead = [owner for owner in sorted(others) if not self._lives(cursor, owner)]
        if dead:
            self._settle_left()
            with journal.writing() as cursor:
                for owner in dead:
                    if not self._lives(cursor, owner):
                        shares.bury(cursor, owner)
        with journal.writing() as cursor:
            return shares.take(journal, cursor, tenant, wants)

    def return_share(self, tenant: str, name: str) -> None:
        """Give back this server's share of an account, of which nothing is spent any more."""
        with self.journal.writing() as cursor:
            shares.return_share(cursor, tenant, name, self.journal.owner)

    def claim_request(self, tenant: str, request_id: str) -> bool:
        """See ``Owner``. It waits for no disk: a power cut ends the turn as well."""
        with self.journal.writing(synced=False) as cursor:
            lives = partial(self._lives, cursor)
            return request_ids.take(self.journal, cursor, tenant, request_id, lives)

    def held_elsewhere(self, tenant: str, session: str) -> bool:
        """See ``Owner``."""
        with self.journal.reading() as cursor:
            row = self.journal.session_row(cursor, tenant, session)
            return row is not None and self._another_lives(cursor, row.owner)

    def _another_lives(self, cursor: Cursor, owner: str) -> bool:
        return owner not in ("", self.journal.owner) and self._lives(cursor, owner)

    def request_elsewhere(self, tenant: str, request_id: str) -> bool:
        """See ``Owner``."""
        with self.journal.reading() as cursor:
            owner = request_ids.holder(cursor, tenant, request_id)
            return self._another_lives(cursor, owner or "")

    def free_requests(self, tenant: str, ids: Sequence[str]) -> None:
        """See ``Owner``."""
        with self.journal.writing(synced=False) as cursor:
            request_ids.free(self.journal, cursor, tenant, ids)

    def leave(self) -> None:
        """This server ends: nobody need wait for it."""
        with self.journal.writing() as cursor:
            shares.leave(cursor, self.journal.owner)
            request_ids.leave(cursor, [self.journal.owner])
            cursor.execute("DELETE FROM member WHERE owner = ?", (self.journal.owner,))
