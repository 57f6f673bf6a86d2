"""Items of tools that are built into the published API: shells, patches, tools that come later.

A model calls them like functions, with JSON arguments (``tools_api.built_in_tools``); a client
sees items of types of their own, and answers with such. Here both are one: the arguments are
kept as JSON text, an output as the text that the model reads beside the fields it came in.

Always true: a parsed item equals what is parsed of its ``to_wire()``; ``arguments`` is JSON of an
object that has what its type needs.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, get_args

from tools_api import errors, exact_json
from tools_api.item_fields import MAX_ID, Status, call_id_of, head, item_head
from tools_api.json_fields import Fields, join, without_nulls

CallType = Literal["shell_call", "local_shell_call", "apply_patch_call", "tool_search_call"]
OutputType = Literal[
    "shell_call_output", "local_shell_call_output", "apply_patch_call_output", "tool_search_output"
]
Execution = Literal["server", "client"]
Operation = Literal["create_file", "delete_file", "update_file"]
CALL_TYPES: tuple[CallType, ...] = get_args(CallType)
OUTPUT_TYPES: tuple[OutputType, ...] = get_args(OutputType)
CALL_PREFIXES: Mapping[CallType, str] = {
    "shell_call": "sh",
    "local_shell_call": "lsh",
    "apply_patch_call": "apc",
    "tool_search_call": "tsc",
}
"""Begin the ids of items that are made here."""
_SEARCH_ID = "tool_search"
"""The id of a search without one: it is answered at once, so that it may be used again."""
_NUMBERS = ("timeout_ms", "max_output_length")
_TEXTS = ("user", "working_directory")


@dataclass(frozen=True, slots=True, kw_only=True)
class BuiltInCall:
    """A call of a built-in tool by the model."""

    type: CallType
    call_id: str
    arguments: str
    """JSON text; of a call that was cut short what can be read of it."""
    execution: Execution | None = None
    """Of a search for tools: who runs it."""
    id: str | None = None
    status: Status | None = None

    @property
    def full_name(self) -> str:
        """The tool's name as the model calls it."""
        return self.type.removesuffix("_call")

    def emptied(self) -> "BuiltInCall":
        """The call without its arguments."""
        return replace(self, arguments=exact_json.written(_KEPT[self.type]({})))

    def to_wire(self) -> dict[str, Any]:
        """The item as the published types have it; a patch that was cut short is in progress
        there."""
        told: dict[str, Any] = exact_json.loads(self.arguments)
        status = self.status
        fields: dict[str, Any] = {"call_id": self.call_id}
        match self.type:
            case "shell_call":
                fields["action"] = told
            case "local_shell_call":
                fields["action"] = {"type": "exec", "env": {}} | told
            case "apply_patch_call":
                fields |= told
                status = "in_progress" if status == "incomplete" else status
            case "tool_search_call":
                fields |= {"arguments": told, "execution": self.execution or "client"}
        return head(self.type, self.id, status) | fields


@dataclass(frozen=True, slots=True, kw_only=True)
class BuiltInOutput:
    """The output for the call of a built-in tool with the same ``call_id``."""

    type: OutputType
    call_id: str
    output: str
    """The text that stands for it; of a search the definitions, as JSON."""
    told: str
    """JSON text of the fields that only its type has."""
    id: str | None = None
    status: Status | None = None
    name: str | None = field(default=None, compare=False)
    """Name of the tool, where the call is known."""

    @property
    def loads(self) -> bool:
        """Whether it defines tools that the model may call from here on."""
        return self.type == "tool_search_output"

    def to_wire(self) -> dict[str, Any]:
        """The fields it came with, as far as they are known here."""
        wire = head(self.type, self.id, self.status) | {"call_id": self.call_id}
        if self.type == "local_shell_call_output":
            wire["id"] = self.call_id
        told: dict[str, Any] = exact_json.loads(self.told)
        return wire | told


@dataclass(frozen=True, slots=True, kw_only=True)
class AdditionalTools:
    """Tools that the application adds: from here on the model may call them."""

    type: Literal["additional_tools"] = "additional_tools"
    tools: str
    """Their definitions, JSON text of an array."""
    id: str | None = None
    status: Status | None = None

    def to_wire(self) -> dict[str, Any]:
        """The item as the published type has it."""
        told = {"role": "developer", "tools": exact_json.loads(self.tools)}
        return head(self.type, self.id, None) | told


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigurationUpdate:
    """What the application changes of how the model answers, from here on until the next one."""

    type: Literal["configuration_update"] = "configuration_update"
    told: str
    """JSON text of ``reasoning`` and ``text``, as far as they are changed."""
    id: str | None = None
    status: Status | None = None

    def to_wire(self) -> dict[str, Any]:
        """The item as the published type has it."""
        told: dict[str, Any] = exact_json.loads(self.told)
        return head(self.type, self.id, None) | told


AnyBuiltIn = BuiltInCall | BuiltInOutput | AdditionalTools | ConfigurationUpdate


