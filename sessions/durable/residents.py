"""Whose sessions the KV on the device belongs to, and what becomes of it when a budget is used up.

The engine tells how long each of its branches has had how many blocks; a branch is charged to the
session whose turn wrote to it last. Knows no engine and no journal: says which branches are to be
dropped, and which sessions have something to record though no turn of theirs will do it.

Always true: what a session is charged is recorded once, with a turn or by itself; no budget of
residency or of money is exceeded by it.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from runtime.messages import DropBranch, Residency
from sessions.durable.session import Session, SessionState


@dataclass(slots=True)
class Told:
    """Orders that follow from the engine's report."""

    drops: list[DropBranch] = field(default_factory=list)
    """Orders for the engine: no budget has anything left for this KV."""
    ended: list[Session] = field(default_factory=list)
    """Sessions whose KV has gone, and that no turn runs in: what they were charged is to be
    recorded."""


class Residents:
    """The branches of one engine, by session."""

    def __init__(self, live: Callable[[Session], Session]) -> None:
        """``live``: the session that has the name of one that was dropped; itself if none has."""
        self._live = live
        self._sessions: dict[str, Session] = {}

    def __len__(self) -> int:
        """Branches that are charged to a session, or may be."""
        return len(self._sessions)

    def writes(self, branch_id: str, session: Session) -> None:
        """A turn of ``session`` writes to that branch from now on."""
        self._sessions[branch_id] = session

    def told(self, rows: Iterable[Residency]) -> Told:
        """Charge what the engine has told. Branches that no session writes to are nobody's."""
        told = Told()
        for row in rows:
            session = self._sessions.get(row.branch_id)
            if session is None:
                continue
            if session.state is SessionState.CLOSED:
                session = self._successor(row.branch_id, session, told)
            within = session.ledger.charge(row.block_us)
            if row.gone:
                del self._sessions[row.branch_id]
            elif not within:
                told.drops.append(DropBranch(branch_id=row.branch_id))
            if (row.gone or not within) and not session.in_use:
                told.ended.append(session)
        return told

    def _successor(self, branch_id: str, old: Session, told: Told) -> Session:
        """The session that goes on under the name of a dropped one has its branches."""
        new = self._sessions[branch_id] = self._live(old)
        if new is not old:
            new.ledger.above = new.ledger.above or old.ledger.above
            told.ended.append(old)
        return new

    def engine_lost(self) -> list[Session]:
        """The engine and its KV are gone. Returns sessions that have something to record."""
        sessions, self._sessions = dict.fromkeys(self._sessions.values()), {}
        return [session for session in sessions if not session.in_use]

    def closing(self) -> list[Session]:
        """Sessions that have something to record, now that the server ends."""
        return [each for each in dict.fromkeys(self._sessions.values()) if not each.in_use]
