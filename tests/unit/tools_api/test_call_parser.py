import itertools
from collections.abc import Iterable, Sequence

import pytest

from tools_api.call_parser import CallParser
from tools_api.chat_families import chat_format_for
from tools_api.chat_format import ChatFormat, Segment, TemplateOptions
from tools_api.item_reading import parse_items
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

QWEN = ("<|im_start|>", "<|im_end|>", "<tool_call>", "</tool_call>", "<think>", "</think>")
FORMATS: dict[str, ChatFormat] = {
    "qwen3": chat_format_for("qwen3", QWEN.__contains__),
    "llama": chat_format_for("llama", ("<|start_header_id|>", "<|eot_id|>").__contains__),
    "mistral": chat_format_for("mistral", ("[INST]", "[/INST]", "[TOOL_CALLS]").__contains__),
}
ALL_SPECIALS = (*QWEN, "<|eot_id|>", "</s>", "[TOOL_CALLS]")


def segments(text: str, specials: Sequence[str] = ALL_SPECIALS) -> list[Segment]:
    """Split written text at special tokens."""
    found = [(text.find(s), s) for s in specials if s in text]
    if not found:
        return [Segment(text)] if text else []
    at, name = min(found)
    before = [Segment(text[:at])] if at else []
    return [*before, Segment(name, special=True), *segments(text[at + len(name) :], specials)]


def parse(
    family: str, pushes: Iterable[list[Segment]], *, thinking: bool = True, calls: bool = True
) -> list[ParsedEvent]:
    parser = CallParser(FORMATS[family], thinking, calls=calls)
    events = [event for push in pushes for event in parser.push(push)]
    return joined(events + parser.finish())


def joined(events: Iterable[ParsedEvent]) -> list[ParsedEvent]:
    """Neighbouring deltas of a kind as one."""
    merged: list[ParsedEvent] = []
    for kind, group in itertools.groupby(events, type):
        for event in group:
            match merged[-1] if merged else None, event:
                case (
                    (ParsedText() | ParsedReasoning() | CallArgumentsDelta()) as last,
                    (ParsedText(text) | ParsedReasoning(text) | CallArgumentsDelta(text)),
                ) if type(last) is kind:
                    merged[-1] = kind(last.text + text)
                case _:
                    merged.append(event)
    return merged


def text(written: str) -> list[ParsedEvent]:
    return [ParsedText(written), TextDone()]


def reasoning(written: str) -> list[ParsedEvent]:
    return [ParsedReasoning(written), ReasoningDone()]


def call(name: str, arguments: str, complete: bool = True) -> list[ParsedEvent]:
    delta = [CallArgumentsDelta(arguments)] if arguments else []
    return [ParsedCallStart(name), *delta, CallDone(name, arguments, complete)]


