"""Gemma 4's turns: what stands inside the model's turn, and how functions are declared."""

import json
from typing import Any

import pytest

from tests.unit.tools_api.test_chat_families import FORMATS, TOOLS, chat_format, text_of
from tools_api.chat_format import Segment, TemplateOptions
from tools_api.item_reading import parse_items
from tools_api.tools import FunctionTool

QUESTION = {"role": "user", "content": "Time?"}
CALL = {"type": "function_call", "call_id": "c1", "name": "now", "arguments": "{}"}
OUTPUT = {"type": "function_call_output", "call_id": "c1", "output": "12:00"}
ANSWER = {"role": "assistant", "content": "Noon."}
LATER = {"role": "system", "content": "Be brief."}
WRITTEN = {"call": "<|tool_call>call:now{}<tool_call|>", "output": "<|tool_response>response:"}
OFF, ON = TemplateOptions(), TemplateOptions(thinking=True)


def text(*items: dict[str, Any], first: bool = True, cut: bool = False) -> str:
    chat = chat_format("gemma4")
    return text_of(chat.items(parse_items(list(items)), first=first, open_output=cut, options=OFF))


def inside(*items: dict[str, Any], opened: bool) -> str:
    chat = chat_format("gemma4")
    return text_of(chat.items_inside(parse_items(list(items)), opened=opened, options=OFF))


def output_of(name: str) -> str:
    return f'response:{name}{{value:<|"|>12:00<|"|>}}<tool_response|>'


def test_a_turn_goes_on_behind_outputs_and_is_closed_when_somebody_else_speaks() -> None:
    called = f"<|turn>user\nTime?<turn|>\n<|turn>model\n{WRITTEN['call']}"
    told = f"{called}<|tool_response>{output_of('now')}"
    assert text(QUESTION, CALL, OUTPUT) == told
    assert text(QUESTION, CALL, OUTPUT, ANSWER) == f"{told}Noon.<turn|>\n"
    assert text(QUESTION, CALL, OUTPUT, QUESTION) == f"{told}<turn|>\n<|turn>user\nTime?<turn|>\n"
    assert (
        text(QUESTION, CALL, OUTPUT, LATER) == f"{told}<turn|>\n<|turn>system\nBe brief.<turn|>\n"
    )
    again = {**CALL, "call_id": "c2"}
    assert text(QUESTION, CALL, OUTPUT, again) == told + WRITTEN["call"]


def test_the_token_that_the_model_opens_an_output_with_stays_and_comes_once() -> None:
    chat = chat_format("gemma4")
    assert chat.opens_output == "<|tool_response>"
    assert chat.opens_output in chat.end_of_turn
    assert inside({**OUTPUT, "name": "f"}, opened=True) == output_of("unknown")
    assert inside(OUTPUT, OUTPUT, opened=True).count("<|tool_response>") == 1
    assert inside(OUTPUT, opened=False) == "<|tool_response>" + output_of("unknown")
    for opened in (True, False):
        assert inside(QUESTION, opened=opened) == "<turn|>\n<|turn>user\nTime?<turn|>\n"
    assert inside(ANSWER, opened=True) == "<turn|>\n<|turn>model\nNoon.<turn|>\n"
    assert inside(ANSWER, opened=False) == "Noon.<turn|>\n"
    assert inside(opened=True) == "<turn|>\n"
    assert inside(opened=False) == ""


def test_outputs_behind_a_closed_turn_open_it_again_and_go_on_in_one_that_was_cut() -> None:
    output = "<|tool_response>" + output_of("unknown")
    assert text(OUTPUT, first=False) == f"\n<|turn>model\n{output}"
    assert text(OUTPUT, first=False, cut=True) == output
    assert text(QUESTION, first=False, cut=True) == "<turn|>\n<|turn>user\nTime?<turn|>\n"


