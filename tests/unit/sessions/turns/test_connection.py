"""Lanes, chains, audiences, errors and the end of connections."""

import gc
import json
import logging
import random
import weakref
from dataclasses import replace
from typing import Any

import pytest

from runtime.log_lines import TextLines
from runtime.messages import FinishReason, GenerationRequest
from tests.support.sessions_rig import END, Client, Rig, call, spelled, tool
from tools_api.limits import Limits

LIMITS = Limits()


@pytest.fixture
def rig() -> Rig:
    return Rig()


@pytest.fixture
def client(rig: Rig) -> Client:
    return rig.connect()


def code(events: list[dict[str, Any]]) -> str:
    (event,) = events
    assert event["type"] == "error"
    assert isinstance(event["status"], int)
    return event["error"]["code"]


def lanes(client: Client) -> list[str | None]:
    return [event.get("stream_id") for event in client.events]


# Lanes


def test_two_creates_in_one_lane_run_one_after_the_other(rig: Rig, client: Client) -> None:
    client.create(input="one")
    assert client.create(input="two") == []
    assert len(rig.engine.requests) == 1
    rig.reply("a" + END)
    assert len(rig.engine.requests) == 2
    assert client.types()[-2:] == ["completed", "created"]


def test_the_second_create_of_a_lane_may_continue_the_first(rig: Rig, client: Client) -> None:
    (created,) = client.create(input="one")
    client.create(input="two", previous_response_id=created["response"]["id"])
    rig.reply("a" + END)
    assert rig.engine.last.base_branch_id == rig.engine.requests[0].branch_id


def test_lanes_run_side_by_side_and_name_themselves(rig: Rig, client: Client) -> None:
    client.create(input="one")
    client.create(input="two", stream_id="b")
    assert lanes(client) == [None, "b"]
    first, second = rig.engine.requests
    rig.emit("x" + END, FinishReason.STOP, second)
    rig.emit("y" + END, FinishReason.STOP, first)
    assert set(lanes(client)[2:9]) == {"b"}
    assert set(lanes(client)[10:]) == {None}


def test_a_lane_used_again_without_a_parent_starts_afresh(rig: Rig, client: Client) -> None:
    client.turn(input="one", stream_id="b")
    client.create(input="two", stream_id="b")
    assert rig.engine.last.base_branch_id is None


def test_sixteen_responses_are_active_and_the_next_waits(rig: Rig, client: Client) -> None:
    for number in range(17):
        client.create(input="hi", stream_id=f"s{number}")
    assert len(rig.engine.requests) == 16
    rig.emit("x" + END, FinishReason.STOP, rig.engine.requests[5])
    assert len(rig.engine.requests) == 17


def test_the_thirty_third_lane_is_refused_and_the_others_go_on(rig: Rig, client: Client) -> None:
    for number in range(32):
        client.create(input="hi", stream_id=f"s{number}")
    events = client.create(input="hi", stream_id="one too many")
    assert code(events) == "invalid_stream_id"
    events = client.create(input="hi", stream_id="s32")
    assert code(events) == "websocket_stream_limit_reached"
    assert events[0]["stream_id"] == "s32"
    assert client.create(input="hi") == [], "the default lane waits for a place"
    assert client.create(input="hi", stream_id="s31") == []


def test_one_create_more_than_may_wait_is_refused(rig: Rig) -> None:
    rig = Rig(limits=replace(LIMITS, max_waiting_responses=3))
    client = rig.connect()
    for _ in range(4):
        client.create(input="hi")
    assert code(client.create(input="hi")) == "server_is_overloaded"
    for _ in range(4):
        rig.reply("x" + END)
    assert client.types().count("completed") == 4


def test_a_fault_in_a_busy_lane_is_answered_in_its_place(rig: Rig, client: Client) -> None:
    client.create(input="one")
    assert client.create(input=5) == []
    assert client.create(input=5, stream_id="b") != [], "another lane is not busy"
    rig.reply("x" + END)
    assert client.types()[-2:] == ["completed", "error"]


def test_more_turns_than_the_server_takes_are_refused_before_they_start() -> None:
    rig = Rig(limits=replace(LIMITS, max_queued_turns=2))
    one, two = rig.connect(), rig.connect()
    one.create(input="hi")
    one.create(input="hi", stream_id="b")
    events = two.create(input="hi")
    assert code(events) == "server_is_overloaded"
    assert events[0]["status"] == 503
    rig.reply("x" + END)
    assert two.create(input="hi")[0]["type"] == "response.created"


def test_a_tenant_with_as_many_turns_as_the_server_takes_keeps_no_other_out() -> None:
    rig = Rig(limits=replace(LIMITS, max_queued_turns=4))
    greedy, other = rig.connect(), rig.connect("other")
    for lane in "abcd":
        assert greedy.create(input="hi", stream_id=lane)[0]["type"] == "response.created"
    for lane in "ab":
        assert other.create(input="hi", stream_id=lane)[0]["type"] == "response.created"
        assert code(greedy.create(input="hi", stream_id="e")) == "server_is_overloaded"
    assert code(other.create(input="hi", stream_id="c")) == "server_is_overloaded", "its half"
    for turn in list(rig.engine.open.values()):
        rig.reply("x" + END, turn.request)
    assert len(rig.store.running) == 0
    for lane in "abcd":
        assert other.create(input="hi", stream_id=lane)[0]["type"] == "response.created"
    assert code(other.create(input="hi", stream_id="e")) == "server_is_overloaded"


# Faulty frames


