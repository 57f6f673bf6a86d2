"""One turn without a socket: what is sent, what comes out, what may be sent again."""

from decimal import Decimal
from enum import Enum
from typing import Annotated, Any, Literal

import orjson
import pytest
from pydantic import BaseModel, Field, ValidationError

from tests.support.clock import FakeClock
from tests.support.fake_server import call, message, refusal, turn
from tools_api import errors
from tools_api.errors import ApiError
from tools_api.exact_json import loads
from tools_api.item_reading import parse_items
from tools_api.items import FunctionCall, FunctionCallOutput
from tools_api.sdk.answers import (
    ArgumentsDelta,
    CallStarted,
    Response,
    StreamEvent,
    TextDelta,
    TurnRestarted,
    Usage,
)
from tools_api.sdk.chain import MOST_REPORTS, Chain
from tools_api.sdk.failures import ConnectionLost, TurnFailed
from tools_api.sdk.options import TurnOptions, wire_items
from tools_api.sdk.schemas import json_format, strict_schema
from tools_api.sdk.turn import Again, Traits, Turn, answers_cancel, ends_turn
from tools_api.tools import FunctionTool

LONG = Decimal("0.12345678901234567890")


def sent(turn_: Turn) -> dict[str, Any]:
    """The request as it is sent, without the id that differs from turn to turn."""
    request = orjson.loads(turn_.frame())
    assert request["keepwarm"].pop("request_id").startswith("req_")
    assert request["keepwarm"].pop("on_disconnect") == "continue"
    if not request["keepwarm"]:
        del request["keepwarm"]
    return request


def play(turn_: Turn, events: list[dict[str, Any]]) -> list[StreamEvent]:
    return [given for event in events for given in turn_.receive(event)]


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


def test_any_text_and_number_can_be_sent() -> None:
    schema = {"type": "object", "properties": {"a": {"enum": [2**64 + 1, LONG]}}}
    tool = {"type": "function", "name": "f", "parameters": schema}
    request = loads(Turn(Chain(defaults={"tools": [tool]}), "cut \ud83d", {}).frame())
    assert request["input"][0]["content"] == "cut \ufffd"
    assert request["tools"][0]["parameters"] == schema


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
        *(CallStarted, ArgumentsDelta, ArgumentsDelta, FunctionCall),
        *(CallStarted, ArgumentsDelta, ArgumentsDelta, ArgumentsDelta, FunctionCall),
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
    assert step.receive({"type": "keepwarm:something", "sequence_number": 0}) == []


LOST_CHAIN = ApiError("gone", code="previous_response_not_found")
TOO_OLD = ApiError("old", code="websocket_connection_limit_reached")


@pytest.mark.parametrize(
    ("error", "first", "second"),
    [
        (LOST_CHAIN, Again.AT_ONCE, None),
        (TOO_OLD, Again.ON_A_NEW_SOCKET, None),
        (ConnectionLost("restart", started=False, close_code=1012), Again.AT_ONCE, Again.LATER),
        (ConnectionLost("cut", started=True), Again.AT_ONCE, Again.LATER),
        (ConnectionLost("silent", started=True, final=True), None, None),
        (ApiError("busy", code="server_is_overloaded", status=503), Again.LATER, Again.LATER),
        (ApiError("nobody answers", code=None, status=502), Again.LATER, Again.LATER),
        (ApiError("too slow", code=None, status=504), Again.LATER, Again.LATER),
        (errors.runs_elsewhere(), Again.LATER, Again.LATER),
        (errors.request_id_reused(), None, None),
        (ApiError("bad", code="invalid_value"), None, None),
        (ApiError("broken", code=None, status=500), None, None),
        (ValueError("not of the wire"), None, None),
    ],
)
def test_what_may_be_sent_again_and_when(
    error: Exception, first: Again | None, second: Again | None
) -> None:
    step = Turn(after_one_turn(), "x", {})
    assert (step.recover(error), step.recover(error)) == (first, second)


def test_a_lost_turn_is_asked_for_again_by_its_id_and_told_once() -> None:
    step = Turn(Chain(defaults={}), "x", {})
    first = step.frame()
    events = turn({}, [message("Hello")])
    given = play(step, events[:4])
    assert step.recover(ConnectionLost("cut", started=True)) is Again.AT_ONCE
    assert step.frame() == first
    given += play(step, events)
    assert "".join(e.text for e in given if isinstance(e, TextDelta)) == "Hello", "each once"
    assert isinstance(given[-1], Response)


