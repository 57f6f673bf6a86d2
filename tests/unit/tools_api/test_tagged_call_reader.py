"""Calls of MiniMax M3, read as they stream."""

import json
import random
from typing import Any

import pytest

from tests.support import chat_models
from tests.unit.tools_api.test_call_parser import joined, segments
from tests.unit.tools_api.test_sectioned_calls import in_pieces
from tests.unit.tools_api.test_tagged_calls import MARK, NAMES, call, syntax, written
from tools_api.call_parser import CallParser
from tools_api.chat_format import Segment
from tools_api.items import FunctionCall
from tools_api.parsed_events import (
    CallArgumentsDelta,
    CallDone,
    ParsedCallStart,
    ParsedEvent,
    ParsedReasoning,
    ParsedText,
    ReasoningDone,
    TextDone,
)
from tools_api.tools import FunctionTool

END = "[e~["
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "s": {"type": "string"},
        "n": {"type": "number"},
        "m": {"type": ["string", "integer", "null"]},
        "l": {"type": "array", "items": {"type": "string"}},
        "o": {"type": "object", "properties": {"s": {"type": "string"}, "b": {"type": "boolean"}}},
        "a": {"type": ["array", "object"]},
        "map": {"type": "object", "additionalProperties": {"type": "string"}},
    },
}
TOOLS = tuple(FunctionTool(name=name, parameters=SCHEMA) for name in ("f", "get_weather"))
SPECIALS = (MARK, END, "<mm:think>", "</mm:think>")


def cut(text: str) -> list[Segment]:
    return segments(text.replace("^", MARK), SPECIALS)


def parse(
    pushes: list[list[Segment]],
    *,
    plain: frozenset[str] = frozenset(),
    name: str = NAMES[0],
    **how: bool,
) -> list[ParsedEvent]:
    chat_format = chat_models.served(name).chat_format
    parser = CallParser(chat_format, how.pop("thinking", False), plain=plain, tools=TOOLS, **how)
    found = [event for push in pushes for event in parser.push(push)]
    return joined(found + parser.finish())


def call_of(body: str) -> str:
    return f'^<tool_call>\n^<invoke name="f">{body}^</invoke>\n^</tool_call>'


def arguments(body: str) -> str | None:
    """The arguments of a call that is read whole; None: it is not."""
    found = parse([cut(call_of(body) + END)])
    match found:
        case [ParsedCallStart("f"), CallArgumentsDelta(text), CallDone("f", done, True)]:
            assert text == done
            return text
    return None


@pytest.mark.parametrize(
    ("body", "told"),
    [
        ("", "{}"),
        ("^<s>5^</s>^<m>5^</m>", '{"s": "5", "m": 5}'),
        ("^<s>^</s>^<m>^</m>", '{"s": "", "m": ""}'),
        ('^<s>a"b\\\n</s><k>é😀^</s>', '{"s": "a\\"b\\\\\\n</s><k>é😀"}'),
        ("^<s> a ^</s>", '{"s": " a "}'),
        ("^<n>1.50^</n>", '{"n": 1.50}'),
        ("^<n> 12345678901234567890123\n^</n>", '{"n": 12345678901234567890123}'),
        ("^<m>null^</m>", '{"m": null}'),
        ("^<l>^<item>1^</item>^<item>^</item>^</l>", '{"l": ["1", ""]}'),
        ("^<l>^</l>^<o>^</o>^<a>^</a>", '{"l": [], "o": {}, "a": []}'),
        ("^<o>^<b>true^</b>^<s>true^</s>^</o>", '{"o": {"b": true, "s": "true"}}'),
        ("^<o>\n ^<b>true^</b>\n ^</o>\n", '{"o": {"b": true}}'),
        ("^ <n>1^\n</n>", '{"n": 1}'),
        ("^<a>^<item>x^</item>^</a>", '{"a": ["x"]}'),
        ("^<a>^<x>^<item>1^</item>^</x>^</a>", '{"a": {"x": [1]}}'),
        ("^<o>^<item>x^</item>^</o>", '{"o": {"item": "x"}}'),
        ('^<l>["a", "b"]^</l>', '{"l": ["a", "b"]}'),
        ('^<o>{"b": true}^</o>', '{"o": {"b": true}}'),
        ('^<m>{"b": true}^</m>', '{"m": "{\\"b\\": true}"}'),
        ("^<more>^<x>word^</x>^<y>2^</y>^</more>", '{"more": {"x": "word", "y": 2}}'),
        ("^<map>^<a b>1^</a c>^</map>", '{"map": {"a b": "1"}}'),
        ("^<other>1^</another>", '{"other": 1}'),
    ],
)
def test_a_value_is_what_the_schema_says_of_its_place(body: str, told: str) -> None:
    assert arguments(body) == told
    json.loads(told)


