"""The library's prose turned into a keyword, a place and one line."""

import pytest

from runtime.grammar.refusal import TOO_COSTLY, TOO_LARGE, TOO_WIDE, refusal, stopped
from tools_api.schema_dialect import REFUSED

LARK = """start: a | b
a: %json {"type": "object", "properties": {"format": {"type": "string", "format": "date"}}}
b: %json {"anyOf": [{"type": "null"}, {"format": "foobar", "not": {}, "pattern": "("}]}
c: %json {"not": {}, "const": "%json {}"}
"""


def report(message: str, line: int = 3) -> str:
    return (
        f"at {line}(7): failed to compile JSON schema: {message}\n   1 | start: a\n   2 | a: %json"
    )


@pytest.mark.parametrize(
    ("error", "message", "keyword", "block", "path"),
    [
        (
            report('Unimplemented keys: ["not"]', line=4),
            f"'not' is not supported: {REFUSED['not']}",
            "not",
            2,
            ("not",),
        ),
        (report("schema is false", line=2), "schema is false", None, 0, None),
        (
            report('Unimplemented keys: ["format", "not"]'),
            f"'not' is not supported: {REFUSED['not']}",
            "not",
            1,
            ("anyOf", 1, "not"),
        ),
        (
            report('Unimplemented keys: ["$recursiveRef"]'),
            "'$recursiveRef' is not supported",
            "$recursiveRef",
            1,
            None,
        ),
        (
            report("Unknown format: foobar"),
            "Unknown format: foobar",
            "format",
            1,
            ("anyOf", 1, "format"),
        ),
        (report("Unknown format: other"), "Unknown format: other", "format", 1, None),
        (
            report("regex parse error:\n    (\n    ^\nerror: unclosed group"),
            "regex: unclosed group",
            "pattern",
            1,
            ("anyOf", 1, "pattern"),
        ),
        (
            report("Unsatisfiable schema: minLength (5) is greater than maxLength (2)"),
            "Unsatisfiable schema: minLength (5) is greater than maxLength (2)",
            "minLength",
            1,
            None,
        ),
        (report("Validation failed"), "Validation failed", None, 1, None),
        ("lexer error: too many states\n<non-verbose/>", TOO_COSTLY, None, None, None),
        ("fuel exhausted when checking relevance of lexemes (1)", TOO_COSTLY, None, None, None),
        (
            "Parser Error: Current row has 2087 items; max is 2000",
            TOO_WIDE,
            "anyOf",
            1,
            ("anyOf",),
        ),
        ("grammar size (number of symbols) too big (limit)", TOO_LARGE, None, None, None),
        ("x" * 1000, "x" * 297 + "...", None, None, None),
    ],
)
def test_a_report_becomes_one_line_with_keyword_and_place(
    error: str,
    message: str,
    keyword: str | None,
    block: int | None,
    path: tuple[str | int, ...] | None,
) -> None:
    found = refusal(error, LARK)
    assert found.message == str(found) == message
    assert (found.keyword, found.block, found.path) == (keyword, block, path)


@pytest.mark.parametrize(
    "error",
    [
        "panic: index out of bounds: the len is 3\n  at /home/runner/x/parser/src/lexer.rs:10:5",
        "Panicked at /home/runner/.cargo/registry/src/derivre/src/ast.rs:77",
        'at 3(7): failed to compile JSON schema: assertion `left == right` failed\n   1 | x: "a"',
        "called `Option::unwrap()` on a `None` value",
    ],
)
def test_what_the_library_says_of_its_own_faults_reaches_nobody(error: str) -> None:
    assert refusal(error, LARK).reason == "the grammar compiler cannot cope with it"


def test_a_schema_may_speak_of_panic() -> None:
    found = refusal(report("Unknown format: panic"), LARK)
    assert found.message == "Unknown format: panic"
    dump = 'x\n   1 | start: "panic: at"'
    assert refusal(dump, LARK).message == "x"


@pytest.mark.parametrize(
    "error",
    [
        "lexer error: too many expressions constructed\n<non-verbose/>",
        "Parser Error: Current row has 2087 items; max is 2000; consider making your grammar",
        "thread panicked at parser.rs:12",
        "doesn't satisfy the grammar; forced bytes: got 'x'; applying '}'",
        "",
    ],
)
def test_what_stops_a_turn_is_said_without_the_librarys_words(error: str) -> None:
    said = stopped(error)
    assert said
    for word in ("panic", "row", "grammar;", "expressions", "lexer", "forced", "max is"):
        assert word not in said
