"""Messages of Anthropic's API as items."""

from typing import Any

import pytest

from tests.support.dialects import refused
from tools_api.dialects.anthropic_messages import MESSAGES
from tools_api.dialects.anthropic_messages_history import instructions_of, items_of
from tools_api.item_reading import parse_items

USER = {"role": "user", "content": "hi"}
USE = {"type": "tool_use", "id": "toolu_1", "name": "f", "input": {"b": "ü", "a": [1, None]}}
MARK = {"cache_control": {"type": "ephemeral", "ttl": "1h"}}


def text(said: str, **more: Any) -> dict[str, Any]:
    return {"type": "text", "text": said, **more}


def result(content: Any = None, **more: Any) -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": "toolu_1", "content": content, **more}


HISTORY: list[dict[str, Any]] = [
    {"role": "user", "content": [text("a", **MARK), text("b")]},
    {
        "role": "assistant",
        "content": [
            {"type": "thinking", "thinking": "hm", "signature": ""},
            {"type": "redacted_thinking", "data": "xyz"},
            text("One."),
            text(""),
            text("Two.", citations=None),
            USE | MARK,
            USE | {"id": "toolu_2", "input": {}},
            text("Three."),
        ],
    },
    {
        "role": "user",
        "content": [
            result([text("21"), text("22")], **MARK),
            result("no file", tool_use_id="toolu_2", is_error=True),
            text("and"),
            text("more"),
        ],
    },
    {"role": "system", "content": "Be brief."},
    {"role": "assistant", "content": "Yes."},
    {"role": "user", "content": "thanks"},
]


def said(role: str, *texts: str) -> dict[str, Any]:
    tag = "output_text" if role == "assistant" else "input_text"
    return {
        "type": "message",
        "role": role,
        "content": [{"type": tag, "text": each} for each in texts],
    }


ITEMS = [
    said("user", "a", "b"),
    {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]},
    said("assistant", "One."),
    said("assistant", "Two."),
    {
        "type": "function_call",
        "call_id": "toolu_1",
        "name": "f",
        "arguments": '{"b": "ü", "a": [1, null]}',
    },
    {"type": "function_call", "call_id": "toolu_2", "name": "f", "arguments": "{}"},
    said("assistant", "Three."),
    {"type": "function_call_output", "call_id": "toolu_1", "output": "21\n22"},
    {"type": "function_call_output", "call_id": "toolu_2", "output": "Error: no file"},
    said("user", "and", "more"),
    said("system", "Be brief."),
    said("assistant", "Yes."),
    said("user", "thanks"),
]


def test_a_history_becomes_the_items_that_were_written() -> None:
    assert items_of(HISTORY, whole=True) == ITEMS
    assert len(parse_items(ITEMS)) == len(ITEMS)


@pytest.mark.parametrize("length", range(1, len(HISTORY) + 1))
def test_the_items_of_a_beginning_are_the_beginning_of_the_items(length: int) -> None:
    some = items_of(HISTORY[:length], whole=True)
    assert ITEMS[: len(some)] == some


@pytest.mark.parametrize(
    ("block", "output"),
    [
        (result(), ""),
        (result(""), ""),
        (result([]), ""),
        (result("21"), "21"),
        (result("21", is_error=False), "21"),
        (result("Error: none", is_error=True), "Error: none"),
        (result("none", is_error=True), "Error: none"),
    ],
)
def test_a_result_is_one_text_which_says_that_it_is_a_failure(
    block: dict[str, Any], output: str
) -> None:
    (item,) = items_of([{"role": "user", "content": [block]}], whole=False)
    assert item["output"] == output


@pytest.mark.parametrize(
    ("system", "instructions"),
    [
        ("", None),
        ([], None),
        ("Be brief.", "Be brief."),
        ([text("Be brief.", **MARK), text("Be kind.")], "Be brief.\nBe kind."),
        ([text("x-anthropic-billing-header: a=b; cch=1;"), text("Be kind.")], "Be kind."),
        ([text("x-anthropic-billing-header: a=b; cch=2;")], None),
        ("x-anthropic-billing-header: no block", "x-anthropic-billing-header: no block"),
    ],
)
def test_system_blocks_are_lines_and_accounting_is_none_of_them(
    system: Any, instructions: str | None
) -> None:
    assert instructions_of(system) == instructions


