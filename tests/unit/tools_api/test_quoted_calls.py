"""Calls of Gemma 4: written, and read as they stream."""

import json
import random
from typing import Any

import pytest

from tests.support import chat_models
from tests.unit.tools_api.test_call_parser import joined, segments
from tests.unit.tools_api.test_sectioned_calls import in_pieces
from tools_api.call_parser import CallParser
from tools_api.chat_format import Segment, SegmentWriter
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
from tools_api.quoted_calls import QuotedCalls, in_order, write_quoted, write_quoted_calls

END, OUTPUT = "<turn|>", "<|tool_response>"


def syntax() -> QuotedCalls:
    found = chat_models.served("gemma4").chat_format.calls
    assert isinstance(found, QuotedCalls)
    return found


def cut(text: str) -> list[Segment]:
    return segments(text, (*syntax().specials, END, OUTPUT, "<|channel>", "<channel|>"))


def parse(
    pushes: list[list[Segment]], *, plain: frozenset[str] = frozenset(), **how: bool
) -> list[ParsedEvent]:
    chat_format = chat_models.served("gemma4").chat_format
    parser = CallParser(chat_format, how.pop("thinking", False), plain=plain, **how)
    found = [event for push in pushes for event in parser.push(push)]
    return joined(found + parser.finish())


def call_of(body: str) -> str:
    return f"<|tool_call>call:f{{{body}}}<tool_call|>"


def arguments(body: str) -> str | None:
    """The arguments of a call that is read whole; None: it is not."""
    found = parse([cut(call_of(body) + OUTPUT)])
    match found:
        case [ParsedCallStart("f"), CallArgumentsDelta(text), CallDone("f", done, True)]:
            assert text == done
            return text
    return None


@pytest.mark.parametrize(
    ("body", "told"),
    [
        ("", "{}"),
        ('k:<|"|>text<|"|>,n:42', '{"k": "text", "n": 42}'),
        ('k:<|"|><|"|>', '{"k": ""}'),
        ('k:<|"|>a"b\\c\n}],{é😀<|"|>', '{"k": "a\\"b\\\\c\\n}],{é😀"}'),
        ("o:{a:[1,2],b:{}},l:[]", '{"o": {"a": [1, 2], "b": {}}, "l": []}'),
        ("a:true,b:false,c:null,d:None", '{"a": true, "b": false, "c": null, "d": null}'),
        ("n:1.50,m:-0,e:1E+5,l:12345678901234567890123", None),
        (' k : 1 , <|"|>a b:c<|"|> : [ <|"|>x<|"|> ] ', '{"k": 1, "a b:c": ["x"]}'),
        ('"k":"a,}\\"b"', '{"k": "a,}\\"b"}'),
        ("k:bare words 12:30", '{"k": "bare words 12:30"}'),
        ("k:True,l:01", '{"k": "True", "l": "01"}'),
    ],
)
def test_values_become_json_with_numbers_as_they_were_written(body: str, told: str | None) -> None:
    if told is None:
        told = '{"n": 1.50, "m": -0, "e": 1E+5, "l": 12345678901234567890123}'
    assert arguments(body) == told
    json.loads(told)


@pytest.mark.parametrize(
    "body",
    [
        *("k", "k:", "k:,", "k:1,", ",k:1", ":1", "k:[1,]", "k:[,1]", "k:]", "k:{]", "k:1}{"),
        *('k:<|"|>a<|"|>b', 'k:a<|"|>', 'k<|"|>a<|"|>:1', "k:[1}", 'k:<|"|>a', "{}:1", "[]"),
    ],
)
def test_what_makes_no_sense_ends_a_call_as_incomplete(body: str) -> None:
    found = parse([cut(call_of(body) + "word" + END)])
    done = [event for event in found if isinstance(event, CallDone)]
    assert [event.complete for event in done] == ([True] if body == "k:1}{" else [False])
    assert "word" in "".join(str(getattr(event, "text", "")) for event in found)


@pytest.mark.parametrize("text", ["no call", "call:f", "call:{}", "cal:f{}", "call f{}", "{}", ""])
@pytest.mark.parametrize("closer", ["", "<tool_call|>"])
def test_a_strange_head_stays_text(text: str, closer: str) -> None:
    found = parse([cut(f"<|tool_call>{text}{closer}{END}")])
    said = "".join(event.text for event in found if isinstance(event, ParsedText))
    assert said == f"<|tool_call>{text}{closer}"
    assert not any(isinstance(event, ParsedCallStart) for event in found)


def call(name: str, **given: Any) -> FunctionCall:
    return FunctionCall(call_id="c", name=name, arguments=json.dumps(given, ensure_ascii=False))


