"""One turn without a socket: what is sent, what comes out, what may be sent again."""

from enum import Enum
from typing import Annotated, Any, Literal

import orjson
import pytest
from pydantic import BaseModel, Field, ValidationError

from tests.support.clock import FakeClock
from tests.support.fake_server import call, message, refusal, turn
from tools_api.errors import ApiError
from tools_api.items import FunctionCall, FunctionCallOutput, parse_items
from tools_api.sdk.turn import (
    ArgumentsDelta,
    Chain,
    ConnectionLost,
    Response,
    StreamEvent,
    TextDelta,
    Turn,
    TurnFailed,
    TurnOptions,
    Usage,
    answers_cancel,
    ends_turn,
    json_format,
    strict_schema,
    wire_items,
)
from tools_api.tools import FunctionTool


def sent(turn_: Turn) -> dict[str, Any]:
    return orjson.loads(turn_.frame())


def play(turn_: Turn, events: list[dict[str, Any]]) -> list[StreamEvent]:
    given = [turn_.receive(event) for event in events]
    return [event for event in given if event is not None]


def after_one_turn(**defaults: Any) -> Chain:
    chain = Chain(defaults=TurnOptions(**defaults))
    first = Turn(chain, "hello", {})
    play(first, turn(sent(first), [message("hi")]))
    return chain


def test_the_first_turn_sends_its_input_and_no_previous_id() -> None:
    request = sent(Turn(Chain(defaults={"model": "m"}), "hello", {}))
    assert request == {
        "type": "response.create",
        "model": "m",
        "input": [{"type": "message", "role": "user", "content": "hello"}],
    }


def test_a_later_turn_sends_only_what_is_new() -> None:
    request = sent(Turn(after_one_turn(), "more", {}))
    assert request["previous_response_id"] == "resp_1"
    assert request["input"] == [{"type": "message", "role": "user", "content": "more"}]


def test_bytes_sent_do_not_grow_with_the_number_of_turns() -> None:
    chain = Chain(defaults={})
    sizes = []
    for number in range(10, 60):
        step = Turn(chain, "0123456789" * 20, {})
        sizes.append(len(step.frame()))
        play(step, turn({}, [message("x" * 300)], id=f"resp_{number}"))
    assert len(set(sizes[1:])) == 1


def test_options_of_a_turn_take_precedence_and_vendor_options_merge() -> None:
    chain = Chain(defaults={"temperature": 0.5, "keepwarm": {"session": "s", "stats": True}})
    request = sent(Turn(chain, "x", {"temperature": 0, "keepwarm": {"stats": False}}))
    assert request["temperature"] == 0
    assert request["keepwarm"] == {"session": "s", "stats": False}


def test_an_unknown_option_is_an_error() -> None:
    with pytest.raises(TypeError, match=r"unknown turn options \['temprature'\]"):
        Turn(Chain(defaults={}), "x", {"temprature": 1})  # type: ignore[typeddict-unknown-key]


def test_tools_go_as_definitions_or_as_they_are() -> None:
    raw = {"type": "function", "name": "b", "parameters": {}}
    request = sent(Turn(Chain(defaults={"tools": [FunctionTool(name="a"), raw]}), "x", {}))
    assert [tool["name"] for tool in request["tools"]] == ["a", "b"]


def test_items_go_as_objects_of_ours_or_as_they_are() -> None:
    output = FunctionCallOutput(call_id="call_1", output="3")
    raw = {"role": "user", "content": "x"}
    assert wire_items([output, raw]) == [
        {"type": "function_call_output", "call_id": "call_1", "output": "3"},
        raw,
    ]


def test_a_text_turn_gives_deltas_and_then_the_response() -> None:
    step = Turn(Chain(defaults={}), "x", {}, clock=FakeClock(tick_s=1.0))
    *deltas, response = play(step, turn(sent(step), [message("Hi!")], keepwarm={"turn": 1}))
    assert deltas == [TextDelta(text=char) for char in "Hi!"]
    assert isinstance(response, Response)
    assert response.text == "Hi!"
    assert response.status == "completed"
    assert response.usage == Usage(
        input_tokens=10, cached_tokens=4, output_tokens=2, reasoning_tokens=1
    )
    assert response.usage.hit_ratio == 0.4
    assert response.keepwarm == {"turn": 1}
    assert (response.ttft_s, response.duration_s) == (1.0, 2.0)
    assert step.over


