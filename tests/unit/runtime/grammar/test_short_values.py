"""Short values of schemas, judged by the reference implementation; and schemas without any."""

import json
import random
from typing import Any

import jsonschema
import pytest

from runtime.grammar.closing import complete
from runtime.grammar.short_values import ShortValue, short_value

NODE = {
    "type": "object",
    "properties": {"next": {"$ref": "#/$defs/node"}},
    "required": ["next"],
}


def known(schema: Any) -> ShortValue:
    return complete(short_value(schema))


@pytest.mark.parametrize(
    ("schema", "length"),
    [
        ({}, 1),
        (True, 4),
        ({"type": "string"}, 2),
        ({"type": "string", "minLength": 5}, 7),
        ({"type": "string", "pattern": "^[a-c]{2}-[0-9]+$"}, 6),
        ({"type": "string", "format": "uuid"}, 38),
        ({"type": "integer", "minimum": 100}, 3),
        ({"type": "integer", "exclusiveMaximum": -3}, 2),
        ({"type": "integer", "minimum": 22, "multipleOf": 7}, 2),
        ({"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1}, 3),
        ({"const": {"a": [1, None]}}, 16),
        ({"enum": ["long text", "b", 7]}, 1),
        ({"type": ["array", "null"], "items": {"type": "string"}}, 2),
        ({"type": "array", "items": {"enum": ["aa", "b"]}, "minItems": 3}, 15),
        ({"type": "array", "prefixItems": [{"const": 1}, {"type": "null"}], "minItems": 2}, 9),
        (
            {"type": "object", "properties": {"a": {"type": "null"}, "b": {}}, "required": ["a"]},
            11,
        ),
        ({"anyOf": [{"type": "string", "minLength": 90}, {"type": "boolean"}]}, 4),
        ({"allOf": [{"type": "integer"}]}, 1),
        ({"$ref": "#/$defs/a", "title": "t", "$defs": {"a": {"const": "x"}}}, 3),
        (
            {
                "$defs": {"node": {"anyOf": [NODE, {"type": "null"}]}},
                "$ref": "#/$defs/node",
            },
            4,
        ),
    ],
)
def test_a_short_value_satisfies_its_schema(schema: Any, length: int) -> None:
    found = known(schema)
    assert not found.endless
    assert found.text is not None
    assert len(found.text) == length
    jsonschema.Draft202012Validator(schema).validate(json.loads(found.text))


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]},
        {"type": "array", "items": {"$ref": "#"}, "minItems": 1},
        {"$defs": {"node": NODE}, "$ref": "#/$defs/node"},
        {"anyOf": [{"$ref": "#/anyOf/1"}, {"$ref": "#/anyOf/0"}]},
        {"$defs": {"node": NODE}, "allOf": [{"type": "object"}, {"$ref": "#/$defs/node"}]},
        {
            "$defs": {
                "a": {"type": "array", "prefixItems": [{"$ref": "#/$defs/b"}], "minItems": 1},
                "b": {"type": "array", "prefixItems": [{"$ref": "#/$defs/a"}], "minItems": 1},
            },
            "type": "object",
            "properties": {"x": {"$ref": "#/$defs/a"}},
            "required": ["x"],
        },
        False,
    ],
)
def test_what_requires_itself_has_no_value(schema: Any) -> None:
    assert known(schema).endless


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "object", "properties": {"a": {"$ref": "#"}}},
        {"properties": {"a": {"$ref": "#"}}, "required": ["a"]},  # a number will do
        {"type": "array", "items": {"$ref": "#"}},
        {"$ref": "https://example.com/other.json"},
        {"$ref": "#/nowhere"},
        {"$ref": "#/default", "default": {"type": "null"}},
        {"type": "string", "pattern": "(?=x)y"},
        {"type": "string", "minLength": 10**9},
        {"type": "array", "items": {"type": "string", "minLength": 60_000}, "minItems": 60_000},
        {"type": "unheard of"},
        {"type": "object", "required": ["undeclared"]},
    ],
)
def test_what_is_not_understood_is_not_called_endless(schema: Any) -> None:
    assert not known(schema).endless


def test_texts_are_bounded() -> None:
    text = known({"type": "string", "minLength": 65_000}).text
    assert text is not None
    assert len(text) == 65_002
    assert known({"type": "string", "minLength": 65_536}).text is None


def test_long_chains_of_references_end_the_search_without_a_verdict() -> None:
    chain = {f"n{i}": {"$ref": f"#/$defs/n{i + 1}"} for i in range(500)}
    schema = {"$defs": chain | {"n500": {"type": "null"}}, "$ref": "#/$defs/n0"}
    assert not known(schema).endless


@pytest.mark.parametrize("seed", range(20))
def test_garbage_harms_nobody(seed: int) -> None:

    rng = random.Random(seed)
    words = ["type", "items", "minItems", "properties", "required", "enum", "anyOf", "$ref"]
    words += ["minimum", "maximum", "multipleOf", "pattern", "minLength", "prefixItems", "format"]

    def garbage(depth: int) -> Any:
        kinds = [None, True, -1, 2.5, "object", "array", "#", "#/a", [], {}]
        if depth == 0 or rng.random() < 0.3:
            return rng.choice(kinds)
        if rng.random() < 0.3:
            return [garbage(depth - 1) for _ in range(rng.randint(0, 3))]
        return {rng.choice(words): garbage(depth - 1) for _ in range(rng.randint(0, 5))}

    for _ in range(200):
        known(garbage(4))