# Family, output, events.
TABLE: list[tuple[str, str, list[ParsedEvent]]] = [
    ("qwen3", "", []),
    ("qwen3", "Hello.<|im_end|>", text("Hello.")),
    ("qwen3", "a\n\nb\n<|im_end|>", text("a\n\nb\n")),
    ("qwen3", "\na<|im_end|>", text("\na")),
    ("qwen3", "\n\n", text("\n\n")),
    ("qwen3", "<think>\nHm.\n\nSo.\n</think>\n\nHi", reasoning("Hm.\n\nSo.") + text("Hi")),
    ("qwen3", "<think>\n\n</think>\n\nHi", text("Hi")),
    ("qwen3", "<think>\nHm", reasoning("Hm")),
    ("qwen3", "<think>\nHm\n<|im_end|>", reasoning("Hm")),
    (
        "qwen3",
        "<think>a<tool_call>b</think>\n\nc",
        reasoning("a<tool_call>b") + text("c"),
    ),
    (
        "qwen3",
        '<tool_call>\n{"name": "f", "arguments": {"a": "}"}}\n</tool_call><|im_end|>',
        call("f", '{"a": "}"}'),
    ),
    (
        "qwen3",
        'Look:\n<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>\n<tool_call>\n'
        '{"name": "g", "arguments": {"a": [1]}}\n</tool_call><|im_end|>',
        text("Look:") + call("f", "{}") + call("g", '{"a": [1]}'),
    ),
    (
        "qwen3",
        '<think>\nHm\n</think>\n\n<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>',
        reasoning("Hm") + call("f", "{}"),
    ),
    (
        "qwen3",
        '<tool_call>\n{"name": "f"}\n</tool_call>',
        [ParsedCallStart("f"), CallDone("f", "{}")],
    ),
    (
        "qwen3",
        '<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>\nDone.',
        call("f", "{}") + text("Done."),
    ),
    # Cut short.
    (
        "qwen3",
        'Hi\n<tool_call>\n{"name": "f", "arguments": {"a": "b',
        text("Hi") + call("f", '{"a": "b', complete=False),
    ),
    (
        "qwen3",
        '<tool_call>\n{"name": "f", "arguments": {"a"<|im_end|>',
        call("f", '{"a"', complete=False),
    ),
    ("qwen3", '<tool_call>\n{"name": "f', []),
    ("qwen3", '<tool_call>\n{"name": "f", "argum', []),
    ("qwen3", "<tool_call>", []),
    ("qwen3", '<tool_call>\n{"name": "f", "arguments": {}}', call("f", "{}")),
    # Not a call after all: nothing is lost.
    ("qwen3", "<tool_call>\nf(x)</tool_call>\n", text("<tool_call>\nf(x)</tool_call>\n")),
    ("qwen3", "a<tool_call>b", text("a") + text("<tool_call>b")),
    ("qwen3", "</tool_call></think>", text("</tool_call>")),
    ("qwen3", "</think>\n\nHi", text("Hi")),
    ("qwen3", "Hi\n</think>\n\nyou", text("Hi") + text("you")),
    ("qwen3", "<think>\na<think>b</think>\n\nc", reasoning("ab") + text("c")),
    (
        "qwen3",
        '<tool_call>\n{"name": "f", "arguments": {"a": 1</tool_call>x',
        call("f", '{"a": 1', complete=False) + text("x"),
    ),
    (
        "qwen3",
        '<tool_call>\n{"name": "f", "arguments": {"a": ]}<tool_call>\n{"name": "g"',
        call("f", '{"a": ', complete=False) + text("]}"),
    ),
    ("llama", "Hello {you}.<|eot_id|>", text("Hello {you}.")),
    ("llama", '{"name": "f", "parameters": {"a": 1}}<|eot_id|>', call("f", '{"a": 1}')),
    ("llama", '\n\n{"name": "f", "parameters": {}}', call("f", "{}")),
    ("llama", '{"name": "Bob", "age": 3}<|eot_id|>', text('{"name": "Bob", "age": 3}')),
    ("llama", "\n{oops}\n", text("\n{oops}\n")),
    ("llama", '{"name": "f", "para', text('{"name": "f", "para')),
    ("llama", '{"name": "f", "parameters": {"a', call("f", '{"a', complete=False)),
    (
        "mistral",
        'Hi[TOOL_CALLS] [{"name": "f", "arguments": {"a": [1]}}, '
        '{"name": "g", "arguments": {}}]</s>',
        text("Hi") + call("f", '{"a": [1]}') + call("g", "{}"),
    ),
    (
        "mistral",
        '[TOOL_CALLS][{"name": "f", "arguments": {}, "id": "call00001"}]</s>',
        call("f", "{}"),
    ),
    ("mistral", '[TOOL_CALLS] {"name": "f", "arguments": {"a": [1]}}', call("f", '{"a": [1]}')),
    ("mistral", '[TOOL_CALLS] [{"name": "f", "arguments": {', call("f", "{", complete=False)),
    ("mistral", "[TOOL_CALLS] [", []),
    (
        "mistral",
        '[TOOL_CALLS] [{"name": "f", "arguments": {}}]\nDone.',
        call("f", "{}") + text("Done."),
    ),
]


@pytest.mark.parametrize(("family", "output", "events"), TABLE)
def test_outputs_and_their_events(family: str, output: str, events: list[ParsedEvent]) -> None:
    assert parse(family, [segments(output)]) == events


@pytest.mark.parametrize(("family", "output", "events"), TABLE)
@pytest.mark.parametrize("size", [1, 2, 3, 7])
def test_the_split_does_not_matter(
    family: str, output: str, events: list[ParsedEvent], size: int
) -> None:
    pieces = [
        Segment(segment.text[at : at + size]) if not segment.special else segment
        for segment in segments(output)
        for at in range(0, 1 if segment.special else len(segment.text), size)
    ]
    assert parse(family, [[piece] for piece in pieces]) == events


@pytest.mark.parametrize(("family", "output", "events"), TABLE)
def test_every_split_point_gives_the_same(
    family: str, output: str, events: list[ParsedEvent]
) -> None:
    whole = segments(output)
    for i, segment in enumerate(whole):
        if segment.special:
            continue
        for at in range(1, len(segment.text)):
            first = [*whole[:i], Segment(segment.text[:at])]
            rest = [Segment(segment.text[at:]), *whole[i + 1 :]]
            assert parse(family, [first, rest]) == events


def test_text_that_spells_a_tag_is_text() -> None:
    written = '<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call><think>x</think>'
    assert parse("qwen3", [[Segment(written)]]) == text(written)


def test_tags_without_a_meaning_in_the_request_are_text() -> None:
    output = '<think>a</think><tool_call>\n{"name": "f"}</tool_call><|im_start|>'
    expected = text('<think>a</think><tool_call>\n{"name": "f"}</tool_call><|im_start|>')
    assert parse("qwen3", [segments(output)], thinking=False, calls=False) == expected
    as_json = '{"name": "f", "parameters": {}}'
    assert parse("llama", [segments(as_json)], calls=False) == text(as_json)


