"""Items of built-in tools: what the published types allow is read, and comes back as it was."""

import itertools
import json
from typing import Any

import pytest
from openai.types.responses import ResponseInputItem
from pydantic import TypeAdapter

from tools_api.built_in_items import (
    CALL_PREFIXES,
    CALL_TYPES,
    OUTPUT_TYPES,
    BuiltInCall,
    BuiltInOutput,
    parse_built_in,
    written_call,
)
from tools_api.errors import ApiError
from tools_api.exact_json import loads
from tools_api.item_reading import parse_item
from tools_api.items import FunctionCallOutput, with_output

PUBLISHED: TypeAdapter[Any] = TypeAdapter(ResponseInputItem)
EXIT = {"type": "exit", "exit_code": 1}
CHUNK = {"stdout": "a\n", "stderr": "", "outcome": EXIT}
CREATE = {"type": "create_file", "path": "a.py", "diff": "+x"}
ITEMS: list[dict[str, Any]] = [
    {"type": "additional_tools", "id": "at_1", "role": "developer", "tools": []},
    {"type": "configuration_update", "id": "cu_1", "reasoning": {"effort": "low"},
     "text": {"format": {"type": "text"}}},
    {"type": "shell_call", "id": "sh_1", "call_id": "c", "status": "completed",
     "action": {"commands": ["ls", "echo é"], "timeout_ms": 5, "max_output_length": 9}},
    {"type": "shell_call", "call_id": "c", "action": {"commands": []}},
    {"type": "shell_call_output", "call_id": "c", "output": [CHUNK], "max_output_length": 9,
     "status": "completed"},
    {"type": "shell_call_output", "call_id": "c", "output": []},
    {"type": "local_shell_call", "id": "lsh_1", "call_id": "lsh_1", "status": "completed",
     "action": {"type": "exec", "command": ["ls", "-l"], "env": {"A": "b"}, "user": "u",
                "working_directory": "/", "timeout_ms": 7}},
    {"type": "local_shell_call_output", "id": "lsh_1", "call_id": "lsh_1", "output": "x"},
    {"type": "apply_patch_call", "id": "apc_1", "call_id": "c", "status": "completed",
     "operation": CREATE},
    {"type": "apply_patch_call", "call_id": "c", "status": "in_progress",
     "operation": {"type": "delete_file", "path": "a.py"}},
    {"type": "apply_patch_call_output", "call_id": "c", "status": "failed", "output": "no hunk"},
    {"type": "tool_search_call", "id": "tsc_1", "call_id": "c", "status": "completed",
     "execution": "client", "arguments": {"goal": "ship", "n": 10**30}},
    {"type": "tool_search_output", "id": "tso_1", "call_id": "c", "status": "completed",
     "execution": "client", "tools": [{"type": "function", "name": "f", "parameters": {}}]},
]  # fmt: skip


def read(item: dict[str, Any]) -> BuiltInCall | BuiltInOutput:
    found = parse_built_in(item, "input[0]")
    assert found is not None
    return found


def test_every_type_is_tried() -> None:
    others = {"additional_tools", "configuration_update"}
    assert {item["type"] for item in ITEMS} == {*CALL_TYPES, *OUTPUT_TYPES, *others}
    assert set(CALL_PREFIXES) == set(CALL_TYPES)


@pytest.mark.parametrize("item", ITEMS, ids=lambda item: item["type"])
def test_an_item_comes_back_as_it_came(item: dict[str, Any]) -> None:
    PUBLISHED.validate_python(item)
    found = read(item)
    wire = found.to_wire()
    PUBLISHED.validate_python(wire)
    assert wire == {"env": {}} | item if "env" in item else wire.items() >= item.items()
    assert parse_item(wire, "x") == found
    assert parse_item(json.loads(json.dumps(wire)), "x") == found


@pytest.mark.parametrize("item", ITEMS, ids=lambda item: item["type"])
def test_nulls_and_what_others_add_change_nothing(item: dict[str, Any]) -> None:
    more: dict[str, Any] = {"caller": {"type": "direct"}, "created_by": "x", "shell_output": []}
    if "action" in item:
        more["action"] = {"timeout_ms": None, "user": None} | item["action"]
    assert read(item | more) == read(item)


