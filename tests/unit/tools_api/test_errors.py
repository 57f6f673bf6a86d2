from typing import Any

import pytest
from openai.types.responses.responses_server_event import ResponseWsError

from tools_api import errors
from tools_api.errors import ApiError

BAD = "invalid_request_error"
# Error, status, type, code, param: the table of the protocol.
TABLE: list[tuple[ApiError, int, str, str | None, str | None]] = [
    (
        errors.previous_response_not_found("resp_x"),
        400,
        BAD,
        "previous_response_not_found",
        "previous_response_id",
    ),
    (errors.invalid_stream_id(), 400, BAD, "invalid_stream_id", "stream_id"),
    (
        errors.stream_limit_reached("a", 32),
        400,
        BAD,
        "websocket_stream_limit_reached",
        "stream_id",
    ),
    (
        errors.connection_limit_reached(3600.0),
        400,
        BAD,
        "websocket_connection_limit_reached",
        None,
    ),
    (errors.invalid_json("it is a string"), 400, BAD, "invalid_json", None),
    (errors.unknown_event_type("x"), 400, BAD, "unknown_event_type", "type"),
    (
        errors.invalid_type("tools[0].name", "a string", 3),
        400,
        BAD,
        "invalid_type",
        "tools[0].name",
    ),
    (errors.invalid_value("top_p", "too large"), 400, BAD, "invalid_value", "top_p"),
    (errors.missing_parameter("input"), 400, BAD, "missing_required_parameter", "input"),
    (errors.unsupported_parameter("prompt", "no"), 400, BAD, "unsupported_parameter", "prompt"),
    (
        errors.invalid_json_schema("text.format.schema", "not"),
        400,
        BAD,
        "invalid_json_schema",
        "text.format.schema",
    ),
    (errors.unknown_call("call_1"), 400, BAD, "invalid_value", "input"),
    (errors.missing_call_output("call_1"), 400, BAD, "invalid_value", "input"),
    (errors.second_output("input[2].call_id", "c"), 400, BAD, "invalid_value", "input[2].call_id"),
    (errors.call_id_taken("input[2].call_id", "c"), 400, BAD, "invalid_value", "input[2].call_id"),
    (errors.model_not_found("m"), 404, BAD, "model_not_found", "model"),
    (errors.no_such_response("r"), 404, BAD, "response_not_found", "response_id"),
    (errors.response_not_found("r"), 404, BAD, "response_not_found", "response_id"),
    (errors.context_length_exceeded(9, 8), 400, BAD, "context_length_exceeded", "input"),
    (errors.overloaded("the queue is full"), 503, "server_error", "server_is_overloaded", None),
    (
        errors.rate_limited("too many", retry_after_s=2),
        429,
        "rate_limit_error",
        "rate_limit_exceeded",
        None,
    ),
    (errors.request_id_reused(), 409, BAD, "request_id_reused", "keepwarm.request_id"),
    (errors.call_not_found("c"), 404, BAD, "call_not_found", "call_id"),
    (errors.session_not_found("s"), 404, BAD, "session_not_found", "session"),
    (errors.call_not_open("s", "r"), 409, BAD, "call_not_open", "session"),
    (errors.call_decided("c", "rejected", "ana"), 409, BAD, "call_decided", "decision"),
    (errors.call_not_approved("c"), 409, BAD, "call_not_approved", "decision"),
    (errors.not_read(), 500, "server_error", "request_not_read", None),
    (errors.internal_error(), 500, "server_error", None, None),
]


@pytest.mark.parametrize(("error", "status", "type_", "code", "param"), TABLE)
def test_each_refusal_has_the_form_of_the_error_table(
    error: ApiError, status: int, type_: str, code: str | None, param: str | None
) -> None:
    event = error.event()
    waits = event["error"].pop("keepwarm", None)
    assert waits == ({"retry_after_ms": 2000} if status == 429 else None)
    assert event == {
        "type": "error",
        "status": status,
        "error": {"type": type_, "code": code, "message": error.message, "param": param},
    } | ({"stream_id": "a"} if code == "websocket_stream_limit_reached" else {})
    assert ResponseWsError.model_validate(event, strict=True).error.message == error.message


def test_lane_and_number_are_named_when_they_are_known() -> None:
    error = errors.missing_parameter("input")
    assert "stream_id" not in error.event()
    error.stream_id = "main"
    assert error.event()["stream_id"] == "main"
    assert error.event("other", 3)["stream_id"] == "other"
    assert error.event("other", 3)["sequence_number"] == 3


def test_client_text_in_a_message_is_cut() -> None:
    assert errors.quoted("a" * 80) == f"'{'a' * 80}'"
    assert errors.quoted("a" * 81) == f"'{'a' * 80}...'"
    assert len(errors.previous_response_not_found("a" * 10_000).message) < 150


@pytest.mark.parametrize(
    ("value", "name"),
    [({}, "an object"), ([], "an array"), (True, "a boolean"), (1, "an integer"), (None, "null")],
)
def test_types_are_called_as_in_json(value: Any, name: str) -> None:
    assert errors.type_name(value) == name


@pytest.mark.parametrize(
    "words",
    [
        *("Input tokens exceed the configured limit", "this model's maximum context length is"),
        *("8 tokens", "has 9;", "leave some out."),
    ],
)
def test_a_context_that_is_too_long_is_said_in_words_by_which_clients_know_it(words: str) -> None:
    """``langchain-openai`` looks for the first ones, ``litellm`` for either."""
    assert words in errors.context_length_exceeded(9, 8, "leave some out").message


def test_the_lengths_of_a_context_that_is_too_long_can_be_read_from_the_error() -> None:
    assert errors.told_lengths(errors.context_length_exceeded(9, 8)) == (9, 8)
    assert errors.told_lengths(errors.context_length_exceeded(8, 8)) == (8, 7)
    assert errors.told_lengths(errors.unsplittable_input()) is None


def test_a_text_that_cannot_be_tokenised_is_said_in_words_by_which_clients_know_it() -> None:
    assert "Input tokens exceed the configured limit" in errors.unsplittable_input().message
