"""The messages of Anthropic's API as transcript items.

A message is an array of blocks; each block of the assistant becomes one item, as each item that
we write becomes one block. Of a user's message neighbouring texts are one item and every
``tool_result`` is one. ``cache_control`` may stand anywhere and means nothing here: everything
is cached.

Always true: what a message becomes depends on nothing behind it, so that the items of a history
are those of any longer one's beginning; a call's ``input`` has one spelling.
"""

from dataclasses import dataclass
from typing import Any

from tools_api import errors
from tools_api.chat_format import to_json
from tools_api.dialects.anthropic_messages_tools import SERVER_TOOLS, Toolbox
from tools_api.dialects.dialect_fields import (
    Fields,
    a_flag,
    a_name,
    a_string,
    an_object,
    objects,
    one_of,
    parts_of,
    picked,
)
from tools_api.json_fields import join
from tools_api.noted_items import NOTED_BLOCKS

Item = dict[str, Any]
_ROLES = ("user", "assistant", "system")
_BLOCKS = {
    "user": ("text", "tool_result"),
    "assistant": (
        *("text", "tool_use", "thinking", "redacted_thinking", "compaction"),
        *("tool_search_tool_result", *NOTED_BLOCKS),
    ),
    "system": ("text", "tool_addition", "tool_removal"),
}
_ACCOUNTING = "x-anthropic-billing-header:"
"""Begins a system block of Claude Code's that is not meant for a model and differs from request
to request: with it no request would find what the one before it left in the cache."""


def instructions_of(system: object) -> str | None:
    """``system``, its blocks on lines of their own; None where it says nothing."""
    texts = _texts(system, "system")
    if isinstance(system, list):
        texts = [text for text in texts if not text.startswith(_ACCOUNTING)]
    return "\n".join(texts) or None


def items_of(messages: object, *, whole: bool, tools: Toolbox | None = None) -> list[Item]:
    """Items as ``response.create`` takes them.

    Args:
        whole: no other history stands before these messages.
        tools: learns which of them the messages refer to; None: there are none.

    Raises:
        ApiError: a message cannot be served, or a result answers a use that nobody made.
    """
    items: list[Item] = []
    said = _Said(set() if whole else None, tools or Toolbox())
    for path, message in objects(messages, "messages"):
        role = one_of(message.get("role"), join(path, "role"), "role", _ROLES)
        items += _items_of(role, message.get("content"), join(path, "content"), said)
    if not items:
        raise errors.invalid_value("messages", "it holds nothing to answer")
    return items


def refuse_prefill(messages: list[Fields]) -> None:
    """Refuse a last message that the model would have to go on writing."""
    last = len(messages) - 1
    if messages[last].get("role") == "assistant":
        raise errors.unsupported_parameter(
            join("messages", last, "role"),
            "the assistant's last message cannot be continued; end with one of the user's",
        )


@dataclass(frozen=True, slots=True)
class _Said:
    """The calls and tools of the messages so far that later ones may refer to."""

    calls: set[str] | None
    """Uses; None: any may have been made."""
    tools: Toolbox


def _items_of(role: str, content: object, path: str, said: _Said) -> list[Item]:
    """The items of one message, which adds to ``said``."""
    items: list[Item] = []
    for at, block in parts_of(content, path):
        match one_of(block.get("type"), join(at, "type"), "content", _BLOCKS[role]):
            case "text":
                _add_text(items, role, a_string(block.get("text"), join(at, "text")))
            case "tool_result":
                items.append(_result(block, at, said))
            case "tool_use":
                items.append(_use(block, at))
                if said.calls is not None:
                    said.calls.add(items[-1]["call_id"])
            case "server_tool_use" if block.get("name") in SERVER_TOOLS:
                items.append(_search(block, at))
            case kind if kind in NOTED_BLOCKS:
                items.append({"type": kind} | picked(block, NOTED_BLOCKS[kind]))
            case "tool_search_tool_result":
                items.append(_found(block, at, said.tools))
            case "tool_addition":
                _add_tool(items, role, block, at, said.tools)
            case "tool_removal":
                at, tool, _ = _changed(block, at, ("tool_reference",))
                _add_text(items, role, said.tools.withdraw(*_named(tool, at)))
            case "thinking":
                items.append(_thinking(block, at))
            case "compaction":
                sealed = a_name(block.get("encrypted_content"), join(at, "encrypted_content"))
                items.append({"type": "compaction", "encrypted_content": sealed})
    return items


