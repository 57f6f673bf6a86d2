"""Logs of turns: numbers, bounds, and who may find them."""

import tracemalloc
from dataclasses import replace

import pytest

from sessions.durable.turn_logs import EventLog, EventLogs, Follow
from tests.support.clock import FakeClock
from tools_api.events import encode
from tools_api.limits import Limits


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock(0.0)


def frame(number: int, lane: str | None = None, text: str = "") -> bytes:
    event = {"type": "response.x", "sequence_number": number}
    return encode(event | ({} if lane is None else {"stream_id": lane}) | {"delta": text})


def logged(
    logs: EventLogs, name: str, events: int, tenant: str = "acme", text: str = ""
) -> EventLog:
    log = EventLog(tenant=tenant, owner="c", request_id=name)
    logs.reserve(log)
    logs.start(log, f"resp_{name}", listed=True)
    logs.append(log, [frame(n, text=text) for n in range(events)])
    return log


def test_events_have_their_numbers(clock: FakeClock) -> None:
    logs = EventLogs(limits=Limits(), clock=clock)
    log = logged(logs, "a", 4)
    assert log.events_from(2) == [frame(2), frame(3)]
    assert log.events_from(4) == []
    assert logs.by_request("acme", "a") is logs.by_response("acme", "resp_a") is log
    assert logs.by_request("b", "a") is None
    assert logs.by_response("b", "resp_a") is None


@pytest.mark.parametrize("lane", [None, "b", 'b.-_"'])
@pytest.mark.parametrize("before", [None, "a"])
def test_a_follower_gets_each_event_once_in_its_own_lane(
    clock: FakeClock, before: str | None, lane: str | None
) -> None:
    logs = EventLogs(limits=Limits(), clock=clock)
    log = logged(logs, "a", 0)
    follow = Follow(log=log, stream_id=lane, next_number=1)
    logs.append(log, [frame(0, before), frame(1, before)])
    assert follow.new_frames() == [frame(1, lane)]
    logs.append(log, [frame(2, before)])
    assert follow.new_frames() == [frame(2, lane)]
    assert follow.new_frames() == []


@pytest.mark.parametrize(("room", "kept"), [(0, 4), (-1, 3)])
def test_a_turn_keeps_its_newest_events_within_its_bytes(
    clock: FakeClock, room: int, kept: int
) -> None:
    most = 512 + 4 * len(frame(0)) + room
    logs = EventLogs(limits=replace(Limits(), max_resume_bytes_per_turn=most), clock=clock)
    log = logged(logs, "a", 4)
    assert list(log.frames) == [frame(n) for n in range(4 - kept, 4)]
    assert log.events_from(0) == ([] if kept < 4 else list(log.frames))
    logs.close(log)
    assert log.events_from(0)[-1] == frame(3)


def test_one_event_is_kept_however_large(clock: FakeClock) -> None:
    logs = EventLogs(limits=replace(Limits(), max_resume_bytes_per_turn=1), clock=clock)
    log = logged(logs, "a", 3)
    logs.close(log)
    assert log.events_from(0) == [frame(2)]
    assert log.end == 3


def test_a_tenants_ended_turns_stay_within_their_bytes(clock: FakeClock) -> None:
    logs = EventLogs(limits=replace(Limits(), max_resume_bytes_per_tenant=20_000), clock=clock)
    for number in range(100):
        logs.close(logged(logs, str(number), 20, text="x" * 100))
    newest = logs.by_request("acme", "99")
    assert newest is not None
    assert len(newest.events_from(0)) == 20
    assert logs.by_request("acme", "0") is None
    shortened = logs.by_request("acme", "98")
    assert shortened is not None
    assert shortened.events_from(5) == [frame(19, text="x" * 100)]
    kept = [logs.by_request("acme", str(number)) for number in range(100)]
    assert sum(log.num_bytes for log in kept if log is not None) <= 20_000
    logs.close(logged(logs, "0", 1, tenant="other"))
    assert logs.by_request("acme", "99") is newest


def test_time_shortens_a_log_then_drops_it(clock: FakeClock) -> None:
    logs = EventLogs(limits=Limits(), clock=clock)
    log = logged(logs, "a", 5)
    logs.close(log)
    clock.advance(Limits().resume_s)
    logs.expire()
    assert len(log.events_from(0)) == 5
    clock.advance(1)
    logs.expire()
    assert log.events_from(0) == [frame(4)]
    clock.advance(Limits().stored_response_ttl_s)
    logs.expire()
    assert logs.by_request("acme", "a") is None
    assert len(logs) == 0


def test_a_turn_that_runs_is_never_dropped(clock: FakeClock) -> None:
    logs = EventLogs(limits=Limits(), clock=clock)
    log = logged(logs, "a", 5)
    clock.advance(10 * Limits().stored_response_ttl_s)
    logs.expire()
    logs.continued("acme", "resp_a")
    assert logs.by_request("acme", "a") is log
    assert len(log.events_from(0)) == 5


def test_an_id_that_started_nothing_is_free_again(clock: FakeClock) -> None:
    logs = EventLogs(limits=Limits(), clock=clock)
    old, new = (EventLog(tenant="acme", owner="c", request_id="a") for _ in range(2))
    logs.reserve(old)
    logs.reserve(new)
    logs.drop(old)
    assert logs.by_request("acme", "a") is new
    logs.drop(new)
    assert logs.by_request("acme", "a") is None


@pytest.mark.parametrize("known", [True, False])
def test_what_was_deleted_has_no_events_and_keeps_its_request_id(
    clock: FakeClock, known: bool
) -> None:
    limits = Limits(max_resume_bytes_per_tenant=2000)
    logs = EventLogs(limits=limits, clock=clock)
    for name in ("old", "long"):
        logs.close(logged(logs, name, 2, text="x" * 600))
    if known:
        log = logged(logs, "a", 5)
        logs.close(log)
        logs.delete(log)
    else:
        log = EventLog(tenant="acme", owner="", request_id="a", deleted=True)
        logs.adopt(log, "resp_a", frame(4))
    assert log.events_from(0) == log.events_from(4) == []
    assert logs.by_response("acme", "resp_a") is None
    assert logs.by_request("acme", "a") is log
    logs.continued("acme", "resp_a")
    logs.close(logged(logs, "b", 2, text="x" * 300))
    assert logs.by_request("acme", "a") is log
    clock.advance(limits.stored_response_ttl_s + 1)
    logs.expire()
    assert logs.by_request("acme", "a") is None
    assert len(logs) == 0


def test_of_a_deleted_turn_without_a_request_id_nothing_is_left(clock: FakeClock) -> None:
    logs = EventLogs(limits=Limits(), clock=clock)
    log = EventLog(tenant="acme", owner="c")
    logs.start(log, "resp_a", listed=True)
    logs.append(log, [frame(0)])
    logs.delete(log)
    assert logs.by_response("acme", "resp_a") is log, "it runs"
    logs.close(log)
    logs.delete(log)
    assert len(logs) == 0


def test_events_are_kept_in_memory_of_their_own_size(clock: FakeClock) -> None:
    """What encodes a frame makes room for thousands of bytes, and does not give them back."""
    logs = EventLogs(limits=Limits(), clock=clock)
    log = logged(logs, "a", 0)
    tracemalloc.start()
    before, _ = tracemalloc.get_traced_memory()
    for number in range(200):
        logs.append(log, [frame(number, text="x" * 100)])
    grown = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    assert grown < 2 * log.num_bytes