@pytest.mark.parametrize(
    ("frame", "error_code", "param"),
    [
        ("nonsense", "invalid_json", None),
        ("[]", "invalid_json", None),
        (b"\xff", "invalid_json", None),
        ("[" * 100, "invalid_json", None),
        ("{}", "missing_required_parameter", "type"),
        ('{"type": "response.dance"}', "unknown_event_type", "type"),
        ('{"type": "response.create"}', "missing_required_parameter", "input"),
        ('{"type": "response.create", "input": 5}', "invalid_type", "input"),
        (
            '{"type": "response.create", "input": "x", "stream_id": ""}',
            "invalid_stream_id",
            "stream_id",
        ),
        (
            '{"type": "response.create", "input": "x", "keepwarm": {"sesion": "s"}}',
            "invalid_value",
            "keepwarm.sesion",
        ),
        (
            '{"type": "response.create", "input": "x", "previous_response_id": "resp_x"}',
            "previous_response_not_found",
            "previous_response_id",
        ),
    ],
)
def test_a_faulty_frame_gets_its_error_and_the_connection_lives(
    client: Client, frame: str | bytes, error_code: str, param: str | None
) -> None:
    events = client.send_raw(frame)
    assert code(events) == error_code
    assert events[0]["error"]["param"] == param
    assert "stream_id" not in events[0]
    assert client.turn(input="hi")["status"] == "completed"


def test_a_request_error_carries_its_lane(client: Client) -> None:
    (error,) = client.create(input="x", stream_id="b", previous_response_id="resp_x")
    assert error["stream_id"] == "b"


def test_steering_is_told_with_the_targets_number(rig: Rig, client: Client) -> None:
    (created,) = client.create(input="hi", stream_id="b")
    id_ = created["response"]["id"]
    (failed,) = client.send(type="response.steer", previous_response_id=id_, input=[])
    (accepted,) = client.send(type="response.steer", previous_response_id=id_, input="faster")
    assert (failed["error"]["code"], failed["steer"]["input"]) == ("invalid_input", [])
    assert [event["sequence_number"] for event in (failed, accepted)] == [1, 2]
    assert failed["stream_id"] == accepted["stream_id"] == "b"
    rig.reply("x" + END)
    numbers = [event["sequence_number"] for event in client.events]
    assert numbers == [*range(11), 0], "the next response has heard it"


def test_steering_without_a_target_is_refused_too(client: Client) -> None:
    (failed,) = client.send(type="response.steer", previous_response_id="resp_x", input=[])
    assert failed["type"] == "response.steer.failed"


def test_an_acknowledgement_is_swallowed(client: Client) -> None:
    assert client.send(type="response.processed", response_id="resp_1") == []


# Grammar checks


def test_a_lane_waits_for_its_grammar_and_the_others_do_not(rig: Rig, client: Client) -> None:
    rig.checks_pass = False
    client.create(input="hi", tools=[tool("f")])
    client.create(input="hi", stream_id="b")
    assert len(rig.engine.requests) == 1
    assert lanes(client) == ["b"]
    ((_, check),) = rig.checks
    rig.carry(client, client.connection.answer(check.id, None))
    assert rig.engine.last.grammar == check.asked
    assert client.last["type"] == "response.created"


def test_a_verdict_for_a_request_that_is_gone_is_ignored(rig: Rig, client: Client) -> None:
    rig.checks_pass = False
    client.create(input="hi", tools=[tool("f")])
    ((_, check),) = rig.checks
    client.disconnect()
    rig.carry(client, client.connection.answer(check.id, None))
    assert rig.engine.requests == []


def test_no_probe_works_for_a_prompt_that_does_not_fit(rig: Rig, client: Client) -> None:
    rig.checks_pass = False
    client.create(input="x" * 2_000_000, tools=[tool("f")])
    assert client.last["error"]["code"] == "context_length_exceeded"
    assert rig.checks == []


def test_a_check_is_withdrawn_with_its_turn(rig: Rig, client: Client) -> None:
    rig.checks_pass = False
    client.create(input="hi", tools=[tool("f")])
    client.create(input="hi", tools=[tool("g")], stream_id="b")
    (_, first), (_, second) = rig.checks
    effects = client.connection.receive('{"type": "response.cancel"}')
    assert effects.withdrawn == (first.id,)
    assert client.connection.close().withdrawn == (second.id,)


@pytest.mark.parametrize("required", [[[]], [{"a": 1}, "x"], [None], 5, "x"])
def test_a_schema_that_requires_nonsense_is_the_schemas_fault_or_nobodys(
    rig: Rig, client: Client, required: Any
) -> None:
    parameters = {"type": "object", "properties": {"x": {}}, "required": required}
    function = {"type": "function", "name": "f", "parameters": parameters}
    (event,) = client.create(input="hi", tools=[function])
    assert event["type"] in ("response.created", "error")
    assert event.get("status") != 500
    (event,) = client.create(
        input="hi",
        stream_id="b",
        tools=[function | {"parameters": {"properties": 5, "required": required}}],
    )
    assert event.get("status") != 500


