"""Tools that a model may call and the choice among them, checked.

What the model calls is always a function with a name of its own: one of ``tools``, one out of
a namespace (``namespace__name``), a custom tool, or one that is built into the published API and
that the client runs (``tools_api.built_in_tools``). Hosted tools, which the published service runs
itself, are left out and named by ``tool_warnings``. Only the shape is checked here:
names, sizes, that ``parameters`` describes an object. Whether a schema or a grammar can be
enforced is known when it is compiled (``runtime.grammar.state``).

Always true: names of the tools of one request differ as the model sees them.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import Any, Literal

from tools_api import errors, exact_json
from tools_api.built_in_tools import TOOL_TYPES, BuiltIn, definition, is_hosted
from tools_api.custom_input import INPUT_SCHEMA, CustomFormat, parse_format
from tools_api.json_fields import Fields, depth_of, join
from tools_api.limits import DEFAULT_LIMITS, Limits

HOSTED_TOOLS = frozenset(
    {"web_search", "web_search_2025_08_26", "web_search_preview", "file_search", "mcp"}
    | {"web_search_preview_2025_03_11", "code_interpreter", "image_generation"}
    | {"computer", "computer_use_preview", "programmatic_tool_calling"}
)
"""Published types of tools that only the published service, or its own client, can run; so can
nobody else a shell in a container."""
_UNPUBLISHED_CHOICES = ("local_shell", "tool_search")
"""Built-in tools that no published choice names; one of them is echoed as the only allowed tool."""
_OWN_TYPES = tuple(kind for kind in TOOL_TYPES if kind not in HOSTED_TOOLS)
_WITHOUT_EFFECT = ("async", "output_schema")


@dataclass(frozen=True, slots=True, kw_only=True)
class Namespace:
    """A name that stands in front of its tools' names; an MCP server, mostly."""

    name: str
    description: str = ""

    def full_name(self, name: str) -> str:
        """How the model calls the namespace's tool ``name``."""
        return f"{self.name}__{name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class FunctionTool:
    """A function that the model may call; ``parse_tools`` checks its sizes."""

    type: Literal["function"] = "function"
    name: str
    """As the model calls it. Any printable text; escaped wherever it is written."""
    description: str | None = None
    parameters: dict[str, Any] = field(default_factory=lambda: {"type": "object", "properties": {}})
    """JSON schema of the arguments object, in the order the client wrote it."""
    strict: bool = True
    namespace: Namespace | None = None
    introduces: bool = False
    """The first tool of its namespace: the model reads what the namespace is for above it."""
    custom: CustomFormat | None = None
    """A custom tool: it is given a text, not arguments."""
    built_in: BuiltIn | None = None
    """A tool that is built into the published API: its calls are items of a type of their own."""
    in_header: bool = True
    """The model reads of it before all items; otherwise where an item says what it is, if any."""
    offered: bool = True
    """The model may call it, if the choice among the tools lets it."""
    withdrawn: bool = False
    """Whatever brings it, the model may not call it any more."""
    by_item: bool = False
    """An item of the history defines it, not the request."""
    place: str = field(default="", compare=False)
    """Path in the request, where it is not simply ``tools[i]``."""

    @property
    def own_name(self) -> str:
        """As the client calls it, inside its namespace."""
        if self.namespace is None:
            return self.name
        return self.name.removeprefix(self.namespace.full_name(""))

    @property
    def plain(self) -> bool:
        """The model writes the input as plain text behind the call's object: a grammar binds it."""
        return self.custom is not None and self.custom.type == "grammar"

    @property
    def shown_description(self) -> str | None:
        """The description that the model reads."""
        parts = [self.description]
        if self.namespace is not None and self.introduces and self.namespace.description:
            parts.insert(0, f"{self.namespace.name}: {self.namespace.description}")
        if self.custom is not None and self.plain:
            parts.append(
                f'Call it as {{"name": "{self.name}"}} and write its input on the lines below '
                f"as plain text, by this {self.custom.syntax} grammar:\n{self.custom.definition}"
            )
        said = [part for part in parts if part is not None]
        return "\n\n".join(said) if said else None

    @property
    def kind(self) -> str:
        """The type by which a choice names it."""
        if self.built_in is not None:
            return self.built_in.type
        return "function" if self.custom is None else "custom"

    def to_wire(self) -> dict[str, Any]:
        """As responses echo it, always with all keys; inside its namespace, if it has one. A
        built-in tool as it was sent."""
        if self.built_in is not None:
            return {"type": self.built_in.type} | self.built_in.told
        wire: dict[str, Any] = {"type": self.type if self.custom is None else "custom"}
        wire |= {"name": self.own_name, "description": self.description}
        if not self.in_header:
            wire["defer_loading"] = True
        if self.custom is not None:
            return wire | {"format": self.custom.to_wire()}
        return wire | {"parameters": self.parameters, "strict": self.strict}


