"""Clients that lose their socket come back: nothing is lost, said twice, or charged twice."""

import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from runtime.messages import FinishReason
from sessions.durable.reservation import GRANT_TOKENS
from sessions.journal.sqlite import SqliteJournal
from tests.support.journal_rig import JournalRig
from tests.support.sessions_rig import END, Client, Rig, call, tool
from tools_api.events import encode
from tools_api.limits import Limits

STEPS = ["21 ", "degrees, ", "says ", call("look", '{"x": "y"}') + END]
CREATE: dict[str, Any] = {
    "input": "Weather?",
    "tools": [tool("look", x={"type": "string"})],
    "keepwarm": {"session": "s", "request_id": "r1", "on_disconnect": "continue"},
}
SHORT = {key: value for key, value in CREATE.items() if key != "tools"}
SHORT_STEPS = ["21 ", "degrees." + END]


@pytest.fixture
def rig() -> Rig:
    return Rig()


def play(rig: Rig, steps: list[str]) -> None:
    """Let the engine say the rest of the turn."""
    for text in steps:
        rig.emit(text, FinishReason.STOP if text.endswith(END) else None)


def code(client: Client) -> str:
    assert client.last["type"] == "error"
    return client.last["error"]["code"]


def uncut(fields: dict[str, Any] = CREATE, steps: list[str] = STEPS) -> list[dict[str, Any]]:
    rig = Rig()
    client = rig.connect()
    client.create(**fields)
    play(rig, steps)
    return client.events


def wire_bytes(event: dict[str, Any]) -> int:
    """Of the event's WebSocket frame."""
    length = len(encode(event))
    return length + (2 if length < 126 else 4)


def after_cut(cut: int, *, resume: bool, at_once: bool) -> tuple[list[dict[str, Any]], Rig]:
    """What a client has seen that lost its socket after so many bytes and came back."""
    rig = Rig()
    first = rig.connect()
    first.create(**SHORT)
    steps = list(SHORT_STEPS)
    while steps and sum(map(wire_bytes, first.events)) < cut:
        play(rig, [steps.pop(0)])
    seen, left = [], cut
    for event in first.events:
        left -= wire_bytes(event)
        if left < 0:
            break
        seen.append(event)
    first.disconnect()
    if not at_once:
        play(rig, steps)
        steps = []
    second = rig.connect()
    if resume:
        second.send(type="keepwarm:response.resume", request_id="r1", after_sequence=len(seen) - 1)
        missed = second.events
    else:
        second.create(**SHORT)
    play(rig, steps)
    if not resume:
        missed = [event for event in second.events if event["sequence_number"] >= len(seen)]
    return seen + missed, rig


@pytest.mark.tail
def test_a_cut_after_any_byte_changes_nothing_of_the_events() -> None:
    whole = uncut(SHORT, SHORT_STEPS)
    num_bytes = sum(map(wire_bytes, whole))
    assert num_bytes > 3000
    for cut in range(num_bytes + 1):
        events, rig = after_cut(cut, resume=bool(cut & 1), at_once=bool(cut & 2))
        assert events == whole, cut
        assert len(rig.engine.requests) == len(rig.reports) == 1
        assert rig.store.tenant("acme").session("s").ledger.turns == 1


@pytest.mark.parametrize("seed", range(5))
def test_a_client_may_come_back_again_and_again(seed: int) -> None:
    rng, rig = random.Random(seed), Rig()
    seen: list[dict[str, Any]] = []
    steps = list(STEPS)
    client = rig.connect()
    client.create(**CREATE)
    while not seen or seen[-1]["type"] != "response.completed":
        if steps:
            play(rig, [steps.pop(0)])
        seen += client.events[: rng.randint(0, len(client.events))]
        if rng.random() < 0.5:
            client.disconnect()  # otherwise the old socket hangs, and nobody knows
        client = rig.connect()
        client.send(type="keepwarm:response.resume", request_id="r1", after_sequence=len(seen) - 1)
    assert seen == uncut()


