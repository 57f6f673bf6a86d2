from decimal import Decimal

import pytest

from tools_api.chat_families import chat_format_for
from tools_api.chat_format import (
    AssistantTurn,
    JsonCalls,
    Segment,
    SegmentWriter,
    TemplateOptions,
    call_object,
    to_json,
    tool_object,
    turns,
)
from tools_api.item_reading import parse_items
from tools_api.items import FunctionCall, FunctionCallOutput, Message
from tools_api.tools import parse_tools

QWEN = {"<|im_start|>", "<|im_end|>", "<tool_call>", "</tool_call>", "<think>", "</think>"}


def call(name: str) -> FunctionCall:
    return FunctionCall(call_id=name, name=name, arguments="{}")


def test_an_assistant_turn_is_reasoning_then_text_then_calls() -> None:
    reasoning, text = parse_items(
        [
            {
                "type": "reasoning",
                "summary": [],
                "content": [{"type": "reasoning_text", "text": "r"}],
            },
            {"role": "assistant", "content": "t"},
        ]
    )
    output = FunctionCallOutput(call_id="a", output="1")
    grouped = list(turns((reasoning, text, call("a"), call("b"), output, output, text, call("c"))))
    assert grouped == [
        AssistantTurn(reasoning="r", text="t", calls=[call("a"), call("b")]),
        [output, output],
        AssistantTurn(text="t", calls=[call("c")]),
    ]


def test_text_after_a_call_is_another_turn_and_users_keep_theirs() -> None:
    text, user = parse_items(
        [{"role": "assistant", "content": "t"}, {"role": "user", "content": "u"}]
    )
    grouped = list(turns((call("a"), text, text, user, user)))
    assert [type(turn) for turn in grouped] == [AssistantTurn] * 3 + [Message] * 2


def test_neighbouring_text_becomes_one_segment() -> None:
    out = SegmentWriter({"<t>"}.__contains__)
    out.text("a")
    out.text("")
    out.tagged("b<t>c<u>")
    out.special(None)
    out.text("d")
    assert out.segments == [Segment("ab"), Segment("<t>", special=True), Segment("c<u>d")]


@pytest.mark.parametrize(
    ("repeats", "expected"),
    [(True, "<o>(1)<c>,<o>(2)<c>"), (False, "<o>(1,2)<c>")],
)
def test_calls_are_wrapped_each_or_together(repeats: bool, expected: str) -> None:
    syntax = JsonCalls(
        opener="<o>", before="(", after=")", closer="<c>", between=",", repeats_opener=repeats
    )
    out = SegmentWriter(lambda _: True)
    out.calls(syntax, ["1", "2"])
    assert "".join(segment.text for segment in out.segments) == expected


@pytest.mark.parametrize(
    ("thinking", "calls", "expected"),
    [
        (False, False, {"<|im_end|>"}),
        (True, False, {"<|im_end|>", "<think>", "</think>"}),
        (True, True, QWEN - {"<|im_start|>"}),
    ],
)
def test_an_output_may_hold_the_specials_that_the_request_gives_a_meaning(
    thinking: bool, calls: bool, expected: set[str]
) -> None:
    chat = chat_format_for("qwen3", QWEN.__contains__)
    assert chat.output_specials(thinking=thinking, calls=calls) == expected


def test_options_are_compared_by_value() -> None:
    assert TemplateOptions(thinking=True) == TemplateOptions(thinking=True) != TemplateOptions()


def test_calls_of_custom_tools_and_namespaces_are_those_of_functions() -> None:
    items = parse_items(
        [
            {"type": "custom_tool_call", "call_id": "a", "name": "run", "input": 'say "ü"'},
            {"type": "custom_tool_call_output", "call_id": "a", "output": "done"},
            {
                "type": "function_call",
                "call_id": "b",
                "name": "f",
                "namespace": "n",
                "arguments": "",
            },
        ]
    )
    first, outputs, last = turns(items)
    assert isinstance(first, AssistantTurn)
    assert isinstance(last, AssistantTurn)
    syntax = JsonCalls(opener=None)
    assert call_object(first.calls[0], syntax) == (
        '{"name": "run", "arguments": {"input": "say \\"ü\\""}}'
    )
    assert outputs == [FunctionCallOutput(call_id="a", output="done")]
    assert call_object(last.calls[0], syntax) == '{"name": "n__f", "arguments": {}}'


def test_reasoning_that_cannot_be_read_is_left_out() -> None:
    sealed, text = parse_items(
        [
            {"type": "reasoning", "summary": [], "encrypted_content": "x"},
            {"role": "assistant", "content": "t"},
        ]
    )
    assert list(turns((sealed, text))) == [AssistantTurn(text="t")]


def test_a_model_reads_numbers_to_the_last_digit() -> None:
    numbers = [2**64 + 1, Decimal("0.12345678901234567890"), 1.0]
    (tool,) = parse_tools(
        [{"type": "function", "name": "f", "parameters": {"properties": {"a": {"enum": numbers}}}}]
    )
    told = to_json(tool_object(tool))
    assert '{"enum": [18446744073709551617, 0.12345678901234567890, 1.0]}' in told
    assert "0.12345678901234567890" in to_json(tool_object(tool), indent=4)


def test_a_model_reads_how_a_tool_with_a_grammar_is_called() -> None:
    format_ = {"type": "grammar", "syntax": "lark", "definition": 'start: "a"'}
    tools = parse_tools(
        [
            {"type": "custom", "name": "c", "description": "Runs.", "format": format_},
            {"type": "namespace", "name": "n", "description": "Dates.",
             "tools": [{"type": "custom", "name": "t"}]},
        ]
    )  # fmt: skip
    bound, free = (tool_object(tool)["function"] for tool in tools)
    assert bound["description"].startswith("Runs.\n\nCall it as {")
    assert bound["description"].endswith('grammar:\nstart: "a"')
    assert bound["parameters"]["properties"] == {}
    assert (free["name"], free["description"]) == ("n__t", "n: Dates.")
    assert free["parameters"]["required"] == ["input"]
