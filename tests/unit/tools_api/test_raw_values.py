"""Raw text as values: JSON of a type that is allowed wins, then text."""

import pytest

from tools_api.raw_values import ALL_TYPES, argument_types, begun_json_of, json_of, types_of

DEFS = {"$defs": {"s": {"type": "string"}, "loop": {"anyOf": [{"$ref": "#/$defs/loop"}]}}}


@pytest.mark.parametrize(
    ("schema", "types"),
    [
        ({}, ALL_TYPES),
        (True, ALL_TYPES),
        ({"type": "string"}, {"string"}),
        ({"type": "number"}, {"number", "integer"}),
        ({"type": ["string", "null"]}, {"string", "null"}),
        ({"enum": ["a", 7, None]}, {"string", "integer", "null"}),
        ({"type": "number", "enum": [7, 1.5]}, {"number", "integer"}),
        ({"const": True}, {"boolean"}),
        ({"anyOf": [{"type": "string"}, {"type": "object"}]}, {"string", "object"}),
        ({"allOf": [{"type": ["string", "null"]}, {"type": "string"}]}, {"string"}),
        ({"$ref": "#/$defs/s"}, {"string"}),
        ({"$ref": "#/$defs/loop"}, ALL_TYPES),
    ],
)
def test_the_types_of_a_schema(schema: object, types: set[str]) -> None:
    assert types_of(DEFS, schema) == types


def test_the_types_of_arguments_stand_wherever_the_object_is_put_together() -> None:
    parameters = {
        "allOf": [{"properties": {"a": {"type": "string"}}}],
        "properties": {"b": {"type": "null"}},
    }
    assert argument_types(parameters) == {"a": {"string"}, "b": {"null"}}


@pytest.mark.parametrize(
    ("text", "types", "value"),
    [
        ("12", {"string"}, '"12"'),
        ("12", {"string", "integer"}, "12"),
        (" 12", {"string", "integer"}, '" 12"'),
        (" 12", {"integer"}, "12"),
        ("1.0", {"string", "integer"}, '"1.0"'),
        ("1.5e99999999999", {"string", "number"}, "1.5e99999999999"),
        ('"a"', {"string", "object"}, '"\\"a\\""'),
        ("[1]", {"string", "object"}, '"[1]"'),
        ("True", {"boolean"}, "true"),
        ("True", {"string"}, '"True"'),
        ("maybe", {"boolean"}, '"maybe"'),
    ],
)
def test_a_text_is_a_value(text: str, types: set[str], value: str) -> None:
    assert json_of(text, frozenset(types), python=True) == value


def test_words_of_python_are_words_only_where_the_format_has_them() -> None:
    assert json_of("True", frozenset({"boolean"}), python=False) == '"True"'


@pytest.mark.parametrize(
    ("text", "types", "begun"),
    [
        ("", {"string"}, ""),
        ("Os", {"string", "null"}, '"Os'),
        ('{"a', {"string", "object"}, '{"a'),
        ("Tr", {"boolean"}, "tr"),
        ("No", {"null"}, "nu"),
        ("12", {"integer"}, "12"),
    ],
)
def test_a_cut_text_begins_a_value(text: str, types: set[str], begun: str) -> None:
    assert begun_json_of(text, frozenset(types), python=True) == begun