def test_an_id_sent_again_in_another_lane_brings_the_same_turn_there(rig: Rig) -> None:
    client = rig.connect()
    client.create(**CREATE)
    play(rig, STEPS)
    again = client.create(stream_id="b", **CREATE)
    assert [event.pop("stream_id") for event in again] == ["b"] * len(again)
    assert again == client.events[: len(again)]
    assert len(rig.engine.requests) == 1


def test_an_id_with_another_body_is_refused_and_the_turn_goes_on(rig: Rig) -> None:
    client = rig.connect()
    client.create(**CREATE)
    client.create(**CREATE | {"input": "Other?"}, stream_id="b")
    assert code(client) == "request_id_reused"
    play(rig, STEPS)
    assert client.last["type"] == "response.completed"


def test_ids_are_a_tenants_own(rig: Rig) -> None:
    rig.connect("one").create(**CREATE)
    other = rig.connect("two")
    other.create(**CREATE | {"input": "Other?"})
    assert other.last["type"] == "response.created"
    stranger = rig.connect("three")
    response_id = other.response["id"]
    for wish in ({"request_id": "r1"}, {"response_id": response_id}):
        stranger.send(type="keepwarm:response.resume", **wish)
        assert code(stranger) == "response_not_found"


def test_the_newest_follower_gets_the_turn_and_the_others_are_told(rig: Rig) -> None:
    first, second, third = rig.connect(), rig.connect(), rig.connect()
    first.create(**CREATE)
    second.create(**CREATE)
    assert code(first) == "response_followed_elsewhere"
    third.create(**CREATE)
    assert code(second) == "response_followed_elsewhere"
    assert first.create(input="The lane is free.")[-1]["type"] == "response.created"
    first.disconnect()
    play_first = rig.engine.requests[0]
    rig.emit("x" + END, FinishReason.STOP, play_first)
    assert third.last["type"] == "response.completed"
    assert [event["sequence_number"] for event in third.events] == list(range(9))


@pytest.mark.parametrize("comes_back", ["create", "resume"])
def test_an_older_request_takes_no_turn_from_a_newer_one(rig: Rig, comes_back: str) -> None:
    resumes = comes_back == "resume"
    again = {"type": "keepwarm:response.resume", "request_id": "r1"}
    old, new = rig.connect(), rig.connect()
    old.create(input="Something long.")
    old.send(**again if resumes else {"type": "response.create"} | CREATE)
    rig.clock.advance(0.001)
    new.create(**CREATE)
    rig.reply("done" + END, rig.engine.requests[0])
    assert code(old) == "response_followed_elsewhere"
    assert old.connection.num_active == 0
    play(rig, STEPS)
    assert new.last["type"] == "response.completed"
    old.send(**again)
    assert old.last["type"] == "response.completed"


def test_an_older_request_gets_the_turn_that_a_newer_one_has_left(rig: Rig) -> None:
    old, new = rig.connect(), rig.connect()
    old.create(input="Something long.")
    old.create(**CREATE)
    rig.clock.advance(0.001)
    new.create(**CREATE)
    new.disconnect()
    rig.reply("done" + END, rig.engine.requests[0])
    play(rig, STEPS)
    assert old.last["type"] == "response.completed"


def test_without_continue_a_cut_ends_the_turn_and_its_end_can_be_read(rig: Rig) -> None:
    fields = CREATE | {"keepwarm": {"request_id": "r1"}}
    first = rig.connect()
    first.create(**fields)
    play(rig, STEPS[:2])
    first.disconnect()
    assert rig.engine.cancelled
    second = rig.connect()
    second.create(**fields)
    assert second.last["type"] == "response.failed"
    assert second.response["keepwarm"]["reason"] == "client_disconnected"
    assert [event["sequence_number"] for event in second.events] == list(range(len(second.events)))
    (report,) = rig.reports
    assert (report.status, report.reason) == ("cancelled", "client_disconnected")