@pytest.mark.parametrize(
    "body",
    [
        *("word", "^<s>a^</n>", "^<s>a^<b>c^</b>^</s>", "^</s>", "^<>a^</>", "^<s>a", "^s"),
        *("^<o>x^<b>true^</b>^</o>", "^<o>^<b>true^</b>x^</o>", "^<l>^<item>a^</x>^</l>"),
        *("^<l>^<item>a^</item>^<x>a^</x>^</l>", '^<s>a^</s>^<invoke name="g">', "^<a>^</invoke>"),
        *("^^<s>a^</s>", "^<s>a^</tool_call>", "^<more>^</invoke>", "^<s>a</mm:think>^</s>"),
    ],
)
def test_what_makes_no_sense_ends_a_call_as_incomplete(body: str) -> None:
    found = parse([cut(call_of(body) + "word" + END)], thinking=True)
    done = [event for event in found if isinstance(event, CallDone)]
    assert [event.complete for event in done] == [False]
    assert "word" in "".join(str(getattr(event, "text", "")) for event in found)


@pytest.mark.parametrize(
    "text",
    [
        *("no call", "<tool_calls>", "<invoke name='f'>", "", "<tool_cal", "</tool_call>"),
        *('<tool_call>\n^<invoke name="">', "<tool_call>\n^<f>", "<tool_call>\nword"),
        *("<tool_call>", '<tool_call>^<invoke name="f', "<tool_call>^<tool_call>"),
    ],
)
def test_a_strange_head_stays_text(text: str) -> None:
    found = parse([cut(f"^{text}{END}")])
    said = "".join(event.text for event in found if isinstance(event, ParsedText))
    assert said.rstrip("\n") == f"^{text}".replace("^", MARK).rstrip("\n")
    assert not any(isinstance(event, ParsedCallStart) for event in found)


TWO = (
    call("get_weather", s=f"a`b<>{MARK}\\", l=["1", ""], o={"s": "5", "b": True}, n=3, m=None),
    call("f"),
)


def events(*calls: FunctionCall) -> list[ParsedEvent]:
    return [
        event
        for each in calls
        for event in (
            ParsedCallStart(each.name),
            CallArgumentsDelta(each.arguments),
            CallDone(each.name, each.arguments),
        )
    ]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("seed", range(15))
def test_calls_are_read_however_they_are_split(name: str, seed: int) -> None:
    output = [Segment("I look.\n\n"), *written(*TWO, name=name), Segment(END, special=True)]
    said = [ParsedText("I look."), TextDone()]
    assert parse(in_pieces(output, random.Random(seed)), name=name) == said + events(*TWO)


def test_a_string_is_told_as_it_comes_and_other_values_when_they_are_known() -> None:
    parser = CallParser(chat_models.served(NAMES[0]).chat_format, False, tools=TOOLS)
    told = [parser.push(cut(text)) for text in ('^<tool_call>\n^<invoke name="f">', "^<s>Os", "lo")]
    assert told == [
        [ParsedCallStart("f")],
        [CallArgumentsDelta('{"s": '), CallArgumentsDelta('"Os')],
        [CallArgumentsDelta("lo")],
    ]
    assert parser.push(cut("^</s>")) == [CallArgumentsDelta('"')]
    assert parser.push(cut("^<n>1")) == [CallArgumentsDelta(', "n": ')]
    assert parser.push(cut("2^</n>")) == [CallArgumentsDelta("12")]


