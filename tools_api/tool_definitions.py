"""Tools that items of a history define: what stands in such an item, and what a model reads of it.

A tool that is not in a request's header is written where an item brings it (what a search found,
what the application added), so that what stands before keeps its KV. From there on the model may
call it (``tools_api.loaded_tools``).

Always true: a definition that is read here is one that ``tools_api.tools`` lets a request have.
"""

from collections.abc import Iterable
from dataclasses import replace

from tools_api import errors, exact_json
from tools_api.built_in_items import AdditionalTools, BuiltInOutput
from tools_api.json_fields import join
from tools_api.limits import DEFAULT_LIMITS, Limits
from tools_api.tools import FunctionTool, hosted_types, parse_tools

DEFINING = ("additional_tools", "tool_search_output")
"""Types of items that bring tools."""
_TRUSTED = replace(
    DEFAULT_LIMITS,
    max_tools=2**31,
    max_deferred_tools=2**31,
    max_tool_name=2**31,
    max_schema_bytes=2**31,
    max_schema_depth=2**31,
    max_grammar_bytes=2**31,
)
"""An item was checked when it came, by the limits of its day."""


def defines(item: object) -> bool:
    """Whether an item brings tools."""
    return isinstance(item, AdditionalTools) or (isinstance(item, BuiltInOutput) and item.loads)


def definitions_in(item: object) -> tuple[FunctionTool, ...]:
    """The tools that an item brings; none of them is in a header."""
    if not defines(item):
        return ()
    found = parse_tools(exact_json.loads(_written(item)), "input.tools", _TRUSTED)
    return tuple(replace(tool, in_header=False, offered=True, by_item=True) for tool in found)


def _written(item: object) -> str:
    """The definitions in an item, as JSON of an array."""
    match item:
        case AdditionalTools():
            return item.tools
        case BuiltInOutput() if item.loads:
            return item.output
    return "[]"


def merged(items: Iterable[object]) -> AdditionalTools | None:
    """One item that brings what these bring, the newest definition of each; None: nothing."""
    entries: dict[str, object] = {}
    for item in items:
        for entry in exact_json.loads(_written(item)):
            text = exact_json.written(entry)
            entries.pop(text, None)
            entries[text] = entry
    if not entries:
        return None
    return AdditionalTools(tools=exact_json.written(list(entries.values())))


def check_definitions(raw: object, limits: Limits) -> tuple[str, ...]:
    """Check the tools that the items of an ``input`` define, as it was sent; returns warnings.

    Raises:
        ApiError: with the path of the first fault, e.g. ``input[2].tools[0].name``.
    """
    if not isinstance(raw, list):
        return ()
    count, hosted = 0, dict[str, None]()
    for number, item in enumerate(raw):
        if not isinstance(item, dict) or item.get("type") not in DEFINING:
            continue
        path = join("input", number, "tools")
        count += len(parse_tools(item.get("tools"), path, limits))
        if count > limits.max_deferred_tools:
            raise errors.invalid_value(path, f"more than {limits.max_deferred_tools} tools")
        hosted |= dict.fromkeys(hosted_types(item.get("tools")))
    if not hosted:
        return ()
    return (f"input: tools that cannot run here are left out: {', '.join(hosted)}",)
