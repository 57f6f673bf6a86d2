from typing import Any

import pytest
from openai.types.responses import FunctionTool as PublishedTool

from tools_api.errors import ApiError
from tools_api.tools import FunctionTool, ToolChoice, parse_tool_choice, parse_tools

A, B = FunctionTool(name="a"), FunctionTool(name="b", description="Bee", strict=False)


def test_a_tool_is_read_and_echoed() -> None:
    raw = {
        "type": "function",
        "name": "add",
        "description": "Adds",
        "parameters": {"type": "object", "properties": {"z": {}, "a": {}}},
        "strict": False,
    }
    (tool,) = parse_tools([raw])
    assert tool.to_wire() == raw
    assert list(tool.parameters["properties"]) == ["z", "a"], "the order is the client's"
    assert PublishedTool.model_validate(tool.to_wire()).name == "add"


def test_a_tool_may_leave_everything_but_its_name_out() -> None:
    raw = {"type": "function", "name": "now", "description": None, "parameters": None}
    (tool,) = parse_tools([raw])
    assert tool.parameters == {"type": "object", "properties": {}}
    assert tool.strict
    assert parse_tools(None) == ()


@pytest.mark.parametrize("name", ["a b", "get.weather/now", 'quo"te', "<tool_call>", "Wetter_ä"])
def test_odd_names_are_names(name: str) -> None:
    assert parse_tools([{"type": "function", "name": name}])[0].name == name


@pytest.mark.parametrize(
    ("raw", "code", "param"),
    [
        ({}, "invalid_type", "tools"),
        (["a"], "invalid_type", "tools[0]"),
        ([{"name": "a"}], "missing_required_parameter", "tools[0].type"),
        ([{"type": 1}], "invalid_value", "tools[0].type"),
        ([{"type": "web_search"}], "unsupported_parameter", "tools[0].type"),
        ([{"type": "function"}], "missing_required_parameter", "tools[0].name"),
        ([{"type": "function", "name": 1}], "invalid_type", "tools[0].name"),
        ([{"type": "function", "name": ""}], "invalid_value", "tools[0].name"),
        ([{"type": "function", "name": "a\nb"}], "invalid_value", "tools[0].name"),
        (
            [{"type": "function", "name": "a", "parameters": []}],
            "invalid_type",
            "tools[0].parameters",
        ),
        ([{"type": "function", "name": "a", "strict": "yes"}], "invalid_type", "tools[0].strict"),
        (
            [{"type": "function", "name": "a", "parameters": {"type": "string"}}],
            "invalid_json_schema",
            "tools[0].parameters",
        ),
        ([A.to_wire(), B.to_wire(), A.to_wire()], "invalid_value", "tools[2].name"),
    ],
)
def test_faulty_tools_are_refused(raw: Any, code: str, param: str) -> None:
    with pytest.raises(ApiError) as refused:
        parse_tools(raw)
    assert (refused.value.code, refused.value.param) == (code, param)


# Choice on the wire, tools that may be called with it, whether one must be.
CHOICES: list[tuple[Any, tuple[FunctionTool, ...], str]] = [
    ("auto", (A, B), "auto"),
    ("none", (), "none"),
    ("required", (A, B), "required"),
    ({"type": "function", "name": "b"}, (B,), "required"),
    (
        {
            "type": "allowed_tools",
            "mode": "auto",
            "tools": [{"type": "function", "name": "b"}],
        },
        (B,),
        "auto",
    ),
    (
        {
            "type": "allowed_tools",
            "mode": "required",
            "tools": [{"type": "function", "name": "a"}, {"type": "function", "name": "b"}],
        },
        (A, B),
        "required",
    ),
]


@pytest.mark.parametrize(("raw", "callable_tools", "mode"), CHOICES)
def test_a_choice_says_what_may_be_called_and_is_echoed(
    raw: Any, callable_tools: tuple[FunctionTool, ...], mode: str
) -> None:
    choice = parse_tool_choice(raw, (A, B))
    assert choice.callable((A, B)) == callable_tools
    assert choice.mode == mode
    assert choice.to_wire() == raw
    assert choice.named is (isinstance(raw, dict) and raw["type"] == "function")


def test_without_a_choice_the_model_chooses() -> None:
    assert parse_tool_choice(None, ()) == ToolChoice()
    assert ToolChoice().to_wire() == "auto"


def test_allowed_tools_keep_the_order_of_the_tools() -> None:
    raw = {"type": "allowed_tools", "mode": "auto", "tools": [{"name": "b"}, {"name": "a"}]}
    assert parse_tool_choice(raw, (A, B)).names == ("a", "b")


@pytest.mark.parametrize(
    ("raw", "code", "param"),
    [
        (1, "invalid_type", "tool_choice"),
        ("always", "invalid_value", "tool_choice"),
        ({}, "missing_required_parameter", "tool_choice.type"),
        ({"type": "web_search"}, "unsupported_parameter", "tool_choice.type"),
        ({"type": "function", "name": "c"}, "invalid_value", "tool_choice"),
        ({"type": "function"}, "invalid_value", "tool_choice"),
        ({"type": "allowed_tools", "tools": []}, "missing_required_parameter", "tool_choice.mode"),
        (
            {"type": "allowed_tools", "mode": "none", "tools": []},
            "invalid_value",
            "tool_choice.mode",
        ),
        (
            {"type": "allowed_tools", "mode": "auto"},
            "missing_required_parameter",
            "tool_choice.tools",
        ),
        (
            {"type": "allowed_tools", "mode": "auto", "tools": []},
            "invalid_value",
            "tool_choice.tools",
        ),
        (
            {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "mcp", "name": "a"}]},
            "invalid_value",
            "tool_choice",
        ),
    ],
)
def test_faulty_choices_are_refused(raw: Any, code: str, param: str) -> None:
    with pytest.raises(ApiError) as refused:
        parse_tool_choice(raw, (A, B))
    assert (refused.value.code, refused.value.param) == (code, param)


def test_a_call_cannot_be_required_without_tools() -> None:
    with pytest.raises(ApiError, match="at least one tool"):
        parse_tool_choice("required", ())
