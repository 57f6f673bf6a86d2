"""Which socket a session uses: the client's one, or one for each root session.

One for all is cheapest at one server. Before several, a balancer sees sockets alone: with one for
each root session that names it, all of a session comes to the server that has it in its cache, and
sessions are spread. Children and forks use their root's.

Always true: a socket whose sessions nobody holds any more is closed.
"""

import uuid
import weakref
from typing import Literal

from tools_api.sdk.connection import Connection, OpenLanes

SocketsFor = Literal["client", "session"]
"""Whether all sessions of a client share a socket, or each root session has its own."""


class Sockets:
    """The sockets of one client."""

    def __init__(self, connection: Connection, each: SocketsFor) -> None:
        """
        Raises:
            ValueError: ``each`` is neither.
        """
        if each not in ("client", "session"):
            raise ValueError(f"sockets={each!r} is neither 'client' nor 'session'")
        self._one = connection
        self._each = each
        self._of_sessions: weakref.WeakValueDictionary[str, Connection] = (
            weakref.WeakValueDictionary()
        )
        self._leaving: set[OpenLanes] = set()
        """About to be closed."""

    def of(self, name: str | None) -> Connection:
        """The connection of a root session; one without a name has a key that nobody else has."""
        if self._each == "client":
            return self._one
        key = name or f"unnamed-{uuid.uuid4().hex}"
        found = self._of_sessions.get(key)
        if found is None:
            found = self._of_sessions[key] = self._one.of_session(key)
            weakref.finalize(found, self._left, found.open_lanes).atexit = False
        return found

    def _left(self, lanes: OpenLanes) -> None:
        """Nobody holds a session of it any more."""
        self._leaving.add(lanes)
        lanes.leave(lambda: self._leaving.discard(lanes))

    async def close(self) -> None:
        """Close all. They open again when needed."""
        for each in (self._one, *self._of_sessions.values()):
            await each.close()
        while self._leaving:
            await self._leaving.pop().close()
