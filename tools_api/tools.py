"""Function tools and the choice among them, checked.

Only the shape is checked here: names, sizes, that ``parameters`` describes an object.
Whether a schema can be enforced is known when it is compiled (``runtime.grammar.state``).
"""

from dataclasses import dataclass
from typing import Annotated, Any, Literal

import orjson
from pydantic import Field

from tools_api import errors
from tools_api.limits import DEFAULT_LIMITS, Limits
from tools_api.wire import WireModel, depth_of, join, validate


class FunctionTool(WireModel):
    """One entry of ``tools``; ``parse_tools`` checks its sizes."""

    type: Literal["function"] = "function"
    name: Annotated[str, Field(min_length=1)]
    """Any printable text; escaped wherever it is written."""
    description: str | None = None
    parameters: dict[str, Any] = Field(default_factory=lambda: {"type": "object", "properties": {}})
    """JSON schema of the arguments object, in the order the client wrote it."""
    strict: bool = True

    def to_wire(self) -> dict[str, Any]:
        """As responses echo it, always with all five keys."""
        return {
            "type": self.type,
            "name": self.name,
            "description": self.description,
            "parameters": self.parameters,
            "strict": self.strict,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolChoice:
    """Whether the model may, must or must not call, and what.

    ``names`` are the callable tools in the order of ``tools``; None means all of them.
    """

    mode: Literal["auto", "none", "required"] = "auto"
    names: tuple[str, ...] | None = None
    named: bool = False
    """One function was named (``{"type": "function", ...}``): exactly one call to it."""

    def to_wire(self) -> str | dict[str, Any]:
        """As responses echo it: a mode, one function, or ``allowed_tools``."""
        if self.names is None:
            return self.mode
        if self.named:
            return {"type": "function", "name": self.names[0]}
        tools = [{"type": "function", "name": name} for name in self.names]
        return {"type": "allowed_tools", "mode": self.mode, "tools": tools}

    def callable(self, tools: tuple[FunctionTool, ...]) -> tuple[FunctionTool, ...]:
        """The tools that this choice lets the model call."""
        if self.mode == "none":
            return ()
        if self.names is None:
            return tools
        return tuple(tool for tool in tools if tool.name in self.names)


def parse_tools(
    raw: object, path: str = "tools", limits: Limits = DEFAULT_LIMITS
) -> tuple[FunctionTool, ...]:
    """Read ``tools``.

    Raises:
        ApiError: with the path of the first fault, e.g. ``tools[0].name``.
    """
    if raw is None:
        return ()
    if not isinstance(raw, list):
        raise errors.invalid_type(path, "an array", raw)
    if len(raw) > limits.max_tools:
        raise errors.invalid_value(path, f"more than {limits.max_tools} tools")
    tools: dict[str, FunctionTool] = {}
    for i, entry in enumerate(raw):
        tool = _parse_tool(entry, join(path, i), limits)
        if tool.name in tools:
            raise errors.invalid_value(
                join(path, i, "name"), f"{errors.quoted(tool.name)} is the name of another tool"
            )
        tools[tool.name] = tool
    return tuple(tools.values())


def _parse_tool(raw: object, path: str, limits: Limits) -> FunctionTool:
    if not isinstance(raw, dict):
        raise errors.invalid_type(path, "an object", raw)
    kind = raw.get("type")
    if kind is None:
        raise errors.missing_parameter(join(path, "type"))
    if isinstance(kind, str) and kind != "function":
        raise errors.unsupported_parameter(
            join(path, "type"), f"tool type {errors.quoted(kind)} is not supported, only 'function'"
        )
    tool = validate(FunctionTool, raw, path)
    if len(tool.name) > limits.max_tool_name or not tool.name.isprintable():
        raise errors.invalid_value(
            join(path, "name"), f"not 1 to {limits.max_tool_name} printable characters"
        )
    check_schema(tool.parameters, join(path, "parameters"), limits)
    if tool.parameters.get("type", "object") != "object":
        raise errors.invalid_json_schema(join(path, "parameters"), "its type is not 'object'")
    return tool


def check_schema(schema: dict[str, Any], path: str, limits: Limits) -> None:
    """Bound a schema before anything walks it.

    Raises:
        ApiError: ``invalid_json_schema``.
    """
    if depth_of(schema) > limits.max_schema_depth:
        raise errors.invalid_json_schema(
            path, f"nested deeper than {limits.max_schema_depth} levels"
        )
    if len(orjson.dumps(schema)) > limits.max_schema_bytes:
        raise errors.invalid_json_schema(path, f"longer than {limits.max_schema_bytes} bytes")


def parse_tool_choice(
    raw: object, tools: tuple[FunctionTool, ...], path: str = "tool_choice"
) -> ToolChoice:
    """Read ``tool_choice`` against the tools of the same request.

    Raises:
        ApiError: unknown form, a name that is not in ``tools``, or ``required`` without any.
    """
    match raw:
        case None:
            return ToolChoice()
        case "auto" | "none" as mode:
            return ToolChoice(mode=mode)
        case "required":
            if not tools:
                raise errors.invalid_value(path, "'required' needs at least one tool")
            return ToolChoice(mode="required")
        case str():
            raise errors.invalid_value(path, f"{errors.quoted(raw)} is not auto, none or required")
        case dict():
            return _parse_choice_object(raw, tools, path)
    raise errors.invalid_type(path, "a string or an object", raw)


def _parse_choice_object(
    raw: dict[str, Any], tools: tuple[FunctionTool, ...], path: str
) -> ToolChoice:
    match raw.get("type"):
        case "function":
            names = _known_names([raw], tools, path)
            return ToolChoice(mode="required", names=names, named=True)
        case "allowed_tools":
            return _parse_allowed(raw, tools, path)
        case None:
            raise errors.missing_parameter(join(path, "type"))
        case kind:
            raise errors.unsupported_parameter(
                join(path, "type"), f"tool choice type {errors.quoted(str(kind))} is not supported"
            )


def _parse_allowed(raw: dict[str, Any], tools: tuple[FunctionTool, ...], path: str) -> ToolChoice:
    mode = raw.get("mode")
    if mode not in ("auto", "required"):
        at = join(path, "mode")
        raise (
            errors.missing_parameter(at)
            if mode is None
            else errors.invalid_value(at, "neither 'auto' nor 'required'")
        )
    entries = raw.get("tools")
    if not isinstance(entries, list) or not entries:
        at = join(path, "tools")
        raise (
            errors.missing_parameter(at)
            if entries is None
            else errors.invalid_value(at, "not an array of at least one tool")
        )
    wanted = _known_names(entries, tools, path)
    names = tuple(tool.name for tool in tools if tool.name in wanted)
    return ToolChoice(mode=mode, names=names)


def _known_names(entries: list[Any], tools: tuple[FunctionTool, ...], path: str) -> tuple[str, ...]:
    known = {tool.name for tool in tools}
    names = []
    for entry in entries:
        name = entry.get("name") if isinstance(entry, dict) else None
        if not isinstance(name, str) or entry.get("type", "function") != "function":
            raise errors.invalid_value(path, "tools are named {type: 'function', name: ...}")
        if name not in known:
            raise errors.invalid_value(path, f"{errors.quoted(name)} is not one of the tools")
        names.append(name)
    return tuple(names)
