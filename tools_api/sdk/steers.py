"""What was said to a turn that runs, until it is known who has heard it.

The server answers each: accepted, or not; what was accepted is heard by the next response, waits
for the outputs of calls, or comes back. Knows no sockets and no chain.

Always true: what was said is in one place: not sent, sent, accepted, about to be heard, or not
heard.
"""

from collections.abc import Callable, Mapping
from typing import Any

from tools_api.exact_json import dumps

Items = list[dict[str, Any]]


class Steers:
    """Those of one turn."""

    def __init__(self) -> None:
        self.post: Callable[[str], None] | None = None
        """Sends a frame on the turn's socket; None: there is none just now."""
        self._waiting: list[Items] = []
        """Until the server has named the response."""
        self._sent: list[tuple[str, Items]] = []
        """Not answered yet, in the order in which they were sent, each with its response's id."""
        self._accepted: dict[str, Items] = {}
        """By the server's ids."""
        self._unheard: Items = []
        self._coming: Items = []
        """For the response that is about to begin: they come back together."""
        self.came_back = False
        """That response could not begin."""

    @property
    def unanswered(self) -> bool:
        """The server has still to say something of one."""
        return bool(self._sent)

    @property
    def may_be_heard(self) -> bool:
        """Another response may have taken the place of the one that is known."""
        return bool(self._sent or self._accepted)

    def say(self, items: Items, response_id: str | None) -> None:
        """Say something to the response, or to the turn's first one if it has no id yet."""
        if response_id is None:
            self._waiting.append(items)
        elif self.post is None:
            self._unheard += items
        else:
            steer = {"type": "response.steer", "previous_response_id": response_id, "input": items}
            self._sent.append((response_id, items))
            self.post(dumps(steer).decode())

    def begun(self, response_id: str) -> None:
        """The response has an id."""
        self._coming = []
        waiting, self._waiting = self._waiting, []
        for items in waiting:
            self.say(items, response_id)

    def take(self, kind: str, steer: Mapping[str, Any]) -> None:
        """Take the server's answer; one to another turn of the socket is none of this one's."""
        id_ = steer.get("id")
        if kind == "response.steer.accepted" and (asked := self._take_sent(steer)):
            self._accepted[str(id_)] = asked
        elif kind == "response.steer.failed" and id_ is not None:
            if str(id_) not in self._accepted:
                self.came_back = bool(self._coming)
            coming, self._coming = self._coming, []
            self._unheard += self._accepted.pop(str(id_), coming)
        elif kind == "response.steer.failed" and (asked := self._take_sent(steer)):
            self._unheard += asked

    def _take_sent(self, steer: Mapping[str, Any]) -> Items | None:
        """What was sent first to the response that an answer names."""
        for number, (response_id, _) in enumerate(self._sent):
            if response_id == steer.get("previous_response_id", response_id):
                return self._sent.pop(number)[1]
        return None

    def take_accepted(self) -> Items:
        """What the server has: it is for the caller to say who hears it."""
        found = [item for items in self._accepted.values() for item in items]
        self._accepted.clear()
        return found

    def expect(self, items: Items) -> None:
        """A response is about to hear these, unless it cannot begin."""
        self._coming, self.came_back = list(items), False

    def take_unheard(self) -> Items:
        """What nobody hears."""
        found = [*self._unheard, *(item for items in self._waiting for item in items)]
        self._unheard, self._waiting = [], []
        return found

    def lost(self) -> None:
        """The socket is gone, and with it what the server had."""
        self._unheard += self.take_accepted()
        self._unheard += [item for _, items in self._sent for item in items]
        self._sent.clear()
