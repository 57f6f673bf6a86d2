"""Which place a request gets in the lanes of its connection, or why it gets none.

Always true: the answer to a faulty request comes in its lane's order, if something is in the
lane that it has to wait for, and at once otherwise.
"""

from dataclasses import dataclass

from sessions.durable.weights import Hold
from sessions.turns.lanes import Lanes
from sessions.turns.reading import Prepared
from tools_api import errors
from tools_api.errors import ApiError
from tools_api.events import ResumeTurn
from tools_api.limits import Limits
from tools_api.requests import CreateRequest


@dataclass(slots=True, eq=False)
class Waiting:
    """A frame that waits for its lane: a create, a resume, or the answer to a faulty one."""

    content: CreateRequest | ResumeTurn | ApiError
    num_bytes: int
    """Bytes of its frame."""
    arrival_s: float
    prepared: Prepared | None = None
    """The results of reading it."""
    hold: Hold | None = None
    """The hold of a create: the memory it takes until it is answered."""


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
