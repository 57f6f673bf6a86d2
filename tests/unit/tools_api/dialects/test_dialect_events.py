"""Server-sent events as bytes, and failures as errors."""

import pytest

from tests.support.dialects import failed, response_of, server_sent
from tools_api import errors
from tools_api.dialects import dialect_events


def test_an_event_is_one_block_whatever_stands_in_it() -> None:
    value = {"type": "x", "text": "a\nb\r\n\n\u2028é"}
    assert server_sent(dialect_events.data(value)) == [(None, value)]
    assert server_sent(dialect_events.named(value)) == [("x", value)]
    assert dialect_events.named(value).count(b"\n") == 3


@pytest.mark.parametrize(
    ("code", "status", "kind"),
    [
        ("server_error", 500, "server_error"),
        ("output_invalid", 422, "invalid_request_error"),
        ("rate_limit_exceeded", 429, "rate_limit_error"),
        ("invalid_prompt", 400, "invalid_request_error"),
    ],
)
def test_a_failed_response_is_an_error_by_its_code(code: str, status: int, kind: str) -> None:
    error = dialect_events.failure(response_of(failed(code, "No room.")))
    assert (error.code, error.status, error.type) == (code, status, kind)
    assert error.message == "No room."


def test_an_error_event_is_the_error_it_was_made_of() -> None:
    error = errors.model_not_found("x")
    again = dialect_events.refusal(error.event())
    assert vars(again) == vars(error)