def test_a_grammar_that_breaks_is_an_internal_error_of_its_request_alone(
    rig: Rig, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise KeyError("secret")

    client.create(input="hi", stream_id="a")
    with monkeypatch.context() as patch:
        patch.setattr("sessions.turns.running.grammar_of", broken)
        (event,) = client.create(input="hi", stream_id="b")
    assert (event["status"], event["error"]["code"]) == (500, None)
    assert "secret" not in event["error"]["message"]
    rig.reply("ok" + END)
    assert client.last["type"] == "response.completed"
    assert client.turn(input="again", stream_id="b")["status"] == "completed"


# An engine that talks nonsense


@pytest.mark.parametrize(
    "counts",
    [{"drafted": 1, "accepted": 2}, {"drafted": -1}, {"forced": 4}, {"forced": -1}, {"cached": 99}],
)
def test_counts_that_cannot_be_fail_their_turn_alone(
    rig: Rig, client: Client, counts: dict[str, int]
) -> None:
    client.create(input="hi", stream_id="a")
    client.create(input="hello", stream_id="b")
    broken, sound = rig.engine.requests
    rig.emit("abc", FinishReason.LENGTH, broken, **counts)
    assert client.last["type"] == "response.failed"
    assert client.response["error"]["code"] == "server_error"
    rig.reply("ok" + END, sound)
    assert client.last["type"] == "response.completed"
    assert client.turn(input="again", stream_id="a")["status"] == "completed"
    assert len(rig.store.running) == 0


# Long prompts

LONG = "x" * (LIMITS.max_inline_bytes + 1)


@pytest.fixture
def slow_rig() -> Rig:
    """With room for long prompts, which are planned when the test says so."""
    rig = Rig(max_context_tokens=200_000)
    rig.plans_at_once = False
    return rig


def test_a_lane_waits_for_its_long_prompt_and_the_others_do_not(slow_rig: Rig) -> None:
    client = slow_rig.connect()
    client.create(input=LONG)
    client.create(input="after it")
    client.create(input="hi", stream_id="b")
    assert lanes(client) == ["b"]
    slow_rig.plan_next()
    assert lanes(client) == ["b", None]
    assert len(slow_rig.engine.last.new_tokens) > len(LONG)
    slow_rig.reply("ok" + END)
    assert "after it" in spelled(slow_rig.engine.last.new_tokens)


def test_turns_of_a_session_keep_their_order_behind_a_long_prompt(slow_rig: Rig) -> None:
    named = {"keepwarm": {"session": "s"}}
    one, two = slow_rig.connect(), slow_rig.connect()
    one.create(input=LONG, **named)
    two.create(input="hi", **named)
    assert (one.types(), two.types()) == ([], [])
    slow_rig.plan_next()
    assert (one.types(), two.types()) == (["created"], [])
    slow_rig.reply("ok" + END)
    slow_rig.reply("ok" + END)
    assert two.response["previous_response_id"] == one.response["id"]
    assert two.response["keepwarm"]["turn"] == 2


def test_forks_that_are_planned_at_the_same_time_have_numbers_of_their_own(slow_rig: Rig) -> None:
    one, two = slow_rig.connect(), slow_rig.connect()
    root = one.turn(input="hi")["id"]
    for client in (one, two):
        client.create(input=LONG, previous_response_id=root)
    slow_rig.plan_next()
    slow_rig.plan_next()
    assert [client.response["keepwarm"]["turn"] for client in (one, two)] == [2, 3]


def test_a_prompt_that_is_refused_when_it_is_planned_frees_lane_and_session(
    slow_rig: Rig,
) -> None:
    client = slow_rig.connect()
    named = {"keepwarm": {"session": "s"}}
    client.create(input="x" * 200_000, **named)
    client.create(input="hi", **named)
    slow_rig.plan_next()
    assert code(client.events[:1]) == "context_length_exceeded"
    assert client.types() == ["error", "created"]


def test_a_plan_that_breaks_is_an_internal_error_of_its_turn_alone(
    slow_rig: Rig, caplog: pytest.LogCaptureFixture
) -> None:
    client = slow_rig.connect()
    client.create(input=LONG)
    ((_, planning),) = slow_rig.plannings
    outcome = client.connection.answer(planning.id, OSError("secret"))
    (error,) = map(json.loads, outcome.frames)
    assert (error["status"], error["error"]["code"]) == (500, None)
    assert "secret" not in error["error"]["message"]
    assert "secret" in caplog.text
    assert client.connection.num_active == 0


def test_a_session_that_was_dropped_meanwhile_is_made_anew() -> None:
    rig = Rig(limits=replace(LIMITS, max_sessions_per_tenant=1), max_context_tokens=200_000)
    rig.plans_at_once = False
    client, other = rig.connect(), rig.connect()
    root = client.turn(input="hi")
    client.create(input=LONG, previous_response_id=root["id"])
    other.turn(input="hello", keepwarm={"session": "other"})
    assert [view.session for view in rig.store.sessions()[1]] == ["other"]
    rig.plan_next()
    rig.reply("ok" + END)
    assert client.response["keepwarm"]["session"] == root["keepwarm"]["session"]
    assert client.response["keepwarm"]["turn"] == 1


@pytest.mark.parametrize("how", ["disconnect", "drain"])
def test_a_plan_for_a_request_that_is_gone_is_ignored(slow_rig: Rig, how: str) -> None:
    client = slow_rig.connect()
    client.create(input=LONG, keepwarm={"session": "s"})
    if how == "disconnect":
        client.disconnect()
    else:
        slow_rig.carry(client, client.connection.drain())
        assert code(client.events) == "server_is_overloaded"
    slow_rig.plan_next()
    assert slow_rig.engine.requests == []
    late = slow_rig.connect()
    assert late.create(input="hi", keepwarm={"session": "s"})[0]["type"] == "response.created"


def test_being_woken_does_not_plan_a_turn_twice(slow_rig: Rig) -> None:
    client = slow_rig.connect()
    client.create(input=LONG, keepwarm={"session": "s"})
    slow_rig.carry(client, client.connection.answer("conn_1.1", None))
    assert len(slow_rig.plannings) == 1
    slow_rig.plan_next()
    assert client.types() == ["created"]


# Chains and their audience


def test_a_fork_shares_the_prefix_in_another_engine_session(rig: Rig, client: Client) -> None:
    first = client.turn(input="hi")
    end = len(rig.engine.sessions["branch_1"])
    client.turn("one" + END, input="a", previous_response_id=first["id"])
    client.create(input="b", previous_response_id=first["id"], stream_id="fork")
    request = rig.engine.last
    assert request.branch_id != "branch_1"
    assert (request.base_branch_id, request.base_offset) == ("branch_1", end)


def test_a_fork_may_start_while_the_source_goes_on(rig: Rig, client: Client) -> None:
    first = client.turn(input="hi", store=False)
    client.create(input="a", previous_response_id=first["id"], store=False, stream_id="fork")
    client.create(input="b", previous_response_id=first["id"], store=False)
    fork, source = rig.engine.requests[1:]
    assert fork.branch_id != source.branch_id
    rig.emit("x" + END, FinishReason.STOP, fork)
    rig.emit("y" + END, FinishReason.STOP, source)
    assert client.types().count("completed") == 3


@pytest.mark.parametrize(
    ("store", "same_connection", "same_tenant", "found"),
    [
        (True, True, True, True),
        (True, False, True, True),
        (True, False, False, False),
        (False, True, True, True),
        (False, False, True, False),
        (False, False, False, False),
    ],
)
def test_who_may_continue_a_response(
    rig: Rig, store: bool, same_connection: bool, same_tenant: bool, found: bool
) -> None:
    owner = rig.connect("acme")
    first = owner.turn("secret" + END, input="hi", store=store)
    other = owner if same_connection else rig.connect("acme" if same_tenant else "rival")
    by_id = other.create(input="more", previous_response_id=first["id"])
    if found:
        assert by_id[0]["type"] == "response.created"
        return
    assert code(by_id) == "previous_response_not_found"
    history = [
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": "secret"},
        {"role": "user", "content": "more"},
    ]
    other.create(input=history)
    assert rig.engine.last.base_branch_id is None


def test_what_continues_a_private_response_stays_private(rig: Rig, client: Client) -> None:
    first = client.turn(input="hi", store=False)
    second = client.turn(input="more", store=True, previous_response_id=first["id"])
    assert second["store"] is False
    other = rig.connect()
    assert code(other.create(input="x", previous_response_id=second["id"])) == (
        "previous_response_not_found"
    )


def test_a_private_response_is_forgotten_with_its_connection(rig: Rig, client: Client) -> None:
    client.turn(input="hi", store=False)
    client.disconnect()
    assert rig.engine.released == ["branch_1"]


def test_a_stored_response_outlives_its_connection_until_its_time_is_up(rig: Rig) -> None:
    first = rig.connect().turn(input="hi")
    second = rig.connect().turn(input="more", previous_response_id=first["id"])
    assert rig.engine.released == []
    rig.clock.advance(LIMITS.stored_response_ttl_s + 1)
    rig.sweep()
    assert rig.engine.released == ["branch_1"]
    events = rig.connect().create(input="x", previous_response_id=second["id"])
    assert code(events) == "previous_response_not_found"


# Named sessions


@pytest.mark.parametrize(
    "named", [{"keepwarm": {"session": "s"}}, {"metadata": {"keepwarm.session": "s"}}]
)
def test_a_named_session_goes_on_from_its_head(rig: Rig, named: dict[str, Any]) -> None:
    first = rig.connect().turn("one" + END, input="hi", **named)
    second = rig.connect().turn(input="more", **named)
    assert second["previous_response_id"] == first["id"]
    assert second["keepwarm"]["session"] == "s"
    assert [first["keepwarm"]["turn"], second["keepwarm"]["turn"]] == [1, 2]
    assert rig.engine.last.base_branch_id == "branch_1"


def test_a_named_session_that_is_sent_its_own_history_does_not_double_it(
    rig: Rig, client: Client
) -> None:
    named = {"keepwarm": {"session": "s"}}
    client.turn("one" + END, input="hi", **named)
    history = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "one"}]
    client.create(input=[*history, {"role": "user", "content": "more"}], **named)
    assert spelled(rig.engine.last.new_tokens).startswith("\n<|im_start|>user\nmore")


