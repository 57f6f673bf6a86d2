"""Turns of one connection whose plans take long: to be worked out beside the event loop.

A long prompt takes seconds to be tokenised, and a long history that was put together of stored
items takes a while to be read. Such a plan, or its beginning, is given away as work that touches
nothing that changes, and its turn goes on when it comes back. Knows neither threads nor what
a plan is of.

Always true: one plan of a connection is worked out at a time, so that others get theirs in
between; each comes back once, though its turn may be gone by then.
"""

import itertools
from collections.abc import Callable
from typing import Generic, TypeVar

from sessions.durable.transcript import Entry, Tail, chain, header_tools, text_bytes
from sessions.turns.effects import Planning
from sessions.turns.planning import Lineage, template_options
from sessions.turns.references import Whole
from sessions.turns.service import Service
from sessions.turns.turn_plan import TurnPlan
from tools_api.items import CallOutput
from tools_api.requests import CreateRequest

Key = TypeVar("Key")


def takes_long(
    service: Service, request: CreateRequest, lineage: Lineage, frame_bytes: int
) -> bool:
    """Whether the turn's plan may tokenise more than ``max_inline_bytes``."""
    most = service.limits.max_inline_bytes
    parent = lineage.parent
    if parent is None:
        return frame_bytes > most
    if request.truncation == "auto" and parent.entry.num_tokens > most // 4:
        return True  # what is left of a chain that is cut short is rendered anew
    answers = any(isinstance(item, CallOutput) for item in lineage.items)
    if answers and _warmed(parent.entry) > most // 4:
        return True  # what outputs stand in front of is said anew
    if frame_bytes <= most:
        return False
    header, options = parent.entry.header, template_options(service.model, request)
    if (request.instructions, header_tools(request.tools), options) != (
        header.instructions,
        header.tools,
        header.options,
    ):
        return True
    return sum(map(text_bytes, lineage.items)) > most


def _warmed(entry: Entry) -> int:
    """Tokens at the end of the chain that no model has answered yet."""
    links = itertools.takewhile(lambda link: link.tail is Tail.INPUT, chain(entry))
    return sum(link.own_tokens for link in links)


class LongPlans(Generic[Key]):
    """What waits to be planned, by the ``Key`` of its turn, the first come first."""

    def __init__(self, name: str) -> None:
        """``name`` sets the ids apart from those of other connections."""
        self._name = name
        self._numbers = itertools.count(1)
        self._waiting: dict[Key, Callable[[], TurnPlan | Whole]] = {}
        self._given: tuple[str, Key | None] | None = None

    def add(self, key: Key, work: Callable[[], TurnPlan | Whole]) -> None:
        self._waiting[key] = work

    def take(self) -> Planning | None:
        """The next to be worked out, if none is."""
        if self._given is not None or not self._waiting:
            return None
        key = next(iter(self._waiting))
        planning = Planning(
            planning_id=f"{self._name}.plan{next(self._numbers)}", work=self._waiting.pop(key)
        )
        self._given = (planning.planning_id, key)
        return planning

    def returned(self, planning_id: str) -> Key | None:
        """A plan is worked out; None: it is not the one that was given, or its turn is gone."""
        if self._given is None or self._given[0] != planning_id:
            return None
        key = self._given[1]
        self._given = None
        return key

    def withdraw(self, key: Key) -> None:
        """The turn is gone. Unknown keys are ignored."""
        self._waiting.pop(key, None)
        if self._given is not None and self._given[1] == key:
            self._given = (self._given[0], None)