def test_a_call_is_yielded_as_soon_as_its_arguments_are_complete() -> None:
    step = Turn(Chain(defaults={}), "x", {})
    events = turn(sent(step), [call("add", "{}"), call("sub", "{ }", 2)])
    given = play(step, events)
    kinds = [type(event) for event in given]
    assert kinds == [
        *(ArgumentsDelta, ArgumentsDelta, FunctionCall),
        *(ArgumentsDelta, ArgumentsDelta, ArgumentsDelta, FunctionCall),
        Response,
    ]
    response = given[-1]
    assert isinstance(response, Response)
    assert [found.name for found in response.calls] == ["add", "sub"]
    assert [found.call_id for found in response.calls] == ["call_1", "call_2"]


def test_an_incomplete_response_is_an_answer_and_moves_the_chain() -> None:
    chain = Chain(defaults={})
    step = Turn(chain, "x", {})
    reason = {"incomplete_details": {"reason": "max_output_tokens"}}
    events = turn(sent(step), [message("cu")], status="incomplete", **reason)
    response = play(step, events)[-1]
    assert isinstance(response, Response)
    assert response.incomplete_reason == "max_output_tokens"
    assert chain.head == "resp_1"


def test_a_failed_response_raises_and_leaves_the_chain() -> None:
    chain = after_one_turn()
    step = Turn(chain, "x", {})
    error = {"error": {"code": "rate_limit_exceeded", "message": "budget spent"}}
    events = turn(sent(step), [], id="resp_2", status="failed", **error)
    with pytest.raises(TurnFailed, match="rate_limit_exceeded: budget spent") as caught:
        play(step, events)
    assert caught.value.code == "rate_limit_exceeded"
    assert caught.value.response.id == "resp_2"
    assert chain.head == "resp_1"
    assert len(chain.history) == 2


def test_a_refusal_raises_with_all_that_the_wire_says() -> None:
    step = Turn(Chain(defaults={}), "x", {})
    with pytest.raises(ApiError) as caught:
        step.receive(refusal({}, "model_not_found", 404))
    assert (caught.value.code, caught.value.status) == ("model_not_found", 404)
    assert step.over
    assert not step.started


def test_unknown_events_are_passed_over() -> None:
    step = Turn(Chain(defaults={}), "x", {})
    assert step.receive({"type": "keepwarm:something", "sequence_number": 0}) is None


LOST_CHAIN = ApiError("gone", code="previous_response_not_found")
TOO_OLD = ApiError("old", code="websocket_connection_limit_reached")


@pytest.mark.parametrize(
    ("error", "again"),
    [
        (LOST_CHAIN, True),
        (TOO_OLD, True),
        (ConnectionLost("restart", started=False, close_code=1012), True),
        (ConnectionLost("restart", started=True, close_code=1012), False),
        (ConnectionLost("cut", started=False), False),
        (ConnectionLost("too big", started=False, close_code=1009), False),
        (ApiError("bad", code="invalid_value"), False),
        (ApiError("broken", code=None, status=500), False),
    ],
)
def test_a_turn_is_sent_again_once_and_only_if_it_never_started(
    error: ApiError | ConnectionLost, again: bool
) -> None:
    step = Turn(after_one_turn(), "x", {})
    assert step.send_again(error) is again
    assert step.send_again(error) is False


def test_a_server_that_lost_the_chain_is_sent_the_whole_history() -> None:
    step = Turn(after_one_turn(), "more", {})
    step.send_again(LOST_CHAIN)
    request = sent(step)
    assert "previous_response_id" not in request
    assert request["input"] == [
        {"type": "message", "role": "user", "content": "hello"},
        message("hi"),
        {"type": "message", "role": "user", "content": "more"},
    ]


def test_a_chain_taken_up_by_id_alone_cannot_be_sent_whole() -> None:
    chain = Chain(defaults={}, head="resp_9", complete=False)
    assert not Turn(chain, "x", {}).send_again(LOST_CHAIN)