def _add_text(items: list[Item], role: str, text: str) -> None:
    """The assistant's blocks stay apart, as its items were; an empty one was no item."""
    if role == "assistant":
        if text:
            part = {"type": "output_text", "text": text}
            items.append({"type": "message", "role": role, "content": [part]})
        return
    if not items or items[-1]["type"] != "message":
        items.append({"type": "message", "role": role, "content": []})
    items[-1]["content"].append({"type": "input_text", "text": text})


def _use(block: Fields, path: str) -> Item:
    return {
        "type": "function_call",
        "call_id": a_name(block.get("id"), join(path, "id")),
        "name": a_name(block.get("name"), join(path, "name")),
        "arguments": to_json(_as_sent(block.get("input"), join(path, "input"))),
    }


def _search(block: Fields, path: str) -> Item:
    """A search that the server ran."""
    return {
        "type": "tool_search_call",
        "execution": "server",
        "call_id": a_name(block.get("id"), join(path, "id")),
        "arguments": _as_sent(block.get("input"), join(path, "input")),
    }


def _found(block: Fields, path: str, tools: Toolbox) -> Item:
    """What the server found; nothing where it says that it could not look."""
    at = join(path, "content")
    content = an_object(block.get("content"), at)
    kinds = ("tool_search_tool_search_result", "tool_search_tool_result_error")
    one_of(content.get("type"), join(at, "type"), "result", kinds)
    names = [
        a_name(reference.get("tool_name"), join(where, "tool_name"))
        for where, reference in objects(
            content.get("tool_references", []), join(at, "tool_references")
        )
    ]
    return {
        "type": "tool_search_output",
        "execution": "server",
        "call_id": a_name(block.get("tool_use_id"), join(path, "tool_use_id")),
        "tools": tools.found(names, join(at, "tool_references")),
    }


def _as_sent(value: object, path: str) -> Fields:
    """``value``, required, with its nulls: they are data here."""
    an_object(value, path)
    assert isinstance(value, dict)
    return value


def _thinking(block: Fields, path: str) -> Item:
    text = a_string(block.get("thinking"), join(path, "thinking"))
    part = {"type": "reasoning_text", "text": text}
    return {"type": "reasoning", "summary": [], "content": [part] if text else []}


def _add_tool(items: list[Item], role: str, block: Fields, path: str, tools: Toolbox) -> None:
    """What an addition says to the model: of one of the tools, or of one that it defines."""
    at, tool, kind = _changed(block, path, ("tool_reference", "tool_definition"))
    if kind == "tool_reference":
        _add_text(items, role, tools.offer(*_named(tool, at)))
        return
    at = join(at, "definition")
    said = tools.define(an_object(tool.get("definition"), at), at)
    if isinstance(said, str):
        _add_text(items, role, said)
    else:
        items.append({"type": "additional_tools", "role": "developer", "tools": [said]})


def _changed(block: Fields, path: str, kinds: tuple[str, ...]) -> tuple[str, Fields, str]:
    """The tool that a change is about: its path, how it is told, and the type of that."""
    at = join(path, "tool")
    tool = an_object(block.get("tool"), at)
    return at, tool, one_of(tool.get("type"), join(at, "type"), "tool", kinds)


def _named(tool: Fields, path: str) -> tuple[str, str]:
    """The name in a reference to a tool, and its path."""
    return a_name(tool.get("name"), join(path, "name")), join(path, "name")


def _result(block: Fields, path: str, said: _Said) -> Item:
    """A failure is text here, so the text says that it is one."""
    call_id = a_name(block.get("tool_use_id"), join(path, "tool_use_id"))
    if said.calls is not None and call_id not in said.calls:
        raise errors.invalid_value(
            join(path, "tool_use_id"),
            f"no message before this one has the tool_use {errors.quoted(call_id)}",
        )
    content = block.get("content", "")
    output = "\n".join(_texts(content, join(path, "content"), said.tools))
    failed = a_flag(block.get("is_error"), join(path, "is_error"))
    if failed and not output.startswith("Error"):
        output = f"Error: {output}"
    return {"type": "function_call_output", "call_id": call_id, "output": output}


def _texts(content: object, path: str, tools: Toolbox | None = None) -> list[str]:
    """``tools``: may be referred to."""
    kinds = ("text",) if tools is None else ("text", "tool_reference")
    texts = []
    for at, block in parts_of(content, path):
        kind = one_of(block.get("type"), join(at, "type"), "content", kinds)
        if tools is not None and kind == "tool_reference":
            named = join(at, "tool_name")
            texts.append(tools.offer(a_name(block.get("tool_name"), named), named))
        else:
            texts.append(a_string(block.get("text"), join(at, "text")))
    return texts
