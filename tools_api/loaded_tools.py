"""The tools that a model may call where a turn stands: those of the request, and those that items
of its history have brought.

The request's own word is the newest: a tool of its header stays as the header has it. A tool that
it defers may be called once an item has brought it, as that item defines it, since this is what
the model has read. Which items there are is the session's business.

Always true: the header of a request does not depend on what was loaded; what may be called was
defined in the header or in an item before this turn.
"""

from collections.abc import Iterable
from dataclasses import replace

from tools_api.limits import Limits
from tools_api.requests import CreateRequest
from tools_api.tool_definitions import definitions_in
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


def _found(tool: FunctionTool, loaded: dict[str, FunctionTool]) -> FunctionTool:
    """A tool of the request as it may be called now."""
    definition = loaded.get(tool.name)
    if tool.in_header or tool.withdrawn or definition is None:
        return tool
    return replace(definition, by_item=False, place=tool.place)