def test_the_turn_ends_when_the_follower_leaves_too(rig: Rig) -> None:
    fields = CREATE | {"keepwarm": {"request_id": "r1"}}
    first, second = rig.connect(), rig.connect()
    first.create(**fields)
    second.create(**fields)
    first.disconnect()
    assert not rig.engine.cancelled
    second.disconnect()
    assert rig.engine.cancelled
    assert first.connection.num_active == second.connection.num_active == 0


def test_on_disconnect_holds_for_the_session_until_it_is_said_otherwise(rig: Rig) -> None:
    for options, cancelled in (
        ({"on_disconnect": "continue"}, 0),
        ({}, 0),
        ({"on_disconnect": "cancel"}, 1),
        ({}, 2),
    ):
        client = rig.connect()
        client.create(input="hi", keepwarm={"session": "s"} | options)
        client.disconnect()
        assert len(rig.engine.cancelled) == cancelled
        if not rig.engine.cancelled:
            rig.reply("x" + END)


def test_a_turn_that_goes_on_alone_is_kept_and_can_be_continued(rig: Rig) -> None:
    client = rig.connect()
    response_id = client.create(**CREATE)[0]["response"]["id"]
    client.disconnect()
    assert client.connection.num_active == 1
    rig.reply("x" + END)
    assert client.connection.num_active == 0
    rig.connect().turn(input="more", previous_response_id=response_id)
    assert rig.engine.last.base_branch_id == rig.engine.requests[0].branch_id


def test_a_private_turn_is_its_connections_own(rig: Rig) -> None:
    client = rig.connect()
    client.create(input="hi", store=False, keepwarm={"on_disconnect": "continue"})
    assert code(client) == "invalid_value"
    assert client.last["error"]["param"] == "keepwarm.on_disconnect"
    client.turn(input="hi", keepwarm={"session": "s", "on_disconnect": "continue"})
    (created,) = client.create(input="hi", store=False, keepwarm={"session": "s"})
    rig.connect().send(type="keepwarm:response.resume", response_id=created["response"]["id"])
    assert code(rig.clients[-1]) == "response_not_found"
    client.disconnect()
    assert rig.engine.cancelled, "nobody could have what came of it"


def test_events_go_when_the_client_goes_on_and_the_last_one_stays(rig: Rig) -> None:
    client = rig.connect()
    client.create(**CREATE)
    rig.reply("one" + END)
    last = client.last
    client.turn(input="next", previous_response_id=last["response"]["id"])
    again = rig.connect()
    again.create(**CREATE)
    assert again.events == [last]


def test_events_go_after_their_time(rig: Rig) -> None:
    client = rig.connect()
    client.create(**CREATE)
    rig.reply("one" + END)
    rig.clock.advance(Limits().resume_s + 1)
    rig.store.sweep()
    again = rig.connect()
    again.send(type="keepwarm:response.resume", request_id="r1")
    assert again.events == [client.last]
    rig.clock.advance(Limits().stored_response_ttl_s)
    rig.store.sweep()
    again.send(type="keepwarm:response.resume", request_id="r1")
    assert code(again) == "response_not_found"


def test_a_turn_too_long_to_be_kept_is_resumed_with_its_end_alone() -> None:
    rig = Rig(limits=replace(Limits(), max_resume_bytes_per_turn=4000))
    client = rig.connect()
    client.create(**CREATE)
    for _ in range(30):
        rig.emit("x")
    again = rig.connect()
    again.send(type="keepwarm:response.resume", request_id="r1", after_sequence=3)
    rig.emit("y")
    assert again.events == [], "a gap in the middle would be taken for the whole"
    rig.emit(END, FinishReason.STOP)
    (last,) = again.events
    assert (last["type"], last["sequence_number"]) == ("response.completed", 38)
    third = rig.connect()
    third.send(type="keepwarm:response.resume", request_id="r1", after_sequence=35)
    assert [event["sequence_number"] for event in third.events] == [36, 37, 38]


