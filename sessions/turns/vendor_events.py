"""Events of our own, for connections that asked for them.

They stand beside the events of turns, with numbers of their own: no log keeps them, and a client
that comes back to a turn does not get them again. What they say stands in
``response.keepwarm`` too.

Always true: a connection that did not ask gets none.
"""

from collections.abc import Sequence
from typing import Any
from urllib.parse import parse_qs, urlsplit

from sessions.turns.effects import Outbox
from tools_api.events import encode

HEADER = "X-Keepwarm-Events"
_QUERY = "keepwarm_events"


class VendorEvents:
    """Keepwarm's own events for one connection, if its client wants them."""

    def __init__(self, outbox: Outbox) -> None:
        self.wanted = False
        self._outbox = outbox
        self._number = 0

    def context_recast(
        self, response_id: str, context: dict[str, Any], stream_id: str | None
    ) -> None:
        """A turn's context was recast: ``response.keepwarm.context``, before its first token."""
        if not self.wanted:
            return
        event: dict[str, Any] = {
            "type": "keepwarm:context.recast",
            "sequence_number": self._number,
            "response_id": response_id,
            "context": context,
        }
        self._number += 1
        self._outbox.frames.append(
            encode(event if stream_id is None else event | {"stream_id": stream_id})
        )


def asks_for_events(target: str, values: Sequence[str]) -> bool:
    """Whether a handshake with that target and values of ``HEADER`` asks for them."""
    return "1" in values or parse_qs(urlsplit(target).query).get(_QUERY) == ["1"]
