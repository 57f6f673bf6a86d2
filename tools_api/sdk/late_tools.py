"""Tools that come and go while a session lives, so that what was said before stays warm.

A tool that is added is defined where it comes, as an item of the next turn's input; one that is
removed keeps its definition and is left out of the choice. Knows no server.

Always true: neither changes what a request says in front of what the server has cached.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from tools_api.sdk.options import AnyTool

ITEM_TYPE = "additional_tools"
_NAMED = ("function", "custom")


def wire_tool(tool: AnyTool) -> dict[str, Any]:
    """A tool as an entry of ``tools``."""
    return dict(tool) if isinstance(tool, Mapping) else tool.to_wire()


def name_of(tool: AnyTool) -> str:
    """The name by which a tool is added and removed; of one without a name its type.

    Raises:
        TypeError: it has neither.
    """
    wire = wire_tool(tool)
    name = wire.get("name") or wire.get("type")
    if not isinstance(name, str):
        raise TypeError("a tool's definition has a name, or at least a type")
    return name


def listed(names: Any) -> list[str | AnyTool]:
    """Names and tools as a list; one alone is one of one."""
    alone = isinstance(names, str | Mapping) or hasattr(names, "to_wire")
    return [names] if alone else list(names)


def brought(history: Iterable[Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """The newest definition of each tool that items of a history bring, by its name."""
    found: dict[str, dict[str, Any]] = {}
    for item in history:
        if item.get("type") == ITEM_TYPE:
            found |= {name_of(tool): tool for tool in item["tools"]}
    return found


def items_for(
    late: Mapping[str, AnyTool], history: Iterable[Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """The item that defines those tools which the history does not, if there are any."""
    if not late:
        return []
    there = brought(history)
    wires = {name: wire_tool(tool) for name, tool in late.items()}
    new = [wire for name, wire in wires.items() if there.get(name) != wire]
    return [{"type": ITEM_TYPE, "role": "developer", "tools": new}] if new else []


def refuse_other(tools: Sequence[AnyTool], header: Sequence[AnyTool]) -> dict[str, AnyTool]:
    """Those of ``tools`` that the header does not have, by name.

    Raises:
        ValueError: the header has one of another definition, which it keeps.
    """
    there = {name_of(tool): wire_tool(tool) for tool in header}
    new: dict[str, AnyTool] = {}
    for tool in tools:
        name = name_of(tool)
        if name not in there:
            new[name] = tool
        elif there[name] != wire_tool(tool):
            raise ValueError(
                f"the session has another tool {name!r} from its beginning: give this one "
                "another name"
            )
    return new


def restricted(choice: Any, tools: Sequence[Mapping[str, Any]], removed: frozenset[str]) -> Any:
    """A choice among ``tools`` that leaves out those which were removed.

    Args:
        choice: as the turn's options have it; None: they do not.
        tools: that the model knows, as they stand on the wire.

    Raises:
        ValueError: it names one that was removed.
    """
    if choice == "none":
        return choice
    kept = [entry for entry in _entries(tools) if _key(entry) not in removed]
    if isinstance(choice, Mapping):
        named = choice.get("tools", [choice])
        if gone := [_key(entry) for entry in named if _key(entry) in removed]:
            raise ValueError(f"tool_choice names {gone[0]!r}, which was removed")
        return choice
    if not kept:
        return "none"
    mode = "required" if choice == "required" else "auto"
    return {"type": "allowed_tools", "mode": mode, "tools": kept}


def _key(entry: Mapping[str, Any]) -> str:
    """The name by which a tool, or all of a namespace, was removed."""
    return str(entry.get("namespace") or entry.get("name") or entry.get("type"))


def _entries(tools: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The tools as a choice names them."""
    found: list[dict[str, Any]] = []
    for tool in tools:
        kind = tool.get("type", "function")
        if kind == "namespace":
            for member in tool.get("tools", ()):
                named = {"type": member.get("type", "function"), "name": member["name"]}
                found.append(named | {"namespace": tool["name"]})
        elif kind in _NAMED:
            found.append({"type": kind, "name": tool["name"]})
        else:
            found.append({"type": kind})
    return found
