"""Schemas taken apart: what is text of them, and what stays JSON."""

import pytest

from tools_api.raw_schemas import (
    FREE,
    accepts_empty,
    document_of,
    parts_of,
    restricted,
    string_schemas,
    whole,
)


def test_a_free_string_is_any_text_and_no_json() -> None:
    parts = parts_of({}, {"type": "string"}, python=False)
    assert (parts.text, parts.may_be_empty, parts.json) == (FREE, True, None)


def test_what_has_no_strings_is_json_as_it_is() -> None:
    schema = {"type": "object", "properties": {"a": {}}}
    assert parts_of({}, schema, python=False).json is schema
    assert parts_of({}, schema, python=False).text is None


def test_a_text_is_none_that_would_be_read_as_something_else() -> None:
    text = parts_of({}, {"type": ["string", "integer", "object"]}, python=False).text
    assert text is not None
    assert "~(/-?(?:0|[1-9][0-9]*)/)" in text
    assert r"~/[{\[](?s:.*)/" in text


def test_what_a_text_is_read_as_may_be_more_than_its_schema_says() -> None:
    number, word = r"~(/-?(?:0|[1-9][0-9]*)/)", '~("null")'
    for read, left_out in ((None, [word]), (frozenset({"integer", "string"}), [number])):
        text = parts_of({}, {"type": ["string", "null"]}, python=False, read=read).text
        assert text is not None
        assert [each for each in (number, word) if each in text] == left_out


def test_numbers_beside_strings_fit_all_parts_of_a_schema() -> None:
    schema = {"type": ["string", "integer"], "allOf": [{"enum": ["a", 5, 7]}, {"enum": [5, "a"]}]}
    text = parts_of({}, schema, python=False).text
    assert text is not None
    assert '((("5") | ("7"))) & ("5")' in text


def test_the_rest_of_a_schema_is_what_is_no_string() -> None:
    schema = {"anyOf": [{"type": "string", "maxLength": 3}, {"type": "array"}], "maxLength": 9}
    assert restricted({}, schema, frozenset({"array"})) == {"anyOf": [{"type": "array"}]}
    assert restricted({}, {"enum": ["a", [1]]}, frozenset({"array"})) == {"enum": [[1]]}
    assert restricted({}, {}, frozenset({"object", "array"})) == {"type": ["array", "object"]}
    assert restricted({}, {"type": "string"}, frozenset({"object"})) is None


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("^a$", "(?:a)"),
        ("a", "(?s:.*)(?:a)(?s:.*)"),
        ("^a|b$", "(?:a)(?s:.*)|(?s:.*)(?:b)"),
        (r"^(a|b)[|$]\$", r"(?:(a|b)[|$]\$)(?s:.*)"),
    ],
)
def test_a_pattern_is_searched_for(pattern: str, expected: str) -> None:
    assert whole(pattern) == expected


@pytest.mark.parametrize(
    ("schema", "empty"),
    [
        ({}, True),
        ({"type": "string", "minLength": 1}, False),
        ({"enum": ["", "a"]}, True),
        ({"enum": ["a"]}, False),
        ({"type": "string", "pattern": "^a*$"}, True),
        ({"type": "string", "pattern": "a"}, False),
        ({"type": "integer"}, False),
        ({"anyOf": [{"const": "a"}, {"const": ""}]}, True),
        (False, False),
    ],
)
def test_whether_the_empty_text_is_one(schema: object, *, empty: bool) -> None:
    assert accepts_empty({}, schema) is empty


def test_a_part_takes_along_what_it_refers_to() -> None:
    root = {"properties": {"a": {"$ref": "#/$defs/b"}}, "$defs": {"b": {"$ref": "#"}}}
    part = document_of(root, {"$ref": "#/$defs/b"})
    assert part["$ref"] == "#/$defs/document/$defs/b"
    assert part["$defs"]["document"]["$defs"]["b"] == {"$ref": "#/$defs/document"}
    assert document_of(root, {"type": "string"}) == {"type": "string"}


def test_what_strings_look_like_is_told_for_whoever_has_to_write_one() -> None:
    schema = {"anyOf": [{"enum": ["a", 1]}, {"pattern": "b"}, {"const": "c"}]}
    assert list(string_schemas({}, schema)) == [{"const": "a"}, {"pattern": "b"}, {"const": "c"}]