def test_arguments_stream_and_the_name_comes_first() -> None:
    parser = CallParser(FORMATS["qwen3"], thinking=False)
    assert parser.push([Segment("<tool_call>", special=True), Segment('\n{"name": "f"')]) == []
    assert parser.push([Segment(', "arguments": {"ci')]) == [
        ParsedCallStart("f"),
        CallArgumentsDelta('{"ci'),
    ]
    assert parser.push([Segment('ty": "Oslo"')]) == [CallArgumentsDelta('ty": "Oslo"')]
    assert parser.push([Segment("}}\n")]) == [
        CallArgumentsDelta("}"),
        CallDone("f", '{"city": "Oslo"}'),
    ]
    assert parser.push([Segment("</tool_call>", special=True)]) == []
    assert parser.finish() == []


def test_newlines_before_a_tag_are_held_back() -> None:
    parser = CallParser(FORMATS["qwen3"], thinking=False)
    assert parser.push([Segment("Hi\n\n")]) == [ParsedText("Hi")]
    assert parser.push([Segment("there\n")]) == [ParsedText("\n\nthere")]
    assert parser.push([Segment("<tool_call>", special=True)]) == [TextDone()]


@pytest.mark.parametrize("family", ["qwen3", "llama", "mistral"])
def test_a_rendered_turn_reads_back_as_its_items(family: str) -> None:
    chat, options = FORMATS[family], TemplateOptions(thinking=True)
    given = parse_items(
        [
            {"type": "function_call", "call_id": "a", "name": 'od"d', "arguments": '{"x": "é}"}'},
        ]
    )
    written = chat.items(given, first=False, open_output=False, options=options)
    prompt = chat.items((), first=False, open_output=False, options=options)
    prompt += chat.generation_prompt(options)
    body = "".join(s.text for s in written).removeprefix("".join(s.text for s in prompt))
    (only,) = given
    assert isinstance(only, FunctionCall)
    assert parse(family, [segments(body)]) == call(only.name, only.arguments)


# Input as plain text

PLAIN = frozenset({"patch"})
PATCH = '*** Begin {"x": [}]\n+a\n*** End\n'
PLAIN_CALLS = {
    "qwen3": f'<tool_call>\n{{"name": "patch"}}\n{PATCH}</tool_call><|im_end|>',
    "llama": f'{{"name": "patch"}}\n{PATCH}<|eot_id|>',
    "mistral": f'[TOOL_CALLS] [{{"name": "patch"}}\n{PATCH}</s>',
}


def parse_plain(family: str, text: str, *, size: int) -> list[ParsedEvent]:
    parser = CallParser(FORMATS[family], False, plain=PLAIN)
    pushes: list[list[Segment]] = []
    for segment in segments(text):
        if segment.special:
            pushes.append([segment])
        else:
            whole = segment.text
            pushes += [[Segment(whole[i : i + size])] for i in range(0, len(whole), size)]
    events = [event for push in pushes for event in parser.push(push)]
    return joined(events + parser.finish())


@pytest.mark.parametrize("family", PLAIN_CALLS)
@pytest.mark.parametrize("size", [1, 2, 7, 1000])
def test_plain_input_runs_to_the_next_special_token(family: str, size: int) -> None:
    assert parse_plain(family, PLAIN_CALLS[family], size=size) == [
        ParsedCallStart("patch"),
        CallArgumentsDelta(PATCH),
        CallDone("patch", PATCH),
    ]


def test_a_call_with_arguments_may_follow_plain_input() -> None:
    more = '\n<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call><|im_end|>'
    text = PLAIN_CALLS["qwen3"].removesuffix("<|im_end|>") + more
    events = parse_plain("qwen3", text, size=3)
    assert events[2:] == [
        CallDone("patch", PATCH),
        ParsedCallStart("f"),
        CallArgumentsDelta("{}"),
        CallDone("f", "{}"),
    ]


@pytest.mark.parametrize("family", PLAIN_CALLS)
def test_plain_input_that_was_cut_is_incomplete(family: str) -> None:
    text = PLAIN_CALLS[family].split("*** End")[0]
    events = parse_plain(family, text, size=4)
    assert events[-1] == CallDone("patch", PATCH.split("*** End", maxsplit=1)[0], complete=False)


@pytest.mark.parametrize("family", PLAIN_CALLS)
def test_plain_input_may_be_empty(family: str) -> None:
    text = PLAIN_CALLS[family].replace(PATCH, "")
    assert parse_plain(family, text, size=5) == [ParsedCallStart("patch"), CallDone("patch", "")]


def test_of_other_names_the_object_alone_is_the_call() -> None:
    text = '<tool_call>\n{"name": "g"}\n</tool_call><|im_end|>'
    assert parse_plain("qwen3", text, size=3) == [ParsedCallStart("g"), CallDone("g", "{}")]
