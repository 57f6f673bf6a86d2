"""Instances are reordered by their schema and by nothing else."""

import json
from typing import Any

import pytest

from benchmarks.instances import accepts, write

DEFS = {"$defs": {"p": {"properties": {"y": {}, "x": {}}}}}


@pytest.mark.parametrize(
    ("schema", "instance", "text"),
    [
        ({"properties": {"b": {}, "a": {}}}, {"a": 1, "z": 0, "b": 2}, '{"b": 2, "a": 1, "z": 0}'),
        (DEFS | {"items": {"$ref": "#/$defs/p"}}, [{"x": 1, "y": 2}], '[{"y": 2, "x": 1}]'),
        (DEFS | {"$ref": "#/$defs/p"}, {"x": 1, "y": 2}, '{"y": 2, "x": 1}'),
        (
            {"allOf": [{"properties": {"b": {}}}, {"properties": {"a": {}}}]},
            {"a": 1, "b": 2},
            '{"b": 2, "a": 1}',
        ),
        (
            {
                "anyOf": [
                    {"properties": {"a": {"type": "string"}, "b": {}}},
                    {"properties": {"b": {}, "a": {}}},
                ]
            },
            {"a": 1, "b": 2},
            '{"b": 2, "a": 1}',
        ),
        (
            {"additionalProperties": {"properties": {"b": {}, "a": {}}}},
            {"k": {"a": 1, "b": 2}},
            '{"k": {"b": 2, "a": 1}}',
        ),
        ({"$ref": "#"}, {"a": "\u00e9"}, '{"a": "\u00e9"}'),
        (True, [1.5, None], "[1.5, null]"),
    ],
)
def test_properties_come_in_the_order_of_the_schema(schema: Any, instance: Any, text: str) -> None:
    assert write(instance, schema) == text
    assert json.loads(text) == instance


def test_the_reference_says_what_a_schema_accepts() -> None:
    assert accepts({"type": "integer"}, 3)
    assert not accepts({"type": "integer"}, "3")
    assert not accepts({"$ref": "#/nowhere"}, 3)