def wire_tools(tools: Sequence[FunctionTool]) -> list[dict[str, Any]]:
    """``tools`` as responses echo them, without those of items; those of a namespace stand inside
    it again."""
    out: list[dict[str, Any]] = []
    own = [tool for tool in tools if not tool.by_item]
    for namespace, members in groupby(own, key=lambda tool: tool.namespace):
        entries = [tool.to_wire() for tool in members]
        if namespace is None:
            out += entries
        else:
            head = {"type": "namespace", "name": namespace.name}
            out.append(head | {"description": namespace.description, "tools": entries})
    return out


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolChoice:
    """Whether the model may, must or must not call, and what.

    ``names`` are the callable tools, as the model calls them, in the order of ``tools``; None
    means all of them.
    """

    mode: Literal["auto", "none", "required"] = "auto"
    names: tuple[str, ...] | None = None
    named: bool = False
    """One tool was named (``{"type": "function", ...}``): exactly one call to it."""

    def to_wire(self, tools: Sequence[FunctionTool] = ()) -> str | dict[str, Any]:
        """As responses echo it: a mode, one tool, or ``allowed_tools``."""
        if self.names is None:
            return self.mode
        kinds = {tool.name: tool.kind for tool in tools}
        entries = [_chosen(name, kinds.get(name, "function")) for name in self.names]
        if self.named and entries[0]["type"] not in _UNPUBLISHED_CHOICES:
            return entries[0]
        return {"type": "allowed_tools", "mode": self.mode, "tools": entries}

    def callable(self, tools: tuple[FunctionTool, ...]) -> tuple[FunctionTool, ...]:
        """The tools that this choice lets the model call."""
        if self.mode == "none":
            return ()
        offered = tuple(tool for tool in tools if tool.offered)
        if self.names is None:
            return offered
        return tuple(tool for tool in offered if tool.name in self.names)


def _chosen(name: str, kind: str) -> dict[str, Any]:
    return {"type": kind} if kind in TOOL_TYPES else {"type": kind, "name": name}


def parse_tools(
    raw: object, path: str = "tools", limits: Limits = DEFAULT_LIMITS
) -> tuple[FunctionTool, ...]:
    """Read ``tools``: functions, custom tools, and those in namespaces. Hosted ones are left out.

    Raises:
        ApiError: with the path of the first fault, e.g. ``tools[0].name``.
    """
    if raw is None:
        return ()
    reader = _ToolReader(limits)
    reader.read(raw, path, None)
    tools = tuple(reader.tools.values())
    refuse_many_offered(tools, path, limits)
    if len(tools) > limits.max_tools + limits.max_deferred_tools:
        raise errors.invalid_value(path, f"more than {limits.max_deferred_tools} deferred tools")
    return tuple(_naming_spaces(tool, tools) for tool in tools)


def _naming_spaces(tool: FunctionTool, tools: Sequence[FunctionTool]) -> FunctionTool:
    """A search that runs here, saying which namespaces have tools for it to find."""
    if tool.built_in is None or not tool.built_in.runs_here:
        return tool
    deferred = (other.namespace for other in tools if not other.in_header)
    spaces = dict.fromkeys(space for space in deferred if space is not None)
    if not spaces:
        return tool
    lines = "".join(f"\n- {space.name}: {space.description}" for space in spaces)
    return replace(tool, description=f"{tool.description}\n\nAmong others, tools of:{lines}")


def refuse_many_offered(tools: Sequence[FunctionTool], path: str, limits: Limits) -> None:
    """Refuse ``tools`` of which a model could call too many.

    Raises:
        ApiError: too many.
    """
    if sum(tool.offered or tool.in_header for tool in tools) > limits.max_tools:
        raise errors.invalid_value(path, f"more than {limits.max_tools} tools")


def refuse_many_tools(raw: object, path: str, limits: Limits) -> None:
    """Refuse ``tools`` by their number, without a look at one.

    Raises:
        ApiError: too many.
    """
    most = limits.max_tools + limits.max_deferred_tools
    if isinstance(raw, list) and len(raw) > most:
        raise errors.invalid_value(path, f"more than {most} tools")


