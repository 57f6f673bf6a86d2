"""The tools of a body of ``/v1/messages``, and what its messages say of them.

A tool that is deferred stands in no header: where a message refers to it (a ``tool_reference`` in
a result, a ``tool_addition``) its definition is written, and from there on the model may call it.
So a tool that is loaded late leaves what stands before it as it was, with its KV. What a search of
the server's found stands in the messages as an item with its definitions, and so does a tool that a
``tool_addition`` defines itself. Knows nothing of the rest
of the messages.

Always true: a definition is written once, where it is referred to first; a tool that is offered
stands in the header or in the messages.
"""

from collections.abc import Sequence

from tools_api import errors
from tools_api.chat_format import to_json, tool_object
from tools_api.dialects.anthropic_client_tools import CLIENT_TOOLS
from tools_api.dialects.dialect_fields import (
    Fields,
    a_flag,
    a_name,
    an_array,
    an_object,
    objects,
    one_of,
    picked,
)
from tools_api.json_fields import join
from tools_api.tools import FunctionTool, parse_tools, wire_tools

_SEARCHES = tuple(
    f"tool_search_tool_{kind}{dated}" for kind in ("bm25", "regex") for dated in ("_20251119", "")
)
"""Server tools that look for deferred ones."""
SERVER_TOOLS = ("tool_search_tool_bm25", "tool_search_tool_regex")
"""The names that their uses have."""
_CALLED = ("custom", *CLIENT_TOOLS)
_KINDS = (*_CALLED, *_SEARCHES)


class Toolbox:
    """The tools of one body, as far as its messages were read."""

    def __init__(self, tools: object = None, *, whole: bool = True) -> None:
        """
        Args:
            tools: the body's field; None: it has none.
            whole: no other history stands before the messages. In another one deferred tools may
                have been referred to: all are offered then, unless the server searches for them.

        Raises:
            ApiError: a tool cannot be served.
        """
        listed = list(objects([] if tools is None else tools, "tools"))
        kinds = [_kind(tool, path) for path, tool in listed]
        searches = [p for (p, _), kind in zip(listed, kinds, strict=True) if kind in _SEARCHES]
        _refuse_searches(searches)
        self._entries: list[Fields] = []
        """As ``response.create`` takes them, in the body's order."""
        self._by_name: dict[str, Fields] = {}
        self._written: set[str] = set()
        """Names of those whose definition stands above."""
        self._inline: dict[str, Fields] = {}
        """Tools that messages define, by name, as their items have them."""
        self._listed: set[str] = set()
        """Names of those of them that stand among the entries, too."""
        for (path, tool), kind in zip(listed, kinds, strict=True):
            entry = _search(kind) if kind in _SEARCHES else _entry(tool, path, kind)
            if entry.get("defer_loading"):
                entry |= {
                    "in_header": False,
                    "offered": not whole and not searches,
                    "defer_loading": False,
                }
            self._entries.append(entry)
            name = entry.get("name")
            if isinstance(name, str):
                self._by_name[name] = entry
                if entry.get("in_header", True):
                    self._written.add(name)

    def entries(self) -> list[Fields]:
        """The tools as a ``response.create`` takes them, once all messages are read."""
        return self._entries

    def offer(self, name: str, path: str) -> str:
        """From here on the model may call the tool; returns what it is to read of that.

        Raises:
            ApiError: there is no such tool.
        """
        entry = self._known(name, path)
        if "offered" in entry:
            entry |= {"offered": True, "withdrawn": False}
        if name in self._written:
            return f"The tool {to_json(name)} is available; it is defined above."
        self._written.add(name)
        tool = FunctionTool(
            name=name, description=entry.get("description"), parameters=entry["parameters"]
        )
        return to_json(tool_object(tool))

    def define(self, tool: Fields, path: str) -> Fields | str:
        """From here on the model may call a tool that a message defines as ``tools`` would.

        Returns:
            Its entry in an item that brings tools; what the model is to read instead, if it has
            read the definition before.

        Raises:
            ApiError: the tool cannot be served, or another one has its name.
        """
        kind = one_of(tool.get("type", "custom"), join(path, "type"), "tool type", _CALLED)
        entry = _entry(tool, path, kind)
        if entry.pop("defer_loading", False):
            why = "the tool is offered from here on; leave this out, or list it in 'tools'"
            raise errors.unsupported_parameter(join(path, "defer_loading"), why)
        at = join(path, "name")
        name = a_name(entry.get("name"), at)
        if self._inline.get(name) == entry:
            return self.offer(name, at)
        if name in self._by_name:
            why = f"{errors.quoted(name)} is the name of another tool"
            raise errors.invalid_value(at, why)
        self._inline[name] = entry
        self._by_name[name] = entry | {"in_header": False, "offered": True}
        self._written.add(name)
        return entry

    def found(self, names: Sequence[str], path: str) -> list[Fields]:
        """The definitions of tools that a search of the server's found, as its item has them;
        raises as ``offer``."""
        entries = [self._known(name, path) for name in names]
        self._written.update(names)
        return wire_tools([tool for entry in entries for tool in parse_tools([entry], path)])

    def withdraw(self, name: str, path: str) -> str:
        """Keep the model from calling the tool from here on; returns and raises as ``offer``."""
        entry = self._known(name, path)
        entry |= {"offered": False, "withdrawn": True}
        if name in self._inline and name not in self._listed:
            self._listed.add(name)
            self._entries.append(entry)  # so that the item that brings it does not offer it
        return f"The tool {to_json(name)} is not available any more."

    def _known(self, name: str, path: str) -> Fields:
        entry = self._by_name.get(name)
        if entry is None:
            raise errors.invalid_value(path, f"{errors.quoted(name)} is not one of the tools")
        return entry


def _kind(tool: Fields, path: str) -> str:
    return one_of(tool.get("type", "custom"), join(path, "type"), "tool type", _KINDS)


def _refuse_searches(paths: Sequence[str]) -> None:
    if len(paths) > 1:
        raise errors.invalid_value(
            join(paths[1], "type"), "one search among the tools is enough, by words or by pattern"
        )


def _search(kind: str) -> Fields:
    return {"type": "tool_search", "execution": "server", "by_pattern": "regex" in kind}


def _entry(tool: Fields, path: str, kind: str) -> Fields:
    """Tools are not strict unless they say so: this is the endpoint's default."""
    own = CLIENT_TOOLS.get(kind)
    if own is not None:
        one_of(tool.get("name"), join(path, "name"), "name", (own.name,))
        tool = tool | {"description": own.description, "input_schema": own.schema}
    at = join(path, "allowed_callers")
    for index, caller in enumerate(an_array(tool.get("allowed_callers", []), at)):
        one_of(caller, join(at, index), "caller", ("direct",))
    schema = an_object(tool.get("input_schema"), join(path, "input_schema"))
    if "input_examples" in tool:
        examples = an_array(tool["input_examples"], join(path, "input_examples"))
        schema = schema | {"examples": examples}
    told = picked(tool, ("name", "description", "strict"))
    if a_flag(tool.get("defer_loading"), join(path, "defer_loading")):
        told["defer_loading"] = True
    return {"type": "function", "strict": False} | told | {"parameters": schema}
