"""What holds for every dialect."""

from typing import Any

import pytest
from hypothesis import given, settings

from tests.support.dialects import (
    CALL,
    STEPS,
    TEXT,
    accepted,
    failed,
    outputs,
    refused,
    response_of,
    server_sent,
    stream,
    turn,
)
from tools_api import errors
from tools_api.anthropic_messages import MESSAGES
from tools_api.call_parser import ParsedEvent
from tools_api.chat_completions import CHAT_COMPLETIONS
from tools_api.dialect import Dialect
from tools_api.errors import ApiError

BODY = {"max_tokens": 9, "messages": [{"role": "user", "content": "hi"}]}
DIALECTS = pytest.mark.parametrize("dialect", [CHAT_COMPLETIONS, MESSAGES])


@DIALECTS
@pytest.mark.parametrize("body", [None, [], "hi", 5, True])
def test_a_body_that_is_no_object_is_refused(dialect: Dialect, body: Any) -> None:
    assert "not a JSON object" in refused(dialect, body)["message"]


@DIALECTS
def test_the_same_body_gives_the_same_fields_and_is_left_alone(dialect: Dialect) -> None:
    body = BODY | {"keepwarm": {"sampling": {"min_p": 0.1}}, "top_k": 5, "metadata": None}
    before = repr(body)
    assert dialect.read(body).create == dialect.read(body).create
    assert repr(body) == before


@DIALECTS
def test_a_stream_is_a_stream_only_if_it_is_asked_for(dialect: Dialect) -> None:
    assert not dialect.read(BODY).streamed
    assert not dialect.read(BODY | {"stream": None}).streamed
    assert dialect.read(BODY | {"stream": True}).streamed
    assert "'stream'" in refused(dialect, BODY | {"stream": "yes"})["message"]


@DIALECTS
def test_our_extension_is_passed_on(dialect: Dialect) -> None:
    options = {"session": "s", "budget": {"output": 9}, "expected_tool_ms": 50}
    request = accepted(dialect, BODY | {"keepwarm": options})
    assert request.keepwarm.session == "s"
    assert request.keepwarm.budget is not None
    assert request.keepwarm.expected_tool_ms == 50


@DIALECTS
def test_unknown_keys_of_our_extension_are_refused_by_their_path(dialect: Dialect) -> None:
    error = refused(dialect, BODY | {"keepwarm": {"sampling": {"foo": 1}}})
    assert "'keepwarm.sampling.foo'" in error["message"]
    error = refused(dialect, BODY | {"keepwarm": 5})
    assert "'keepwarm'" in error["message"]


@DIALECTS
@pytest.mark.parametrize("code", ["server_error", "rate_limit_exceeded", "invalid_prompt"])
def test_a_failed_response_is_an_error_in_both_forms(dialect: Dialect, code: str) -> None:
    events = failed(code, "It broke.")
    with pytest.raises(ApiError) as raised:
        dialect.read(BODY).writer.whole(response_of(events))
    sent = stream(dialect.read(BODY | {"stream": True}).writer, events)
    assert sent[-1][1] == dialect.error(raised.value)
    assert sent[-1][1]["error"]["message"] == "It broke."


@DIALECTS
def test_a_turn_that_fails_before_it_begins_sends_the_error_alone(dialect: Dialect) -> None:
    created, *_, last = turn(status="failed", error=("rate_limit_exceeded", "Spent."))
    writer = dialect.read(BODY | {"stream": True}).writer
    assert [data for _, data in stream(writer, [created, last])] == [
        dialect.error(ApiError("Spent.", code="rate_limit_exceeded", status=429,
                               type="rate_limit_error"))
    ]  # fmt: skip


@DIALECTS
def test_an_error_event_is_the_error_of_a_body(dialect: Dialect) -> None:
    error = errors.model_not_found("x")
    ((_, data),) = stream(dialect.read(BODY).writer, [error.event()])
    assert data == dialect.error(error)
    raw = dialect.error_event(error)
    assert raw == dialect.read(BODY).writer.feed(error.event())


@DIALECTS
def test_steps_of_any_size_give_the_same_stream_but_for_its_cuts(dialect: Dialect) -> None:
    one = stream(dialect.read(BODY).writer, turn(*TEXT, *CALL, steps=(99,)))
    many = stream(dialect.read(BODY).writer, turn(*TEXT, *CALL))
    assert one[0] == many[0]
    assert one[-1] == many[-1]
    assert len(one) < len(many)


@DIALECTS
@settings(max_examples=30, deadline=None)
@given(parsed=outputs(), steps=STEPS)
def test_what_stands_in_a_stream_does_not_depend_on_what_one_feed_returns(
    dialect: Dialect, parsed: list[ParsedEvent], steps: list[int]
) -> None:
    events = turn(*parsed, steps=steps)
    writer = dialect.read(BODY).writer
    joined = b"".join(writer.feed(event) for event in events)
    assert server_sent(joined) == stream(dialect.read(BODY).writer, events)
