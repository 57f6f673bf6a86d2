"""Schemas whose numbers the grammar library would round: what their rules accept, and what is
refused by name."""

import json
from decimal import Decimal
from typing import Any

import pytest

from runtime.grammar.compiler import GrammarCompiler
from runtime.grammar.exact_rules import with_exact_numbers
from runtime.grammar.refusal import GrammarRefused
from runtime.tokenizer import Tokenizer
from tests.support.grammars import compiler, encode, schema_spec, small_tokenizer
from tools_api.exact_json import written

ID = 1190000000000000001
IDS = {"type": "integer", "enum": [ID, ID + 2]}


def closed(**properties: Any) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return small_tokenizer(tmp_path_factory.mktemp("tokenizer"))


@pytest.fixture(scope="module")
def grammars(tokenizer: Tokenizer) -> GrammarCompiler:
    return compiler(tokenizer)


def accepted(grammars: GrammarCompiler, tokenizer: Tokenizer, schema: Any, text: str) -> bool:
    matcher = grammars.compile(schema_spec(schema)).pristine.deep_copy()
    tokens = encode(tokenizer, text)
    return matcher.try_consume_tokens(tokens) == len(tokens) and matcher.is_accepting()


CASES: list[tuple[str, Any, list[str], list[str]]] = [
    ("an enum of ids", IDS, [f"{ID}", f"{ID + 2}"], [f"{ID - 1}", f"{ID + 1}", "1"]),
    ("a constant beyond 64 bits", {"const": 2**64 + 1}, [f"{2**64 + 1}"], [f"{2**64}"]),
    ("17 digits", {"enum": [123456789.12345679]}, ["123456789.12345679"], ["123456789.1234568"]),
    (
        "more digits than a float has",
        {"const": Decimal("0.12345678901234567890")},
        ["0.1234567890123456789"],
        ["0.12345678901234568"],
    ),
    ("a range", {"type": "integer", "minimum": ID, "maximum": ID + 1}, [f"{ID}"], [f"{ID - 1}"]),
    ("a mixed enum", {"enum": [ID, "a", None, 1.5, [ID]]}, [f"{ID}", '"a"', f"[{ID}]"], ["[1]"]),
    (
        "a constant object",
        {"const": {"ids": [ID, "x"], "e": {}, 'q"\n': []}},
        [f'{{"ids": [{ID}, "x"], "e": {{}}, "q\\"\\n": []}}'],
        [f'{{"ids": [{ID - 1}, "x"], "e": {{}}, "q\\"\\n": []}}'],
    ),
    (
        "a property that may be left out beside others",
        {
            "type": "object",
            "properties": {"a": IDS, "b": {"type": "null"}},
            "additionalProperties": {"type": "boolean"},
        },
        ["{}", f'{{"a": {ID}}}', '{"b": null, "c": true, "d": false}', '{"c": true}'],
        [f'{{"a": {ID + 1}}}', '{"a": true}', '{"c": true, "b": null}', '{"c": null}'],
    ),
    (
        "a required name that is not declared",
        {"type": "object", "required": ["n"], "additionalProperties": IDS},
        [f'{{"n": {ID}}}', f'{{"n": {ID}, "m": {ID}}}'],
        ["{}", f'{{"m": {ID}}}', f'{{"n": {ID}, "n": {ID}}}'],
    ),
    (
        "names by pattern",
        {
            "type": "object",
            "patternProperties": {"^x-": IDS},
            "additionalProperties": False,
            "maxProperties": 2,
        },
        ["{}", f'{{"x-a": {ID}, "x-b": {ID + 2}}}'],
        [f'{{"y": {ID}}}', f'{{"x-a": {ID}, "x-b": {ID}, "x-c": {ID}}}', '{"x-a": 1}'],
    ),
    (
        "items",
        {"type": "array", "items": IDS, "minItems": 1, "maxItems": 2},
        [f"[{ID}]", f"[{ID}, {ID + 2}]"],
        ["[]", f"[{ID}, {ID}, {ID}]", f"[{ID - 1}]"],
    ),
    (
        "alternatives",
        {"anyOf": [{"type": "string"}, closed(id=IDS), {"type": "array", "items": {"const": 1}}]},
        ['"a"', f'{{"id": {ID}}}', "[1, 1]"],
        [f'{{"id": {ID + 1}}}', "[2]", "null"],
    ),
    (
        "what has to hold together",
        {"allOf": [{"type": "integer", "minimum": ID}, {"maximum": ID + 5}], "multipleOf": 5},
        [f"{ID + 4}"],
        [f"{ID - 1}", f"{ID}", f"{ID + 5}"],
    ),
    (
        "types side by side",
        {"type": ["integer", "null", "array"], "minimum": ID, "maxItems": 1},
        ["null", "[]", f"{ID}", "[5]"],
        [f"{ID - 1}", "[5, 5]", '"a"'],
    ),
    ("no type at all", {"exclusiveMinimum": 2**70}, [f"{2**70 + 1}", '"a"', "{}"], [f"{2**70}"]),
    (
        "a tree",
        {
            "$ref": "#/$defs/node",
            "$defs": {
                "node": {
                    "type": "object",
                    "properties": {
                        "id": IDS,
                        "name": {"$ref": "#/$defs/name"},
                        "more": {"type": "array", "items": {"$ref": "#/$defs/node"}},
                    },
                    "required": ["id"],
                    "additionalProperties": False,
                },
                "name": {"type": "string", "maxLength": 2},
            },
        },
        [f'{{"id": {ID}, "name": "ab", "more": [{{"id": {ID + 2}, "more": []}}]}}'],
        [f'{{"id": {ID}, "more": [{{"id": 5}}]}}', f'{{"id": {ID}, "name": "abc"}}'],
    ),
    (
        "zero outside a range above it",
        {"type": "number", "exclusiveMinimum": 0, "maximum": 0.5},
        ["0.5", "0.25"],
        ["0", "0.0", "0.6"],
    ),
    (
        "an alternative that nothing satisfies",
        {"anyOf": [{"type": "integer", "minimum": ID, "maximum": ID - 1}, {"const": ID}]},
        [f"{ID}"],
        [f"{ID - 1}"],
    ),
    (
        "an alternative of the library's that nothing satisfies",
        {"anyOf": [{"type": "string", "minLength": 3, "maxLength": 2}, {"const": ID}]},
        [f"{ID}"],
        ['"ab"'],
    ),
    (
        "drafts before 2020",
        {"items": [{"const": ID}, {"type": "null"}], "additionalItems": False, "type": "array"},
        [f"[{ID}, null]", "[]"],
        [f"[{ID - 1}]", f"[{ID}, null, null]"],
    ),
    (
        "drafts before 6",
        {"type": "integer", "minimum": ID, "exclusiveMinimum": True},
        [f"{ID + 1}"],
        [f"{ID}"],
    ),
]