def user(*blocks: Any) -> list[dict[str, Any]]:
    return [USER, {"role": "user", "content": list(blocks)}]


def assistant(*blocks: Any) -> list[dict[str, Any]]:
    return [{"role": "assistant", "content": list(blocks)}, USER]


REFUSED = [
    (None, "messages"),
    ([], "messages"),
    ("hi", "messages"),
    ([5], "messages[0]"),
    ([{"content": "hi"}], "messages[0].role"),
    ([{"role": "tool", "content": "hi"}], "messages[0].role"),
    ([{"role": "user"}], "messages[0].content"),
    ([{"role": "user", "content": 5}], "messages[0].content"),
    (user("hi"), "messages[1].content[0]"),
    (user({"text": "hi"}), "messages[1].content[0].type"),
    (user({"type": "text"}), "messages[1].content[0].text"),
    (user(text("a"), {"type": "image", "source": {}}), "messages[1].content[1].type"),
    (user({"type": "document", "source": {}}), "messages[1].content[0].type"),
    (user({"type": "search_result"}), "messages[1].content[0].type"),
    (user(USE), "messages[1].content[0].type"),
    (user({"type": "thinking", "thinking": "a"}), "messages[1].content[0].type"),
    (user(result("21")), "messages[1].content[0].tool_use_id"),
    (user({"type": "tool_result"}), "messages[1].content[0].tool_use_id"),
    (assistant(result("21")), "messages[0].content[0].type"),
    (
        assistant({"type": "server_tool_use", "name": "tool_search_tool_bm25", "input": {}}),
        "messages[0].content[0].id",
    ),
    (user({"type": "server_tool_use"}), "messages[1].content[0].type"),
    (
        assistant({"type": "tool_search_tool_result", "tool_use_id": "s", "content": []}),
        "messages[0].content[0].content",
    ),
    (
        assistant(
            {
                "type": "tool_search_tool_result",
                "tool_use_id": "s",
                "content": {
                    "type": "tool_search_tool_search_result",
                    "tool_references": [{"type": "tool_reference", "tool_name": "nobody"}],
                },
            }
        ),
        "messages[0].content[0].content.tool_references",
    ),
    (assistant({"type": "thinking"}), "messages[0].content[0].thinking"),
    (assistant(USE | {"id": None}), "messages[0].content[0].id"),
    (assistant(USE | {"name": ""}), "messages[0].content[0].name"),
    (assistant(USE | {"input": "{}"}), "messages[0].content[0].input"),
    (assistant(USE | {"input": None}), "messages[0].content[0].input"),
    (
        [*assistant(USE), {"role": "user", "content": [result([{"type": "image"}])]}],
        "messages[2].content[0].content[0].type",
    ),
    (
        [*assistant(USE), {"role": "user", "content": [result("a", is_error="yes")]}],
        "messages[2].content[0].is_error",
    ),
    ([USER, {"role": "assistant", "content": "The answer is ("}], "messages[1].role"),
]


@pytest.mark.parametrize(("messages", "param"), REFUSED)
def test_what_cannot_be_said_is_refused_by_its_path(messages: Any, param: str) -> None:
    error = refused(MESSAGES, {"max_tokens": 5, "messages": messages})
    assert error["type"] == "invalid_request_error"
    assert f"'{param}'" in error["message"]


@pytest.mark.parametrize("system", [5, [5], [{"type": "image"}], [{"type": "text"}]])
def test_a_system_that_is_no_text_is_refused(system: Any) -> None:
    error = refused(MESSAGES, {"max_tokens": 5, "messages": [USER], "system": system})
    assert "'system" in error["message"]