def test_sessions_of_equal_name_are_strangers_across_tenants(rig: Rig) -> None:
    rig.connect("acme").turn(input="hi", keepwarm={"session": "s"})
    other = rig.connect("rival").turn(input="hi", keepwarm={"session": "s"})
    assert other["previous_response_id"] is None
    assert other["keepwarm"]["turn"] == 1


def test_a_private_head_of_a_session_is_seen_on_its_connection_alone(rig: Rig) -> None:
    named = {"keepwarm": {"session": "s"}}
    one, two = rig.connect(), rig.connect()
    shared = one.turn(input="hi", **named)
    private = one.turn(input="psst", store=False, **named)
    assert two.turn(input="more", **named)["previous_response_id"] == shared["id"]
    assert one.turn(input="more", store=False, **named)["previous_response_id"] == private["id"]


def test_the_second_turn_of_a_named_session_waits_also_across_connections(rig: Rig) -> None:
    named = {"keepwarm": {"session": "s"}}
    one, two, three = rig.connect(), rig.connect(), rig.connect()
    one.create(input="a", **named)
    two.create(input="b", **named)
    three.create(input="c", **named)
    assert len(rig.engine.requests) == 1
    rig.reply("1" + END)
    assert two.types() == ["created"]
    assert three.types() == []
    rig.reply("2" + END)
    rig.reply("3" + END)
    assert three.response["previous_response_id"] == two.response["id"]
    assert two.response["previous_response_id"] == one.response["id"]


