"""Finding schemas in a grammar's text, and samples of what they ask for."""

import json
import re
from typing import Any

import pytest

from runtime.grammar.closing import complete
from runtime.grammar.schemas import json_blocks, reading_hints, subschemas


def lark(*schemas: str) -> str:
    return "start: a b\n" + "\n".join(f"r{i}: %json {text}" for i, text in enumerate(schemas))


def string_samples(text: str) -> list[str]:
    return list(complete(reading_hints(text)).samples)


def required_names(text: str) -> tuple[bytes, ...]:
    return complete(reading_hints(text)).required


def test_blocks_come_in_order_and_rubbish_ends_them() -> None:
    assert list(json_blocks(lark('{"a": "%json 3"}', "[1]", "{nope", '{"b": 2}'))) == [
        (2, {"a": "%json 3"}),
        (3, [1]),
    ]


def test_instances_and_property_names_are_not_schemas() -> None:
    schema: dict[str, Any] = {
        "const": {"not": 1},
        "properties": {"enum": {"enum": [{"not": 2}]}, "const": {"anyOf": [{"type": "null"}]}},
    }
    assert [path for path, _ in subschemas(schema)] == [
        (),
        ("properties", "enum"),
        ("properties", "const"),
        ("properties", "const", "anyOf", 0),
    ]


@pytest.mark.parametrize(
    "pattern",
    [
        "^[A-Z]{3}-[0-9]{4}$",
        r"^iglu:([a-zA-Z0-9-_.]+)/([a-zA-Z0-9-_]+)/([1-9][0-9]*|\*)$",
        r"[\w-]+:[0-9a-f-]+",
        r"^\S+@\S+\.\S+$",
        "^(long alternative|b)?c+d{2,}$",
        "^[^a]x.[^\\d]$",
        "^\\/api\\/v[12]$",
        "[\u4e00-\u9fa5]{2}",
        "^[^abc0-9A-Z_ .:/@-]$",
    ],
)
def test_a_sample_matches_its_pattern(pattern: str) -> None:
    (sample,) = string_samples(lark(json.dumps({"type": "string", "pattern": pattern})))
    assert re.search(pattern, sample)
    assert len(sample) <= 64


@pytest.mark.parametrize("pattern", ["(", "(?=a)b", "a{1000}", "((a{60}){60}){60}", r"(a)\1"])
def test_no_sample_where_none_is_clear(pattern: str) -> None:
    assert string_samples(lark(json.dumps({"pattern": pattern}))) == []


def test_required_names_are_as_json_writes_them() -> None:
    text = lark('{"required": ["a", "b\\"c", 3], "anyOf": [{"required": ["\u00e9", "a"]}]}')
    assert required_names(text) == (b"a", b'b\\"c', "\u00e9".encode())


def test_schemas_that_make_no_sense_give_nothing() -> None:
    text = lark('{"required": "a", "pattern": 3, "patternProperties": [1], "format": {}}', "7")
    assert string_samples(text) == []
    assert required_names(text) == ()


def test_hints_are_read_a_schema_at_a_time() -> None:
    many = {"anyOf": [{"required": [f"n{i}"], "format": "date"} for i in range(50)]}
    assert sum(1 for _ in reading_hints(lark(json.dumps(many)))) >= 50
    assert len(required_names(lark(json.dumps(many)))) == 50
    assert string_samples(lark(json.dumps(many))) == ["2000-01-01"]