def test_a_fork_shares_the_past_and_not_the_future() -> None:
    chain = after_one_turn()
    fork = chain.fork()
    step = Turn(fork, "other way", {})
    play(step, turn(sent(step), [message("ok")], id="resp_2"))
    assert (chain.head, fork.head) == ("resp_1", "resp_2")
    assert (len(chain.history), len(fork.history)) == (2, 4)


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


class Point(BaseModel):
    x: int = 0
    title: Annotated[str, Field(max_length=5)]


class Shape(BaseModel):
    kind: Literal["line", "dot"]
    points: list[Point]
    colour: Colour | None = None


def test_a_strict_schema_requires_every_key_and_allows_no_other() -> None:
    schema = strict_schema(Shape)
    assert schema["required"] == ["kind", "points", "colour"]
    assert schema["additionalProperties"] is False
    assert schema["$defs"]["Point"] == {
        "type": "object",
        "properties": {"x": {"type": "integer"}, "title": {"type": "string", "maxLength": 5}},
        "required": ["x", "title"],
        "additionalProperties": False,
    }
    assert schema["$defs"]["Colour"] == {"type": "string", "enum": ["red", "blue"]}
    assert schema["properties"]["colour"] == {
        "anyOf": [{"$ref": "#/$defs/Colour"}, {"type": "null"}]
    }


def test_a_structured_answer_is_read_into_its_model() -> None:
    assert json_format(Point)["format"]["name"] == "Point"
    step = Turn(Chain(defaults={}), "x", {"text": json_format(Point)})
    response = play(step, turn(sent(step), [message('{"x": 1, "title": "a"}')]))[-1]
    assert isinstance(response, Response)
    assert response.parsed(Point) == Point(x=1, title="a")
    with pytest.raises(ValidationError):
        response.parsed(Shape)


def test_a_custom_call_is_yielded_when_it_is_complete() -> None:
    item = {"id": "ctc_1", "type": "custom_tool_call", "status": "completed", "call_id": "c"}
    item |= {"name": "run", "input": "ls"}
    step = Turn(Chain(defaults={}), "x", {})
    *given, response = play(
        step,
        [
            {"type": "response.output_item.done", "output_index": 0, "item": item},
            {"type": "response.completed", "response": {"id": "r", "status": "completed",
                                                        "output": [item]}},
        ],
    )  # fmt: skip
    assert given == list(parse_items([item]))
    assert isinstance(response, Response)
    assert (response.output, response.calls) == (parse_items([item]), ())


def test_a_cancel_names_the_response_once_it_is_known_and_the_lane() -> None:
    step = Turn(Chain(defaults={}), "x", {})
    step.frame("lane-1")
    assert orjson.loads(step.cancel_frame("lane-1")) == {
        "type": "response.cancel",
        "stream_id": "lane-1",
    }
    step.receive(turn({}, [message("x")], id="resp_7")[0])
    assert orjson.loads(step.cancel_frame()) == {"type": "response.cancel", "response_id": "resp_7"}
    step.frame()
    assert "response_id" not in orjson.loads(step.cancel_frame()), "it is sent again"


@pytest.mark.parametrize(
    ("event", "ends", "answers"),
    [
        ({"type": "response.incomplete"}, True, False),
        ({"type": "error", "error": {"code": "request_cancelled"}}, True, False),
        ({"type": "error", "error": {"code": "response_not_found"}}, False, True),
        ({"type": "error", "error": {"code": "previous_response_not_found"}}, True, False),
        ({"type": "response.created"}, False, False),
    ],
)
def test_a_cancel_that_came_too_late_ends_no_turn(
    event: dict[str, Any], ends: bool, answers: bool
) -> None:
    assert (ends_turn(event), answers_cancel(event)) == (ends, answers)


def test_owed_outputs_go_with_every_turn_until_one_has_ended() -> None:
    chain = Chain(defaults={})
    chain.owed += wire_items([FunctionCallOutput(call_id="c", output="1")])
    for _ in range(2):
        step = Turn(chain, "x", {})
        assert [item["type"] for item in sent(step)["input"]] == ["function_call_output", "message"]
    play(step, turn({}, [message("ok")]))
    assert [item["type"] for item in sent(Turn(chain, "y", {}))["input"]] == ["message"]