@pytest.mark.parametrize(
    ("items", "ends"),
    [
        ((QUESTION,), False),
        ((QUESTION, CALL), True),
        ((QUESTION, CALL, OUTPUT), True),
        ((CALL, OUTPUT, ANSWER), False),
        ((OUTPUT, QUESTION), False),
    ],
)
def test_calls_and_outputs_leave_the_turn_open(items: tuple[Any, ...], ends: bool) -> None:
    chat, given = chat_format("gemma4"), parse_items(list(items))
    assert [chat.ends_inside(given, before=before) for before in (False, True)] == [ends, ends]
    assert [chat.ends_inside((), before=before) for before in (False, True)] == [False, True]


@pytest.mark.parametrize(("name", "empty"), [("gemma4", True), ("gemma4-e", False)])
def test_prompts_open_a_thought_or_an_empty_one(name: str, empty: bool) -> None:
    chat = chat_format(name)
    closed = "<|channel>thought\n<channel|>" if empty else ""
    assert text_of(chat.generation_prompt(OFF)) == f"<|turn>model\n{closed}"
    assert text_of(chat.generation_prompt(ON)) == "<|turn>model\n"
    assert text_of(chat.prompt_inside(OFF)) == ""
    assert text_of(chat.prompt_inside(ON)) == "<|channel>thought\n"
    assert chat.reasons_inside


def test_arguments_are_in_order_and_those_that_are_no_object_as_they_came() -> None:
    arguments = {"b": [1.0, True, None], "A": {"z": 'a"b', "c": {}}, "n": 12345678901234567890123}
    call = {**CALL, "arguments": json.dumps(arguments)}
    assert (
        'call:now{A:{c:{},z:<|"|>a"b<|"|>},b:[1.0,true,null],n:12345678901234567890123}<tool_call|>'
        in text(call)
    )
    assert "call:now{[1]}<tool_call|>" in text({**CALL, "arguments": "[1]"})


def test_the_quotes_of_a_text_are_tokens_and_those_in_it_are_not() -> None:
    call = {**CALL, "arguments": json.dumps({"a": '<|"|>,b:1}<tool_call|>'})}
    segments = chat_format("gemma4").items(
        parse_items([call]), first=True, open_output=False, options=OFF
    )
    special = [segment.text for segment in segments if segment.special]
    assert special == ["<|turn>", "<|tool_call>", '<|"|>', '<|"|>', "<tool_call|>"]
    assert Segment('<|"|>,b:1}<tool_call|>') in segments


def test_functions_are_declared_as_the_template_does_what_it_leaves_out_included() -> None:
    schema = {
        "type": "object",
        "properties": {
            "to": {
                "type": "object",
                "properties": {"type": {"type": ["string", "null"]}, "Name": {"type": "string"}},
                "required": ["Name"],
            },
            "kinds": {"type": "array", "items": {"type": "string", "enum": ["a", "b"]}},
            "any": {"anyOf": [{"type": "string"}], "nullable": True},
            "free": {"type": "object", "additionalProperties": {"type": "integer"}},
        },
        "required": ["to"],
    }
    tool = FunctionTool(name="send", description="Sends", parameters=schema)
    told = text_of(chat_format("gemma4").header(None, [tool], OFF)).replace('<|"|>', "'")
    assert told == (
        "<bos><|turn>system\n<|tool>declaration:send{description:'Sends',parameters:{properties:{"
        "any:{nullable:true,type:''},"
        "free:{properties:{additionalProperties:{type:'INTEGER'}},type:'OBJECT'},"
        "kinds:{items:{enum:['a','b'],type:'STRING'},type:'ARRAY'},"
        "to:{properties:{Name:{type:'STRING'},type:{type:'['STRING', 'NULL']'}},"
        "required:['Name'],type:'OBJECT'}},required:['to'],type:'OBJECT'}}<tool|><turn|>\n"
    )


def test_the_table_has_both_kinds_of_models() -> None:
    assert {"gemma4", "gemma4-thinking", "gemma4-e"} <= FORMATS.keys()
    assert all(tool.name in FORMATS["gemma4"]["expected"]["tools and a question"] for tool in TOOLS)