TWO = (call("get_weather", city='a`b}"<|"|>\\', days=[1, {"x": None, "y": [True]}]), call("now"))


def written(*calls: FunctionCall) -> list[Segment]:
    out = SegmentWriter(lambda _: True)
    write_quoted_calls(out, syntax(), calls)
    return out.segments


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


@pytest.mark.parametrize("seed", range(30))
def test_calls_are_read_however_they_are_split(seed: int) -> None:
    output = [Segment("I look.\n\n"), *written(*TWO), Segment(OUTPUT, special=True)]
    said = [ParsedText("I look."), TextDone()]
    assert parse(in_pieces(output, random.Random(seed))) == said + events(*TWO)


@pytest.mark.parametrize("size", [1, 1000])
def test_an_output_that_breaks_off_keeps_what_there_is(size: int) -> None:
    whole = in_pieces(written(*TWO), random.Random(size))
    for end in range(len(whole) + 1):
        found = parse(whole[:end])
        assert not any(isinstance(event, ParsedText) for event in found)
        done = [event for event in found if isinstance(event, CallDone)]
        assert len(done) == sum(isinstance(event, ParsedCallStart) for event in found)
        assert all(event.complete for event in done[:-1])
        whole_text = "".join(TWO[i].arguments for i in range(len(done)))
        assert whole_text.startswith("".join(event.arguments or "" for event in done))


@pytest.mark.parametrize("seed", range(300))
def test_no_output_loses_text_or_leaves_a_call_open(seed: int) -> None:
    rng = random.Random(seed)
    parts = [Segment(special, special=True) for special in sorted(syntax().specials)]
    parts += [Segment(t) for t in ("call:f{", "a:", "1", ",", "{", "}", "[", "]", "\n", "Zq7", "x")]
    given = [rng.choice(parts) for _ in range(rng.randint(1, 16))]
    found = parse([[each] for each in given])
    is_open = False
    for event in found:
        if isinstance(event, ParsedCallStart | CallDone):
            assert isinstance(event, CallDone) == is_open
            is_open = not is_open
    assert not is_open
    assert found == parse(in_pieces(given, rng))
    ended = parse([[*given, Segment(END, special=True)]])
    if all(event.complete for event in ended if isinstance(event, CallDone)):
        told = "".join(str(getattr(e, "text", "")) for e in ended)
        assert told.count("Zq7") == sum(each.text == "Zq7" for each in given)


@pytest.mark.parametrize("closed", [True, False])
def test_plain_input_ends_with_the_token_of_its_call(closed: bool) -> None:
    given = 'x = {"a": 1}\n  y\n'
    text = f"<|tool_call>call:patch\n{given}" + ("<tool_call|>" + call_of("") if closed else "")
    found = parse([cut(text + END)], plain=frozenset({"patch"}))
    wanted: list[ParsedEvent] = [
        ParsedCallStart("patch"),
        CallArgumentsDelta(given),
        CallDone("patch", given, closed),
    ]
    assert found == wanted + (events(FunctionCall(call_id="c", name="f", arguments="{}"))
                              if closed else [])  # fmt: skip


@pytest.mark.parametrize(
    ("text", "reasoning"),
    [
        ("thought\nHm.\n", "Hm."),
        ("thought\n", None),
        ("thought", None),
        ("", None),
        ("thoughts", "thoughts"),
        ("thou", "thou"),
        ("plan\nHm.", "plan\nHm."),
    ],
)
@pytest.mark.parametrize("first", [False, True])
def test_the_name_of_the_channel_is_no_thought(
    text: str, reasoning: str | None, first: bool
) -> None:
    output = cut(f"<|channel>{text}<channel|>So.{END}")
    thought = [] if reasoning is None else [ParsedReasoning(reasoning), ReasoningDone()]
    for seed in range(5):
        pushes = in_pieces(output, random.Random(seed))
        found = parse(pushes, thinking=True, reasons_first=first)
        assert found == [*thought, ParsedText("So."), TextDone()]


def test_a_prompt_that_opens_the_channel_has_said_its_name() -> None:
    found = parse([cut(f"Hm.<channel|>{call_of('')}{OUTPUT}")], thinking=True, reasons_first=True)
    assert found[:2] == [ParsedReasoning("Hm."), ReasoningDone()]
    assert isinstance(found[-1], CallDone)


def test_keys_are_in_order_without_regard_to_case_and_quoted_where_asked() -> None:
    assert [key for key, _ in in_order({"b": 1, "A": 2, "a": 3})] == ["A", "a", "b"]
    out = SegmentWriter(lambda _: True)
    write_quoted(out, {"a": [1.5, "x"], "": {}}, "'", quoted_keys=True)
    assert "".join(segment.text for segment in out.segments) == "{'':{},'a':[1.5,'x']}"
