"""Built-in tools are functions to the model, and what they were to their client."""

from typing import Any

import jsonschema
import pytest
from openai.types.responses import ApplyPatchTool, FunctionShellTool
from openai.types.responses.response_apply_patch_tool_call import ResponseApplyPatchToolCall
from openai.types.responses.response_function_shell_tool_call import Action
from openai.types.responses.response_output_item import LocalShellCallAction

from tools_api.built_in_items import parse_built_in
from tools_api.built_in_tools import TOOL_TYPES, definition, is_hosted
from tools_api.errors import ApiError
from tools_api.exact_json import loads
from tools_api.tools import ToolChoice, parse_tool_choice, parse_tools, tool_warnings, wire_tools

SHELL = {"type": "shell", "environment": {"type": "local"}}
SKILL = {"name": "pdf", "description": "Reads PDF", "path": "/skills/pdf"}
FUNCTION = {"type": "function", "name": "f", "parameters": {"type": "object"}}
EXAMPLES: dict[str, list[dict[str, Any]]] = {
    "shell": [{"commands": ["ls"]}, {"commands": ["a", ""], "timeout_ms": 1}],
    "local_shell": [{"command": ["ls"]}, {"command": ["a"], "env": {"A": "b"}, "user": "u"}],
    "apply_patch": [
        {"operation": {"type": "delete_file", "path": "a"}},
        {"operation": {"type": "update_file", "path": "a", "diff": "@@\n-a\n+b"}},
    ],
}


@pytest.mark.parametrize("kind", EXAMPLES)
def test_its_schema_lets_the_published_arguments_pass(kind: str) -> None:
    found = definition({"type": kind}, "tools[0]")
    for arguments in EXAMPLES[kind]:
        jsonschema.validate(arguments, found.parameters)
        field = {"apply_patch": "operation"}.get(kind, "action")
        own = arguments["operation"] if kind == "apply_patch" else {"type": "exec"} | arguments
        call = parse_built_in({"type": f"{kind}_call", "call_id": "c", field: own}, "x")
        assert call is not None
        assert loads(getattr(call, "arguments", "")) == arguments


def test_its_arguments_are_those_of_the_published_items() -> None:
    def names(kind: str) -> set[str]:
        return set(definition({"type": kind}, "x").parameters["properties"])

    assert names("shell") == set(Action.model_fields)
    assert names("local_shell") == set(LocalShellCallAction.model_fields) - {"type"}
    assert names("apply_patch") <= set(ResponseApplyPatchToolCall.model_fields)


def test_responses_echo_a_tool_as_it_was_sent() -> None:
    raw = [SHELL, {"type": "local_shell"}, {"type": "apply_patch"}, FUNCTION]
    wire = wire_tools(parse_tools(raw))
    assert wire[:3] == raw[:3]
    FunctionShellTool.model_validate(wire[0])
    ApplyPatchTool.model_validate(wire[2])
    assert not tool_warnings(raw)


def test_skills_are_told_to_the_model() -> None:
    (tool,) = parse_tools([{"type": "shell", "environment": {"type": "local", "skills": [SKILL]}}])
    assert tool.description is not None
    assert all(text in tool.description for text in SKILL.values())


@pytest.mark.parametrize(
    ("raw", "param"),
    [
        ({"type": "shell", "environment": {"type": "moon"}}, "tools[0].environment.type"),
        ({"type": "shell", "environment": 1}, "tools[0].environment"),
        (
            {"type": "shell", "environment": {"type": "local", "skills": [SKILL | {"path": 1}]}},
            "tools[0].environment.skills[0].path",
        ),
        (
            {"type": "shell", "environment": {"type": "local", "skills": 1}},
            "tools[0].environment.skills",
        ),
        ({"type": "namespace", "name": "n", "tools": [SHELL]}, "tools[0].tools[0].type"),
    ],
)
def test_a_faulty_entry_is_refused_by_its_path(raw: dict[str, Any], param: str) -> None:
    with pytest.raises(ApiError) as refused:
        parse_tools([raw])
    assert refused.value.param == param


def test_a_function_may_not_have_the_name_of_one() -> None:
    with pytest.raises(ApiError) as refused:
        parse_tools([SHELL, FUNCTION | {"name": "shell"}])
    assert refused.value.param == "tools[1].name"


@pytest.mark.parametrize("kind", ["container_auto", "container_reference"])
def test_a_shell_in_a_container_is_left_out(kind: str) -> None:
    raw = {"type": "shell", "environment": {"type": kind, "container_id": "c"}}
    assert is_hosted(raw)
    assert parse_tools([raw, FUNCTION])[0].name == "f"
    assert "shell" in tool_warnings([raw])[0]
    with pytest.raises(ApiError):
        parse_tool_choice({"type": "shell"}, parse_tools([raw, FUNCTION]))


@pytest.mark.parametrize("kind", ["shell", "local_shell", "apply_patch"])
def test_a_choice_names_it_by_its_type(kind: str) -> None:
    tools = parse_tools([{"type": kind}, FUNCTION])
    choice = parse_tool_choice({"type": kind}, tools)
    assert choice == ToolChoice(mode="required", names=(kind,), named=True)
    own = choice.to_wire(tools)
    only = {"type": "allowed_tools", "mode": "required", "tools": [{"type": kind}]}
    assert own == (only if kind == "local_shell" else {"type": kind})
    allowed = {"type": "allowed_tools", "mode": "auto", "tools": [{"type": kind}]}
    assert parse_tool_choice(allowed, tools).to_wire(tools) == allowed
    with pytest.raises(ApiError) as refused:
        parse_tool_choice({"type": kind}, parse_tools([FUNCTION]))
    assert refused.value.param == "tool_choice"
    with pytest.raises(ApiError):
        parse_tool_choice({"type": "function", "name": kind}, tools)


def test_a_search_that_runs_here_names_the_namespaces_it_looks_in() -> None:
    later = FUNCTION | {"defer_loading": True}
    spaces = [
        {"type": "namespace", "name": name, "description": f"About {name}.", "tools": [later]}
        for name in ("crm", "ops")
    ]
    (search, *_) = parse_tools([{"type": "tool_search"}, *spaces])
    assert search.description is not None
    assert "- crm: About crm.\n- ops: About ops." in search.description
    shown = [space | {"tools": [FUNCTION]} for space in spaces]
    (alone, *_) = parse_tools([{"type": "tool_search"}, *shown])
    assert alone.description == parse_tools([{"type": "tool_search"}])[0].description


@pytest.mark.parametrize("execution", [None, "server", "client"])
def test_a_search_is_run_where_it_says(execution: str | None) -> None:
    parameters = {"type": "object", "properties": {"goal": {"type": "string"}}}
    raw = {"type": "tool_search", "description": "Mine.", "parameters": parameters}
    (tool,) = parse_tools([raw | ({} if execution is None else {"execution": execution})])
    assert tool.built_in is not None
    assert tool.built_in.execution == (execution or "server")
    own = execution == "client"
    assert (tool.description == "Mine.", tool.parameters == parameters) == (own, own)
    with pytest.raises(ApiError):
        parse_tools([raw | {"execution": "moon"}])


def test_every_type_has_its_item() -> None:
    for kind in TOOL_TYPES:
        found = definition({"type": kind}, "x")
        assert found.built_in.type == kind
        assert found.built_in.call_type == f"{kind}_call"
