"""The lanes of one connection: which requests get a place and wait, which may go next.

A lane is a named stream of a connection, or the default one. Within a lane requests run one
after the other; across lanes at most ``max_active`` run at once, and what waits longest goes
first.

Always true: a lane has at most one active request; names are never released; the answer to a
faulty request comes in its lane's order, if something is in the lane that it has to wait for, and
at once otherwise.
"""

import itertools
from collections import deque
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from sessions.durable.weights import MemoryHold
from sessions.turns.reading import PrecomputedRequest
from sessions.turns.submissions import Submission
from tools_api import errors
from tools_api.errors import ApiError
from tools_api.events import ResumeTurn
from tools_api.limits import Limits
from tools_api.requests import CreateRequest

Request = TypeVar("Request")


@dataclass(slots=True, eq=False)
class Lane(Generic[Request]):
    """A connection's lane: one stream of requests, answered in order."""

    stream_id: str | None
    """The lane's name; None for the default lane."""
    active: bool = False
    waiting: deque[tuple[int, Request]] = field(default_factory=deque)
    """Waiting requests, with their places in the order of arrival on the connection."""


class Lanes(Generic[Request]):
    def __init__(self, *, max_names: int, max_active: int) -> None:
        self._max_names = max_names
        self._max_active = max_active
        self._arrivals = itertools.count()
        self._lanes: dict[str | None, Lane[Request]] = {None: Lane(None)}
        self.num_active = 0
        self.num_waiting = 0

    def find(self, stream_id: str | None) -> Lane[Request] | None:
        """The lane of that name; a new name makes a lane, None if there are too many."""
        lane = self._lanes.get(stream_id)
        if lane is None and len(self._lanes) <= self._max_names:
            lane = self._lanes[stream_id] = Lane(stream_id)
        return lane

    @property
    def held(self) -> list[object]:
        """Lanes with an active request, and how many wait: nothing is left once each has been
        answered."""
        active = [lane for lane in self._lanes.values() if lane.active]
        return [*active, *filter(None, (self.num_active, self.num_waiting))]

    def known(self, stream_id: str | None) -> Lane[Request] | None:
        """The lane of that name, None if it was not used yet."""
        return self._lanes.get(stream_id)

    def add(self, lane: Lane[Request], request: Request) -> None:
        lane.waiting.append((next(self._arrivals), request))
        self.num_waiting += 1

    def add_first(self, lane: Lane[Request], request: Request) -> None:
        """Before all that waits, in this lane and in others."""
        lane.waiting.appendleft((-1, request))
        self.num_waiting += 1

    def next(self) -> tuple[Lane[Request], Request] | None:
        """Take the longest waiting request that may run, and mark its lane active."""
        if not self.num_waiting or self.num_active >= self._max_active:
            return None
        first: Lane[Request] | None = None
        for lane in self._lanes.values():
            if not lane.waiting or lane.active:
                continue
            if first is None or lane.waiting[0][0] < first.waiting[0][0]:
                first = lane
        if first is None:
            return None
        first.active = True
        self.num_active += 1
        self.num_waiting -= 1
        return first, first.waiting.popleft()[1]

    def done(self, lane: Lane[Request]) -> None:
        """The lane's active request is over."""
        assert lane.active
        lane.active = False
        self.num_active -= 1

    def drop_waiting(self) -> list[tuple[Lane[Request], Request]]:
        """Take all that wait, in the order of arrival."""
        found = [
            (place, lane, request)
            for lane in self._lanes.values()
            for place, request in lane.waiting
        ]
        for lane in self._lanes.values():
            lane.waiting.clear()
        self.num_waiting = 0
        return [(lane, request) for _, lane, request in sorted(found, key=lambda f: f[0])]


@dataclass(slots=True, eq=False)
class Waiting:
    """A frame that waits for its lane: a create, a resume, or the answer to a faulty one."""

    content: CreateRequest | ResumeTurn | ApiError
    num_bytes: int
    """Size of the request's frame."""
    arrival_s: float
    prepared: PrecomputedRequest | None = None
    """The results of reading it."""
    hold: MemoryHold | None = None
    """The hold of a create: the memory it takes until it is answered."""
    steers: tuple[Submission, ...] = ()
    """Submissions with which a create begins that the server makes itself."""


def place(
    lanes: Lanes[Waiting], waiting: Waiting, stream_id: str | None, limits: Limits
) -> ApiError | None:
    """Put a frame behind what is in its lane. Returns what is to be sent at once instead: a
    refusal, or the answer that has nothing to wait for. A fault opens no lane."""
    full = lanes.num_waiting >= limits.max_waiting_responses
    if isinstance(waiting.content, ApiError):
        lane = lanes.known(stream_id)
        if full or lane is None or not (lane.active or lane.waiting):
            return waiting.content
    else:
        lane = lanes.find(stream_id)
        if lane is None:
            assert stream_id is not None  # the default lane is always there
            return errors.stream_limit_reached(stream_id, limits.max_stream_ids)
        if full:
            return errors.overloaded(
                f"{limits.max_waiting_responses} requests wait on this connection"
            )
    lanes.add(lane, waiting)
    return None
