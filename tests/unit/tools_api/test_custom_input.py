"""Input of custom tools: JSON text to plain text, and grammars that are not let in."""

import json
import random

import pytest

from tools_api.custom_input import InputText, check_definition, parse_format
from tools_api.errors import ApiError
from tools_api.limits import DEFAULT_LIMITS

TEXTS = ["", "a", 'say "hi"\n\\t', "ü 日本 😀", "\x00\x1f\x7f", "</tool_call>", "\\u0041", "/" * 3]


def read(pieces: list[str]) -> str:
    reader = InputText()
    return "".join(reader.feed(piece) for piece in pieces)


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("ascii_only", [True, False])
def test_the_text_is_what_json_says_however_it_was_split(text: str, ascii_only: bool) -> None:
    written = json.dumps({"input": text}, ensure_ascii=ascii_only)
    assert read([written]) == text
    assert read(list(written)) == text
    for seed in range(20):
        rng = random.Random(seed)
        cuts = sorted(rng.sample(range(len(written) + 1), min(4, len(written))))
        ends = [*cuts, len(written)]
        assert read([written[a:b] for a, b in zip([0, *cuts], ends, strict=True)]) == text


@pytest.mark.parametrize("spelt", ['{"input":"a"}', '{ "input" : "a" }', '\n{"input":\t"a"}'])
def test_white_space_around_the_key_does_not_matter(spelt: str) -> None:
    assert read(list(spelt)) == "a"


@pytest.mark.parametrize(
    ("escapes", "text"),
    [
        ("\\ud83d\\ude00", "😀"),
        ("\\ud83d", "\ufffd"),
        ("\\ude00", "\ufffd"),
        ("\\ud83dx", "\ufffdx"),
        ("\\ud83d\\n", "\ufffd\n"),
        ("\\ud83d\\u0041", "\ufffdA"),
        ("\\ud83d\\ud83d\\ude00", "\ufffd😀"),
        ("\\/\\b\\f", "/\b\f"),
    ],
)
def test_escapes_become_characters_and_lone_surrogates_a_replacement(
    escapes: str, text: str
) -> None:
    written = f'{{"input": "{escapes}"}}'
    assert read([written]) == read(list(written)) == text


@pytest.mark.parametrize("cut", ["", '{"inp', '{"input": "', '{"input": "\\', '{"input": "\\u00'])
def test_what_was_cut_before_it_was_certain_gives_nothing(cut: str) -> None:
    assert read([cut]) == ""


def test_a_format_is_read_and_echoed() -> None:
    assert parse_format(None, "f", DEFAULT_LIMITS).to_wire() == {"type": "text"}
    assert parse_format({"type": "text"}, "f", DEFAULT_LIMITS).to_wire() == {"type": "text"}
    written = {"type": "grammar", "syntax": "regex", "definition": "[a-z]+"}
    assert parse_format(written, "f", DEFAULT_LIMITS).to_wire() == written


@pytest.mark.parametrize(
    ("raw", "code", "param"),
    [
        ("text", "invalid_type", "f"),
        ({"type": "xml"}, "invalid_value", "f.type"),
        ({"type": "grammar", "definition": "a"}, "missing_required_parameter", "f.syntax"),
        ({"type": "grammar", "syntax": "regex"}, "missing_required_parameter", "f.definition"),
        ({"type": "grammar", "syntax": "ebnf", "definition": "a"}, "invalid_value", "f.syntax"),
        ({"type": "grammar", "syntax": "lark", "definition": ""}, "invalid_value", "f.definition"),
        (
            {"type": "grammar", "syntax": "regex", "definition": "a\nb"},
            "invalid_value",
            "f.definition",
        ),
    ],
)
def test_faulty_formats_are_refused(raw: object, code: str, param: str) -> None:
    with pytest.raises(ApiError) as refused:
        parse_format(raw, "f", DEFAULT_LIMITS)
    assert (refused.value.code, refused.value.param) == (code, param)


@pytest.mark.parametrize(
    "lark",
    [
        'start: "<a>" /<b>/ // <c> }',
        "start: line+ -> lines\nline: /[^\\n]{1,3}/ LF\n%import common.LF\n%ignore /[ ]+/",
        'start: "%json" "}" "{"',
        'start: a{2,3}\na: "x"',
    ],
)
def test_a_grammar_that_describes_text_is_let_in(lark: str) -> None:
    check_definition(lark, "f")


@pytest.mark.parametrize(
    ("lark", "said"),
    [
        ("start: <|im_end|>", "special tokens"),
        ("start: <[7]>", "special tokens"),
        ('start: %json {"type": "object"}', "directive '%json'"),
        ('start: % lark { start: "a" }', "directive '%lark'"),
        ('start: "a"\n}\nspecial_0: "b"\nx: %ignore {', "braces"),
        ('start: "a" {', "braces"),
    ],
)
def test_a_grammar_that_reaches_beyond_text_is_refused(lark: str, said: str) -> None:
    with pytest.raises(ApiError, match=said) as refused:
        check_definition(lark, "tools[0].format.definition")
    assert refused.value.param == "tools[0].format.definition"
