"""MiniMax M3's turns: two in front of all, and answers that begin with a thought or its closer."""

import json
from typing import Any

import pytest

from tests.unit.tools_api.test_chat_families import FORMATS, chat_format, text_of
from tools_api.chat_format import Segment, TemplateOptions
from tools_api.item_reading import parse_items

NAME, WITH_TAGS = "minimax-m3", "minimax-m3-thinking"
QUESTION = {"role": "user", "content": "Time?"}
LATER = {"role": "system", "content": "Be brief."}
THOUGHT = {
    "type": "reasoning",
    "summary": [],
    "content": [{"type": "reasoning_text", "text": "\nHm. "}],
}
ANSWER = {"role": "assistant", "content": "Noon."}
CALL = {"type": "function_call", "call_id": "c1", "name": "now", "arguments": "{}"}
OFF, ON = TemplateOptions(), TemplateOptions(thinking=True)


def text(*items: dict[str, Any], name: str = NAME) -> str:
    chat = chat_format(name)
    return text_of(chat.items(parse_items(list(items)), first=True, open_output=False, options=OFF))


def test_where_it_may_think_the_model_decides_and_else_the_prompt_closes_a_thought() -> None:
    chat = chat_format(NAME)
    assert text_of(chat.generation_prompt(ON)) == "]~b]ai\n"
    assert text_of(chat.generation_prompt(OFF)) == "]~b]ai\n</mm:think>"
    for options, mode in ((ON, "adaptive. You are"), (OFF, "disabled. Do not")):
        assert f"Current thinking mode: {mode}" in text_of(chat.header(None, (), options))
    assert (chat.thinking, chat.opens_reasoning, chat.after_thinking) == (True, False, "")


def test_an_answer_begins_with_its_thought_or_with_what_would_close_one() -> None:
    assert text(ANSWER) == "]~b]ai\n</mm:think>Noon.[e~[\n"
    assert text(THOUGHT, ANSWER) == "]~b]ai\n<mm:think>\nHm. </mm:think>Noon.[e~[\n"
    assert text(THOUGHT) == "]~b]ai\n<mm:think>\nHm. </mm:think>[e~[\n"


def test_a_later_system_message_is_a_turn_as_the_instructions_have() -> None:
    told = "]~b]user\nTime?[e~[\n]~b]developer\nBe brief.[e~[\n"
    assert text(QUESTION, LATER) == told
    assert text(QUESTION, {**LATER, "role": "developer"}) == told
    header = text_of(chat_format(NAME).header("Be brief.", (), OFF))
    assert header.endswith("[e~[\n]~b]developer\nBe brief.[e~[\n")


@pytest.mark.parametrize("name", [NAME, WITH_TAGS])
def test_calls_stand_behind_the_text_without_a_break_and_members_that_are_null_are_left_out(
    name: str,
) -> None:
    given = {"city": "<mm:think>]<]minimax[>[", "days": None, "l": [None, True, 1.50]}
    call = {**CALL, "arguments": json.dumps(given)}
    mark = "]<]minimax[>["
    told = text(ANSWER, call, name=name)
    assert told == (
        f"]~b]ai\n</mm:think>Noon.{mark}<tool_call>\n"
        f'{mark}<invoke name="now">{mark}<city><mm:think>]<]minimax[>[{mark}</city>'
        f"{mark}<l>{mark}<item>{mark}</item>{mark}<item>true{mark}</item>"
        f"{mark}<item>1.5{mark}</item>{mark}</l>{mark}</invoke>\n{mark}</tool_call>[e~[\n"
    )
    segments = chat_format(name).items(
        parse_items([call]), first=True, open_output=False, options=OFF
    )
    assert ("<tool_call>" in [each.text for each in segments if each.special]) is (
        name == WITH_TAGS
    )
    assert Segment("<city><mm:think>]<]minimax[>[") in segments


def test_the_table_has_both_modes_and_no_history_that_differs() -> None:
    assert [FORMATS[name]["thinking"] for name in (NAME, WITH_TAGS)] == [False, True]
    assert [FORMATS[name]["differs"] for name in (NAME, WITH_TAGS)] == [{}, {}]
