from typing import Any

import pytest
from openai.types.responses import FunctionTool as PublishedTool
from openai.types.responses import Tool
from pydantic import TypeAdapter

from tools_api.errors import ApiError
from tools_api.tools import (
    HOSTED_TOOLS,
    FunctionTool,
    ToolChoice,
    hosted_types,
    parse_tool_choice,
    parse_tools,
    tool_warnings,
    wire_tools,
)

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
        ([{"type": "browser"}], "unsupported_parameter", "tools[0].type"),
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
            "unsupported_parameter",
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


# Namespaces, custom tools, hosted tools

PUBLISHED: TypeAdapter[Any] = TypeAdapter(Tool)
PATCH = {"type": "grammar", "syntax": "lark", "definition": 'start: "a"+'}
CALENDAR: dict[str, Any] = {
    "type": "namespace",
    "name": "mcp__calendar",
    "description": "Dates.",
    "tools": [
        {"type": "function", "name": "add", "description": "Adds.", "parameters": {}},
        {"type": "custom", "name": "note"},
    ],
}


def custom(name: str, **fields: Any) -> dict[str, Any]:
    return {"type": "custom", "name": name, **fields}


def test_tools_of_a_namespace_are_called_by_both_names_and_echoed_inside_it() -> None:
    tools = parse_tools([A.to_wire(), CALENDAR, custom("patch", format=PATCH)])
    assert [tool.name for tool in tools] == [
        "a",
        "mcp__calendar__add",
        "mcp__calendar__note",
        "patch",
    ]
    assert [tool.own_name for tool in tools] == ["a", "add", "note", "patch"]
    assert [tool.place for tool in tools] == [
        "tools[0]", "tools[1].tools[0]", "tools[1].tools[1]", "tools[2]"
    ]  # fmt: skip
    echo = wire_tools(tools)
    assert [entry["type"] for entry in echo] == ["function", "namespace", "custom"]
    assert [entry["name"] for entry in echo[1]["tools"]] == ["add", "note"]
    assert echo[2]["format"] == PATCH
    for entry in echo:
        PUBLISHED.validate_python(entry)
    assert parse_tools(echo) == tools


def test_what_a_namespace_is_for_is_said_once() -> None:
    tools = parse_tools([CALENDAR])
    assert [tool.shown_description for tool in tools] == ["mcp__calendar: Dates.\n\nAdds.", None]
    assert [tool.description for tool in tools] == ["Adds.", None]


def test_a_custom_tool_takes_one_string_or_plain_text_by_its_grammar() -> None:
    free, bound = parse_tools([custom("free", description="Runs."), custom("bound", format=PATCH)])
    assert (free.plain, bound.plain) == (False, True)
    assert list(free.parameters["properties"]) == ["input"]
    assert free.shown_description == "Runs."
    assert bound.shown_description is not None
    assert 'lark grammar:\nstart: "a"+' in bound.shown_description


def test_the_wire_cannot_set_what_only_we_know() -> None:
    raw = {"type": "function", "name": "a", "place": "x", "namespace": {"name": "n"}, "custom": {}}
    (tool,) = parse_tools([raw])
    assert (tool.place, tool.namespace, tool.custom) == ("tools[0]", None, None)


@pytest.mark.parametrize(
    ("raw", "code", "param"),
    [
        ([CALENDAR, CALENDAR], "invalid_value", "tools[1].tools[0].name"),
        (
            [{"type": "function", "name": "mcp__calendar__add"}, CALENDAR],
            "invalid_value",
            "tools[1].tools[0].name",
        ),
        ([{"type": "namespace", "name": "n"}], "missing_required_parameter", "tools[0].tools"),
        ([{"type": "namespace", "name": "n", "tools": {}}], "invalid_type", "tools[0].tools"),
        ([{"type": "namespace", "tools": []}], "missing_required_parameter", "tools[0].name"),
        (
            [{"type": "namespace", "name": "n", "tools": [CALENDAR]}],
            "unsupported_parameter",
            "tools[0].tools[0].type",
        ),
        (
            [{"type": "namespace", "name": "n", "tools": [{"type": "web_search"}]}],
            "unsupported_parameter",
            "tools[0].tools[0].type",
        ),
        ([custom("c", format={"type": "x"})], "invalid_value", "tools[0].format.type"),
        ([custom("c"), custom("c")], "invalid_value", "tools[1].name"),
        ([custom("c\n")], "invalid_value", "tools[0].name"),
    ],
)
def test_faulty_namespaces_and_custom_tools_are_refused(raw: Any, code: str, param: str) -> None:
    with pytest.raises(ApiError) as refused:
        parse_tools(raw)
    assert (refused.value.code, refused.value.param) == (code, param)


