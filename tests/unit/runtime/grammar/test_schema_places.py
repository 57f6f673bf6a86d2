"""From what an output has written to the place of its next value in a schema."""

import json
from typing import Any

import pytest

from runtime.grammar.schema_places import Place, place_of_value, widest_place

SECOND = {"anyOf": [{"type": "null"}, {"properties": {"x": {}}}]}
TOOL: dict[str, Any] = {
    "$defs": {"row": {"properties": {"id": {"type": "integer"}, "more": {"$ref": "#/$defs/row"}}}},
    "properties": {
        "rows": {"type": "array", "items": {"$ref": "#/$defs/row"}},
        "pair": {"prefixItems": [{"type": "null"}, SECOND]},
    },
    "additionalProperties": {"type": "string"},
}
VALUE = f"start: value\nvalue: %json {json.dumps(TOOL)}\n"
CALLS = (
    "start: call\n"
    'arguments_0: %json {"properties": {"a": {}}}\n'
    'call_0: "{\\"name\\": \\"f\\", \\"arguments\\": " arguments_0 "}"\n'
    f"arguments_2: %json {json.dumps(TOOL)}\n"
    'call_2: "{\\"name\\": \\"g\\", \\"arguments\\": " arguments_2 "}"\n'
)


@pytest.mark.parametrize(
    ("output", "path"),
    [
        ("", ()),
        ("{", ()),
        ('{"rows": ', ("properties", "rows")),
        ('{"rows": [', ("properties", "rows", "items")),
        ('{"rows": [{"id": 5, "more": {"id": ', ("$defs", "row", "properties", "id")),
        ('{"rows": [{"id": 5}], "pair": [null, ', ("properties", "pair", "prefixItems", 1)),
        (
            '{"pair": [null, {"x": "a, \\"}{[", "y": 1}, {"x": ',
            ("properties", "pair"),
        ),
        (
            '{"pair": [null, {"x": ',
            ("properties", "pair", "prefixItems", 1, "anyOf", 1, "properties", "x"),
        ),
        ('{"other": "te', ("additionalProperties",)),
        ('\n\n{"rows": [{"id": 12', ("$defs", "row", "properties", "id")),
        ("]]}}", ()),
    ],
)
def test_the_place_of_the_value_that_is_being_written(output: str, path: Any) -> None:
    assert place_of_value(VALUE, output) == Place(block=0, path=path)


@pytest.mark.parametrize(
    ("output", "place"),
    [
        ('{"name": "f", "arguments": {"a": ', Place(block=0, path=("properties", "a"))),
        ('{"name": "g", "arguments": {"rows": ', Place(block=1, path=("properties", "rows"))),
        (
            '{"name": "g", "arguments": {}}\n{"name": "f", "arguments": {"a": ',
            Place(block=0, path=("properties", "a")),
        ),
        ('{"na', None),
    ],
)
def test_a_call_leads_to_the_schema_of_its_tool(output: str, place: Place | None) -> None:
    assert place_of_value(CALLS, output) == place


def test_the_widest_place_is_where_most_may_follow() -> None:
    many = {f"p{n}": {"enum": [1, 2]} for n in range(9)}
    lark = (
        f'a: %json {{"enum": [1, 2, 3]}}\nb: %json {json.dumps({"items": {"properties": many}})}\n'
    )
    assert widest_place(lark) == Place(block=1, path=("items", "properties"))
    needed = {"items": {"properties": many, "required": list(many)}}
    assert widest_place(f"b: %json {json.dumps(needed)}\n") == Place(
        block=0, path=("items", "properties", "p0", "enum")
    )
    assert widest_place("start: /a/") is None
