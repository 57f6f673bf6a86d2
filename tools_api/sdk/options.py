"""Options of a turn: the fields of ``response.create`` and input items.

Typed as users write them and turned into what goes on the wire. Knows nothing of sessions.

Always true: an option that ``TurnOptions`` does not have is an error, never passed on.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol, TypedDict

from tools_api.items import Item

Input = str | Sequence[Item | Mapping[str, Any]]
"""A user's message, or items: of ``tools_api.items`` or as they stand on the wire."""


class Budget(TypedDict, total=False):
    """Bounds on what is consumed; a spent one starts nothing more."""

    input_uncached: int
    """Prompt tokens that were not in the cache."""
    input_cached: int
    """Prompt tokens that were."""
    output: int
    """Tokens emitted, those of reasoning among them."""
    reasoning: int
    cost: float
    """In the currency of the server's prices."""
    residency: float
    """Block-seconds of KV in the cache. Used up it ends nothing: the KV leaves the cache between
    turns. Not of a ``turn``."""
    scope: str
    """``tree``, the default here: the session with all its children; ``session``: it alone;
    ``turn``: each turn."""
    soft: Mapping[str, float]
    """The same bounds, from where on turns carry a warning."""


def wire_budget(budget: Budget) -> dict[str, Any]:
    """``budget`` as a request has it: of the whole tree, so that children draw from it."""
    return {"scope": "tree", **budget}


class Defined(Protocol):
    """A tool that can be shown to the model: ``keepwarm.Tool``, or
    ``tools_api.tools.FunctionTool``, which a client without tools does not load."""

    @property
    def name(self) -> str:
        """As the model calls it."""

    def to_wire(self) -> dict[str, Any]:
        """As an entry of ``tools``."""


AnyTool = Defined | Mapping[str, Any]
"""A function made by ``tool``, or a definition alone, whose calls are left to the caller."""
ToolChoice = str | Mapping[str, Any] | Defined
"""``auto``, ``none``, ``required``, an object as the protocol has it, or a tool of ``tool``'s."""


class GenerationOptions(TypedDict, total=False):
    """Fields of ``response.create`` beside input and tools, each as the protocol defines it."""

    model: str
    instructions: str
    parallel_tool_calls: bool
    text: Mapping[str, Any]
    """``json_format(Model)`` makes one for a structured answer."""
    max_output_tokens: int
    temperature: float
    top_p: float
    top_logprobs: int
    truncation: str
    metadata: Mapping[str, str]
    include: Sequence[str]
    reasoning: Mapping[str, Any]
    service_tier: str
    context_management: Sequence[Mapping[str, Any]]
    """``[{"type": "compaction", "compact_threshold": N}]``: a session goes on where its context is
    full. What comes behind a cut is computed while tools run, and charged then, unless
    ``keepwarm={"compaction": {"ahead": False}}``."""
    prompt_cache_key: str
    store: bool
    keepwarm: Mapping[str, Any]
    """Our extension: session, budget, sampling, expected_tool_ms, priority, deadline_ms."""


class TurnOptions(GenerationOptions, total=False):
    """All fields of ``response.create`` beside the input."""

    tools: Sequence[AnyTool]
    tool_choice: ToolChoice


def wire_items(input: Input) -> list[dict[str, Any]]:
    """Input items as they go on the wire; a string is one user message."""
    if isinstance(input, str):
        return [{"type": "message", "role": "user", "content": input}]
    return [dict(item) if isinstance(item, Mapping) else item.to_wire() for item in input]


def wire_options(defaults: TurnOptions, options: TurnOptions) -> dict[str, Any]:
    """The fields of a request. A turn's options replace the defaults, its ``keepwarm`` keys
    join theirs.

    Raises:
        TypeError: an option that ``TurnOptions`` does not have.
    """
    wire: dict[str, Any] = {**defaults, **options}
    check_options(wire)
    if "tools" in wire:
        wire["tools"] = [
            dict(tool) if isinstance(tool, Mapping) else tool.to_wire()
            for tool in listed_tools(wire["tools"])
        ]
    choice: Any = wire.get("tool_choice")
    if hasattr(choice, "to_wire"):
        wire["tool_choice"] = {"type": "function", "name": choice.name}
    if "keepwarm" in wire:
        wire["keepwarm"] = {**defaults.get("keepwarm", {}), **options.get("keepwarm", {})}
    if _names_threshold(wire):
        own = dict(wire.get("keepwarm", {}))
        own["compaction"] = {"ahead": True, **own.get("compaction", {})}
        wire["keepwarm"] = own
    return wire


def _names_threshold(wire: Mapping[str, Any]) -> bool:
    """Whether the server is told from how many tokens on it is to compact."""
    entries = wire.get("context_management") or ()
    named = any(entry.get("compact_threshold") is not None for entry in entries)
    return named or bool((wire.get("keepwarm") or {}).get("context"))


def meant(typed: str, known: Iterable[str]) -> str:
    """``: is NAME meant?``, or nothing where no name is like what was typed."""
    from difflib import get_close_matches  # here: what exists has no need of it

    alike = get_close_matches(typed, sorted(known), n=1)
    return f": is {alike[0]} meant?" if alike else ""


def check_options(options: Mapping[str, Any]) -> None:
    """Whether all ``options`` exist.

    Raises:
        TypeError: an option that ``TurnOptions`` does not have; a name like it is told. Or
            ``keepwarm`` is no mapping.
    """
    known = TurnOptions.__optional_keys__
    if unknown := sorted(options.keys() - known):
        hints = [hint for typed in unknown if (hint := meant(typed, known))]
        hint = hints[0] if hints else ""
        raise TypeError(f"unknown turn options {unknown}{hint}")
    if not isinstance(extension := options.get("keepwarm", {}), Mapping):
        kind = type(extension).__name__
        raise TypeError(f"keepwarm is of type {kind}: give a dict, such as {{'priority': 1}}")


def listed_tools(tools: object) -> list[AnyTool]:
    """``tools`` as a list, which can be gone through more than once; None is an empty one.

    Raises:
        TypeError: it is none, or something in it cannot be shown to the model.
    """
    if isinstance(tools, str | Mapping) or hasattr(tools, "to_wire") or callable(tools):
        raise TypeError(f"tools is {_shown(tools)}, not a list of tools")
    if not isinstance(tools, Iterable | None):
        raise TypeError(f"tools is {_shown(tools)}, not a list of tools")
    found = [] if tools is None else list(tools)
    for tool in found:
        if isinstance(tool, Mapping) or hasattr(tool, "to_wire"):
            continue
        way_out = "a tool is made by @tool (from keepwarm import tool), or a definition as a dict"
        if callable(tool):
            way_out = "put @tool (from keepwarm import tool) on it"
        raise TypeError(f"one of tools is {_shown(tool)} and no tool: {way_out}")
    return found


def _shown(value: object) -> str:
    if isinstance(value, Mapping) or not callable(value):
        return f"of type {type(value).__name__}"
    name = getattr(value, "name", None) or getattr(value, "__name__", type(value).__name__)
    return f"the {'tool' if hasattr(value, 'to_wire') else 'function'} {name}"