def test_hosted_tools_are_left_out_and_named() -> None:
    raw = [{"type": kind} for kind in sorted(HOSTED_TOOLS)] + [A.to_wire()] + [{"type": "mcp"}]
    assert [tool.name for tool in parse_tools(raw)] == ["a"]
    assert hosted_types(raw) == tuple(sorted(HOSTED_TOOLS))
    (warning,) = tool_warnings(raw)
    assert warning.startswith("tools: left out")
    assert all(kind in warning for kind in HOSTED_TOOLS)


def test_every_published_kind_of_tool_is_known() -> None:
    schema = PUBLISHED.json_schema()
    kinds = {
        value
        for definition in schema["$defs"].values()
        for value in _values(definition.get("properties", {}).get("type", {}))
        if any(ref.endswith("/" + definition["title"]) for ref in _references(schema))
    }
    assert kinds >= {"function", "namespace", "web_search"}
    own = {"function", "custom", "namespace", "shell", "local_shell", "apply_patch", "tool_search"}
    assert kinds <= HOSTED_TOOLS | own


def _values(schema: dict[str, Any]) -> list[str]:
    return [schema["const"]] if "const" in schema else schema.get("enum", [])


def _references(schema: dict[str, Any]) -> list[str]:
    return [entry["$ref"] for entry in schema.get("oneOf", schema.get("anyOf", []))]


@pytest.mark.parametrize(
    ("fields", "key"),
    [
        ({"async": True}, "async"),
        ({"output_schema": {"type": "string"}}, "output_schema"),
        ({"allowed_callers": ["programmatic"]}, "allowed_callers"),
    ],
)
def test_keys_of_tools_without_effect_are_named(fields: dict[str, Any], key: str) -> None:
    tool = A.to_wire() | fields
    nested = {"type": "namespace", "name": "n", "tools": [tool]}
    assert tool_warnings([tool]) == (f"tools: '{key}' has no effect here",)
    assert tool_warnings([nested]) == (f"tools: '{key}' has no effect here",)


def test_keys_that_ask_for_nothing_special_are_not_named() -> None:
    plain = A.to_wire() | {"async": False, "allowed_callers": ["direct", "programmatic"]}
    assert tool_warnings([plain]) == tool_warnings(None) == ()


NAMED: list[tuple[Any, tuple[str, ...]]] = [
    ({"type": "custom", "name": "patch"}, ("patch",)),
    ({"type": "function", "name": "mcp__calendar__add"}, ("mcp__calendar__add",)),
    ({"type": "function", "name": "add", "namespace": "mcp__calendar"}, ("mcp__calendar__add",)),
]


@pytest.mark.parametrize(("raw", "names"), NAMED)
def test_a_choice_may_name_custom_tools_and_those_of_namespaces(
    raw: Any, names: tuple[str, ...]
) -> None:
    tools = parse_tools([CALENDAR, custom("patch", format=PATCH)])
    choice = parse_tool_choice(raw, tools)
    assert (choice.names, choice.named) == (names, True)
    assert choice.to_wire(tools) == {"type": raw["type"], "name": names[0]}


@pytest.mark.parametrize(
    ("raw", "code"),
    [
        ({"type": "web_search"}, "unsupported_parameter"),
        ({"type": "mcp", "server_label": "x"}, "unsupported_parameter"),
        ({"type": "function", "name": "patch"}, "invalid_value"),
        ({"type": "custom", "name": "a"}, "invalid_value"),
        (
            {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "image_generation"}]},
            "unsupported_parameter",
        ),
        (
            {"type": "allowed_tools", "mode": "auto", "tools": [{"type": []}]},
            "invalid_value",
        ),
    ],
)
def test_a_choice_of_what_cannot_run_here_is_refused(raw: Any, code: str) -> None:
    tools = parse_tools([A.to_wire(), custom("patch"), {"type": "web_search"}])
    with pytest.raises(ApiError) as refused:
        parse_tool_choice(raw, tools)
    assert refused.value.code == code