@pytest.mark.parametrize(("what", "schema", "good", "bad"), CASES, ids=[row[0] for row in CASES])
def test_rules_accept_what_the_schema_accepts(
    grammars: GrammarCompiler,
    tokenizer: Tokenizer,
    what: str,
    schema: Any,
    good: list[str],
    bad: list[str],
) -> None:
    assert with_exact_numbers(schema_spec(schema).lark) is not None, "the library keeps it"
    inside = closed(v=schema)
    if "$defs" in schema:
        inside |= {"$defs": schema["$defs"]}
    for text in good:
        assert accepted(grammars, tokenizer, schema, text), text
        assert accepted(grammars, tokenizer, inside, f'{{"v": {text}}}'), text
    for text in bad:
        assert not accepted(grammars, tokenizer, schema, text), text
        assert not accepted(grammars, tokenizer, inside, f'{{"v": {text}}}'), text


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "integer", "minimum": 0, "maximum": 100},
        {"const": "1190000000000000001"},
        {"default": ID, "type": "integer"},
        {"$defs": {"a": {"const": ID}}, "type": "null"},
    ],
)
def test_what_the_library_keeps_stays_with_it(schema: Any) -> None:
    assert with_exact_numbers(schema_spec(schema).lark) is None


def test_other_blocks_of_a_grammar_stay_as_they_are() -> None:
    kept = f"arguments_1: %json {json.dumps({'enum': [1, 2]})}"
    lark = f'start: "a" arguments_0 | arguments_1\narguments_0: %json {{"const": {ID}}}\n{kept}\n'
    exact = with_exact_numbers(lark)
    assert exact is not None
    assert kept in exact.lark
    assert exact.block == 0
    assert len(exact.loosened.split("\n")) == len(lark.split("\n"))
    assert str(ID) not in exact.loosened


