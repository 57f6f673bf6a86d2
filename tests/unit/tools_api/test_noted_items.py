"""Histories with items of tools that ran elsewhere are read, and it is said."""

from typing import Any

import pytest
from openai.types.responses.response_input_item_param import (
    ComputerCallOutput,
    ImageGenerationCall,
    McpApprovalRequest,
    McpApprovalResponse,
    McpCall,
    McpListTools,
)

from tests.support.sessions_rig import END, Rig, call, spelled, tool
from tools_api.errors import ApiError
from tools_api.item_reading import parse_items
from tools_api.items import Message
from tools_api.limits import DEFAULT_LIMITS
from tools_api.noted_items import NOTED
from tools_api.request_reading import parse_create
from tools_api.request_warnings import request_warnings

ITEMS: list[dict[str, Any]] = [
    {"type": "web_search_call", "id": "ws_1", "status": "searching",
     "action": {"type": "search", "query": "red shoes"}},
    {"type": "file_search_call", "id": "fs_1", "status": "completed", "queries": ["shoes"],
     "results": [{"text": "red ones"}]},
    {"type": "code_interpreter_call", "id": "ci_1", "code": "print(1)", "container_id": "c",
     "outputs": [{"type": "logs", "logs": "1"}], "status": "interpreting"},
    {"type": "image_generation_call", "id": "ig_1", "result": "A" * 1000, "status": "generating"},
    {"type": "mcp_call", "id": "mcp_1", "server_label": "shop", "name": "find",
     "arguments": '{"q":"shoes"}', "output": "two pairs"},
    {"type": "mcp_list_tools", "id": "mcpl_1", "server_label": "shop",
     "tools": [{"name": "find", "input_schema": {}}]},
    {"type": "mcp_approval_request", "id": "mcpr_1", "server_label": "shop", "name": "find",
     "arguments": "{}"},
    {"type": "mcp_approval_response", "approval_request_id": "mcpr_1", "approve": True},
    {"type": "computer_call", "id": "cu_1", "call_id": "call_1", "status": "completed",
     "action": {"type": "click", "x": 1, "y": 2}, "pending_safety_checks": []},
    {"type": "computer_call_output", "call_id": "call_1",
     "output": {"type": "computer_screenshot", "image_url": "data:" + "A" * 1000}},
]  # fmt: skip


def test_every_noted_type_is_tried() -> None:
    assert {item["type"] for item in ITEMS} == set(NOTED)


@pytest.mark.parametrize("item", ITEMS, ids=lambda item: item["type"])
def test_an_item_is_a_note_of_the_models_without_what_is_binary(item: dict[str, Any]) -> None:
    (read,) = parse_items([item])
    assert isinstance(read, Message)
    assert read.role == "assistant"
    assert read.id == item.get("id")
    assert read.text.startswith(f"[{item['type']}: {{")
    assert "A" * 100 not in read.text
    told = [value for name in NOTED[item["type"]] if isinstance(value := item.get(name), str)]
    assert all(value.replace('"', '\\"') in read.text for value in told)


@pytest.mark.parametrize(
    "published",
    [
        ComputerCallOutput,
        ImageGenerationCall,
        McpApprovalRequest,
        McpApprovalResponse,
        McpCall,
        McpListTools,
    ],
)
def test_what_is_told_are_published_fields(published: Any) -> None:
    names = published.__annotations__
    kinds = {kind for kind in NOTED if kind.replace("_", "") == published.__name__.lower()}
    for kind in kinds:
        unknown = set(NOTED[kind]) - set(names)
        assert unknown <= {"revised_prompt"}
    assert kinds


def test_a_history_with_all_of_them_goes_on_and_it_is_said_once() -> None:
    rig = Rig()
    client = rig.connect()
    asked = {"role": "user", "content": "Find shoes."}
    turn = client.turn("found" + END, input=[asked, *ITEMS, asked])
    read = spelled(rig.engine.requests[-1].new_tokens.tolist())
    assert "two pairs" in read
    (warning,) = [each for each in turn["keepwarm"]["warnings"] if each.startswith("input")]
    assert all(kind in warning for kind in NOTED)
    again = client.turn("on" + END, input=[asked, *ITEMS, asked, *turn["output"], asked])
    assert again["previous_response_id"] == turn["id"], "a history that is resent is found"


def test_a_note_between_a_call_and_its_output_parts_nothing() -> None:
    rig = Rig()
    client = rig.connect()
    turn = client.turn(call("f") + END, input="x", tools=[tool("f")])
    called = turn["output"][-1]
    output = {"type": "function_call_output", "call_id": called["call_id"], "output": "1"}
    again = client.turn(
        END, input=[{"role": "user", "content": "x"}, called, ITEMS[0], output], tools=[tool("f")]
    )
    assert again["status"] == "completed"


def test_what_is_no_json_is_refused_by_its_place() -> None:
    with pytest.raises(ApiError) as refused:
        parse_items([{"role": "user", "content": "x"}, ITEMS[0] | {"action": {"q": {1, 2}}}])
    assert refused.value.param == "input[1].type"


@pytest.mark.parametrize("items", [None, "x", [], [1, {}], [{"type": ["mcp_call"]}]])
def test_other_input_is_not_warned_of(items: object) -> None:
    assert not any("ran elsewhere" in each for each in request_warnings({"input": items}))


def test_a_type_that_is_none_is_refused_as_ever() -> None:
    raw = {"type": "response.create", "input": [{"type": "web_search_call_x"}]}
    with pytest.raises(ApiError) as refused:
        parse_create(raw, None, DEFAULT_LIMITS)
    assert refused.value.param == "input[0].type"