def test_a_turn_that_waits_for_a_session_and_leaves_lets_the_next_go(rig: Rig) -> None:
    named = {"keepwarm": {"session": "s"}}
    one, two, three = rig.connect(), rig.connect(), rig.connect()
    one.create(input="a", **named)
    two.create(input="b", **named)
    three.create(input="c", **named)
    two.disconnect()
    one.disconnect()
    assert three.types() == ["created"]


def test_a_waiting_turn_that_is_refused_lets_the_next_go(rig: Rig) -> None:
    named = {"keepwarm": {"session": "s"}}
    one, two, three = rig.connect(), rig.connect(), rig.connect()
    one.create(input="a", **named)
    two.create(input="b" * 5000, **named)
    three.create(input="c", **named)
    rig.reply("1" + END)
    assert code(two.events) == "context_length_exceeded"
    assert three.types() == ["created"]


def test_a_session_named_with_a_foreign_parent_is_a_fork(rig: Rig, client: Client) -> None:
    first = client.turn(input="hi", keepwarm={"session": "a"})
    second = client.turn(input="x", keepwarm={"session": "b"}, previous_response_id=first["id"])
    assert second["keepwarm"] | {"session": "b", "turn": 1} == second["keepwarm"]
    third = client.turn(input="y", keepwarm={"session": "b"})
    assert third["previous_response_id"] == second["id"]
    fourth = client.turn(input="z", keepwarm={"session": "a"})
    assert fourth["previous_response_id"] == first["id"]


def test_the_account_of_a_session_spans_its_turns(rig: Rig, client: Client) -> None:
    client.turn("four" + END, input="hi", keepwarm={"session": "s", "budget": {"output": 20}})
    client.turn("five!" + END, input="hi", keepwarm={"session": "s"})
    (view,) = rig.store.sessions()[1]
    assert (view.session, view.state, view.turns) == ("s", "idle", 2)
    assert (view.output_tokens, view.budget_left) == (11, {"output": 9})


def test_a_session_waits_for_tools(rig: Rig, client: Client) -> None:
    response = client.turn(call("f") + END, input="hi", tools=[tool("f")])
    assert [view.state for view in rig.store.sessions()[1]] == ["waiting_for_tools"]
    output = {"type": "function_call_output", "output": "1"}
    output["call_id"] = response["output"][0]["call_id"]
    client.create(input=[output], previous_response_id=response["id"])
    assert [view.state for view in rig.store.sessions()[1]] == ["running"]
    rig.reply("x" + END)
    assert [view.state for view in rig.store.sessions()[1]] == ["idle"]


def test_a_session_waits_for_tools_no_longer_than_its_budget_lasts(
    rig: Rig, client: Client
) -> None:
    response = client.turn(call("f") + END, input="hi", tools=[tool("f")])
    assert [view.state for view in rig.store.sessions()[1]] == ["waiting_for_tools"]
    output = {"type": "function_call_output", "output": "1" * 100}
    output["call_id"] = response["output"][0]["call_id"]
    bound = {"budget": {"input_uncached": 10}}
    client.create(input=[output], previous_response_id=response["id"], keepwarm=bound)
    assert client.response["error"]["code"] == "rate_limit_exceeded"
    assert [view.state for view in rig.store.sessions()[1]] == ["idle"]


def test_a_refused_request_leaves_no_session_behind(rig: Rig, client: Client) -> None:
    client.create(input="a" * 5000)
    assert rig.store.sessions()[1] == []


# Disconnects, deaths and ends


def test_a_disconnect_cancels_and_leaves_the_parent_continuable(rig: Rig) -> None:
    client = rig.connect()
    first = client.turn(input="hi")
    client.create(input="more", previous_response_id=first["id"])
    rig.emit("so far")
    client.disconnect()
    assert rig.engine.cancelled == [rig.engine.last.request_id]
    assert rig.reports[-1].status == "cancelled"
    assert rig.reports[-1].usage.output_tokens == 6
    again = rig.connect().turn(input="again", previous_response_id=first["id"])
    assert again["status"] == "completed"
    assert rig.engine.last.branch_id == "branch_1"


def test_a_disconnect_drops_what_waits_and_is_final(rig: Rig, client: Client) -> None:
    client.create(input="one")
    client.create(input="two")
    client.disconnect()
    client.disconnect()
    assert len(rig.engine.requests) == 1
    assert client.create(input="three") == []
    assert client.connection.num_active == 0
    assert len(rig.store.running) == 0


def test_late_outputs_of_a_cancelled_turn_are_dropped(rig: Rig, client: Client) -> None:
    client.create(input="hi")
    output = rig.engine.output(rig.engine.last, [65], FinishReason.CANCELLED)
    client.disconnect()
    assert rig.deliver(output) == []


def test_when_the_engine_dies_open_turns_fail_and_sessions_go_on(rig: Rig) -> None:
    one, two = rig.connect(), rig.connect()
    first = one.turn("alpha" + END, input="hi", keepwarm={"session": "s"})
    one.create(input="more", keepwarm={"session": "s"})
    rig.emit("so far")
    two.create(input="other")
    rig.kill_engine()
    for client in (one, two):
        assert client.last["type"] == "response.failed"
        assert client.response["error"]["code"] == "server_error"
        assert client.response["keepwarm"]["reason"] == "engine_died"
    again = one.turn("beta" + END, input="again", keepwarm={"session": "s"})
    assert again["previous_response_id"] == first["id"]
    assert rig.engine.last.base_branch_id is None
    assert "alpha" in spelled(rig.engine.last.new_tokens)
    assert rig.engine.released == []


