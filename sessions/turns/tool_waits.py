"""Sessions that wait for the tools of a socket's client: they wait no longer than that stays.

A client over HTTP has no socket between its turns; its sessions wait until they are dropped. Nor
does a socket's end touch what outlives it, or what another client goes on with.
"""

from sessions.durable.session import Session
from sessions.durable.tenant import Tenant

MOST = 1024
"""Sessions of one socket that are remembered; of more the newest."""


class ToolWaits:
    """The sessions of one connection that wait for tools."""

    def __init__(self, tenant: Tenant) -> None:
        self._tenant = tenant
        self._turns: dict[str, int] = {}
        """How many turns of each session had begun when its last one here left calls open."""
        self.left = False
        """The client's socket is gone."""

    def ended(self, session: Session, *, open_calls: bool | None, goes_on: bool) -> bool | None:
        """A turn is about to end; whether its session waits for tools, None: as it did before.

        Args:
            goes_on: whatever becomes of the socket: the session outlives it, or another client has
                the turn.
        """
        self._turns.pop(session.name, None)
        if goes_on:
            return open_calls
        if self.left:
            return False
        if open_calls:
            self._turns[session.name] = session.turns_begun
            if len(self._turns) > MOST:
                del self._turns[next(iter(self._turns))]
        return open_calls

    def leave(self) -> None:
        """The client's socket is gone: sessions in which nobody has begun a turn since wait no
        longer."""
        self.left = True
        for name, turns in self._turns.items():
            session = self._tenant.known_session(name)
            if session is not None and session.turns_begun == turns:
                session.wait_no_longer()
        self._turns.clear()
