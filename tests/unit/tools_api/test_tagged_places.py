"""What may stand at a place of a call's arguments, and what a text is there."""

from typing import Any

import pytest

from tools_api.raw_values import ALL_TYPES
from tools_api.tagged_places import Place, leaf_json, may_be_empty, reads_back

NODE = {
    "type": "object",
    "properties": {
        "v": {"type": "integer"},
        "next": {"anyOf": [{"type": "null"}, {"$ref": "#/$defs/node"}]},
    },
}
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "text": {"type": "string"},
        "node": {"$ref": "#/$defs/node"},
        "map": {"type": "object", "additionalProperties": {"type": "number"}},
        "loose": {"type": "object"},
        "either": {
            "anyOf": [
                {"type": "object", "properties": {"k": {"const": "a"}, "x": {"type": "string"}}},
                {"type": "object", "properties": {"k": {"const": "b"}, "x": {"type": "null"}}},
                {"type": "object", "additionalProperties": False},
            ]
        },
        "both": {
            "allOf": [
                {"type": "object", "properties": {"x": {"type": ["string", "integer"]}}},
                {"properties": {"x": {"type": ["integer", "null"]}}},
            ]
        },
        "listed": {"enum": [{"x": "a", "y": 1}, {"x": None}]},
        "closed": {"type": "object", "additionalProperties": False},
        "tuple": {"type": "array", "prefixItems": [{"type": "string"}], "items": False},
        "old": {"type": "array", "items": [{"type": "null"}], "additionalItems": True},
        "words": {"type": ["array", "null"], "items": {"enum": ["a", "b"]}},
        "lists": {"const": [["a"], [2]]},
        "named": {"type": "object", "patternProperties": {"^a": {"type": "null"}}},
    },
    "$defs": {"node": NODE},
}


def at(*names: str) -> Place:
    place = Place(SCHEMA, SCHEMA)
    for name in names:
        place = place.item if name == "[]" else place.member(name)
    return place


@pytest.mark.parametrize(
    ("names", "types"),
    [
        (("text",), {"string"}),
        (("node", "v"), {"integer"}),
        (("node", "next"), {"null", "object"}),
        (("node", "next", "next", "v"), {"integer"}),
        (("map", "x"), {"number", "integer"}),
        (("loose", "x"), ALL_TYPES),
        (("either", "k"), {"string"}),
        (("either", "x"), {"string", "null"}),
        (("either", "z"), ALL_TYPES),
        (("both", "x"), {"integer"}),
        (("listed", "x"), {"string", "null"}),
        (("listed", "y"), {"integer"}),
        (("closed", "x"), ALL_TYPES),
        (("tuple", "[]"), {"string"}),
        (("old", "[]"), ALL_TYPES),
        (("words", "[]"), {"string"}),
        (("lists", "[]", "[]"), {"string", "integer"}),
        (("text", "x"), ALL_TYPES),
        (("text", "[]"), ALL_TYPES),
        (("named", "b"), ALL_TYPES),
        (("unknown", "x", "[]"), ALL_TYPES),
    ],
)
def test_a_place_has_the_types_of_all_that_may_hold_there(
    names: tuple[str, ...], types: set[str]
) -> None:
    assert at(*names).types == types


def test_a_schema_that_refers_to_itself_leads_to_the_same_places() -> None:
    assert at("node", "next").schema == at("node", "next", "next", "next").schema


def test_names_are_declared_by_any_of_the_alternatives() -> None:
    assert at("either").declared == {"k", "x"}
    assert at("both").declared == {"x"}
    assert at("listed").declared == {"x", "y"}
    assert at("map").declared == frozenset()
    assert Place({}, {"required": ["r"]}).declared == {"r"}


@pytest.mark.parametrize(
    ("text", "types", "told"),
    [
        ("5", {"string"}, '"5"'),
        ("5", {"string", "integer"}, "5"),
        ("5.0", {"string", "integer"}, '"5.0"'),
        (" 5", {"string", "integer"}, '" 5"'),
        (" 5\n", {"integer"}, "5"),
        ("null", {"string", "null"}, "null"),
        ('{"a": 1}', {"string", "object"}, '"{\\"a\\": 1}"'),
        ('{"a": 1}', {"object"}, '{"a": 1}'),
        ("12345678901234567890123.50", {"number"}, "12345678901234567890123.50"),
        ("", {"string", "array"}, '""'),
        ("\n", {"array", "object"}, "[]"),
        ("", {"object", "null"}, "{}"),
        ("", {"null"}, "null"),
        ("", {"integer"}, '""'),
        ("word", {"integer"}, '"word"'),
    ],
)
def test_a_text_is_what_may_stand_there(text: str, types: set[str], told: str) -> None:
    assert leaf_json(text, frozenset(types)) == told


def test_nothing_at_all_is_one_thing_at_each_place() -> None:
    for types, array, an_object in (
        ({"array"}, True, False),
        ({"object"}, False, True),
        ({"array", "object"}, True, False),
        ({"string", "array"}, False, False),
    ):
        assert may_be_empty("array", frozenset(types)) is array
        assert may_be_empty("object", frozenset(types)) is an_object


@pytest.mark.parametrize(
    ("value", "schema", "reads"),
    [
        ("5", {"type": "string"}, True),
        ("5", {}, False),
        ("a", {}, True),
        (None, {"type": "string"}, False),
        (None, {}, True),
        (1.5, {"type": "number"}, True),
        ([], {"type": "array"}, True),
        ([], {}, False),
        ({}, {"type": "object"}, True),
        ({}, {"type": ["object", "array"]}, False),
        (["5"], {"type": "array", "items": {"type": "string"}}, True),
        (["5"], {"type": "array"}, False),
        ({"a": ["x"]}, {"type": "object"}, True),
        ({"item": 1}, {"type": "object"}, True),
        ({"item": 1}, {"type": ["object", "array"]}, False),
        ({"a": 1}, {"type": "array"}, False),
    ],
)
def test_whether_a_value_can_be_told_from_others(value: Any, schema: Any, reads: bool) -> None:
    assert reads_back(value, Place(schema, schema)) is reads
