"""Anthropic's Messages against the sessions behind it: whole conversations, resent each time."""

import json
from typing import Any

import pytest

from tests.support.dialects import accepted, cached_of, over_http, refused
from tests.support.sessions_rig import END, Rig, call, tool
from tools_api.dialects.anthropic_messages import MESSAGES, count_tokens, token_count
from tools_api.errors import ApiError
from tools_api.limits import Limits
from tools_api.request_reading import parse_create

SCHEMA = tool("get_weather", city={"type": "string"})["parameters"]
TOOL = {"name": "get_weather", "description": "Weather.", "input_schema": SCHEMA}
ESCAPED, TIGHT = call("get_weather", '{"city": "Bod\\u00f8"}'), call("get_weather", '{"city":"B"}')
REPLIES = [
    ESCAPED + "\n" + TIGHT + END,
    "It is 21." + END,
    "Let me look.\n" + call("get_weather", '{"city": "Oslo", "days": 2.50}') + END,
    "Only 12 there." + END,
]
MARK = {"cache_control": {"type": "ephemeral"}}


def asked(text: str, **more: Any) -> dict[str, Any]:
    return {"role": "user", "content": [{"type": "text", "text": text, **more}]}


def system(request: int) -> list[dict[str, Any]]:
    """As Claude Code sends it: the first block is another one in every request."""
    accounting = f"x-anthropic-billing-header: cc_version=2.1; cch={request:05x};"
    return [
        {"type": "text", "text": accounting},
        {"type": "text", "text": "You answer questions about the weather.", **MARK},
    ]


def resent(rig: Rig) -> tuple[list[Any], list[Any]]:
    """Responses and messages of a conversation of four turns. The client marks the last block
    of each request, and holds the inputs of tools as objects."""
    messages = [asked("Oslo and Bodø?")]
    responses, answers = [], []
    for number, reply in enumerate(REPLIES):
        body = {
            "model": "default",
            "max_tokens": 500,
            "system": system(number),
            "tools": [TOOL],
            "messages": [*messages[:-1], marked(messages[-1])],
        }
        response, answer = over_http(rig, MESSAGES, json.loads(json.dumps(body)), reply)
        responses.append(response)
        answers.append(answer)
        results = [
            {"type": "tool_result", "tool_use_id": block["id"], "content": "21 degrees"}
            for block in answer["content"]
            if block["type"] == "tool_use"
        ]
        new = {"role": "user", "content": results} if results else asked("And there?")
        messages = [*messages, {"role": "assistant", "content": answer["content"]}, new]
    return responses, answers


def marked(message: dict[str, Any]) -> dict[str, Any]:
    *blocks, last = message["content"]
    return message | {"content": [*blocks, last | MARK]}


def test_a_resent_history_continues_the_response_before_it() -> None:
    responses, answers = resent(Rig())
    ids = [response["id"] for response in responses]
    assert [response["previous_response_id"] for response in responses] == [None, *ids[:-1]]
    reasons = [answer["stop_reason"] for answer in answers]
    assert reasons == ["tool_use", "end_turn", "tool_use", "end_turn"]
    cached = [answer["usage"]["cache_read_input_tokens"] for answer in answers]
    assert cached == [cached_of(response) for response in responses]
    assert min(cached[1:]) > 0


def test_a_warm_up_prefills_and_says_nothing() -> None:
    rig = Rig()
    body = {"max_tokens": 0, "messages": [asked("hi")]}
    response, answer = over_http(rig, MESSAGES, body, "")
    assert (answer["content"], answer["stop_reason"]) == ([], "max_tokens")
    assert response["usage"]["input_tokens"] > 0
    assert rig.engine.last.max_new_tokens == 0


def test_the_stop_sequence_that_ended_the_text_is_named() -> None:
    body = {"max_tokens": 50, "stop_sequences": ["###", "END"], "messages": [asked("hi")]}
    _, answer = over_http(Rig(), MESSAGES, body, "Yes.END")
    assert answer["content"] == [{"type": "text", "text": "Yes."}]
    assert (answer["stop_reason"], answer["stop_sequence"]) == ("stop_sequence", "END")


def test_what_is_counted_is_what_would_be_read() -> None:
    rest = {"system": system(1), "tools": [TOOL], "messages": [asked("hi")], "model": "default"}
    assert (
        count_tokens(rest) | {"max_output_tokens": 5}
        == MESSAGES.read(rest | {"max_tokens": 5}).create
    )
    assert parse_create(count_tokens(rest), None, Limits()).max_output_tokens is None
    assert token_count(12) == {"input_tokens": 12}


def test_what_cannot_be_read_cannot_be_counted() -> None:
    with pytest.raises(ApiError) as raised:
        count_tokens({"messages": [{"role": "user", "content": [{"type": "image"}]}]})
    assert raised.value.param == "messages[0].content[0].type"


CLAUDE_CODE = {
    "model": "default",
    "max_tokens": 32000,
    "stream": True,
    "temperature": 1,
    "metadata": {"user_id": "user_0123_account__session_4567"},
    "system": system(0),
    "thinking": {"type": "adaptive"},
    "output_config": {"effort": "medium"},
    "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
    "tools": [
        TOOL
        | {
            "input_schema": SCHEMA | {"$schema": "https://json-schema.org/draft/2020-12/schema"},
            "eager_input_streaming": True,
        },
        TOOL | {"name": "mcp__files__read", **MARK},
    ],
    "messages": [
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "<system-reminder>Be kind.</system-reminder>"},
                {"type": "text", "text": "hi", **MARK},
            ],
        }
    ],
}


def test_what_claude_code_sends_is_understood() -> None:
    request = accepted(MESSAGES, CLAUDE_CODE)
    assert request.instructions == "You answer questions about the weather."
    assert request.reasoning.effort == "medium"
    assert request.user == "user_0123_account__session_4567"
    assert [tool.name for tool in request.tools] == ["get_weather", "mcp__files__read"]
    assert MESSAGES.read(CLAUDE_CODE).streamed


def test_a_body_without_a_limit_is_refused() -> None:
    error = refused(MESSAGES, {"messages": [asked("hi")]})
    assert error == {
        "type": "invalid_request_error",
        "message": "Missing required parameter: 'max_tokens'.",
    }