REFUSED: list[tuple[Any, str, tuple[str | int, ...]]] = [
    (
        closed(a={"type": "integer", "minimum": 2**64, "multipleOf": 7}),
        "its multiples cannot be enforced",
        ("properties", "a", "multipleOf"),
    ),
    ({"const": ID, "pattern": "a", "anyOf": [{"pattern": "b"}]}, "beside it", ("pattern",)),
    (
        {"patternProperties": {"a": {}}, "properties": {"ab": {"const": ID}}},
        "the property 'ab' matches it",
        ("patternProperties",),
    ),
    (
        closed(a={"enum": ["x" * 3, ID], "pattern": "^x+$", "minimum": ID}),
        "is not known",
        ("properties", "a", "enum"),
    ),
    (
        {"items": {"$ref": "#there"}, "prefixItems": [{"const": ID}]},
        "#there cannot be followed",
        ("$ref",),
    ),
    ({"type": "number", "minimum": Decimal("1E+500")}, "more than 400 digits", ("minimum",)),
]


@pytest.mark.parametrize(("schema", "message", "path"), REFUSED)
def test_what_cannot_be_written_out_is_refused_with_its_place(
    grammars: GrammarCompiler, schema: Any, message: str, path: Any
) -> None:
    with pytest.raises(GrammarRefused, match=message) as caught:
        grammars.compile(schema_spec(schema))
    assert caught.value.path == path
    assert caught.value.keyword == path[-1]
    assert caught.value.block == 0


@pytest.mark.parametrize(
    "schema",
    [
        closed(a={"type": "integer", "minimum": ID, "maximum": ID - 1}),
        {"type": "integer", "enum": [Decimal("1190000000000000000.5")]},
        {
            "type": "array",
            "items": {"exclusiveMinimum": ID, "exclusiveMaximum": ID + 1, "type": "integer"},
            "minItems": 1,
        },
        {"allOf": [{"const": ID}, {"const": ID + 1}]},
    ],
)
def test_a_schema_without_values_is_refused(grammars: GrammarCompiler, schema: Any) -> None:
    with pytest.raises(GrammarRefused, match="no value satisfies it"):
        grammars.compile(schema_spec(schema))


def test_what_else_is_wrong_with_a_schema_the_library_says(grammars: GrammarCompiler) -> None:
    schema = closed(a={"const": ID}, b={"type": "string", "format": "colour"})
    with pytest.raises(GrammarRefused, match="Unknown format: colour") as caught:
        grammars.compile(schema_spec(schema))
    assert caught.value.path == ("properties", "b", "format")


def test_what_is_too_deep_or_too_long_is_refused(grammars: GrammarCompiler) -> None:
    def link(number: int) -> dict[str, Any]:
        following = {"a": {"$ref": f"#/$defs/d{number + 1}"}}
        return {"type": "object", "properties": following}

    chain: dict[str, Any] = {f"d{n}": link(n) for n in range(1000)} | {"d1000": {"const": ID}}
    with pytest.raises(GrammarRefused, match="nested too deep for its numbers"):
        grammars.compile(schema_spec({"$ref": "#/$defs/d0", "$defs": chain}))
    ids = {f"p{n}": {"minimum": int("123456789" * 44) + n} for n in range(300)}
    with pytest.raises(GrammarRefused, match="too long for its numbers"):
        grammars.compile(schema_spec({"type": "object", "properties": ids}))


def test_a_schema_of_a_thousand_ids_compiles(
    grammars: GrammarCompiler, tokenizer: Tokenizer
) -> None:
    schema = closed(**{f"p{n}": {"enum": [ID + n, ID + n + 7]} for n in range(200)})
    schema["properties"]["all"] = {"enum": [ID + 3 * n for n in range(5000)]}
    compiled = grammars.compile(schema_spec(schema))
    assert compiled.closing is not None
    value = ", ".join(f'"p{n}": {ID + n}' for n in range(200))
    assert accepted(grammars, tokenizer, schema, f'{{{value}, "all": {ID + 3000}}}')
    assert not accepted(grammars, tokenizer, schema, f'{{{value}, "all": {ID + 3001}}}')
    assert len(written(schema)) < 256 * 1024
