"""Calls between tags, read: a value has the type of its schema, white space is the format's."""

import itertools
from typing import Any

import pytest

from tools_api.call_parser import CallParser
from tools_api.chat_families import chat_format_named
from tools_api.chat_format import Segment
from tools_api.parsed_events import (
    CallArgumentsDelta,
    CallDone,
    ParsedCallStart,
    ParsedEvent,
    ParsedText,
)
from tools_api.raw_call_reader import RawCallReader
from tools_api.tools import FunctionTool

TOKENS = {
    "qwen3-coder": ("<|im_start|>", "<|im_end|>", "<tool_call>", "</tool_call>"),
    "glm4.7": (
        *("<|system|>", "<|user|>", "<|assistant|>", "<|observation|>"),
        *("<tool_call>", "</tool_call>", "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"),
    ),
    "minimax-m2": ("]~b]", "[e~[", "<minimax:tool_call>", "</minimax:tool_call>"),
}
TOOL = FunctionTool(
    name="f",
    parameters={
        "type": "object",
        "properties": {
            "s": {"type": "string"},
            "n": {"type": "integer"},
            "b": {"type": "boolean"},
            "o": {"anyOf": [{"type": "string"}, {"type": "object"}]},
            "m": {"type": ["string", "null"]},
        },
    },
)


def segments(name: str, text: str) -> list[Segment]:
    """A text in which special tokens are spelt out."""
    out: list[Segment] = []
    while text:
        found = next((t for t in TOKENS[name] if text.startswith(t)), None)
        out.append(Segment(found or text[0], special=found is not None))
        text = text[len(out[-1].text) :]
    return out


def events(name: str, text: str, *, plain: frozenset[str] = frozenset()) -> list[ParsedEvent]:
    chat = chat_format_named(name, frozenset(TOKENS[name]).__contains__)
    parser = CallParser(chat, False, tools=[TOOL], plain=plain)
    return parser.push(segments(name, text)) + parser.finish()


def qwen(body: str) -> str:
    return f"<tool_call>\n<function=f>\n{body}</function>\n</tool_call><|im_end|>"


def parameter(key: str, value: str) -> str:
    return f"<parameter={key}>\n{value}\n</parameter>\n"


@pytest.mark.parametrize(
    ("key", "text", "value"),
    [
        ("s", "Oslo", '"Oslo"'),
        ("s", "12", '"12"'),
        ("s", "", '""'),
        ("s", "\na\n", '"\\na\\n"'),
        ("s", 'a "b" \\ </param', '"a \\"b\\" \\\\ </param"'),
        ("n", "12", "12"),
        ("n", "1e400", "1e400"),
        ("n", "twelve", '"twelve"'),
        ("b", "true", "true"),
        ("b", "True", "true"),
        ("o", '{"a": 1}', '{"a": 1}'),
        ("o", "{a: 1}", '"{a: 1}"'),
        ("o", "12", '"12"'),
        ("m", "null", "null"),
        ("m", "None", "null"),
        ("m", "nullable", '"nullable"'),
        ("unknown", "[1, 2]", "[1, 2]"),
        ("unknown", "[1, 2", '"[1, 2"'),
    ],
)
def test_a_value_is_read_by_the_types_of_its_schema(key: str, text: str, value: str) -> None:
    done = [e for e in events("qwen3-coder", qwen(parameter(key, text))) if isinstance(e, CallDone)]
    assert done == [CallDone("f", f'{{"{key}": {value}}}')]


def test_a_strings_text_is_told_as_it_comes() -> None:
    text = qwen(parameter("s", "one two three"))
    told = [e.text for e in events("qwen3-coder", text) if isinstance(e, CallArgumentsDelta)]
    assert len(told) > 10
    assert "".join(told) == '{"s": "one two three"}'


@pytest.mark.parametrize(
    ("name", "text", "calls"),
    [
        (
            "glm4.7",
            "<tool_call>f<arg_key>s</arg_key><arg_value>a</arg_value><arg_key>n</arg_key>"
            "<arg_value>1</arg_value></tool_call><tool_call>f</tool_call>",
            ['{"s": "a", "n": 1}', "{}"],
        ),
        (
            "glm4.7",
            "<tool_call>f\n<arg_key>s</arg_key>\n<arg_value>a\n</arg_value>\n</tool_call>",
            ['{"s": "a\\n"}'],
        ),
        (
            "minimax-m2",
            '<minimax:tool_call>\n<invoke name="f">\n<parameter name="s">a</parameter>\n</invoke>\n'
            '<invoke name="f">\n</invoke>\n</minimax:tool_call>',
            ['{"s": "a"}', "{}"],
        ),
        (
            "qwen3-coder",
            "<tool_call><function=f><parameter=s>a</parameter></function></tool_call>",
            ['{"s": "a"}'],
        ),
    ],
)
def test_white_space_between_tags_is_the_formats(name: str, text: str, calls: list[str]) -> None:
    done = [e for e in events(name, text) if isinstance(e, CallDone)]
    assert [e.arguments for e in done] == calls
    assert all(e.complete for e in done)


def test_plain_input_goes_up_to_the_closing_token() -> None:
    text = "<tool_call>\n<function=f>\na </parameter>\nb</tool_call><|im_end|>"
    told = events("qwen3-coder", text, plain=frozenset({"f"}))
    assert told[-1] == CallDone("f", "a </parameter>\nb")


@pytest.mark.parametrize("size", range(0, 110, 3))
def test_a_cut_call_is_incomplete_and_its_beginning_is_of_the_whole(size: int) -> None:
    body = parameter("n", "12") + parameter("s", "three\nlines\n") + parameter("o", '{"a": [1]}')
    whole = events("qwen3-coder", qwen(body))
    assert isinstance(whole[-1], CallDone)
    told = events("qwen3-coder", qwen(body)[:size])
    done = [e for e in told if isinstance(e, CallDone)]
    started = any(isinstance(e, ParsedCallStart) for e in told)
    assert len(done) == started
    for event in done:
        assert not event.complete
        assert whole[-1].arguments.startswith(event.arguments)


@pytest.mark.parametrize(
    "text",
    [
        "<tool_call>\nno call</tool_call>",
        "<tool_call>\n<function=f>\nno tag",
        "<tool_call>\n<function=f>\n</function>\nand text",
        "<tool_call>\n<func<|im_end|>",
    ],
)
def test_what_is_no_call_is_text(text: str) -> None:
    told = events("qwen3-coder", text)
    shown = "".join(e.text for e in told if isinstance(e, ParsedText))
    assert text.removesuffix("<|im_end|>").removesuffix("</tool_call>").split()[-1] in shown


def test_a_reader_that_is_over_gives_back_what_is_not_its_own() -> None:
    chat = chat_format_named("qwen3-coder", frozenset(TOKENS["qwen3-coder"]).__contains__)
    syntax: Any = chat.calls
    reader = RawCallReader(syntax, lambda _: {}, frozenset())
    assert reader.text("\n<function=f></function> so") == "so"
    assert [type(e) for e in reader.take()] == [ParsedCallStart, CallArgumentsDelta, CallDone]
    assert list(itertools.chain(reader.take())) == []