def test_what_waited_while_the_engine_died_runs_on_the_next(rig: Rig, client: Client) -> None:
    client.create(input="one")
    client.create(input="two")
    rig.kill_engine()
    assert client.types() == ["created", "failed", "created"]
    rig.reply("x" + END)
    assert client.last["type"] == "response.completed"


def test_a_connection_at_its_age_limit_still_serves(rig: Rig, client: Client) -> None:
    rig.clock.advance(LIMITS.connection_age_s)
    assert client.turn(input="hi")["status"] == "completed"
    assert client.closed is None


def test_a_new_create_beyond_the_age_limit_is_refused_and_the_socket_closed(
    rig: Rig, client: Client
) -> None:
    rig.clock.advance(LIMITS.connection_age_s + 1)
    assert code(client.create(input="hi")) == "websocket_connection_limit_reached"
    assert client.closed == 1001


def test_an_old_connection_ends_at_the_turn_boundary_without_an_error(
    rig: Rig, client: Client
) -> None:
    client.create(input="one")
    client.create(input="two")
    rig.clock.advance(LIMITS.connection_age_s + 1)
    rig.carry(client, client.connection.tick())
    assert client.closed is None
    rig.reply("x" + END)
    rig.reply("y" + END)
    assert client.types().count("completed") == 2
    assert "error" not in client.types()
    assert client.closed == 1001


def test_an_idle_old_connection_is_closed_in_silence(rig: Rig, client: Client) -> None:
    rig.carry(client, client.connection.tick())
    assert client.closed is None
    rig.clock.advance(LIMITS.connection_age_s + 1)
    rig.carry(client, client.connection.tick())
    assert (client.events, client.closed) == ([], 1001)


def test_draining_finishes_what_runs_and_refuses_what_waits(rig: Rig, client: Client) -> None:
    rig.checks_pass = False
    client.create(input="one")
    client.create(input="two")
    client.create(input="three", tools=[tool("f")], stream_id="b")
    rig.carry(client, client.connection.drain())
    assert [e["error"]["code"] for e in client.events[1:]] == ["server_is_overloaded"] * 2
    assert client.closed is None
    assert code(client.create(input="four", stream_id="c")) == "server_is_overloaded"
    rig.reply("x" + END)
    assert client.last["type"] == "response.completed"
    assert client.closed == 1012


def test_what_still_runs_when_the_time_for_draining_is_over_fails(rig: Rig, client: Client) -> None:
    client.create(input="one")
    rig.emit("so far")
    rig.carry(client, client.connection.drain())
    rig.carry(client, client.connection.engine_died())
    assert client.last["type"] == "response.failed"
    assert client.response["keepwarm"]["reason"] == "shutting_down"
    assert client.closed == 1012
    assert rig.engine.cancelled == [rig.engine.last.request_id]


def test_draining_an_idle_connection_closes_it(rig: Rig, client: Client) -> None:
    rig.carry(client, client.connection.drain())
    assert (client.events, client.closed) == ([], 1012)


def test_private_responses_are_released_when_the_server_ends_the_connection(
    rig: Rig, client: Client
) -> None:
    client.turn(input="hi", store=False)
    rig.carry(client, client.connection.drain())
    assert rig.engine.released == ["branch_1"]


def test_each_finished_turn_is_logged_in_one_line(
    client: Client, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, logger="sessions.turns.running"):
        client.turn("ok" + END, input="hi", keepwarm={"session": "s1"})
    (record,) = caplog.records
    line = TextLines().format(record)
    assert line.startswith("turn finished session=s1 turn=1 tenant=acme")
    assert "reason=- input=27 cached=0 output=3 " in line


@pytest.mark.samples(6)
@pytest.mark.parametrize("inline_bytes", [LIMITS.max_inline_bytes, 0], ids=["short", "long"])
@pytest.mark.parametrize("seed", range(10))
def test_every_turn_ends_once_and_nothing_is_left_over(seed: int, inline_bytes: int) -> None:
    rng = random.Random(seed)
    rig = Rig(limits=replace(LIMITS, max_active_responses=3, max_inline_bytes=inline_bytes))
    rig.plans_at_once = False
    clients = [rig.connect() for _ in range(3)]
    known: list[str] = []
    for _ in range(250):
        client = rng.choice(clients)
        match rng.choice(["create", "create", "plan", "step", "step", "step", "leave", "die"]):
            case "create":
                fields: dict[str, Any] = {"input": rng.choice(["hi", "hello"])}
                if known and rng.random() < 0.5:
                    fields["previous_response_id"] = rng.choice(known)
                if rng.random() < 0.4:
                    fields["keepwarm"] = {"session": rng.choice("st")}
                if rng.random() < 0.5:
                    fields["stream_id"] = rng.choice("ab")
                fields["store"] = rng.random() < 0.6
                fields["instructions"] = rng.choice([None, None, "Be kind."])
                client.create(**fields)
            case "step" if rig.engine.open:
                request = rng.choice(list(rig.engine.open.values())).request
                step(rig, request, rng)
            case "plan" if rig.plannings:
                rig.plan_next()
            case "leave" if rng.random() < 0.2:
                client.disconnect()
                clients[clients.index(client)] = rig.connect()
            case "die" if rng.random() < 0.1:
                rig.kill_engine()
        known = [c.response["id"] for c in rig.clients if c.events and "response" in c.last]
    while rig.engine.open or rig.plannings:
        if rig.plannings:
            rig.plan_next()
            continue
        step(rig, next(iter(rig.engine.open.values())).request, rng)
    for client in rig.clients:
        check_streams(client)
        client.disconnect()
    assert len(rig.store.running) == 0
    assert {view.state for view in rig.store.sessions()[1]} <= {"idle", "waiting_for_tools"}
    rig.clock.advance(LIMITS.stored_response_ttl_s + 1)
    rig.sweep()
    assert rig.engine.sessions == {}, "the engine was not told to forget"
    assert rig.store.sessions()[1] == []