def tool_warnings(raw: object) -> tuple[str, ...]:
    """Warnings about those of ``tools``, which ``parse_tools`` has read, that do not do here what
    they say."""
    entries = raw if isinstance(raw, list) else []
    if not entries:
        return ()
    hosted = hosted_types(raw)
    warnings = []
    if hosted:
        warnings.append(f"tools: left out, they cannot run here: {', '.join(hosted)}")
    functions = [
        tool
        for entry in entries
        for tool in (entry.get("tools", []) if entry.get("type") == "namespace" else [entry])
        if not _is_hosted(tool)
    ]
    keys = [key for key in _WITHOUT_EFFECT if any(tool.get(key) for tool in functions)]
    if any(_only_for_programs(tool) for tool in functions):
        keys.append("allowed_callers")
    warnings += [f"tools: '{key}' has no effect here" for key in keys]
    searches = any(tool.get("type") == "tool_search" for tool in functions)
    if not searches and any(tool.get("defer_loading") for tool in functions):
        warnings.append(
            "tools: those that are deferred can be called once an item brings them; there is no "
            "tool_search among the tools"
        )
    return tuple(warnings)


def searches_here(raw: object) -> bool:
    """Whether ``tools`` have a search that the server runs."""
    entries = raw if isinstance(raw, list) else []
    return any(
        isinstance(entry, dict)
        and entry.get("type") == "tool_search"
        and entry.get("execution") != "client"
        for entry in entries
    )


def _only_for_programs(tool: dict[str, Any]) -> bool:
    callers = tool.get("allowed_callers")
    return isinstance(callers, list) and "direct" not in callers


def hosted_types(raw: object) -> tuple[str, ...]:
    """Types of the hosted tools in ``tools``, each once."""
    entries = raw if isinstance(raw, list) else []
    if not entries:
        return ()
    hosted = (entry for entry in entries if isinstance(entry, dict) and _is_hosted(entry))
    return tuple(dict.fromkeys(entry["type"] for entry in hosted))


def _is_hosted(raw: dict[str, Any]) -> bool:
    kind = raw.get("type")
    return isinstance(kind, str) and (kind in HOSTED_TOOLS or is_hosted(raw))


class _ToolReader:
    """Collects the tools of one request by the names that the model sees."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self.tools: dict[str, FunctionTool] = {}

    def read(self, raw: object, path: str, namespace: Namespace | None) -> None:
        if not isinstance(raw, list):
            raise errors.invalid_type(path, "an array", raw)
        refuse_many_tools(raw, path, self._limits)
        for i, entry in enumerate(raw):
            self._read_entry(entry, join(path, i), namespace)

    def _read_entry(self, raw: object, path: str, namespace: Namespace | None) -> None:
        if not isinstance(raw, dict):
            raise errors.invalid_type(path, "an object", raw)
        match raw.get("type"):
            case None:
                raise errors.missing_parameter(join(path, "type"))
            case "custom":
                self._add(self._custom(raw, path), path, namespace)
            case "namespace" if namespace is None:
                fields = Fields(raw, path)
                found = Namespace(
                    name=fields.text("name", least=1),
                    description=fields.text("description", absent=True) or "",
                )
                _check_name(found.name, join(path, "name"), self._limits)
                if raw.get("tools") is None:
                    raise errors.missing_parameter(join(path, "tools"))
                self.read(raw["tools"], join(path, "tools"), found)
            case str() if _is_hosted(raw) and namespace is None:
                pass
            case str() as kind if kind in _OWN_TYPES and namespace is None:
                self._add(_built_in(raw, path, self._limits), path, None)
            case str() as kind if kind != "function":
                raise _unsupported_tool(kind, join(path, "type"))
            case _:
                Fields(raw, path).choice("type", Literal["function"])
                self._add(self._function(raw, path), path, namespace)

    def _add(self, tool: FunctionTool, path: str, namespace: Namespace | None) -> None:
        _check_name(tool.name, join(path, "name"), self._limits)
        fields: dict[str, Any] = {"place": path}
        if namespace is not None:
            first = all(
                other.namespace != namespace or other.in_header != tool.in_header
                for other in self.tools.values()
            )
            name = namespace.full_name(tool.name)
            fields |= {"name": name, "namespace": namespace, "introduces": first}
        tool = replace(tool, **fields)
        if tool.name in self.tools:
            raise errors.invalid_value(
                join(path, "name"), f"{errors.quoted(tool.name)} is the name of another tool"
            )
        self.tools[tool.name] = tool

    def _function(self, raw: dict[str, Any], path: str) -> FunctionTool:
        tool = _described(raw, path)
        if raw.get("parameters") is not None:
            tool = replace(tool, parameters=raw["parameters"])
        check_parameters(tool.parameters, join(path, "parameters"), self._limits)
        return replace(tool, strict=Fields(raw, path).flag("strict", True))

    def _custom(self, raw: dict[str, Any], path: str) -> FunctionTool:
        tool = _described(raw, path)
        custom = parse_format(raw.get("format"), join(path, "format"), self._limits)
        update: dict[str, Any] = {"custom": custom}
        if custom.type == "text":
            update["parameters"] = INPUT_SCHEMA
        return replace(tool, **update)


def _built_in(raw: dict[str, Any], path: str, limits: Limits) -> FunctionTool:
    found = definition(raw, path)
    check_parameters(found.parameters, join(path, "parameters"), limits)
    return FunctionTool(
        name=found.built_in.type,
        description=found.description,
        parameters=found.parameters,
        built_in=found.built_in,
    )


def _described(raw: dict[str, Any], path: str) -> FunctionTool:
    """A tool of the entry's name and description, and where the model reads of it."""
    fields = Fields(raw, path)
    now = not fields.flag("defer_loading", False)
    return FunctionTool(
        name=fields.text("name", least=1),
        description=fields.text("description", absent=True),
        in_header=fields.flag("in_header", now),
        offered=fields.flag("offered", now),
        withdrawn=fields.flag("withdrawn", False),
    )


