"""Calls of MiniMax M3, as they are written."""

import json
from typing import Any

import pytest

from tests.support import chat_models
from tools_api.chat_format import Segment, SegmentWriter
from tools_api.items import FunctionCall
from tools_api.tagged_calls import TaggedCalls, write_tagged_calls

MARK = "]<]minimax[>["
NAMES = ("minimax-m3", "minimax-m3-thinking")
"""The tag around all calls is text, and a token."""


def syntax(name: str = NAMES[0]) -> TaggedCalls:
    found = chat_models.served(name).chat_format.calls
    assert isinstance(found, TaggedCalls)
    return found


def call(name: str, **given: Any) -> FunctionCall:
    return FunctionCall(call_id="c", name=name, arguments=json.dumps(given, ensure_ascii=False))


def written(*calls: FunctionCall, name: str = NAMES[0], nulls: bool = True) -> list[Segment]:
    out = SegmentWriter(lambda _: True)
    write_tagged_calls(out, syntax(name), calls, nulls=nulls)
    return out.segments


def shown(*calls: FunctionCall, nulls: bool = True) -> str:
    """``^`` is the token before each tag."""
    return "".join(each.text for each in written(*calls, nulls=nulls)).replace(MARK, "^")


@pytest.mark.parametrize(
    ("given", "body"),
    [
        ({}, ""),
        ({"k": " a\n<b> "}, "^<k> a\n<b> ^</k>"),
        ({"n": 1.5, "t": True}, "^<n>1.5^</n>^<t>true^</t>"),
        ({"o": {"b": 1, "a": {}}}, "^<o>^<b>1^</b>^<a>^</a>^</o>"),
        (
            {"l": [1, [], ["x"]]},
            "^<l>^<item>1^</item>^<item>^</item>^<item>^<item>x^</item>^</item>^</l>",
        ),
    ],
)
def test_each_key_has_a_tag_and_each_item_one(given: dict[str, Any], body: str) -> None:
    told = f'^<tool_call>\n^<invoke name="f">{body}^</invoke>\n^</tool_call>'
    assert shown(call("f", **given)) == told
    assert shown(call("f", **given), nulls=False) == told


def test_what_is_null_is_written_or_left_out_as_the_template_does() -> None:
    given = call("f", a=None, b=[None, 1], c={"d": None})
    around = '^<tool_call>\n^<invoke name="f">', "^</invoke>\n^</tool_call>"
    items = "^<b>^<item>{}^</item>^<item>1^</item>^</b>"
    everything = f"^<a>null^</a>{items.format('null')}^<c>^<d>null^</d>^</c>"
    assert shown(given).removeprefix(around[0]).removesuffix(around[1]) == everything
    published = f"{items.format('')}^<c>^</c>"
    assert shown(given, nulls=False).removeprefix(around[0]).removesuffix(around[1]) == published


def test_calls_of_a_turn_stand_between_one_pair_of_tags() -> None:
    told = shown(call("f"), call("g", x=1))
    assert told == (
        '^<tool_call>\n^<invoke name="f">^</invoke>\n'
        '^<invoke name="g">^<x>1^</x>^</invoke>\n^</tool_call>'
    )
    assert written() == []


def test_arguments_that_are_no_object_are_written_as_they_are() -> None:
    broken = FunctionCall(call_id="c", name="f", arguments="[1]")
    assert '<invoke name="f">[1]^</invoke>' in shown(broken)


@pytest.mark.parametrize("name", NAMES)
def test_only_the_token_before_tags_is_one_and_the_tag_around_all_if_there_is_such(
    name: str,
) -> None:
    text = f"x{MARK}</k><tool_call>"
    segments = written(call("f", k=text), name=name)
    special = [segment.text for segment in segments if segment.special]
    tags = ["<tool_call>", "</tool_call>"] if name == NAMES[1] else []
    assert sorted(special) == sorted([MARK] * 6 + tags)
    assert syntax(name).specials == {MARK, *tags}
    assert any(text in segment.text and not segment.special for segment in segments)