def test_a_stored_turn_goes_on_while_nobody_listens_and_says_so() -> None:
    def kept(**options: Any) -> dict[str, Any]:
        return orjson.loads(Turn(Chain(defaults={}), "x", options).frame())["keepwarm"]

    assert kept()["on_disconnect"] == "continue"
    assert kept(keepwarm={"on_disconnect": "cancel"})["on_disconnect"] == "cancel"
    assert kept(keepwarm={"request_id": "mine"})["request_id"] == "mine"
    assert "on_disconnect" not in kept(store=False)


def test_a_resume_that_gives_the_end_alone_is_made_up_for() -> None:
    step = Turn(Chain(defaults={}), "x", {})
    events = turn(sent(step), [message("Hello"), call("add", "{}", 2)])
    given = play(step, events[:4])
    step.recover(ConnectionLost("cut", started=True))
    step.frame()
    given += play(step, events[-1:])
    assert "".join(e.text for e in given if isinstance(e, TextDelta)) == "Hello"
    assert [type(event) for event in given[-3:]] == [CallStarted, FunctionCall, Response]


def test_what_was_streamed_is_void_where_the_end_is_another() -> None:
    step = Turn(Chain(defaults={}), "x", {})
    given = play(step, turn(sent(step), [message("Hello")])[:4])
    step.recover(ConnectionLost("cut", started=True))
    step.frame()
    given = play(step, turn({}, [message("Other")])[-1:])
    assert [type(event) for event in given] == [TurnRestarted, TextDelta, Response]
    assert given[1] == TextDelta(text="Other")


def test_a_turn_that_another_response_takes_the_place_of_begins_again() -> None:
    chain = Chain(defaults={})
    step = Turn(chain, "x", {})
    play(step, turn(sent(step), [message("Hello")])[:4])
    step.recover(ConnectionLost("cut", started=True))
    given = play(step, turn({}, [message("Hello")], id="resp_2"))
    assert isinstance(given[0], TurnRestarted)
    assert "".join(e.text for e in given if isinstance(e, TextDelta)) == "Hello"
    assert (chain.head, chain.stats.restarts, chain.stats.turns) == ("resp_2", 1, 1)


@pytest.mark.parametrize("param", ["keepwarm", "keepwarm.request_id", "keepwarm.on_disconnect"])
def test_a_server_that_knows_no_request_ids_is_sent_none_any_more(param: str) -> None:
    traits = Traits()
    step = Turn(Chain(defaults={"keepwarm": {"session": "s"}}), "x", {}, traits=traits)
    refused = ApiError("unknown", code="unsupported_parameter", param=param)
    assert step.recover(refused) is Again.AT_ONCE
    assert orjson.loads(step.frame())["keepwarm"] == {"session": "s"}
    assert step.recover(refused) is None


def test_a_turn_that_was_ended_with_its_connection_begins_again_under_another_id() -> None:
    step = Turn(Chain(defaults={}), "x", {})
    first = orjson.loads(step.frame())["keepwarm"]["request_id"]
    died = {
        "error": {"code": "server_error", "message": "x"},
        "keepwarm": {"reason": "client_disconnected"},
    }
    with pytest.raises(TurnFailed) as caught:
        play(step, turn({}, [], status="failed", **died))
    assert step.recover(caught.value) is Again.AT_ONCE
    assert orjson.loads(step.frame())["keepwarm"]["request_id"] != first
    assert step.recover(caught.value) is None


@pytest.mark.parametrize("reason", ["server_died", "session_moved"])
def test_a_turn_whose_server_died_begins_again_however_often_that_happens(reason: str) -> None:
    step = Turn(Chain(defaults={}), "x", {})
    asked = set()
    for number, again in enumerate((Again.AT_ONCE, Again.LATER, Again.LATER)):
        asked.add(orjson.loads(step.frame())["keepwarm"]["request_id"])
        error = {"code": "server_error", "message": "The server died while this turn ran."}
        died = {"error": error, "keepwarm": {"reason": reason}}
        (*_, end) = turn({}, [], id=f"resp_{number}", status="failed", **died)
        end["sequence_number"] = 2**31 - 1
        with pytest.raises(TurnFailed) as caught:
            play(step, [end])
        assert step.recover(caught.value) is again
    assert len(asked) == 3
    assert play(step, turn({}, [message("Hello")], id="resp_9"))[-1].text == "Hello"