def test_a_request_that_waits_gives_way_to_itself(rig: Rig) -> None:
    """It had not started, so the newer one starts in its place."""
    rig.checks_pass = False
    first = rig.connect()
    first.create(**CREATE)
    second = rig.connect()
    second.create(**CREATE)
    assert code(first) == "response_followed_elsewhere"
    assert first.connection.num_active == 0
    (client, check), *_ = [entry for entry in rig.checks if entry[0] is second]
    rig.carry(client, client.connection.answer(check.id, None))
    play(rig, STEPS)
    assert second.types() == [e["type"].removeprefix("response.") for e in uncut()]
    assert len(rig.engine.requests) == 1


def test_a_request_that_never_started_leaves_its_id_free(rig: Rig) -> None:
    first = rig.connect()
    rig.checks_pass = False
    first.create(**CREATE)
    first.disconnect()
    rig.checks_pass = True
    second = rig.connect()
    second.send(type="keepwarm:response.resume", request_id="r1")
    assert code(second) == "response_not_found"
    second.create(**CREATE | {"model": "no such"})
    assert code(second) == "model_not_found"
    second.create(**CREATE)
    play(rig, STEPS)
    assert second.last["type"] == "response.completed"


def test_a_dead_engine_ends_turns_that_go_on_alone(rig: Rig) -> None:
    client = rig.connect()
    client.create(**CREATE)
    client.disconnect()
    rig.store.engine_lost()
    rig.carry(client, client.connection.engine_died())
    again = rig.connect()
    again.create(**CREATE)
    assert again.last["type"] == "response.failed"
    assert len(rig.engine.requests) == 1


def test_a_followed_turn_can_be_cancelled_by_its_lane(rig: Rig) -> None:
    first, second = rig.connect(), rig.connect()
    first.create(**CREATE)
    second.create(**CREATE)
    second.send(type="response.cancel")
    assert second.last["type"] == "response.incomplete"
    assert second.response["keepwarm"]["reason"] == "cancelled"
    assert second.connection.num_active == 0


def test_a_refused_steering_is_an_event_like_the_others(rig: Rig) -> None:
    first = rig.connect()
    (created,) = first.create(**CREATE)
    steer = {"previous_response_id": created["response"]["id"], "input": []}
    first.send(type="response.steer", **steer)
    play(rig, STEPS)
    again = rig.connect()
    again.create(**CREATE)
    assert again.events == first.events


# After a restart


@pytest.fixture
def lasting(tmp_path: Path) -> Iterator[JournalRig]:
    journal = SqliteJournal(tmp_path / "journal", fingerprint=b"f")
    yield JournalRig(journal, prices=None)
    journal.close()


@pytest.mark.parametrize("how", ["create", "by request", "by response"])
def test_after_a_restart_a_turn_is_its_last_event(lasting: JournalRig, how: str) -> None:
    client = lasting.connect()
    client.create(**CREATE)
    play(lasting, STEPS)
    last = client.last
    assert last["type"] == "response.completed"
    lasting.restart()
    again = lasting.connect()
    for _ in range(2):
        if how == "create":
            again.create(**CREATE)
        elif how == "by request":
            again.send(type="keepwarm:response.resume", request_id="r1", after_sequence=3)
        else:
            wish = {"response_id": last["response"]["id"], "after_sequence": 3}
            again.send(type="keepwarm:response.resume", **wish)
        assert again.last == last
    assert len(again.events) == 2
    assert again.connection.num_active == 0
    assert not lasting.engine.requests, "nothing started"
    again.create(**CREATE | {"input": "Other?"})
    assert code(again) == "request_id_reused"
    lasting.connect("other").create(**CREATE | {"input": "Other?"})
    assert lasting.clients[-1].last["type"] == "response.created"


def test_after_a_restart_what_has_all_gets_nothing(lasting: JournalRig) -> None:
    client = lasting.connect()
    client.create(**CREATE)
    play(lasting, STEPS)
    lasting.restart()
    again = lasting.connect()
    after = client.last["sequence_number"]
    again.send(type="keepwarm:response.resume", request_id="r1", after_sequence=after)
    assert again.events == []
    assert again.connection.num_active == 0