@pytest.mark.parametrize(
    ("changes", "param"),
    [
        ({"type": "shell_call", "action": None}, "action"),
        ({"type": "shell_call", "action": {"commands": "ls"}}, "action.commands"),
        ({"type": "shell_call", "action": {"commands": [1]}}, "action.commands[0]"),
        (
            {"type": "shell_call", "action": {"commands": [], "timeout_ms": "1"}},
            "action.timeout_ms",
        ),
        ({"type": "shell_call", "call_id": None, "action": {"commands": []}}, "call_id"),
        ({"type": "shell_call", "action": {"commands": []}, "status": "x"}, "status"),
        ({"type": "local_shell_call", "action": {"command": [], "env": {"A": 1}}}, "action.env.A"),
        ({"type": "local_shell_call", "action": {"command": [], "user": 1}}, "action.user"),
        ({"type": "apply_patch_call"}, "operation"),
        ({"type": "apply_patch_call", "operation": CREATE | {"type": "x"}}, "operation.type"),
        ({"type": "apply_patch_call", "operation": CREATE | {"diff": None}}, "operation.diff"),
        ({"type": "shell_call_output", "output": "x"}, "output"),
        ({"type": "shell_call_output", "output": ["x"]}, "output[0]"),
        ({"type": "shell_call_output", "output": [{"stdout": ""}]}, "output[0].outcome"),
        (
            {
                "type": "shell_call_output",
                "output": [CHUNK | {"outcome": EXIT | {"exit_code": "0"}}],
            },
            "output[0].outcome.exit_code",
        ),
        ({"type": "shell_call_output", "output": [CHUNK | {"stdout": 1}]}, "output[0].stdout"),
        ({"type": "local_shell_call_output", "call_id": None, "output": "x"}, "id"),
        ({"type": "local_shell_call_output", "output": None}, "output"),
        ({"type": "apply_patch_call_output", "status": "incomplete"}, "status"),
        ({"type": "tool_search_call", "arguments": [1]}, "arguments"),
        ({"type": "tool_search_output", "tools": {}}, "tools"),
        ({"type": "tool_search_output", "tools": [1]}, "tools[0]"),
        ({"type": "tool_search_output", "tools": [], "execution": "x"}, "execution"),
    ],
)
def test_a_fault_is_refused_by_its_path(changes: dict[str, Any], param: str) -> None:
    with pytest.raises(ApiError) as refused:
        parse_item({"call_id": "c"} | changes, "input[3]")
    assert refused.value.param == f"input[3].{param}"


def test_an_output_reads_as_text() -> None:
    late = {"stdout": "", "stderr": "slow\n", "outcome": {"type": "timeout"}}
    item = {"type": "shell_call_output", "call_id": "c", "output": [CHUNK, late]}
    found = read(item)
    assert isinstance(found, BuiltInOutput)
    assert found.output == "a\nexit code: 1\nstderr:\nslow\ntimed out"
    unknown = read(item | {"output": [CHUNK | {"outcome": {"type": "exit"}}]})
    assert getattr(unknown, "output", None) == "a\nexited"
    patch = {"type": "apply_patch_call_output", "call_id": "c"}
    said = [{"status": "failed"}, {"status": "failed", "output": "x"}, {"status": "completed"}]
    outputs = [getattr(read(patch | each), "output", None) for each in said]
    assert outputs == ["failed", "failed: x", "completed"]


def test_a_megabyte_of_output_is_read_whole() -> None:
    chunk = CHUNK | {"stdout": "x" * 2**20}
    found = read({"type": "shell_call_output", "call_id": "c", "output": [chunk]})
    assert isinstance(found, BuiltInOutput)
    assert len(found.output) == 2**20 + len("\nexit code: 1")


def test_an_output_that_is_shortened_is_text_alone() -> None:
    found = read(next(item for item in ITEMS if item["type"] == "shell_call_output"))
    assert isinstance(found, BuiltInOutput)
    assert with_output(found, "short") == FunctionCallOutput(call_id="c", output="short")


def test_a_call_without_its_arguments_can_be_read_again() -> None:
    for item in ITEMS:
        found = read(item)
        if isinstance(found, BuiltInCall):
            assert parse_item(found.emptied().to_wire(), "x") == found.emptied()


def test_a_local_shell_s_output_names_its_call_by_either_id() -> None:
    by_id = read({"type": "local_shell_call_output", "id": "lsh_1", "output": "x"})
    assert by_id == read({"type": "local_shell_call_output", "call_id": "lsh_1", "output": "x"})
    assert by_id.call_id == "lsh_1"


def test_a_search_without_an_id_is_answered_by_the_next_output() -> None:
    call = read({"type": "tool_search_call", "arguments": {}, "execution": "server"})
    output = read({"type": "tool_search_output", "call_id": None, "tools": []})
    assert call.call_id == output.call_id
    assert isinstance(output, BuiltInOutput)
    assert output.loads


@pytest.mark.parametrize("item", [item for item in ITEMS if item["type"] in CALL_TYPES])
def test_however_a_call_was_cut_it_is_an_item(item: dict[str, Any]) -> None:
    kind, whole = item["type"], read(item)
    assert isinstance(whole, BuiltInCall)
    text = whole.arguments
    for end in range(len(text) + 1):
        cut = written_call(
            kind, text[:end], call_id="c", execution=None, id="x_1", status="incomplete"
        )
        PUBLISHED.validate_python(cut.to_wire() | {"status": "in_progress"})
        again = parse_item(cut.to_wire(), "x")
        assert isinstance(again, BuiltInCall)
        assert loads(again.arguments) == loads(cut.arguments)
    assert cut.arguments == text


def test_other_types_are_another_module_s() -> None:
    for kind in ("function_call", "shell", None, ["shell_call"]):
        assert parse_built_in({"type": kind}, "x") is None


def test_types_differ_from_each_other_in_what_is_compared() -> None:
    found = [read(item) for item in ITEMS]
    pairs = itertools.combinations(found, 2)
    assert all(one != other for one, other in pairs)
