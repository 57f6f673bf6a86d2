from dataclasses import replace
from typing import Any

import pytest

from tools_api.errors import ApiError
from tools_api.item_reading import parse_items
from tools_api.items import (
    CustomToolCall,
    CustomToolCallOutput,
    FunctionCall,
    FunctionCallOutput,
    Message,
    Reasoning,
    TextPart,
)
from tools_api.limits import DEFAULT_LIMITS


def user(text: str) -> Message:
    return Message(role="user", content=(TextPart(type="input_text", text=text),))


@pytest.mark.parametrize(
    ("raw", "most"),
    [
        ([{"role": "user", "content": "Hi"}] * 4, "items"),
        ([{"role": "user", "content": [{"type": "input_text", "text": "Hi"}] * 4}], "parts"),
    ],
)
def test_items_of_somebody_trusted_have_no_bounds(raw: list[dict[str, Any]], most: str) -> None:
    limits = replace(DEFAULT_LIMITS, max_input_items=3, max_content_parts=3)
    with pytest.raises(ApiError, match=f"more than 3 {most}"):
        parse_items(raw, "input", limits)
    assert sum(item.text.count("Hi") for item in parse_items(raw) if item.type == "message") == 4


def test_a_string_is_one_user_message() -> None:
    assert parse_items("Hi") == (user("Hi"),)


@pytest.mark.parametrize(
    ("raw", "item"),
    [
        ({"role": "user", "content": "Hi"}, user("Hi")),
        ({"type": "message", "role": "user", "content": "Hi", "status": None}, user("Hi")),
        (
            {
                "role": "user",
                "content": [
                    {"type": "input_text", "text": "H", "prompt_cache_breakpoint": {}},
                    {"type": "input_text", "text": "i"},
                ],
            },
            Message(
                role="user",
                content=(
                    TextPart(type="input_text", text="H"),
                    TextPart(type="input_text", text="i"),
                ),
            ),
        ),
        (
            {"role": "assistant", "content": "Hello."},
            Message(role="assistant", content=(TextPart(type="output_text", text="Hello."),)),
        ),
        (
            {"role": "assistant", "content": [{"type": "refusal", "refusal": "No."}]},
            Message(role="assistant", content=(TextPart(type="refusal", text="No."),)),
        ),
        (
            {"type": "function_call_output", "call_id": "c", "output": "1"},
            FunctionCallOutput(call_id="c", output="1"),
        ),
        (
            {
                "type": "function_call_output",
                "call_id": "c",
                "output": [
                    {"type": "input_text", "text": "1"},
                    {"type": "input_text", "text": "2"},
                ],
            },
            FunctionCallOutput(call_id="c", output="1\n2"),
        ),
        (
            {"type": "reasoning", "id": "rs", "summary": [], "encrypted_content": "x"},
            Reasoning(id="rs", encrypted_content="x"),
        ),
    ],
)
def test_accepted_forms(raw: dict[str, Any], item: Message) -> None:
    assert parse_items([raw]) == (item,)


OUTPUT_ITEMS = [
    Message(
        role="assistant",
        content=(TextPart(type="output_text", text="Hello."),),
        id="msg_1",
        status="completed",
    ),
    FunctionCall(call_id="call_1", name="f", arguments="{}", id="fc_1", status="completed"),
    Reasoning(content=("Hm.",), id="rs_1", status="completed"),
]


@pytest.mark.parametrize("item", OUTPUT_ITEMS)
def test_our_own_output_comes_back_equal(item: Message) -> None:
    assert parse_items([item.to_wire()]) == (item,)


def test_log_probabilities_go_out_and_are_ignored_in_input() -> None:
    entry = {"token": "a", "bytes": [97], "logprob": -0.5, "top_logprobs": []}
    part = TextPart(type="output_text", text="a", logprobs=(entry,))
    wire = Message(role="assistant", content=(part,)).to_wire()
    assert wire["content"][0]["logprobs"] == [entry]
    (back,) = parse_items([wire])
    assert isinstance(back, Message)
    assert back.content[0].logprobs == ()