def test_after_a_restart_a_turn_that_left_nothing_has_failed(lasting: JournalRig) -> None:
    client = lasting.connect()
    client.create(**CREATE | {"store": False, "keepwarm": {"request_id": "r1"}})
    play(lasting, STEPS)
    lasting.restart()
    again = lasting.connect()
    again.create(**CREATE | {"store": False, "keepwarm": {"request_id": "r1"}})
    assert again.last["type"] == "response.failed"
    assert again.last["response"]["output"] == []
    assert not lasting.engine.requests


def test_with_a_journal_an_id_that_is_new_starts_its_turn(lasting: JournalRig) -> None:
    client = lasting.connect()
    client.send(type="keepwarm:response.resume", request_id="r1")
    assert code(client) == "response_not_found"
    client.create(**CREATE)
    lasting.reply("one" + END)
    client.turn("x" + END, input="go on", previous_response_id=client.response["id"])
    again = lasting.connect()
    again.create(**CREATE)
    assert again.last["type"] == "response.completed"
    assert len(lasting.engine.requests) == 2
    lasting.clock.advance(Limits().resume_s + 1)
    lasting.store.sweep()
    assert len(lasting.store.logs) == 0, "the journal has them"


@pytest.mark.parametrize("how", ["create", "by request", "by response"])
def test_a_turn_that_ran_when_the_server_died_has_failed(lasting: JournalRig, how: str) -> None:
    client = lasting.connect()
    client.create(**CREATE)
    lasting.emit("o")
    response_id = client.events[0]["response"]["id"]
    request = lasting.engine.last
    prompt = len(lasting.engine.prompt(request))
    lasting.restart()
    again = lasting.connect()
    if how == "create":
        again.create(**CREATE)
    elif how == "by request":
        again.send(type="keepwarm:response.resume", request_id="r1", after_sequence=3)
    else:
        again.send(type="keepwarm:response.resume", response_id=response_id)
    assert again.last["type"] == "response.failed"
    assert again.response["id"] == response_id
    assert again.response["keepwarm"]["reason"] == "server_died"
    usage = again.response["usage"]
    assert (usage["input_tokens"], usage["output_tokens"]) == (
        prompt, min(request.max_new_tokens, GRANT_TOKENS)
    )  # fmt: skip
    assert not lasting.engine.requests, "nothing started"
    again.create(**CREATE | {"input": "Other?"})
    assert code(again) == "request_id_reused"


def test_a_private_turn_that_was_cut_short_is_found_by_its_request_alone(
    lasting: JournalRig,
) -> None:
    private = CREATE | {"store": False, "keepwarm": {"request_id": "r1"}}
    client = lasting.connect()
    client.create(**private)
    response_id = client.events[0]["response"]["id"]
    lasting.restart()
    again = lasting.connect()
    again.send(type="keepwarm:response.resume", response_id=response_id)
    assert code(again) == "response_not_found"
    again.create(**private)
    assert again.response["keepwarm"]["reason"] == "server_died"


def test_a_turn_of_which_nothing_was_kept_says_why_it_ended(lasting: JournalRig) -> None:
    budget = {"request_id": "r1", "session": "s", "budget": {"output": 5}}
    fields = {"input": "Weather?", "store": False, "keepwarm": budget}
    client = lasting.connect()
    client.create(**fields)
    lasting.emit("xxxxx", FinishReason.LENGTH)
    told = client.response
    assert told["keepwarm"]["reason"] == "budget_exhausted"
    lasting.restart()
    again = lasting.connect()
    again.create(**fields)
    assert again.last["type"] == "response.failed"
    assert again.response["error"]["code"] == "rate_limit_exceeded"
    for name in ("reason", "session", "turn"):
        assert again.response["keepwarm"][name] == told["keepwarm"][name]
    assert again.response["usage"] == told["usage"]


