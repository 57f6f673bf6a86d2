"""Names of properties: no second spelling of one gets past what its schema says of it."""

import json
import random
from typing import Any

import jsonschema
import pytest

from runtime.grammar.compiler import GrammarCompiler
from runtime.tokenizer import Tokenizer
from tests.support.grammars import compiler, encode, small_tokenizer
from tools_api.chat_families import chat_format_for
from tools_api.chat_format import TemplateOptions
from tools_api.grammar import grammar_for
from tools_api.items import Message, TextPart
from tools_api.name_spellings import Spellings, spellings
from tools_api.output_checks import output_checks
from tools_api.requests import TextFormat
from tools_api.tools import ToolChoice

NAMES = (
    "a",
    "id",
    "é",
    "a b",
    "x/y",
    'q"',
    "tab\t",
    "last\n",
    "日",
    "back\\",
    "del\x7f",
    "esc\x1b",
)


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return small_tokenizer(tmp_path_factory.mktemp("small"))


@pytest.fixture(scope="module")
def grammars(tokenizer: Tokenizer) -> GrammarCompiler:
    return compiler(tokenizer, max_cache_bytes=0)


def accepts(grammars: GrammarCompiler, tokenizer: Tokenizer, schema: Any, text: str) -> bool:
    """Whether the grammar lets a whole text through and may end behind it."""
    chat_format = chat_format_for("qwen3", lambda name: tokenizer.special_id(name) is not None)
    spec = grammar_for(
        chat_format,
        [],
        ToolChoice(),
        parallel_tool_calls=False,
        text_format=TextFormat(type="json_schema", name="x", schema=schema),
        options=TemplateOptions(),
    )
    assert spec is not None
    matcher, tokens = grammars.compile(spec).pristine.deep_copy(), encode(tokenizer, text)
    if matcher.validate_tokens(tokens) < len(tokens):
        return False
    matcher.consume_tokens(tokens)
    return bool(matcher.is_accepting())


def found_at_the_end(schema: Any, text: str) -> bool:
    checks = output_checks(
        (), TextFormat(type="json_schema", name="x", schema=schema), lenient=False
    )
    part = TextPart(type="output_text", text=text)
    return checks.violation([Message(role="assistant", content=(part,), id="m")]) is not None


def spelled(name: str, rng: random.Random) -> str:
    """A name as JSON, some of its characters as escapes that they do not need."""

    def char(one: str) -> str:
        form = rng.choice((f"\\u{ord(one):04x}", f"\\u{ord(one):04X}"))
        return form if rng.random() < 0.5 else json.dumps(one, ensure_ascii=False)[1:-1]

    return f'"{"".join(map(char, name))}"'


def drawn(rng: random.Random) -> tuple[dict[str, Any], str]:
    """A schema that leaves names open, and an output with names spelled anyhow."""
    names = rng.sample(NAMES, rng.randint(1, 4))
    schema: dict[str, Any] = {
        "type": "object",
        "properties": {name: {"type": rng.choice(("integer", "string"))} for name in names},
        "required": [name for name in names if rng.random() < 0.3],
    }
    match rng.randrange(4):
        case 0:
            schema["additionalProperties"] = {"type": ["integer", "string"]}
        case 1:
            schema["patternProperties"] = {"^z": {"type": "boolean"}}
        case 2:
            schema["patternProperties"] = {"^z": {"type": "boolean"}, "^[^z]": {"type": "string"}}
            schema["additionalProperties"] = False
            schema["properties"] = {name: {"type": "string"} for name in names}
    values = {"integer": "7", "string": '"s"'}
    pairs = [
        f"{json.dumps(name, ensure_ascii=False)}: {values[schema['properties'][name]['type']]}"
        for name in names
        if name in schema["required"] or rng.random() < 0.5
    ]
    others = [*names, *names, "other", "z", "zz"]
    pairs += [
        f"{spelled(rng.choice(others), rng)}: {rng.choice([*values.values()])}"
        for _ in range(rng.randint(1, 2))
    ]
    text = "{" + ", ".join(pairs) + "}"
    return (schema, text) if rng.random() < 0.7 else nested(schema, text)


def nested(schema: dict[str, Any], text: str) -> tuple[dict[str, Any], str]:
    inner = {"$ref": "#/$defs/node"}
    outer = {"type": "object", "properties": {"in": inner}, "additionalProperties": False}
    return outer | {"$defs": {"node": schema}}, f'{{"in": {text}}}'


@pytest.mark.samples(2)
@pytest.mark.parametrize("seed", range(4))
def test_no_spelling_of_a_name_gets_an_illegal_value_through(
    seed: int, grammars: GrammarCompiler, tokenizer: Tokenizer
) -> None:
    rng, let_through = random.Random(seed), 0
    for _ in range(150):
        schema, text = drawn(rng)
        if not accepts(grammars, tokenizer, schema, text):
            continue
        let_through += 1
        legal = jsonschema.Draft202012Validator(schema).is_valid(json.loads(text))
        assert legal or found_at_the_end(schema, text), (seed, schema, text)
    assert let_through > 5


@pytest.mark.parametrize("name", ["a", "é", "x y"])
def test_a_declared_name_does_not_come_again_as_an_escape(
    name: str, grammars: GrammarCompiler, tokenizer: Tokenizer
) -> None:
    schema = {"type": "object", "properties": {name: {"type": "integer"}}, "required": [name]}
    escape = f'{{"{name}": 1, "\\u{ord(name[0]):04x}{name[1:]}": "no"}}'
    assert not accepts(grammars, tokenizer, schema, escape)
    assert accepts(grammars, tokenizer, schema, f'{{"{name}": 1, "other": "yes\\n"}}')


def test_a_schema_that_asks_for_control_characters_keeps_them_and_is_checked(
    grammars: GrammarCompiler, tokenizer: Tokenizer
) -> None:
    schema = {
        "type": "object",
        "properties": {"a": {"type": "integer"}, "b": {"const": "\x1b"}},
        "required": ["b"],
    }
    assert spellings(schema) is Spellings.CHECKED
    assert accepts(grammars, tokenizer, schema, '{"b": "\\u001b"}')
    twice = '{"a": 1, "b": "\\u001b", "\\u0061": "no"}'
    assert found_at_the_end(schema, twice)
    assert not found_at_the_end(schema, twice.replace('"no"', "2"))


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "string"},
        {"type": "object"},
        {"type": "object", "properties": {"a": {}}, "additionalProperties": False},
        {"type": "object", "additionalProperties": {"type": "integer"}},
        {"type": "object", "patternProperties": {"^x": {}}, "additionalProperties": False},
    ],
)
def test_texts_keep_every_character_where_no_name_can_come_twice(schema: Any) -> None:
    assert spellings(schema) is Spellings.FREE


def test_a_property_may_be_called_like_a_keyword() -> None:
    inner = {"type": "object", "properties": {"a": {"type": "integer"}}}
    schema = {"type": "object", "properties": {"default": inner}, "additionalProperties": False}
    assert spellings(schema) is Spellings.ONE


@pytest.mark.parametrize("keyword", ["properties", "required", "patternProperties", "$defs"])
@pytest.mark.parametrize("value", [-1, 0.5, True, None, "a", [], [[]], {}, {"a": 1}])
@pytest.mark.parametrize("rest", [False, True, 3])
def test_a_schema_that_is_none_is_looked_at_without_an_error(
    keyword: str, value: object, rest: object
) -> None:
    others = {"properties": {"a": {}}, "patternProperties": {"b": {}}, "required": ["a"]}
    schema = {**others, keyword: value, "additionalProperties": rest}
    assert spellings(schema) in Spellings
