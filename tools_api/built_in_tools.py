"""Tools that are built into the published API and that a client runs, as a model reads of them.

To the model each is a function: a name, what it is for, and the arguments that its calls are
published with, which the turn's grammar binds. What its calls and their outputs look like to a
client is ``tools_api.built_in_items``.

Always true: arguments that the schema of a tool lets pass lose nothing on their way into the
item of its call.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, get_args

from tools_api import errors
from tools_api.built_in_items import CallType, Execution
from tools_api.json_fields import Fields, join

ToolType = Literal["shell", "local_shell", "apply_patch", "tool_search"]
TOOL_TYPES: tuple[ToolType, ...] = get_args(ToolType)
_MILLISECONDS = {"type": "integer", "minimum": 1, "maximum": 2**31 - 1}
_CHARACTERS = {"type": "integer", "minimum": 1, "maximum": 2**31 - 1}
_LINES = {"type": "array", "items": {"type": "string"}, "minItems": 1}
_PATH = {"type": "string", "minLength": 1}
_QUERY = {"type": "string", "minLength": 1}


@dataclass(frozen=True, slots=True, kw_only=True)
class BuiltIn:
    """The built-in tool that a function is to its client."""

    type: ToolType
    told: dict[str, Any] = field(default_factory=dict)
    """The other fields of its entry, as they were sent."""
    runs_here: bool = False
    """The server runs it within the turn: a search for tools."""
    by_pattern: bool = False
    """Of a search: it is asked with a regular expression instead of words."""

    @property
    def call_type(self) -> CallType:
        """The type of the items that its calls become."""
        return _CALL_TYPES[self.type]

    @property
    def execution(self) -> Execution | None:
        """Who runs it, where its items say so."""
        if self.type != "tool_search":
            return None
        return "server" if self.runs_here else "client"


_CALL_TYPES: Mapping[ToolType, CallType] = {
    "shell": "shell_call",
    "local_shell": "local_shell_call",
    "apply_patch": "apply_patch_call",
    "tool_search": "tool_search_call",
}


def _object(required: tuple[str, ...], **properties: Any) -> dict[str, Any]:
    found = {"type": "object", "properties": properties, "required": list(required)}
    return found | {"additionalProperties": False}


def _operation(kind: str, **properties: Any) -> dict[str, Any]:
    own = {"type": {"const": kind}, "path": _PATH} | properties
    return _object(tuple(own), **own)


_DIFF = {"type": "string", "minLength": 1}
_DESCRIPTIONS: Mapping[ToolType, str] = {
    "shell": "Runs shell commands on the user's machine, one after another. Each answers with its "
    "output and exit code.",
    "local_shell": "Runs one command on the user's machine: the program and its arguments.",
    "apply_patch": "Creates, updates or deletes one file. The diff of a new file is its lines, "
    "each after a '+'; that of an update has hunks with lines of context.",
    "tool_search": "Finds more tools by words of their names and descriptions. Those that are "
    "found can be called afterwards.",
}
_BY_PATTERN = (
    "Finds more tools whose names or descriptions match a regular expression. Those that are found "
    "can be called afterwards."
)
_PARAMETERS: Mapping[ToolType, dict[str, Any]] = {
    "shell": _object(
        ("commands",),
        commands=_LINES,
        timeout_ms=_MILLISECONDS,
        max_output_length=_CHARACTERS,
    ),
    "local_shell": _object(
        ("command",),
        command=_LINES,
        env={"type": "object", "additionalProperties": {"type": "string"}},
        timeout_ms=_MILLISECONDS,
        user={"type": "string"},
        working_directory={"type": "string"},
    ),
    "apply_patch": _object(
        ("operation",),
        operation={
            "anyOf": [
                _operation("create_file", diff=_DIFF),
                _operation("update_file", diff=_DIFF),
                _operation("delete_file"),
            ]
        },
    ),
    "tool_search": _object(("query",), query=_QUERY),
}
"""Schemas of the built-in tools' arguments, as the items of the calls are published."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Definition:
    """A built-in tool as a function."""

    description: str
    parameters: dict[str, Any]
    built_in: BuiltIn


def is_hosted(raw: Mapping[str, Any]) -> bool:
    """Whether the entry of a built-in tool asks for one that only the published service runs: a
    shell in a container."""
    environment = raw.get("environment")
    kind = environment.get("type") if isinstance(environment, dict) else None
    return raw.get("type") == "shell" and kind in ("container_auto", "container_reference")


def definition(raw: dict[str, Any], path: str) -> Definition:
    """Read the entry of a tool whose type is one of ``TOOL_TYPES``.

    Raises:
        ApiError: with the path of the first fault.
    """
    fields = Fields(raw, path)
    kind: ToolType = fields.choice("type", ToolType)
    told = {name: value for name, value in raw.items() if name != "type" and value is not None}
    description, parameters = _DESCRIPTIONS[kind], _PARAMETERS[kind]
    built_in = BuiltIn(type=kind, told=told)
    match kind:
        case "shell":
            description += _skills(fields)
        case "tool_search":
            here = (fields.choice("execution", Execution, absent=True) or "server") == "server"
            by_pattern = here and fields.flag("by_pattern", False)
            told.pop("by_pattern", None)
            built_in = replace(built_in, runs_here=here, by_pattern=by_pattern)
            if by_pattern:
                description, parameters = _BY_PATTERN, _object(("pattern",), pattern=_QUERY)
            elif not here:
                description = fields.text("description", absent=True) or description
                parameters = fields.of("parameters") or parameters
    return Definition(description=description, parameters=parameters, built_in=built_in)


def _skills(fields: Fields) -> str:
    """The skills of the machine, a line each."""
    if fields.of("environment") is None:
        return ""
    at = fields.path("environment")
    environment = Fields(fields.of("environment"), at)
    environment.choice("type", Literal["local"])
    skills = environment.of("skills") or []
    if not isinstance(skills, list):
        raise errors.invalid_type(join(at, "skills"), "an array", skills)
    lines = []
    for index, skill in enumerate(skills):
        read = Fields(skill, join(at, "skills", index))
        name, said, where = (read.text(name) for name in ("name", "description", "path"))
        lines.append(f"\n- {name}: {said} (read {where})")
    return f"\n\nSkills on that machine:{''.join(lines)}" if lines else ""