# After it was deleted


def deleted_is_not_said_again(
    rig: Rig, response_id: str, other_body: str = "request_id_reused"
) -> None:
    again = rig.connect()
    for name, value in (("request_id", "r1"), ("response_id", response_id)):
        again.send(type="keepwarm:response.resume", after_sequence=3, **{name: value})
        assert code(again) == "response_not_found"
    again.create(**SHORT | {"input": "Other?"})
    assert code(again) == other_body
    again.create(**SHORT)
    assert code(again) == "response_deleted"
    assert again.connection.num_active == 0
    assert {event["type"] for event in again.events} == {"error"}


@pytest.mark.parametrize("continued", [False, True])
def test_what_was_deleted_is_not_said_again(rig: Rig, continued: bool) -> None:
    client = rig.connect()
    client.create(**SHORT)
    play(rig, SHORT_STEPS)
    response_id = client.response["id"]
    if continued:
        client.turn("x" + END, input="go on", previous_response_id=response_id)
    requests = len(rig.engine.requests)
    assert rig.store.tenant("acme").delete_response(response_id)
    deleted_is_not_said_again(rig, response_id)
    assert len(rig.engine.requests) == requests, "nothing started"


@pytest.mark.parametrize("restarts", [0, 1, 2])
@pytest.mark.parametrize("fails", [False, True])
def test_what_was_deleted_of_the_journal_is_not_said_again(
    lasting: JournalRig, restarts: int, fails: bool
) -> None:
    client = lasting.connect()
    client.create(**SHORT)
    play(lasting, SHORT_STEPS[:1] if fails else SHORT_STEPS)
    if fails:
        lasting.carry(client, client.connection.engine_died())
        assert client.last["type"] == "response.failed"
    response_id = client.response["id"]
    if restarts == 2:
        lasting.restart()
    assert lasting.journal.hide("acme", response_id)
    lasting.store.tenant("acme").delete_response(response_id)
    if restarts:
        lasting.restart()
    digest_kept = not (fails and restarts)
    for _ in range(2):
        other_body = "request_id_reused" if digest_kept else "response_deleted"
        deleted_is_not_said_again(lasting, response_id, other_body)


@pytest.mark.parametrize("how", ["create", "by request", "by response"])
@pytest.mark.parametrize("whole_session", [False, True])
@pytest.mark.parametrize("restarted", [False, True])
def test_what_others_deleted_of_the_journal_is_not_said_from_memory(
    lasting: JournalRig, how: str, whole_session: bool, restarted: bool
) -> None:
    client = lasting.connect()
    client.create(**SHORT)
    play(lasting, SHORT_STEPS)
    response_id = client.response["id"]
    if restarted:
        lasting.restart()
        client = lasting.connect()
        client.create(**SHORT)
    again = lasting.connect()
    again.create(**SHORT)
    assert again.last == client.last
    if whole_session:
        lasting.journal.delete_session("acme", "s")
    else:
        lasting.journal.hide("acme", response_id)
    if how == "create":
        again.create(**SHORT)
        assert code(again) == "response_deleted"
    else:
        named = {"request_id": "r1"} if how == "by request" else {"response_id": response_id}
        again.send(type="keepwarm:response.resume", **named)
        assert code(again) == "response_not_found"
    deleted_is_not_said_again(lasting, response_id)
    assert lasting.store.tenant("acme").responses.get(response_id) is None


def test_an_end_of_which_the_journal_was_told_nothing_is_said_again(lasting: JournalRig) -> None:
    fields = {
        "input": "Weather?",
        "keepwarm": {"request_id": "r1", "budget": {"input_uncached": 1}},
    }
    client = lasting.connect()
    client.create(**fields)
    assert client.last["type"] == "response.failed"
    again = lasting.connect()
    again.create(**fields)
    assert again.events == client.events
    again.send(type="keepwarm:response.resume", request_id="r1")
    assert again.events == client.events * 2