@pytest.mark.parametrize("size", [1, 1000])
def test_an_output_that_breaks_off_keeps_what_there_is(size: int) -> None:
    whole = in_pieces(written(*TWO), random.Random(size))
    for end in range(len(whole) + 1):
        found = parse(whole[:end])
        assert not any(isinstance(event, ParsedText) for event in found)
        done = [event for event in found if isinstance(event, CallDone)]
        assert len(done) == sum(isinstance(event, ParsedCallStart) for event in found)
        assert all(event.complete for event in done[:-1])
        for each, event in zip(TWO, done, strict=False):
            part = (event.arguments or "").partition('"m": ')[0]  # it may be a string yet
            assert each.arguments.startswith(part)


def test_what_there_is_of_a_number_or_a_word_is_told_when_an_output_breaks_off() -> None:
    found = parse([cut('^<tool_call>\n^<invoke name="f">^<n>12')])
    assert found[-1] == CallDone("f", '{"n": 12', complete=False)


@pytest.mark.parametrize("seed", range(300))
def test_no_output_loses_text_or_leaves_a_call_open(seed: int) -> None:
    rng, name = random.Random(seed), NAMES[seed % 2]
    parts = [Segment(special, special=True) for special in sorted(syntax(name).specials)] * 2
    tags = ("<tool_call>", '<invoke name="f">', "</invoke>", "</tool_call>", "<s>", "</s>", "<o>")
    parts += [Segment(t) for t in (*tags, "</o>", "\n", "Zq7", "x", "<", ">")]
    given = [rng.choice(parts) for _ in range(rng.randint(1, 16))]
    found = parse([[each] for each in given], name=name)
    is_open = False
    for event in found:
        if isinstance(event, ParsedCallStart | CallDone):
            assert isinstance(event, CallDone) == is_open
            is_open = not is_open
    assert not is_open
    assert found == parse(in_pieces(given, rng), name=name)
    ended = parse([[*given, Segment(END, special=True)]], name=name)
    if all(event.complete for event in ended if isinstance(event, CallDone)):
        told = "".join(str(getattr(e, "text", getattr(e, "name", ""))) for e in ended)
        assert told.count("Zq7") >= sum(each.text == "Zq7" for each in given)


@pytest.mark.parametrize("closed", [True, False])
def test_plain_input_ends_with_the_tag_of_its_call(closed: bool) -> None:
    given = "x = <a>\n  y\n"
    text = f'^<tool_call>\n^<invoke name="patch">\n{given}'
    found = parse([cut(text + ("^</invoke>\n^</tool_call>" if closed else "") + END)],
                  plain=frozenset({"patch"}))  # fmt: skip
    assert found == [
        ParsedCallStart("patch"),
        CallArgumentsDelta(given),
        CallDone("patch", given, closed),
    ]


@pytest.mark.parametrize(
    ("said", "thought"), [("", None), ("<mm:think>", None), ("<mm:think>Hm.", "Hm.")]
)
def test_an_answer_begins_with_a_thought_or_with_what_would_close_one(
    said: str, thought: str | None
) -> None:
    output = cut(f"{said}</mm:think>So.{call_of('')}{END}")
    reasoning = [] if thought is None else [ParsedReasoning(thought), ReasoningDone()]
    for seed in range(5):
        found = parse(in_pieces(output, random.Random(seed)), thinking=True)
        wanted = [*reasoning, ParsedText("So."), TextDone()]
        assert found == wanted + events(FunctionCall(call_id="c", name="f", arguments="{}"))