@pytest.mark.parametrize(
    ("raw", "code", "param"),
    [
        (1, "invalid_type", "input"),
        ({}, "invalid_type", "input"),
        ([1], "invalid_type", "input[0]"),
        ([{}], "missing_required_parameter", "input[0].type"),
        ([{"type": 1}], "invalid_type", "input[0].type"),
        ([{"type": "program"}], "unsupported_parameter", "input[0].type"),
        ([{"type": "compaction"}], "missing_required_parameter", "input[0].encrypted_content"),
        ([{"type": "item_reference", "id": "x"}], "unsupported_parameter", "input[0].type"),
        ([{"role": "user"}], "missing_required_parameter", "input[0].content"),
        ([{"role": "user", "content": 1}], "invalid_type", "input[0].content"),
        ([{"role": "tool", "content": ""}], "invalid_value", "input[0].role"),
        ([{"type": "message", "content": ""}], "missing_required_parameter", "input[0].role"),
        ([{"role": "user", "content": ["a"]}], "invalid_type", "input[0].content[0]"),
        (
            [{"role": "user", "content": [{}]}],
            "missing_required_parameter",
            "input[0].content[0].type",
        ),
        (
            [{"role": "user", "content": [{"type": "input_image"}]}],
            "unsupported_parameter",
            "input[0].content[0].type",
        ),
        (
            ["", {"role": "user", "content": [{"type": "input_text"}]}][1:],
            "missing_required_parameter",
            "input[0].content[0].text",
        ),
        (
            [{"role": "user", "content": [{"type": "input_text", "text": 1}]}],
            "invalid_type",
            "input[0].content[0].text",
        ),
        (
            [{"type": "function_call", "name": "f", "arguments": "{}"}],
            "missing_required_parameter",
            "input[0].call_id",
        ),
        (
            [{"type": "function_call", "call_id": "c", "name": "f", "arguments": {}}],
            "invalid_type",
            "input[0].arguments",
        ),
        (
            [{"type": "function_call", "call_id": "c" * 513, "name": "f", "arguments": ""}],
            "invalid_value",
            "input[0].call_id",
        ),
        (
            [{"type": "function_call_output", "call_id": "c"}],
            "missing_required_parameter",
            "input[0].output",
        ),
        (
            [{"type": "function_call_output", "call_id": "c", "output": 3}],
            "invalid_type",
            "input[0].output",
        ),
        (
            [{"type": "function_call_output", "call_id": "c", "output": [{"type": "input_file"}]}],
            "unsupported_parameter",
            "input[0].output[0].type",
        ),
        (
            [{"type": "reasoning", "content": [{"type": "input_text", "text": ""}]}],
            "unsupported_parameter",
            "input[0].content[0].type",
        ),
    ],
)
def test_faults_are_named_by_their_path(raw: Any, code: str, param: str) -> None:
    with pytest.raises(ApiError) as refused:
        parse_items(raw)
    assert (refused.value.code, refused.value.param) == (code, param)


@pytest.mark.parametrize(
    ("raw", "item"),
    [
        (
            {"type": "custom_tool_call", "call_id": "c", "name": "patch", "input": "*** Begin"},
            CustomToolCall(call_id="c", name="patch", input="*** Begin"),
        ),
        (
            {"type": "custom_tool_call_output", "call_id": "c", "output": "done"},
            CustomToolCallOutput(call_id="c", output="done"),
        ),
        (
            {"type": "function_call", "call_id": "c", "name": "add", "namespace": "mcp__x",
             "arguments": "{}", "id": "fc_1", "status": "completed"},
            FunctionCall(call_id="c", name="add", namespace="mcp__x", arguments="{}", id="fc_1",
                         status="completed"),
        ),
        (
            {"type": "reasoning", "summary": [], "encrypted_content": "gAAAA", "content": None},
            Reasoning(encrypted_content="gAAAA"),
        ),
    ],
)  # fmt: skip
def test_items_of_codex_are_read_and_come_back_equal(raw: dict[str, Any], item: Any) -> None:
    assert parse_items([raw]) == (item,)
    assert parse_items([item.to_wire()]) == (item,)
    written = item.to_wire()
    assert {key: written[key] for key in raw if raw[key] is not None} == {
        key: value for key, value in raw.items() if value is not None
    }
