"""Definitions in items: read, checked, merged, and written where they stand."""

import json
from typing import Any

import pytest
from openai.types.responses import ResponseInputItem
from pydantic import TypeAdapter

from tests.support.chat_models import FORMATS, format_of
from tools_api.chat_format import TemplateOptions, to_json, tool_object
from tools_api.errors import ApiError
from tools_api.item_reading import parse_items
from tools_api.items import Message
from tools_api.limits import DEFAULT_LIMITS, Limits
from tools_api.tool_definitions import DEFINING, check_definitions, defines, definitions_in, merged

PUBLISHED: TypeAdapter[Any] = TypeAdapter(ResponseInputItem)


def function(name: str, **more: Any) -> dict[str, Any]:
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    return {"type": "function", "name": name, "description": f"Does {name}.",
            "parameters": schema, "strict": True, **more}  # fmt: skip


def adds(*tools: dict[str, Any]) -> dict[str, Any]:
    return {"type": "additional_tools", "role": "developer", "tools": list(tools)}


def found(*tools: dict[str, Any]) -> dict[str, Any]:
    return {"type": "tool_search_output", "call_id": "c", "tools": list(tools),
            "execution": "client", "status": "completed"}  # fmt: skip


SPACE = {
    "type": "namespace",
    "name": "crm",
    "description": "Customers.",
    "tools": [function("find", defer_loading=True), function("save", defer_loading=True)],
}


@pytest.mark.parametrize("item", [adds(function("f"), SPACE), found(function("f"), SPACE)])
def test_an_item_brings_tools_that_no_header_has(item: dict[str, Any]) -> None:
    PUBLISHED.validate_python(item)
    (read,) = parse_items([item])
    assert read.to_wire() == item
    assert parse_items([read.to_wire()]) == (read,)
    tools = definitions_in(read)
    assert [tool.name for tool in tools] == ["f", "crm__find", "crm__save"]
    assert all(tool.offered and tool.by_item and not tool.in_header for tool in tools)
    assert defines(read)


def test_other_items_bring_nothing() -> None:
    items = parse_items(
        [
            {"role": "user", "content": "x"},
            {"type": "shell_call_output", "call_id": "c", "output": []},
            {"type": "tool_search_call", "call_id": "c", "arguments": {}},
        ]
    )
    assert not any(map(defines, items))
    assert not any(map(definitions_in, items))
    assert merged(items) is None


@pytest.mark.parametrize("name", FORMATS)
def test_every_format_writes_the_definitions_where_they_stand(name: str) -> None:
    chat_format = format_of(FORMATS[name])
    items = parse_items(
        [
            {"role": "user", "content": "hello"},
            {"type": "tool_search_call", "call_id": "c", "arguments": {"query": "x"}},
            found(function("f")),
            adds(function("g"), function("h")),
            {"role": "user", "content": "bye"},
        ]
    )
    segments = chat_format.items(items, first=True, open_output=False, options=TemplateOptions())
    text = "".join(segment.text for segment in segments)
    places = [text.index("hello")]
    for item in items:
        for tool in definitions_in(item):
            line = to_json(tool_object(tool))
            escaped = json.dumps(line)[1:-1]
            places.append(max(text.find(line), text.find(escaped)))
    places.append(text.index("bye"))
    assert places == sorted(places)
    assert -1 not in places


def test_a_search_that_found_nothing_says_so() -> None:
    chat_format = format_of(FORMATS["qwen3"])
    items = parse_items([{"type": "tool_search_call", "call_id": "c", "arguments": {}}, found()])
    segments = chat_format.items(items, first=True, open_output=False, options=TemplateOptions())
    assert "No tools were found." in "".join(segment.text for segment in segments)


def test_merged_items_bring_what_they_brought() -> None:
    newer = function("f", description="Does f better.")
    items = parse_items([found(function("f"), SPACE), adds(function("g")), adds(newer)])
    (whole,) = [merged(items)]
    assert whole is not None
    names = {tool.name: tool.description for item in items for tool in definitions_in(item)}
    entries = json.loads(whole.tools)
    again = {entry.get("name"): entry.get("description") for entry in entries}
    assert again["f"] == names["f"] == "Does f better."
    assert merged([whole]) == whole
    assert merged([Message(role="user", content=()), whole]) == whole


@pytest.mark.parametrize(
    ("item", "param"),
    [
        (adds({"type": "function"}), "input[1].tools[0].name"),
        (adds({"type": "moon", "name": "x"}), "input[1].tools[0].type"),
        (found(function("f"), function("f")), "input[1].tools[1].name"),
        (found(function("f", parameters={"type": "array"})), "input[1].tools[0].parameters"),
        (adds(*[function(f"f{n}") for n in range(5)]), "input[1].tools"),
    ],
)
def test_faulty_definitions_are_refused_by_their_path(item: dict[str, Any], param: str) -> None:
    limits = Limits(max_tools=4, max_deferred_tools=4)
    with pytest.raises(ApiError) as refused:
        check_definitions([{"role": "user", "content": "x"}, item], limits)
    assert refused.value.param == param


def test_definitions_of_all_items_are_counted_together() -> None:
    limits = Limits(max_tools=4, max_deferred_tools=4)
    items = [adds(function(f"f{n}"), function(f"g{n}")) for n in range(3)]
    assert check_definitions(items[:2], limits) == ()
    with pytest.raises(ApiError) as refused:
        check_definitions(items, limits)
    assert refused.value.param == "input[2].tools"


def test_hosted_tools_among_them_are_left_out_and_named() -> None:
    item = adds({"type": "web_search"}, function("f"))
    (warning,) = check_definitions([item], DEFAULT_LIMITS)
    assert "web_search" in warning
    (read,) = parse_items([item])
    assert [tool.name for tool in definitions_in(read)] == ["f"]


@pytest.mark.parametrize("raw", ["x", None, [1, "x"], [{"type": ["tool_search_output"]}]])
def test_other_input_is_not_looked_at(raw: object) -> None:
    assert check_definitions(raw, DEFAULT_LIMITS) == ()


def test_the_types_are_those_that_bring_tools() -> None:
    read = parse_items([adds(), found()])
    assert tuple(item.type for item in read) == DEFINING
