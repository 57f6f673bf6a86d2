"""A packed request is the request again, whatever is in it."""

from decimal import Decimal
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tools_api.limits import DEFAULT_LIMITS
from tools_api.packed_requests import PIECE_BYTES, Unpacker, pack
from tools_api.request_reading import parse_create
from tools_api.requests import CreateRequest

NUMBERS = [1, 0.5, None, 2**64 + 1, Decimal("0.12345678901234567890"), Decimal("1e400")]
SCHEMA = {"type": "object", "properties": {"b": {"type": "number"}, "a": {"enum": NUMBERS}}}
ITEMS: list[dict[str, Any]] = [
    {"role": "system", "content": "be brief"},
    {"role": "user", "content": [{"type": "input_text", "text": "ä\u2028"}], "id": "m", "x": 1},
    {"role": "assistant", "content": [{"type": "refusal", "refusal": "no"}], "phase": "commentary"},
    {"type": "reasoning", "content": [{"type": "reasoning_text", "text": "hm"}], "summary": []},
    {"type": "reasoning", "summary": [{"type": "summary_text", "text": "s"}]},
    {"type": "reasoning", "encrypted_content": "secret"},
    {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}", "namespace": "n"},
    {"type": "function_call_output", "call_id": "c", "output": "done", "status": "completed"},
    {"type": "custom_tool_call", "call_id": "d", "name": "g", "input": "x"},
    {"type": "custom_tool_call_output", "call_id": "d", "output": "y"},
]
TOOLS: list[dict[str, Any]] = [
    {"type": "function", "name": "f", "parameters": SCHEMA, "strict": False, "description": "d"},
    {"type": "web_search"},
    {"type": "custom", "name": "g", "format": {"type": "grammar", "syntax": "lark",
                                               "definition": "start: A"}},
    {"type": "namespace", "name": "n", "description": "files", "tools": [
        {"type": "function", "name": "f"}, {"type": "custom", "name": "h"}]},
]  # fmt: skip
FIELDS: dict[str, Any] = {
    "model": "m",
    "instructions": "i",
    "previous_response_id": "resp_1",
    "store": False,
    "tools": TOOLS,
    "tool_choice": {
        "type": "allowed_tools",
        "mode": "required",
        "tools": [{"type": "function", "name": "f"}],
    },
    "parallel_tool_calls": False,
    "text": {"format": {"type": "json_schema", "name": "t", "schema": SCHEMA}, "verbosity": "low"},
    "max_output_tokens": 2**63 - 1,
    "temperature": 0.1,
    "top_logprobs": 3,
    "truncation": "auto",
    "metadata": {"a": "b"},
    "include": ["message.output_text.logprobs"],
    "reasoning": {"effort": "high", "summary": "auto"},
    "prompt_cache_options": {"mode": "explicit", "prewarm": True, "comparison_response_id": "r"},
    "context_management": [{"type": "compaction", "compact_threshold": 5}],
    "unknown": 1,
    "keepwarm": {
        "session": "s",
        "budget": {"output": 7, "cost": 0.25},
        "priority": -3,
        "sampling": {"stop": ["x", "y"], "seed": 5},
        "stats": False,
        "request_id": "r1",
    },
}


def carried(request: CreateRequest) -> CreateRequest:
    head, *parts = pack(request)
    unpacker = Unpacker(head)
    for part in parts:
        unpacker.add(part)
    return unpacker.request()


def same(one: CreateRequest, other: CreateRequest) -> bool:
    """Equal, and equal in all that pydantic and the wire make of it."""
    wires = [[each.to_wire() for each in (*r.input, *r.tools)] for r in (one, other)]
    return one == other and one.model_dump() == other.model_dump() and wires[0] == wires[1]


@given(
    items=st.lists(st.sampled_from(ITEMS), max_size=12),
    fields=st.sets(st.sampled_from(sorted(FIELDS))),
)
@settings(max_examples=150, deadline=None, derandomize=True)
def test_what_comes_out_is_what_went_in(items: list[Any], fields: set[str]) -> None:
    if "tool_choice" in fields:
        fields = fields | {"tools"}
    raw = {name: FIELDS[name] for name in fields} | {"input": items}
    request = parse_create(raw, "lane", DEFAULT_LIMITS)
    assert same(carried(request), request)


def test_every_field_at_once_and_none_at_all() -> None:
    whole = parse_create(FIELDS | {"input": ITEMS}, None, DEFAULT_LIMITS)
    assert same(carried(whole), whole)
    bare = parse_create({"input": "hi"}, None, DEFAULT_LIMITS)
    assert same(carried(bare), bare)
    assert not set(CreateRequest.model_fields) - set(vars(carried(bare)))


def test_numbers_come_through_to_the_last_digit() -> None:
    schema = {"enum": [2**64 + 1, Decimal("0.12345678901234567890"), 1e22]}
    tool = {"type": "function", "name": "f", "parameters": {"properties": {"a": schema}}}
    format_ = {"type": "json_schema", "name": "t", "schema": schema}
    raw = {"input": "hi", "tools": [tool], "text": {"format": format_}}
    request = parse_create(raw, None, DEFAULT_LIMITS)
    again = carried(request)
    assert same(again, request)
    assert again.text_format.json_schema == schema
    assert again.tools[0].parameters["properties"]["a"]["enum"][0] == 2**64 + 1


def test_defaults_that_may_change_are_not_shared() -> None:
    bare = parse_create({"input": "hi"}, None, DEFAULT_LIMITS)
    assert carried(bare).metadata is not carried(bare).metadata


@pytest.mark.parametrize("count", [1, 1000])
def test_pieces_are_of_bounded_size_unless_one_item_is_longer(count: int) -> None:
    items = [{"role": "user", "content": "x" * 200}] * count + [
        {"role": "user", "content": "y" * (2 * PIECE_BYTES)}
    ]
    request = parse_create({"input": items}, None, DEFAULT_LIMITS)
    pieces = list(pack(request))
    large = [piece for piece in pieces if len(piece) > PIECE_BYTES + 100]
    assert len(large) == 1
    assert [len(each) for each in orjson.loads(large[0]).values()] == [1]
    assert same(carried(request), request)


def test_a_request_whose_pieces_did_not_all_come_is_none() -> None:
    head, *parts = pack(parse_create(FIELDS | {"input": ITEMS}, None, DEFAULT_LIMITS))
    assert len(parts) == 2
    for came in ([], parts[:1], parts[1:], [*parts, parts[0]]):
        unpacker = Unpacker(head)
        for part in came:
            unpacker.add(part)
        with pytest.raises(ValueError, match="a request of"):
            unpacker.request()
