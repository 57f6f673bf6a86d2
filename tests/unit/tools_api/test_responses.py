from typing import Any, get_args

import pytest
from openai.types.responses import Response, ResponseUsage
from openai.types.responses.response_output_text import Logprob

from tools_api.dialects import dialect_events
from tools_api.events import decode
from tools_api.requests import CreateRequest
from tools_api.responses import FailureCode, ResponseObject, logprob, usage

USAGE = usage(
    input_tokens=812, cached_tokens=784, cache_write_tokens=28, output_tokens=42, reasoning_tokens=2
)
MESSAGE = {
    "type": "message",
    "id": "msg_1",
    "status": "completed",
    "role": "assistant",
    "content": [{"type": "output_text", "text": "Hi", "annotations": [], "logprobs": []}],
}
FULL = """
{"type": "response.create", "model": "m", "input": "Hi", "instructions": "Be brief.",
 "tools": [{"type": "function", "name": "f"}], "tool_choice": {"type": "function", "name": "f"},
 "parallel_tool_calls": false, "temperature": 0.5, "top_p": 0.9, "top_logprobs": 3,
 "max_output_tokens": 100, "max_tool_calls": 4, "metadata": {"a": "b"}, "store": false,
 "truncation": "auto", "reasoning": {"effort": "low", "summary": "auto"}, "user": "u",
 "safety_identifier": "s", "service_tier": "fast", "prompt_cache_key": "k",
 "prompt_cache_retention": "24h", "prompt_cache_options": {"ttl": "12h"},
 "text": {"format": {"type": "json_schema", "name": "n", "schema": {"type": "object"}},
  "verbosity": "low"}}
"""


def response(frame: str, **fields: Any) -> ResponseObject:
    request = decode(frame)
    assert isinstance(request, CreateRequest)
    fields = {"previous_response_id": None} | fields
    return ResponseObject(id="resp_1", request=request, model="m", created_at=1, **fields)


@pytest.mark.parametrize("frame", ['{"type": "response.create", "input": "Hi"}', FULL])
@pytest.mark.parametrize(
    "state",
    [
        {"status": "queued", "keepwarm": {"queue": {"position": 1}}},
        {"status": "in_progress"},
        {"status": "completed", "output": [MESSAGE], "usage": USAGE, "completed_at": 2},
        {"status": "incomplete", "usage": USAGE, "incomplete_reason": "max_output_tokens"},
        {"status": "failed", "error": ("rate_limit_exceeded", "The budget is spent.")},
        {"status": "completed", "usage": USAGE, "cache_diagnostics": {"type": "cache_hit"}},
    ],
    ids=lambda state: state["status"],
)
def test_the_object_is_the_published_one(frame: str, state: dict[str, Any]) -> None:
    wire = response(frame).wire(**state)
    parsed = Response.model_validate(wire)
    assert parsed.model_dump(exclude_unset=True, by_alias=True) == wire


def test_what_clients_of_other_languages_insist_on_is_always_there() -> None:
    wire = response('{"type": "response.create", "input": "Hi"}').wire(status="in_progress")
    assert set(wire) >= {
        *("id", "object", "created_at", "model", "output", "parallel_tool_calls", "tool_choice"),
        *("tools", "error", "incomplete_details", "instructions", "metadata", "temperature"),
        *("top_p", "status", "completed_at", "previous_response_id", "usage", "text", "truncation"),
        *("max_output_tokens", "max_tool_calls", "store", "background", "service_tier"),
        *("reasoning", "prompt_cache_key", "top_logprobs", "user"),
    }
    assert wire["output"] == []
    assert wire["usage"] is None
    assert "keepwarm" not in wire


def test_the_request_is_echoed_and_effective_values_are_the_servers() -> None:
    wire = response(
        FULL,
        previous_response_id="resp_0",
        service_tier="priority",
        temperature=0.5,
        top_p=0.9,
        max_output_tokens=64,
    ).wire(status="in_progress")
    assert wire["tool_choice"] == {"type": "function", "name": "f"}
    assert wire["metadata"] == {"a": "b"}
    assert (wire["temperature"], wire["top_p"], wire["max_output_tokens"]) == (0.5, 0.9, 64)
    assert (wire["service_tier"], wire["previous_response_id"]) == ("priority", "resp_0")
    assert wire["text"]["verbosity"] == "low"


def test_failures_and_reasons_have_the_published_form() -> None:
    made = response('{"type": "response.create", "input": "Hi"}')
    failed = made.wire(status="failed", error=("server_error", "Broken."))
    assert failed["error"] == {
        "type": "server_error",
        "code": "server_error",
        "message": "Broken.",
    }
    cut = made.wire(status="incomplete", incomplete_reason="max_output_tokens")
    assert cut["incomplete_details"] == {"reason": "max_output_tokens"}


def test_usage_has_all_six_numbers() -> None:
    parsed = ResponseUsage.model_validate(USAGE)
    assert parsed.model_dump(exclude_unset=True) == USAGE
    assert parsed.total_tokens == 854


def test_log_probabilities_carry_bytes_that_are_no_text() -> None:
    entry = logprob("é".encode()[:1], -0.5, [(b"a", -1.0)])
    assert Logprob.model_validate(entry).model_dump() == entry
    assert entry["token"] == "\ufffd"
    assert entry["bytes"] == [0xC3]
    assert entry["top_logprobs"] == [{"token": "a", "bytes": [97], "logprob": -1.0}]


@pytest.mark.parametrize("code", get_args(FailureCode))
def test_a_failure_has_the_type_that_an_error_of_its_code_has(code: FailureCode) -> None:
    made = response('{"type": "response.create", "input": "Hi"}')
    failed = made.wire(status="failed", error=(code, "because"))
    told = dialect_events.failure(failed)
    assert failed["error"] == {"type": told.type, "code": told.code, "message": told.message}
