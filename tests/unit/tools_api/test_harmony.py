"""Outputs in harmony: channels are reasoning, text and calls."""

import pytest

from tests.support.chat_models import FORMATS, format_of
from tools_api.call_parser import CallParser
from tools_api.chat_format import Segment, TemplateOptions
from tools_api.harmony import ChannelParser, HarmonyCalls
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

TOKENS = FORMATS["harmony"]["tokens"]
CHAT = format_of(FORMATS["harmony"])


def segments(text: str) -> list[Segment]:
    out: list[Segment] = []
    while text:
        found = next((token for token in TOKENS if text.startswith(token)), None)
        if found is None and out and not out[-1].special:
            out[-1] = Segment(out[-1].text + text[0])
        else:
            out.append(Segment(found or text[0], special=found is not None))
        text = text[len(found or text[0]) :]
    return out


def events(text: str, *, calls: bool = True) -> list[ParsedEvent]:
    parser = CallParser(CHAT, True, calls=calls, plain=frozenset({"plain"}))
    return parser.push(segments(text)) + parser.finish()


THOUGHT = "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant"
CALL = "<|channel|>commentary to=functions.f <|constrain|>json<|message|>"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("<|channel|>final<|message|>Hi\n<|return|>", [ParsedText("Hi\n"), TextDone()]),
        (
            THOUGHT + "<|channel|>final<|message|>Hi<|return|>",
            [ParsedReasoning("Hm."), ReasoningDone(), ParsedText("Hi"), TextDone()],
        ),
        (
            "<|channel|>commentary<|message|>Look.<|end|><|start|>assistant" + CALL + "{}<|call|>",
            [
                ParsedText("Look."),
                TextDone(),
                ParsedCallStart("f"),
                CallArgumentsDelta("{}"),
                CallDone("f", "{}"),
            ],
        ),
        (
            " to=functions.f<|channel|>commentary json<|message|>{}<|call|>",
            [ParsedCallStart("f"), CallArgumentsDelta("{}"), CallDone("f", "{}")],
        ),
        (
            "<|channel|>commentary to=functions.plain <|message|>a\nb<|call|>",
            [ParsedCallStart("plain"), CallArgumentsDelta("a\nb"), CallDone("plain", "a\nb")],
        ),
        ("<|channel|>final<|message|><|return|>", []),
    ],
)
def test_messages_are_what_their_channels_say(text: str, expected: list[ParsedEvent]) -> None:
    assert events(text) == expected


@pytest.mark.parametrize("text", [CALL + '{"a": 1', CALL + "{} {}<|call|>", CALL + "x<|call|>"])
def test_a_call_that_is_no_whole_object_is_incomplete(text: str) -> None:
    done = events(text)[-1]
    assert isinstance(done, CallDone)
    assert not done.complete


@pytest.mark.parametrize(
    "text",
    ["Just text.<|return|>", "<|channel|>musings<|message|>Just text.<|end|>", "Just text."],
)
def test_what_has_no_channel_that_is_known_is_text(text: str) -> None:
    told = "".join(event.text for event in events(text) if isinstance(event, ParsedText))
    assert "Just text." in told


def test_a_header_that_was_cut_is_none() -> None:
    assert events(THOUGHT + "<|channel|>comm") == [ParsedReasoning("Hm."), ReasoningDone()]


def test_without_calls_their_messages_are_text() -> None:
    assert events(CALL + "{}<|call|>", calls=False) == [ParsedText("{}"), TextDone()]


def test_an_output_may_come_in_any_pieces() -> None:
    whole = segments(THOUGHT + CALL + '{"a": "b c"}<|call|>')
    parser = ChannelParser(calls=True, plain=frozenset())
    told = []
    for segment in whole:
        pieces = [segment] if segment.special else [Segment(char) for char in segment.text]
        for piece in pieces:
            told += parser.push([piece])
    told += parser.finish()
    assert [event for event in told if isinstance(event, CallDone)] == [
        CallDone("f", '{"a": "b c"}')
    ]


@pytest.mark.parametrize(
    ("effort", "told"),
    [(None, "medium"), ("minimal", "low"), ("low", "low"), ("high", "high"), ("xhigh", "high")],
)
def test_the_system_message_says_how_much_to_reason(effort: str | None, told: str) -> None:
    header = CHAT.header(None, (), TemplateOptions(effort=effort))
    assert f"\n\nReasoning: {told}\n\n" in "".join(segment.text for segment in header)


def test_calls_are_one_a_turn() -> None:
    assert not HarmonyCalls().parallel
    assert {"<|channel|>", "<|constrain|>"} <= CHAT.output_specials(thinking=False, calls=True)


@pytest.mark.parametrize(
    ("rest", "shown"),
    [
        ("<|channel|>", ""),
        ("<|channel|>comm", ""),
        ("<|channel|>commentary to=functions.f", ""),
        ("<|channel|>commentary to=functions.f <|constrain|>js", ""),
        (" to=functions.f<|channel|>commentary json", ""),
        ('<|channel|>commentary to=functions.f <|constrain|>json{"a": 1}', None),
        ("<|channel|>final Here it is.", None),
    ],
)
def test_of_a_message_that_was_cut_in_its_header_what_cannot_be_one_is_text(
    rest: str, shown: str | None
) -> None:
    expected = [] if shown == "" else [ParsedText("assistant" + rest), TextDone()]
    assert events(THOUGHT + rest)[2:] == expected
