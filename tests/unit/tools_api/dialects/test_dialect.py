"""What holds for every dialect."""

from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.dialects import (
    ANYTHING,
    CALL,
    STEPS,
    TEXT,
    accepted,
    failed,
    outputs,
    places,
    refusal,
    refused,
    replaced,
    response_of,
    server_sent,
    stream,
    turn,
)
from tools_api import errors
from tools_api.dialects.anthropic_messages import MESSAGES
from tools_api.dialects.chat_completions import CHAT_COMPLETIONS
from tools_api.dialects.dialect import Dialect
from tools_api.errors import ApiError
from tools_api.limits import Limits
from tools_api.parsed_events import (
    ParsedEvent,
)

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
@pytest.mark.parametrize(
    "code", ["server_error", "rate_limit_exceeded", "invalid_prompt", "output_invalid"]
)
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


SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
CALLED = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
USED = {"type": "tool_use", "id": "c", "name": "f", "input": {"a": 1}}
EVERYTHING: dict[Dialect, dict[str, Any]] = {
    CHAT_COMPLETIONS: {
        "messages": [
            {"role": "system", "content": [{"type": "text", "text": "a"}]},
            {"role": "user", "content": "a"},
            {"role": "assistant", "content": "a", "tool_calls": [CALLED], "refusal": "a"},
            {"role": "tool", "tool_call_id": "c", "content": [{"type": "text", "text": "a"}]},
        ],
        "tools": [{"type": "function", "function": {"name": "f", "parameters": SCHEMA}}],
        "tool_choice": {
            "type": "allowed_tools",
            "allowed_tools": {
                "mode": "auto",
                "tools": [{"type": "function", "function": {"name": "f"}}],
            },
        },
        "response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": SCHEMA}},
        "stream_options": {"include_usage": True},
        "logprobs": True,
        "top_logprobs": 1,
        "stop": ["a"],
        "modalities": ["text"],
        "metadata": {"a": "b"},
        "keepwarm": {"session": "s", "sampling": {"min_p": 0.1}},
        "reasoning_effort": "low",
    },
    MESSAGES: {
        "max_tokens": 5,
        "system": [{"type": "text", "text": "a"}],
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "a"}]},
            {"role": "assistant", "content": [{"type": "thinking", "thinking": "a"}, USED]},
            {
                "role": "user",
                "content": [
                    {
                        "type": "tool_result",
                        "tool_use_id": "c",
                        "content": [{"type": "text", "text": "a"}],
                        "is_error": True,
                    }
                ],
            },
        ],
        "tools": [
            {
                "name": "f",
                "input_schema": SCHEMA,
                "input_examples": [{"a": 1}],
                "allowed_callers": ["direct"],
            }
        ],
        "tool_choice": {"type": "tool", "name": "f", "disable_parallel_tool_use": True},
        "thinking": {"type": "enabled", "display": "omitted"},
        "output_config": {"effort": "low", "format": {"type": "json_schema", "schema": SCHEMA}},
        "context_management": {"edits": [{"type": "clear_thinking_20251015"}]},
        "metadata": {"user_id": "u"},
        "stop_sequences": ["a"],
        "keepwarm": {"session": "s"},
    },
}


@pytest.mark.tail
@DIALECTS
@settings(max_examples=200, deadline=None)
@given(data=st.data())
def test_a_body_is_read_or_refused_whatever_stands_in_it(
    dialect: Dialect, data: st.DataObject
) -> None:
    """Any one thing in a good body is replaced; the same way each time."""
    good = EVERYTHING[dialect]
    path = data.draw(st.sampled_from(list(places(good))))
    body = replaced(good, path, data.draw(ANYTHING))
    before = repr(body)
    error, again = refusal(dialect, body), refusal(dialect, body)
    assert repr(body) == before
    if error is None or again is None:
        assert error is again
        assert dialect.read(body).create == dialect.read(body).create
        return
    assert (error.status, error.message) == (400, again.message)
    assert orjson.dumps(dialect.error(error))


@DIALECTS
def test_the_good_body_is_good(dialect: Dialect) -> None:
    assert refusal(dialect, EVERYTHING[dialect]) is None


@DIALECTS
def test_too_many_messages_are_refused_by_their_name_here(dialect: Dialect) -> None:
    most = Limits().max_input_items
    one = {"role": "user", "content": "a"}
    assert len(accepted(dialect, BODY | {"messages": [one] * most}).input) == most
    error = refused(dialect, BODY | {"messages": [one] * (most + 1)})
    assert "'messages'" in error["message"]


@DIALECTS
def test_too_many_parts_are_refused_by_their_name_here(dialect: Dialect) -> None:
    most = Limits().max_content_parts
    part = {"type": "text", "text": "a"}
    accepted(dialect, BODY | {"messages": [{"role": "user", "content": [part] * most}]})
    long = {"role": "user", "content": [part] * (most + 1)}
    assert "'messages'" in refused(dialect, BODY | {"messages": [long]})["message"]