def step(rig: Rig, request: GenerationRequest, rng: random.Random) -> None:
    started = rig.engine.open[request.request_id].started
    if request.base_branch_id is not None and not started and rng.random() < 0.1:
        rig.deliver(rig.engine.forget(request))
        return
    finish = rng.choice([None, None, FinishReason.STOP, FinishReason.LENGTH])
    rig.emit("ab" + (END if finish is FinishReason.STOP else ""), finish, request)


def check_streams(client: Client) -> None:
    """Each response: numbers 0, 1, 2, ... and, unless the client left, one terminal event."""
    streams: dict[str, list[dict[str, Any]]] = {}
    open_by_lane: dict[str | None, str] = {}
    for event in client.events:
        if event["type"] == "error":
            assert event["status"] != 500, event
            continue
        lane = event.get("stream_id")
        if event["type"] == "response.created":
            assert lane not in open_by_lane, "two responses overlap in a lane"
            open_by_lane[lane] = event["response"]["id"]
        streams.setdefault(open_by_lane[lane], []).append(event)
        if event["type"] in ("response.completed", "response.incomplete", "response.failed"):
            assert event["response"]["id"] == open_by_lane.pop(lane)
    for events in streams.values():
        assert [event["sequence_number"] for event in events] == list(range(len(events)))
    gone = client.connection.receive("{}").frames == ()
    assert gone or not open_by_lane


def test_frames_are_json_text(rig: Rig, client: Client) -> None:
    effects = client.connection.receive('{"type": "response.create", "input": "é"}')
    assert json.loads(effects.frames[0])["type"] == "response.created"


# Cancelling


def cancel(client: Client, **fields: Any) -> list[dict[str, Any]]:
    return client.send(type="response.cancel", **fields)


@pytest.mark.parametrize("kind", ["response.cancel", "keepwarm:response.cancel"])
def test_a_cancelled_turn_ends_at_once_with_what_was_said(
    rig: Rig, client: Client, kind: str
) -> None:
    (created,) = client.create(input="one")
    rig.emit("Once upon")
    events = client.send(type=kind, response_id=created["response"]["id"])
    response = events[-1]["response"]
    assert events[-1]["type"] == "response.incomplete"
    assert response["status"] == "incomplete"
    assert response["incomplete_details"] == {}
    assert response["keepwarm"]["reason"] == "cancelled"
    assert response["output"][0]["content"][0]["text"] == "Once upon"
    assert response["output"][0]["status"] == "incomplete"
    assert response["usage"]["output_tokens"] == len("Once upon")
    assert rig.engine.cancelled == [rig.engine.last.request_id]
    assert (rig.reports[-1].status, rig.reports[-1].reason) == ("cancelled", "cancelled")
    assert len(rig.store.running) == 0


def test_without_an_id_the_turn_of_the_lane_is_cancelled(rig: Rig, client: Client) -> None:
    for lane in (None, "b"):
        client.create(input="x", stream_id=lane)
    events = cancel(client, stream_id="b")
    assert (events[-1]["type"], events[-1]["stream_id"]) == ("response.incomplete", "b")
    assert rig.engine.cancelled == [rig.engine.last.request_id]
    (event,) = cancel(client)
    assert "stream_id" not in event


def test_the_next_turn_of_the_lane_begins_when_one_is_cancelled(rig: Rig, client: Client) -> None:
    client.create(input="one")
    client.create(input="two")
    assert [e["type"] for e in cancel(client)] == ["response.incomplete", "response.created"]
    rig.reply("ok" + END)
    assert client.response["status"] == "completed"


@pytest.mark.parametrize("said", ["", "Once"])
def test_a_cancelled_turn_can_be_continued(rig: Rig, client: Client, said: str) -> None:
    client.create(input="one")
    rig.emit(said)
    (*_, ended) = cancel(client)
    client.create(input="two", previous_response_id=ended["response"]["id"])
    prompt = spelled(rig.engine.prompt(rig.engine.last))
    answer = f"<|im_start|>assistant\n<think>\n\n</think>\n\n{said}<|im_end|>\n"
    assert answer + "<|im_start|>user\ntwo" in prompt
    rig.reply("ok" + END)
    assert client.response["status"] == "completed"


def test_what_a_turn_continued_is_continued_again_after_a_cancel(rig: Rig, client: Client) -> None:
    first = client.turn(input="one")
    client.create(input="two", previous_response_id=first["id"])
    rig.emit("Onc")
    cancel(client)
    client.create(input="three", previous_response_id=first["id"])
    assert rig.engine.last.base_branch_id == "branch_1"
    assert "two" not in spelled(rig.engine.prompt(rig.engine.last))


def test_a_call_that_was_cancelled_in_the_middle_needs_no_output(rig: Rig, client: Client) -> None:
    client.create(input="one", tools=[tool("f", a={})])
    rig.emit('<tool_call>\n{"name": "f", "arguments": {"a"')
    (*_, ended) = cancel(client)
    assert ended["response"]["output"][0]["status"] == "incomplete"
    created = client.create(input="two", previous_response_id=ended["response"]["id"])
    assert created[0]["type"] == "response.created"