def test_a_turn_of_which_only_the_end_was_heard_is_told_whole_when_it_begins_again() -> None:
    step = Turn(Chain(defaults={}), "x", {})
    step.frame()
    left = {"error": {"code": "server_error", "message": "x"}}
    (*_, end) = turn({}, [], status="failed", keepwarm={"reason": "client_disconnected"}, **left)
    end["sequence_number"] = 2**31 - 1  # as a journal tells of a turn it kept nothing of
    with pytest.raises(TurnFailed) as caught:
        play(step, [end])
    assert step.recover(caught.value) is Again.AT_ONCE
    step.frame()
    given = play(step, turn({}, [message("Hello")], id="resp_2"))
    assert len([event for event in given if isinstance(event, TextDelta)]) > 1


def test_a_server_that_lost_the_chain_is_sent_the_whole_history() -> None:
    step = Turn(after_one_turn(), "more", {})
    step.recover(LOST_CHAIN)
    request = sent(step)
    assert "previous_response_id" not in request
    assert request["input"] == [
        {"type": "message", "role": "user", "content": "hello"},
        message("hi"),
        {"type": "message", "role": "user", "content": "more"},
    ]


def test_a_chain_taken_up_by_id_alone_cannot_be_sent_whole() -> None:
    chain = Chain(defaults={}, head="resp_9", complete=False)
    assert Turn(chain, "x", {}).recover(LOST_CHAIN) is None


def test_a_fork_shares_the_past_and_not_the_future() -> None:
    chain = after_one_turn()
    fork = chain.fork()
    step = Turn(fork, "other way", {})
    first = sent(step)
    play(step, turn(first, [message("ok")], id="resp_2"))
    assert first["keepwarm"]["fork"] is True
    assert "fork" not in sent(Turn(fork, "on", {})).get("keepwarm", {}), "it has left by then"
    assert "fork" not in sent(Turn(chain, "on", {})).get("keepwarm", {})
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


@pytest.mark.parametrize("kind", ["function_call_output", "shell_call_output"])
def test_of_outputs_of_one_call_the_newest_goes_and_a_rewind_owes_it_again(kind: str) -> None:
    made = [{"type": kind, "call_id": "c", "output": str(number)} for number in range(3)]
    other = {"type": kind, "call_id": "d", "output": "kept"}
    chain = after_one_turn()
    chain.owed += [made[0], other, made[1]]
    assert sent(Turn(chain, "x", {}))["input"][:-1] == [other, made[1]]
    given = Turn(chain, [made[2]], {})
    assert sent(given)["input"] == [other, made[2]]
    before = chain.head
    play(given, turn({}, [message("ok")], id="r2"))
    chain.rewind(before)
    assert sent(Turn(chain, "z", {}))["input"][:-1] == [other, made[2]]


def test_a_turn_tells_how_the_tools_ran_whose_outputs_it_brings() -> None:
    chain = after_one_turn()
    chain.ran = [{"call_id": f"c{n}", "ms": 1.5, "failed": False} for n in range(MOST_REPORTS + 9)]
    step = Turn(chain, "x", {})
    assert sent(step)["keepwarm"]["tools"] == chain.ran[:MOST_REPORTS]
    assert chain.fork().ran is not chain.ran
    play(step, turn(sent(step), [message("hi")]))
    assert chain.ran == []
    assert "keepwarm" not in sent(Turn(chain, "y", {}))
    chain.ran = [{"call_id": "c", "ms": 1.5, "failed": False}]
    foreign = Turn(chain, "z", {}, traits=Traits(request_ids=False))
    assert "keepwarm" not in orjson.loads(foreign.frame())


@pytest.mark.parametrize(("status", "kind"), [(None, "server_error"), (400, None), (503, None)])
def test_a_refusal_of_a_server_that_says_less_is_one_all_the_same(
    status: int | None, kind: str | None
) -> None:
    """OpenAI's service may leave out the status of an error event, and its type."""
    error = {"message": "no", "code": "x"} | ({} if kind is None else {"type": kind})
    event = {"type": "error", "error": error} | ({} if status is None else {"status": status})
    with pytest.raises(ApiError) as caught:
        Turn(Chain(defaults={}), "hi", {}).receive(event)
    assert caught.value.status == (status or 500)
    assert caught.value.type == ("invalid_request_error" if status == 400 else "server_error")
