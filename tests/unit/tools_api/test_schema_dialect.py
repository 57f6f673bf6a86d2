"""What of a client's schema reaches the grammar library, and what is left to the check."""

import random
from typing import Any

import jsonschema
import pytest

from tools_api.schema_dialect import AFTERWARDS, LENIENTLY_CHECKED, REFUSED, rewrite_schema
from tools_api.schema_formats import PATTERNS, WEB_ADDRESS

STRING = {"type": "string"}


def rewritten(schema: Any) -> Any:
    return rewrite_schema(schema).schema


def test_a_plain_schema_stays_the_very_same() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
    assert rewrite_schema(schema).schema is schema
    assert rewrite_schema(schema).afterwards == ()


def test_five_keywords_at_most_are_refused_by_name_and_each_has_a_reason() -> None:
    assert 0 < len(REFUSED) <= 5
    assert all(len(reason) > 10 for reason in REFUSED.values())
    assert not REFUSED.keys() & AFTERWARDS
    assert REFUSED.keys() >= LENIENTLY_CHECKED


@pytest.mark.parametrize("keyword", REFUSED)
def test_what_is_refused_stays_where_it_is_and_lenient_leaves_it_out(keyword: str) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "array", keyword: STRING}}}
    assert rewritten(schema)["properties"]["a"][keyword] == STRING
    found = rewrite_schema(schema, lenient=True)
    assert found.schema["properties"]["a"] == {"type": "array"}
    named = found.afterwards if keyword in LENIENTLY_CHECKED else found.ignored
    assert named == (keyword,)


@pytest.mark.parametrize(
    ("schema", "afterwards"),
    [
        ({"type": "array", "items": STRING, "uniqueItems": True}, ("uniqueItems",)),
        ({"type": "array", "items": STRING, "uniqueItems": False}, ()),
        ({"type": "array", "contains": {"const": 1}, "minContains": 2}, ("contains",)),
        ({"type": "object", "dependentRequired": {"a": ["b"]}}, ("dependentRequired",)),
        ({"type": "object", "dependentSchemas": {"a": {}}}, ("dependentSchemas",)),
        ({"type": "object", "propertyNames": {"not": {"const": "x"}}}, ("propertyNames",)),
        ({"type": "object", "propertyNames": {"type": "string"}}, ()),
        ({"type": "object", "minProperties": 1}, ()),
        ({"type": "object", "properties": {"a": {}}, "minProperties": 1}, ("minProperties",)),
        (
            {"properties": {"a": {}}, "required": ["a"], "maxProperties": 3},
            (),
        ),
        ({"oneOf": [{"type": "integer"}, {"type": "number"}]}, ("oneOf",)),
        ({"oneOf": [{"type": "integer"}, STRING]}, ()),
        ({"oneOf": [{"$ref": "#/$defs/a"}, STRING], "$defs": {"a": {"type": "null"}}}, ()),
        (
            {
                "oneOf": [
                    {"properties": {"k": {"const": "a"}}, "required": ["k"]},
                    {"properties": {"k": {"enum": ["b", "c"]}}, "required": ["k"]},
                ]
            },
            (),
        ),
        (
            {
                "oneOf": [
                    {"properties": {"k": {"const": "a"}}, "required": ["k"]},
                    {"properties": {"k": {"const": "b"}}},
                ]
            },
            ("oneOf",),
        ),
        ({"properties": {"uniqueItems": STRING, "oneOf": STRING}}, ()),
        ({"const": {"uniqueItems": True}}, ()),
        (STRING | {"maxLength": 6000}, ()),
        (STRING | {"maxLength": 6001}, ("maxLength",)),
        (STRING | {"maxLength": 10**18}, ("maxLength",)),
    ],
)
def test_what_a_grammar_cannot_hold_to_is_left_to_the_check(
    schema: dict[str, Any], afterwards: tuple[str, ...]
) -> None:
    assert rewrite_schema(schema).afterwards == afterwards
    inside = {"type": "array", "items": {k: v for k, v in schema.items() if k != "$defs"}}
    assert "$defs" in schema or rewrite_schema(inside).afterwards == afterwards


def test_instances_are_not_taken_for_schemas() -> None:
    schema = {"enum": [{"format": "date", "uniqueItems": True}], "default": {"format": "x"}}
    assert rewritten(schema) == schema


@pytest.mark.parametrize("name", ["path", "binary", "password", "color", "int32", "x"])
def test_an_unknown_format_is_an_annotation(name: str) -> None:
    assert rewritten(STRING | {"format": name}) == STRING


@pytest.mark.parametrize("name", PATTERNS)
def test_a_known_format_is_a_pattern(name: str) -> None:
    assert rewritten(STRING | {"format": name}) == STRING | {"pattern": PATTERNS[name]}
    both = rewritten(STRING | {"format": name, "pattern": "^1"})
    assert both == STRING | {"pattern": "^1", "allOf": [{"pattern": PATTERNS[name]}]}


