"""Calls from random weights: always valid, never lost or split, however tokens arrive."""

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.call_reading import added_up
from benchmarks.forced_calls import ForcedCalls, shared_tools
from tools_api.parsed_events import (
    CallArgumentsDelta,
    CallDone,
    ParsedCallStart,
    ParsedEvent,
    ParsedText,
)
from tools_api.tools import FunctionTool

DATA = Path(__file__).parents[3] / "shared"
SCHEMAS: dict[str, dict[str, Any]] = {
    "nothing": {"type": "object", "properties": {}},
    "open": {"type": "object", "properties": {"a": {"type": "string"}}},
    "strings": {
        "type": "object",
        "properties": {
            "free": {"type": "string"},
            "short": {"type": "string", "maxLength": 3},
            "code": {"type": "string", "pattern": "^[A-Z]{2}-[0-9]{1,4}$"},
            "day": {"type": "string", "format": "date"},
        },
        "required": ["free", "code"],
    },
    "numbers": {
        "type": "object",
        "properties": {
            "count": {"type": "integer", "minimum": -3, "maximum": 1200},
            "ratio": {"type": "number"},
            "flag": {"type": ["boolean", "null"]},
        },
        "required": ["count", "ratio", "flag"],
    },
    "nested": {
        "type": "object",
        "properties": {
            "items": {
                "type": "array",
                "minItems": 1,
                "items": {
                    "type": "object",
                    "properties": {"kind": {"enum": ['a "b"', "\u00e9", "c\\d", None, 7]}},
                    "required": ["kind"],
                    "additionalProperties": False,
                },
            },
            "either": {"anyOf": [{"type": "string"}, {"type": "array", "maxItems": 2}]},
        },
        "required": ["items", "either"],
    },
    "recursive": {
        "type": "object",
        "properties": {"tree": {"$ref": "#/$defs/node"}},
        "required": ["tree"],
        "$defs": {
            "node": {
                "type": "object",
                "properties": {
                    "name": {"type": "string"},
                    "children": {"type": "array", "items": {"$ref": "#/$defs/node"}},
                },
                "required": ["name"],
                "additionalProperties": False,
            }
        },
    },
    'quote"d \\ name': {"type": "object", "properties": {"x": {"const": '{"a": "</tool_call>"}'}}},
}


def tools_of(schemas: dict[str, dict[str, Any]]) -> list[FunctionTool]:
    return [FunctionTool(name=name, parameters=schema) for name, schema in schemas.items()]


def assert_all_whole(tools: list[FunctionTool], calls: int) -> None:
    counts = ForcedCalls().run(tools, calls)
    assert counts.calls == calls
    assert (counts.invalid, counts.lost_or_split, counts.unfinished) == (0, 0, 0), counts.examples
    assert counts.most_tokens_a_step > 16


def test_no_call_of_a_random_model_is_invalid_lost_or_split() -> None:
    assert_all_whole(tools_of(SCHEMAS), 140)


@pytest.mark.slow
@pytest.mark.skipif(not DATA.is_dir(), reason="the recorded tools are not here")
def test_no_call_of_a_recorded_tool_is_invalid_lost_or_split() -> None:
    assert_all_whole(shared_tools(DATA), 360)


def test_a_tool_that_cannot_be_enforced_is_left_out_and_counted() -> None:
    refused = FunctionTool(name="no", parameters={"type": "object", "not": {}})
    counts = ForcedCalls().run([refused, *tools_of({"open": SCHEMAS["open"]})], 3)
    assert (counts.tools, counts.tools_refused, counts.calls) == (2, 1, 3)


def test_what_events_add_up_to_tells_a_lost_piece() -> None:
    whole: list[ParsedEvent] = [
        ParsedCallStart("f"),
        CallArgumentsDelta('{"a'),
        CallArgumentsDelta('": 1}'),
    ]
    end = CallDone("f", json.dumps({"a": 1}))
    assert added_up([*whole, end]).deltas == end.arguments
    assert added_up([*whole[:2], end]) != added_up([*whole, end])
    assert added_up([*whole, ParsedText("x"), end]).other == 1
