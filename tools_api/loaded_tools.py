"""The tools that a turn may call where it stands, and the configuration in force there.

Tools are those of the request and those that items of its history have brought.

The request's own word is the newest: a tool of its header stays as the header has it. A tool that
it defers may be called once an item has brought it, as that item defines it, since this is what
the model has read. Which items there are is the session's business.

Always true: the header of a request does not depend on what was loaded; what may be called was
defined in the header or in an item before this turn.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from tools_api import exact_json
from tools_api.built_in_items import AdditionalTools, ConfigurationUpdate
from tools_api.limits import Limits
from tools_api.request_reading import parse_text
from tools_api.requests import CreateRequest
from tools_api.tool_definitions import definitions_in, merged
from tools_api.tools import FunctionTool, parse_tool_choice, refuse_many_offered


def with_loaded(request: CreateRequest, items: Iterable[object], limits: Limits) -> CreateRequest:
    """The request with the tools that items bring, and its choice among them all.

    Args:
        items: that the turn's model reads, in order, compactions taken apart.

    Raises:
        ApiError: too many may be called, or the choice names none of them.
    """
    loaded: dict[str, FunctionTool] = {}
    for item in items:
        for tool in definitions_in(item):
            loaded.pop(tool.name, None)
            loaded[tool.name] = tool
    own = tuple(tool for tool in request.tools if not tool.by_item)
    tools = [_found(tool, loaded) for tool in own]
    known = {tool.name for tool in own}
    tools += [tool for name, tool in loaded.items() if name not in known]
    refuse_many_offered(tools, "tools", limits)
    choice = request.tool_choice
    if request.late_choice is not None:
        choice = parse_tool_choice(request.late_choice, tuple(tools))
    return request.model_copy(update={"tools": tuple(tools), "tool_choice": choice})


def configured(request: CreateRequest, items: Iterable[object], limits: Limits) -> CreateRequest:
    """The request as the newest configuration updates of its history have it; arguments as for
    ``with_loaded``."""
    update = merged_updates(items)
    if update is None:
        return request
    told = exact_json.loads(update.told)
    changes: dict[str, Any] = {}
    if "reasoning" in told:
        effort = told["reasoning"].get("effort")
        changes["reasoning"] = request.reasoning.model_copy(update={"effort": effort})
    if "text" in told:
        changes["text_format"], _ = parse_text(told["text"], limits)
    return request.model_copy(update=changes)


def merged_updates(items: Iterable[object]) -> ConfigurationUpdate | None:
    """One update that says what these say, the newest of each setting; None: nothing."""
    told: dict[str, Any] = {}
    for item in items:
        if isinstance(item, ConfigurationUpdate):
            told |= exact_json.loads(item.told)
    return ConfigurationUpdate(told=exact_json.written(told)) if told else None


def standing_changes(items: Sequence[object]) -> list[AdditionalTools | ConfigurationUpdate]:
    """What of these items stays in force where they are left out of a context."""
    found = (merged(items), merged_updates(items))
    return [item for item in found if item is not None]


def _found(tool: FunctionTool, loaded: dict[str, FunctionTool]) -> FunctionTool:
    """A tool of the request as it may be called now."""
    definition = loaded.get(tool.name)
    if tool.in_header or tool.withdrawn or definition is None:
        return tool
    return replace(definition, by_item=False, place=tool.place)