def test_an_address_with_the_lengths_of_http_url_is_one() -> None:
    lengths = {"minLength": 1, "maxLength": 2083}
    address = rewritten(STRING | {"format": "uri", **lengths})
    assert address == STRING | {"pattern": WEB_ADDRESS, **lengths}
    other = rewritten(STRING | {"format": "uri", "minLength": 1})
    assert other["pattern"] == PATTERNS["uri"]


@pytest.mark.parametrize(
    ("names", "narrowed"),
    [
        ({"enum": ["a", "b"]}, {"properties": {"a": STRING, "b": STRING}}),
        ({"$ref": "#/$defs/n"}, {"properties": {"x": STRING}}),
        ({"pattern": "^a"}, {"patternProperties": {"^a": STRING}}),
        ({"minLength": 2}, {"patternProperties": {r"^[\s\S]{2,}$": STRING}}),
        ({"maxLength": 4}, {"patternProperties": {r"^[\s\S]{0,4}$": STRING}}),
        ({"format": "uuid"}, {"patternProperties": {PATTERNS["uuid"]: STRING}}),
    ],
)
def test_names_become_properties_or_a_pattern(names: Any, narrowed: Any) -> None:
    schema = {
        "type": "object",
        "propertyNames": names,
        "additionalProperties": STRING,
        "$defs": {"n": {"enum": ["x"]}},
    }
    found = rewrite_schema(schema)
    expected = {"type": "object", "additionalProperties": False, "$defs": schema["$defs"]}
    assert found.schema == expected | narrowed
    assert found.afterwards == ()


def test_the_tag_of_a_discriminated_union_has_to_be_written() -> None:
    def animal(kind: str) -> dict[str, Any]:
        return {"type": "object", "properties": {"kind": {"const": kind}}, "required": ["x"]}

    schema = {
        "oneOf": [{"$ref": "#/$defs/Cat"}, {"$ref": "#/$defs/Dog"}],
        "discriminator": {"propertyName": "kind"},
        "$defs": {"Cat": animal("cat"), "Dog": animal("dog"), "Other": animal("other")},
    }
    found = rewrite_schema(schema)
    required = {name: node["required"] for name, node in found.schema["$defs"].items()}
    assert required == {"Cat": ["x", "kind"], "Dog": ["x", "kind"], "Other": ["x"]}
    assert found.afterwards == ()


WORDS = [
    *("type", "items", "format", "pattern", "oneOf", "anyOf", "allOf", "$ref", "required"),
    *("properties", "discriminator", "propertyNames", "enum", "const", "if", "then", "uniqueItems"),
    *("minProperties", "dependentSchemas", "$defs", "propertyName", "additionalProperties"),
]


@pytest.mark.parametrize("seed", range(10))
def test_garbage_comes_out_as_garbage(seed: int) -> None:
    rng = random.Random(seed)

    def garbage(depth: int) -> Any:
        if depth == 0 or rng.random() < 0.25:
            return rng.choice([None, True, 3, "object", "#/$defs/a", "date", [], {}, [{}], ["a"]])
        if rng.random() < 0.3:
            return [garbage(depth - 1) for _ in range(rng.randint(0, 3))]
        return {rng.choice(WORDS): garbage(depth - 1) for _ in range(rng.randint(1, 6))}

    for _ in range(300):
        schema = garbage(4)
        if isinstance(schema, dict):
            rewrite_schema(schema, lenient=rng.random() < 0.5)


@pytest.mark.parametrize("seed", range(5))
def test_what_a_schema_accepts_its_dialect_accepts(seed: int) -> None:
    rng = random.Random(seed)
    leaves: list[Any] = [
        {"type": "integer"},
        {"enum": ["a", "b"]},
        {"type": "array", "items": {"enum": [1, 2]}, "uniqueItems": True},
        {"type": "object", "propertyNames": {"enum": ["a", "b"]}},
        {"type": "object", "properties": {"a": {}}, "minProperties": 2},
        {"oneOf": [{"type": "integer"}, {"minimum": 3}]},
        STRING | {"format": "nobody's"},
    ]
    values: list[Any] = [1, 5, "a", [1, 2], [1, 1], {}, {"a": 1, "b": 2}, {"c": 1}, None]
    for _ in range(200):
        parts = rng.sample(leaves, 2)
        schema = {rng.choice(["anyOf", "allOf", "oneOf"]): parts}
        plain = jsonschema.Draft202012Validator(schema)
        ours = jsonschema.Draft202012Validator(_with_any_of(rewrite_schema(schema).schema))
        for value in values:
            assert not plain.is_valid(value) or ours.is_valid(value), (schema, value)


def _with_any_of(node: Any) -> Any:
    """As the library is told to read ``oneOf``."""
    if isinstance(node, list):
        return [_with_any_of(item) for item in node]
    if not isinstance(node, dict):
        return node
    return {"anyOf" if key == "oneOf" else key: _with_any_of(v) for key, v in node.items()}