def written_call(
    type_: CallType, text: str, *, call_id: str, execution: Execution | None, **head_: Any
) -> BuiltInCall:
    """The call that a model wrote.

    Args:
        text: its arguments, perhaps cut short.
        execution: of a search: who runs it.
        head_: ``id`` and ``status``.
    """
    try:
        told = exact_json.beginning(text)
    except (ValueError, RecursionError):
        told = {}
    arguments = _KEPT[type_](told if isinstance(told, dict) else {})
    return BuiltInCall(
        type=type_,
        call_id=call_id,
        arguments=exact_json.written(arguments),
        execution=execution,
        **head_,
    )


def parse_built_in(raw: dict[str, Any], path: str) -> AnyBuiltIn | None:
    """Read an item; None: its type is none of those.

    Raises:
        ApiError: with the path of the first fault, e.g. ``input[2].action.commands[0]``.
    """
    kind = raw.get("type")
    if kind in CALL_TYPES:
        return _call(kind, Fields(raw, path))
    if kind in OUTPUT_TYPES:
        return _output(kind, Fields(raw, path))
    if kind == "additional_tools":
        return _additional(Fields(raw, path))
    return _update(Fields(raw, path)) if kind == "configuration_update" else None


# Calls


def _call(kind: CallType, fields: Fields) -> BuiltInCall:
    own = item_head(fields)
    execution: Execution | None = None
    match kind:
        case "shell_call":
            arguments = _checked_action(fields, "commands")
        case "local_shell_call":
            arguments = _checked_action(fields, "command")
        case "apply_patch_call":
            arguments = {"operation": _checked_operation(fields)}
            own["status"] = "incomplete" if own["status"] == "in_progress" else own["status"]
        case "tool_search_call":
            execution = fields.choice("execution", Execution, absent=True) or "client"
            arguments = _an_object(fields.of("arguments") or {}, fields.path("arguments"))
    return BuiltInCall(
        type=kind,
        call_id=_search_id(fields) if kind == "tool_search_call" else call_id_of(fields),
        arguments=_as_json(_KEPT[kind](arguments), fields.path("type")),
        execution=execution,
        **own,
    )


def _checked_action(fields: Fields, lines: str) -> dict[str, Any]:
    action = _an_object(fields.required("action"), fields.path("action"))
    at = fields.path("action")
    inner = Fields(action, at)
    for index, line in enumerate(_an_array(inner.required(lines), join(at, lines))):
        if not isinstance(line, str):
            raise errors.invalid_type(join(at, lines, index), "a string", line)
    for name in _NUMBERS:
        value = action.get(name)
        if value is not None and not _is_whole(value):
            raise errors.invalid_type(join(at, name), "an integer", value)
    for name in _TEXTS:
        inner.text(name, absent=True)
    for name, value in _an_object(action.get("env") or {}, join(at, "env")).items():
        if not isinstance(value, str):
            raise errors.invalid_type(join(at, "env", name), "a string", value)
    return action


def _checked_operation(fields: Fields) -> dict[str, Any]:
    at = fields.path("operation")
    operation = _an_object(fields.required("operation"), at)
    inner = Fields(operation, at)
    kind = inner.choice("type", Operation)
    inner.text("path")
    if kind != "delete_file":
        inner.text("diff")
    return operation


def _kept_shell(told: Mapping[str, Any]) -> dict[str, Any]:
    return {"commands": _strings(told.get("commands"))} | _integers(told)


def _kept_local_shell(told: Mapping[str, Any]) -> dict[str, Any]:
    kept: dict[str, Any] = {"command": _strings(told.get("command"))}
    env = told.get("env")
    if isinstance(env, dict) and env:
        kept["env"] = {name: value for name, value in env.items() if isinstance(value, str)}
    kept |= _integers({"timeout_ms": told.get("timeout_ms")})
    return kept | {name: told[name] for name in _TEXTS if isinstance(told.get(name), str)}


def _kept_patch(told: Mapping[str, Any]) -> dict[str, Any]:
    found = told.get("operation")
    operation = found if isinstance(found, dict) else {}
    kind = operation.get("type")
    kind = kind if kind in ("create_file", "delete_file") else "update_file"
    names = ("path",) if kind == "delete_file" else ("path", "diff")
    texts = {name: text if isinstance(text := operation.get(name), str) else "" for name in names}
    return {"operation": {"type": kind} | texts}


_KEPT: Mapping[CallType, Callable[[Mapping[str, Any]], dict[str, Any]]] = {
    "shell_call": _kept_shell,
    "local_shell_call": _kept_local_shell,
    "apply_patch_call": _kept_patch,
    "tool_search_call": dict,
}
"""Of arguments what the item has room for, with what it cannot be without."""


def _strings(value: object) -> list[str]:
    found = value if isinstance(value, list) else []
    return [text for text in found if isinstance(text, str)]


def _integers(told: Mapping[str, Any]) -> dict[str, Any]:
    values = ((name, told.get(name)) for name in _NUMBERS)
    return {name: value for name, value in values if _is_whole(value)}


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