def test_outputs_of_a_cancelled_request_are_dropped(rig: Rig, client: Client) -> None:
    client.create(input="one")
    request = rig.engine.last
    output = rig.engine.output(request, [5], FinishReason.CANCELLED)
    cancel(client)
    assert rig.deliver(output) == []


@pytest.mark.parametrize("fields", [{}, {"response_id": "resp_9"}, {"stream_id": "b"}])
def test_where_nothing_runs_there_is_nothing_to_cancel(
    client: Client, fields: dict[str, Any]
) -> None:
    ended = client.turn(input="one")
    assert code(cancel(client, **fields)) == "response_not_found"
    (event,) = cancel(client, response_id=ended["id"], stream_id="b")
    assert (event["status"], event["error"]["param"]) == (404, "response_id")
    assert event["stream_id"] == "b"
    assert client.turn(input="two")["status"] == "completed"


def test_a_response_id_that_is_no_string_is_refused(client: Client) -> None:
    assert code(cancel(client, response_id=1)) == "invalid_type"


def test_a_turn_on_another_connection_of_the_tenant_is_cancelled_by_its_id(rig: Rig) -> None:
    one, other, foreign = rig.connect(), rig.connect(), rig.connect("another tenant")
    (created,) = one.create(input="one")
    id_ = created["response"]["id"]
    assert code(cancel(foreign, response_id=id_)) == "response_not_found"
    assert one.last is created
    assert cancel(other, response_id=id_) == []
    assert one.last["type"] == "response.incomplete"
    assert code(cancel(other, response_id=id_)) == "response_not_found"


@pytest.mark.parametrize("waits_for", ["grammar", "plan", "session"])
def test_a_request_that_has_not_started_is_cancelled_with_an_error(
    rig: Rig, waits_for: str
) -> None:
    rig = Rig(limits=replace(LIMITS, max_inline_bytes=100))
    client = rig.connect()
    rig.checks_pass, rig.plans_at_once = waits_for != "grammar", waits_for != "plan"
    fields: dict[str, Any] = {"input": "x" * 200}
    if waits_for == "grammar":
        fields = {"input": "x", "text": {"format": {"type": "json_object"}}}
    if waits_for == "session":
        fields = {"input": "x", "keepwarm": {"session": "s"}}
        client.create(**fields, stream_id="first")
    before = len(rig.engine.requests)
    assert client.create(**fields) == []
    assert code(cancel(client)) == "request_cancelled"
    rig.checks_pass = rig.plans_at_once = True
    if waits_for == "grammar":
        waiting, check = rig.checks.pop()
        rig.carry(waiting, waiting.connection.answer(check.id, None))
    if waits_for == "plan":
        rig.plan_next()
    assert len(rig.engine.requests) == before
    client.create(input="again")
    rig.reply("ok" + END)
    assert client.response["status"] == "completed"


# Hosted tools


def test_hosted_tools_are_named_in_each_response_and_once_a_connection_in_the_log(
    rig: Rig, client: Client, caplog: pytest.LogCaptureFixture
) -> None:
    tools = [tool("f", a={}), {"type": "web_search"}, {"type": "mcp", "server_label": "x"}]
    with caplog.at_level(logging.INFO):
        for _ in range(2):
            response = client.turn(input="hi", tools=tools)
            assert response["keepwarm"]["warnings"] == [
                "tools: left out, they cannot run here: web_search, mcp"
            ]
            assert [entry["type"] for entry in response["tools"]] == ["function"]
    assert "web_search" not in spelled(rig.engine.sessions[rig.engine.last.branch_id])
    logged = [r.getMessage() for r in caplog.records if "hosted tools" in r.getMessage()]
    assert logged == ["hosted tools are left out connection=conn_1 tools=web_search,mcp"]


def test_a_response_without_warnings_has_an_empty_list_of_them(client: Client) -> None:
    assert client.turn(input="hi")["keepwarm"]["warnings"] == []


@pytest.mark.parametrize("stats", [True, False])
def test_warnings_stand_in_every_event_that_has_a_keepwarm_object(
    client: Client, stats: bool
) -> None:
    client.turn(input="hi", max_tool_calls=1, keepwarm={"stats": stats})
    told = [
        e["response"].get("keepwarm", {}).get("warnings") for e in client.events if "response" in e
    ]
    assert [bool(warnings) for warnings in told] == [stats] * 3


def test_a_grammar_that_could_not_be_tried_is_our_fault_and_the_lane_goes_on() -> None:
    rig = Rig()
    client = rig.connect()
    rig.checks_pass = False
    client.create(input="hi", tools=[tool("f")], tool_choice="required")
    rig.verdict(OSError("the probe is gone"))
    assert (client.last["status"], client.last["error"]["code"]) == (503, "server_is_overloaded")
    rig.checks_pass = True
    assert client.turn(input="again")["status"] == "completed"


@pytest.mark.tail
def test_what_is_kept_of_a_turn_that_ended_does_not_hold_the_turn(rig: Rig, client: Client) -> None:
    """Its log stays for a client that comes back: of the last turn of each connection some 40 KB
    were in no account."""
    client.create(input="hi")
    response_id = client.response["id"]
    turn = client.connection.running(response_id)
    assert turn is not None
    held = weakref.ref(turn)
    del turn
    rig.reply("ok" + END)
    assert len(rig.store.logs) == 1
    gc.collect()
    assert held() is None