def _unsupported_tool(kind: str, path: str) -> errors.ApiError:
    return errors.unsupported_parameter(
        path,
        f"tool type {errors.quoted(kind)} is not supported here; supported are function, custom, "
        f"namespace, {', '.join(_OWN_TYPES)}",
    )


def _check_name(name: str, path: str, limits: Limits) -> None:
    if len(name) > limits.max_tool_name or not name.isprintable():
        raise errors.invalid_value(path, f"not 1 to {limits.max_tool_name} printable characters")


def check_parameters(parameters: object, path: str, limits: Limits) -> None:
    """Bound the schema of a function's arguments, which are an object. Raises ApiError."""
    if not isinstance(parameters, dict):
        raise errors.invalid_type(path, "an object", parameters)
    check_schema(parameters, path, limits)
    if parameters.get("type", "object") != "object":
        raise errors.invalid_json_schema(path, "its type is not 'object'")


def check_schema(schema: dict[str, Any], path: str, limits: Limits) -> None:
    """Bound a schema before anything walks it.

    Raises:
        ApiError: ``invalid_json_schema``.
    """
    if depth_of(schema) > limits.max_schema_depth:
        raise errors.invalid_json_schema(
            path, f"nested deeper than {limits.max_schema_depth} levels"
        )
    if len(exact_json.dumps(schema)) > limits.max_schema_bytes:
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
            if not any(tool.offered for tool in tools):
                raise errors.invalid_value(path, "'required' needs at least one tool")
            return ToolChoice(mode="required")
        case str():
            why = "is not auto, none or required; one tool is chosen by an object with its name"
            raise errors.invalid_value(path, f"{errors.quoted(raw)} {why}")
        case dict():
            return _parse_choice_object(raw, tools, path)
    raise errors.invalid_type(path, "a string or an object", raw)


def _parse_choice_object(
    raw: dict[str, Any], tools: tuple[FunctionTool, ...], path: str
) -> ToolChoice:
    match raw.get("type"):
        case "function" | "custom" | "shell" | "local_shell" | "apply_patch" | "tool_search":
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
    """The names of ``entries`` as the model knows them.

    A tool of a namespace is named as the model calls it, or with ``namespace`` beside its own
    name; a built-in one by its type alone.
    """
    known = {(tool.name, tool.kind): tool.offered for tool in tools}
    names = []
    for entry in entries:
        kind = entry.get("type", "function") if isinstance(entry, dict) else None
        if isinstance(kind, str) and kind in HOSTED_TOOLS:
            raise errors.unsupported_parameter(path, f"a tool of type '{kind}' cannot run here")
        name = entry.get("name") if isinstance(entry, dict) else None
        if kind in _OWN_TYPES:
            name = kind
        elif not isinstance(name, str) or kind not in ("function", "custom"):
            raise errors.invalid_value(
                path, "tools are named {type: 'function' or 'custom', name: ...}"
            )
        if isinstance(entry.get("namespace"), str):
            name = f"{entry['namespace']}__{name}"
        offered = known.get((name, kind))
        if offered is None:
            raise errors.invalid_value(path, f"{errors.quoted(name)} is not one of the tools")
        if not offered:
            raise errors.invalid_value(
                path, f"{errors.quoted(name)} may not be called: no message offers it"
            )
        names.append(name)
    return tuple(names)
