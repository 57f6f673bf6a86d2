"""What waits in a lane, what is answered at once, and what is refused."""

from dataclasses import replace

import pytest

from sessions.turns.lanes import Lanes, Waiting, place
from tools_api.errors import ApiError
from tools_api.events import decode
from tools_api.limits import Limits
from tools_api.requests import CreateRequest

LIMITS = replace(Limits(), max_stream_ids=1, max_waiting_responses=2)
FAULT = ApiError("no", code="invalid_value")


def lanes() -> Lanes[Waiting]:
    return Lanes(max_names=LIMITS.max_stream_ids, max_active=4)


def waiting(content: CreateRequest | ApiError | None = None) -> Waiting:
    if content is None:
        event = decode('{"type": "response.create", "input": "hi"}', LIMITS)
        assert isinstance(event, CreateRequest)
        content = event
    return Waiting(content, 40, 0.0)


@pytest.mark.parametrize("stream_id", [None, "a", "never named"])
def test_a_fault_with_nothing_before_it_is_answered_at_once_and_opens_no_lane(
    stream_id: str | None,
) -> None:
    found = lanes()
    found.find("a")
    assert place(found, waiting(FAULT), stream_id, LIMITS) is FAULT
    assert found.num_waiting == 0
    assert found.known("never named") is None


def test_a_fault_waits_behind_what_is_in_its_lane() -> None:
    found = lanes()
    first, fault = waiting(), waiting(FAULT)
    assert place(found, first, "a", LIMITS) is None
    assert place(found, fault, "a", LIMITS) is None
    taken = found.next()
    assert taken is not None
    assert taken[1] is first
    assert found.next() is None, "the lane is busy"
    found.done(taken[0])
    after = found.next()
    assert after is not None
    assert after[1] is fault


def test_one_lane_too_many_is_refused() -> None:
    found = lanes()
    assert place(found, waiting(), "a", LIMITS) is None
    error = place(found, waiting(), "b", LIMITS)
    assert error is not None
    assert error.code == "websocket_stream_limit_reached"
    assert place(found, waiting(), None, LIMITS) is None


def test_beyond_what_may_wait_creates_are_refused_and_faults_answered_at_once() -> None:
    found = lanes()
    for _ in range(LIMITS.max_waiting_responses):
        assert place(found, waiting(), None, LIMITS) is None
    error = place(found, waiting(), None, LIMITS)
    assert error is not None
    assert error.code == "server_is_overloaded"
    assert place(found, waiting(FAULT), None, LIMITS) is FAULT
