"""Messages of Chat Completions as items."""

from typing import Any

import pytest

from tests.support.dialects import refused
from tools_api.dialects.chat_completions import CHAT_COMPLETIONS
from tools_api.dialects.chat_completions_history import items_of
from tools_api.item_reading import parse_items

CALL = {"id": "call_1", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
USER = {"role": "user", "content": "hi"}
HISTORY: list[dict[str, Any]] = [
    {"role": "system", "content": "Be brief."},
    {"role": "developer", "content": [{"type": "text", "text": "No."}]},
    {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
    {
        "role": "assistant",
        "content": "Let me see.",
        "reasoning_content": "hm",
        "tool_calls": [CALL, CALL | {"id": "call_2"}],
        "refusal": None,
        "annotations": [],
        "audio": None,
        "function_call": None,
    },
    {"role": "tool", "tool_call_id": "call_1", "content": "21"},
    {"role": "tool", "tool_call_id": "call_2", "content": [{"type": "text", "text": "22"}]},
    {"role": "assistant", "content": None, "tool_calls": [CALL | {"id": "call_3"}]},
    {"role": "tool", "tool_call_id": "call_3", "content": ""},
    {"role": "assistant", "content": [{"type": "text", "text": "It is 21."}]},
    {"role": "assistant", "content": "", "refusal": "No."},
    {"role": "assistant", "content": ""},
    {"role": "user", "content": "thanks", "name": "Ann"},
]


def said(role: str, *texts: str) -> dict[str, Any]:
    tag = "output_text" if role == "assistant" else "input_text"
    return {
        "type": "message",
        "role": role,
        "content": [{"type": tag, "text": text} for text in texts],
    }


def called(call_id: str) -> dict[str, Any]:
    return {"type": "function_call", "call_id": call_id, "name": "f", "arguments": '{"a": 1}'}


def answered(call_id: str, text: str) -> dict[str, Any]:
    return {
        "type": "function_call_output",
        "call_id": call_id,
        "output": [{"type": "input_text", "text": text}],
    }


ITEMS = [
    said("system", "Be brief."),
    said("developer", "No."),
    said("user", "a", "b"),
    {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]},
    said("assistant", "Let me see."),
    called("call_1"),
    called("call_2"),
    answered("call_1", "21"),
    answered("call_2", "22"),
    called("call_3"),
    answered("call_3", ""),
    said("assistant", "It is 21."),
    {
        "type": "message",
        "role": "assistant",
        "content": [{"type": "refusal", "refusal": "No."}],
    },
    said("user", "thanks"),
]


def test_a_history_becomes_the_items_that_were_written() -> None:
    assert items_of(HISTORY, whole=True) == ITEMS
    assert len(parse_items(ITEMS)) == len(ITEMS)


@pytest.mark.parametrize("length", range(1, len(HISTORY) + 1))
def test_the_items_of_a_beginning_are_the_beginning_of_the_items(length: int) -> None:
    some = items_of(HISTORY[:length], whole=True)
    assert ITEMS[: len(some)] == some


def message(**fields: Any) -> list[dict[str, Any]]:
    return [USER, fields]


def part(**fields: Any) -> list[dict[str, Any]]:
    return message(role="user", content=[{"type": "text", "text": "a"}, fields])


REFUSED = [
    (None, "messages", "missing_required_parameter"),
    ("hi", "messages", "invalid_type"),
    ([], "messages", "invalid_value"),
    (["hi"], "messages[0]", "invalid_type"),
    (message(content="a"), "messages[1].role", "missing_required_parameter"),
    (message(role="robot", content="a"), "messages[1].role", "unsupported_parameter"),
    (message(role=5, content="a"), "messages[1].role", "invalid_type"),
    (message(role="function", content="a"), "messages[1].role", "unsupported_parameter"),
    (message(role="user"), "messages[1].content", "missing_required_parameter"),
    (message(role="user", content=5), "messages[1].content", "invalid_type"),
    (message(role="assistant"), "messages[1].content", "missing_required_parameter"),
    (part(type="image_url"), "messages[1].content[1].type", "unsupported_parameter"),
    (part(type="input_audio"), "messages[1].content[1].type", "unsupported_parameter"),
    (part(type="file"), "messages[1].content[1].type", "unsupported_parameter"),
    (part(type="refusal"), "messages[1].content[1].type", "unsupported_parameter"),
    (part(text="b"), "messages[1].content[1].type", "missing_required_parameter"),
    (part(type="text"), "messages[1].content[1].text", "missing_required_parameter"),
    (part(type="text", text=1), "messages[1].content[1].text", "invalid_type"),
    (
        message(role="assistant", content="a", audio={"id": "x"}),
        "messages[1].audio",
        "unsupported_parameter",
    ),
    (
        message(role="assistant", content="a", function_call={"name": "f"}),
        "messages[1].function_call",
        "unsupported_parameter",
    ),
    (
        message(role="assistant", content="a", reasoning_content=5),
        "messages[1].reasoning_content",
        "invalid_type",
    ),
    (
        message(role="assistant", tool_calls={}),
        "messages[1].tool_calls",
        "invalid_type",
    ),
    (
        message(role="assistant", tool_calls=[CALL | {"type": "custom"}]),
        "messages[1].tool_calls[0].type",
        "unsupported_parameter",
    ),
    (
        message(role="assistant", tool_calls=[CALL | {"id": None}]),
        "messages[1].tool_calls[0].id",
        "missing_required_parameter",
    ),
    (
        message(role="assistant", tool_calls=[CALL | {"function": {"arguments": "{}"}}]),
        "messages[1].tool_calls[0].function.name",
        "missing_required_parameter",
    ),
    (
        message(role="assistant", tool_calls=[CALL | {"function": {"name": "f"}}]),
        "messages[1].tool_calls[0].function.arguments",
        "missing_required_parameter",
    ),
    (
        message(role="tool", content="21"),
        "messages[1].tool_call_id",
        "missing_required_parameter",
    ),
    (
        message(role="tool", tool_call_id="call_1", content="21"),
        "messages[1].tool_call_id",
        "invalid_value",
    ),
]


@pytest.mark.parametrize(("messages", "param", "code"), REFUSED)
def test_what_cannot_be_said_is_refused_by_its_path(messages: Any, param: str, code: str) -> None:
    error = refused(CHAT_COMPLETIONS, {"messages": messages})
    assert (error["param"], error["code"]) == (param, code)
    assert f"'{param}'" in error["message"]


def test_a_tool_may_not_answer_a_call_that_comes_later() -> None:
    answer = {"role": "tool", "tool_call_id": "call_1", "content": "21"}
    later = {"role": "assistant", "tool_calls": [CALL]}
    error = refused(CHAT_COMPLETIONS, {"messages": [USER, answer, later]})
    assert error["param"] == "messages[1].tool_call_id"


def test_a_tool_may_answer_a_call_of_the_session_that_is_continued() -> None:
    answer = {"role": "tool", "tool_call_id": "call_1", "content": "21"}
    assert items_of([answer], whole=False) == [answered("call_1", "21")]
    body = {"messages": [answer], "keepwarm": {"session": "s"}}
    assert CHAT_COMPLETIONS.read(body).create["input"] == [answered("call_1", "21")]