# Outputs


def _output(kind: OutputType, fields: Fields) -> BuiltInOutput:
    told: dict[str, Any]
    id_, status = fields.text("id", most=MAX_ID, absent=True), None
    match kind:
        case "shell_call_output":
            call_id = call_id_of(fields)
            status = fields.choice("status", Status, absent=True)
            chunks = _checked_chunks(fields)
            output, told = "\n".join(map(_shell_text, chunks)), {"output": chunks}
            if (most := fields.of("max_output_length")) is not None:
                told["max_output_length"] = most
        case "local_shell_call_output":
            # The published type has the call's id in ``id``, clients have it in ``call_id``.
            call_id = call_id_of(fields) if fields.of("call_id") is not None else id_ or ""
            if not call_id:
                raise errors.missing_parameter(fields.path("id"))
            id_, status = None, fields.choice("status", Status, absent=True)
            output = fields.text("output")
            told = {"output": output}
        case "apply_patch_call_output":
            call_id = call_id_of(fields)
            output, told = _patch_output(fields)
        case "tool_search_output":
            call_id = _search_id(fields)
            status = fields.choice("status", Status, absent=True)
            told = {"execution": fields.choice("execution", Execution, absent=True) or "client"}
            told["tools"] = _objects_of(fields, "tools")
            output = _as_json(told["tools"], fields.path("tools"))
    return BuiltInOutput(
        type=kind,
        call_id=call_id,
        output=output,
        told=_as_json(told, fields.path("output")),
        id=id_,
        status=status,
    )


def _patch_output(fields: Fields) -> tuple[str, dict[str, Any]]:
    result = fields.choice("status", Literal["completed", "failed"])
    said = fields.text("output", absent=True)
    if result == "failed":
        text = f"failed: {said}" if said else "failed"
    else:
        text = said or "completed"
    return text, {"status": result} | ({} if said is None else {"output": said})


def _checked_chunks(fields: Fields) -> list[dict[str, Any]]:
    at = fields.path("output")
    chunks = []
    for index, chunk in enumerate(_an_array(fields.required("output"), at)):
        inner = Fields(chunk, join(at, index))
        outcome = Fields(inner.required("outcome"), inner.path("outcome"))
        ended: dict[str, Any] = {"type": outcome.choice("type", Literal["exit", "timeout"])}
        code = outcome.of("exit_code")  # openai-agents leaves it out where it knows none
        if ended["type"] == "exit" and code is not None:
            if not _is_whole(code):
                raise errors.invalid_type(outcome.path("exit_code"), "an integer", code)
            ended["exit_code"] = code
        texts = {name: inner.text(name, absent=True) or "" for name in ("stdout", "stderr")}
        chunks.append(texts | {"outcome": ended})
    return chunks


def _shell_text(chunk: Mapping[str, Any]) -> str:
    """A command's output as a model reads it."""
    parts = [chunk["stdout"].rstrip("\n")] if chunk["stdout"] else []
    if chunk["stderr"]:
        parts.append(f"stderr:\n{chunk['stderr']}".rstrip("\n"))
    outcome = chunk["outcome"]
    ended = "timed out"
    if outcome["type"] == "exit":
        ended = f"exit code: {outcome['exit_code']}" if "exit_code" in outcome else "exited"
    return "\n".join([*parts, ended])


def _additional(fields: Fields) -> AdditionalTools:
    fields.choice("role", Literal["developer"], absent=True)
    return AdditionalTools(
        tools=_as_json(_objects_of(fields, "tools"), fields.path("tools")),
        id=fields.text("id", most=MAX_ID, absent=True),
    )


def _update(fields: Fields) -> ConfigurationUpdate:
    """Whether the settings are such is known to who reads requests."""
    told = {
        name: without_nulls(_an_object(value, fields.path(name)))
        for name in ("reasoning", "text")
        if (value := fields.of(name)) is not None
    }
    return ConfigurationUpdate(
        told=_as_json(told, fields.path("type")), id=fields.text("id", most=MAX_ID, absent=True)
    )


# What they have in common


def _objects_of(fields: Fields, name: str) -> list[dict[str, Any]]:
    """An array of objects without their nulls, required. Raises ApiError."""
    at = fields.path(name)
    entries = _an_array(fields.required(name), at)
    return [without_nulls(_an_object(entry, join(at, n))) for n, entry in enumerate(entries)]


def _search_id(fields: Fields) -> str:
    return _SEARCH_ID if fields.of("call_id") is None else call_id_of(fields)


def _an_object(value: object, path: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise errors.invalid_type(path, "an object", value)
    return value


def _an_array(value: object, path: str) -> list[Any]:
    if not isinstance(value, list):
        raise errors.invalid_type(path, "an array", value)
    return value


def _as_json(value: object, path: str) -> str:
    try:
        return exact_json.written(value)
    except (ValueError, RecursionError, TypeError):
        raise errors.invalid_type(path, "what can be written as JSON", value) from None
