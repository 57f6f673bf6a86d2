"""The messages of Chat Completions as transcript items.

An assistant's message becomes up to three kinds of items in the order in which a turn writes
them: its reasoning, its text, its calls. Text is passed on as it is, calls keep their ids.

Always true: what a message becomes depends on nothing behind it, so that the items of a history
are those of any longer one's beginning.
"""

from typing import Any

from tools_api import errors
from tools_api.dialects.dialect_fields import (
    Fields,
    a_name,
    a_string,
    an_object,
    objects,
    one_of,
    parts_of,
)
from tools_api.json_fields import join

Item = dict[str, Any]
_ROLES = ("system", "developer", "user", "assistant", "tool")
_TAGS = {"text": "input_text", "refusal": "refusal"}
"""Types of content parts, there and here."""


def items_of(messages: object, *, whole: bool) -> list[Item]:
    """Items as ``response.create`` takes them.

    Args:
        whole: no other history stands before these messages.

    Raises:
        ApiError: a message cannot be served, or a tool answers a call that nobody made.
    """
    items: list[Item] = []
    calls: set[str] = set()
    for path, message in objects(messages, "messages"):
        new = _items_of(message, path)
        if whole:
            _check_output(new, calls, path)
        calls |= {item["call_id"] for item in new if item["type"] == "function_call"}
        items += new
    if not items:
        raise errors.invalid_value("messages", "it holds nothing to answer")
    return items


def _check_output(new: list[Item], calls: set[str], path: str) -> None:
    for item in new:
        if item["type"] == "function_call_output" and item["call_id"] not in calls:
            raise errors.invalid_value(
                join(path, "tool_call_id"),
                f"no message before this one makes the call {errors.quoted(item['call_id'])}",
            )


def _items_of(message: Fields, path: str) -> list[Item]:
    at = join(path, "role")
    if message.get("role") == "function":
        raise errors.unsupported_parameter(at, "'function' is deprecated; use the role 'tool'")
    match one_of(message.get("role"), at, "role", _ROLES):
        case "assistant":
            return _assistant(message, path)
        case "tool":
            return [_output(message, path)]
        case role:
            content = _content(message.get("content"), join(path, "content"), ("text",))
            return [{"type": "message", "role": role, "content": content}]


_NOT_SAID = {
    "audio": "models here do not speak",
    "function_call": "it is deprecated; use tool_calls",
}


def _assistant(message: Fields, path: str) -> list[Item]:
    for name, reason in _NOT_SAID.items():
        if name in message:
            raise errors.unsupported_parameter(join(path, name), reason)
    items = _reasoning(message, path) + _text(message, path)
    for at, call in objects(message.get("tool_calls", []), join(path, "tool_calls")):
        items.append(_call(call, at))
    if not items and "content" not in message:
        raise errors.missing_parameter(join(path, "content"))
    return items


def _reasoning(message: Fields, path: str) -> list[Item]:
    text = a_string(message.get("reasoning_content", ""), join(path, "reasoning_content"))
    if not text:
        return []
    part = {"type": "reasoning_text", "text": text}
    return [{"type": "reasoning", "summary": [], "content": [part]}]


def _text(message: Fields, path: str) -> list[Item]:
    """A message with a text; none for an empty one: a turn that wrote none has no such item
    either."""
    parts = _content(message.get("content", ""), join(path, "content"), ("text", "refusal"))
    refusal = a_string(message.get("refusal", ""), join(path, "refusal"))
    said = [
        part | {"type": "output_text"} if "text" in part else part
        for part in parts
        if part.get("text") or part.get("refusal")
    ]
    if refusal:
        said.append({"type": "refusal", "refusal": refusal})
    return [{"type": "message", "role": "assistant", "content": said}] if said else []


def _call(call: Fields, path: str) -> Item:
    one_of(call.get("type", "function"), join(path, "type"), "tool call type", ("function",))
    at = join(path, "function")
    function = an_object(call.get("function"), at)
    return {
        "type": "function_call",
        "call_id": a_name(call.get("id"), join(path, "id")),
        "name": a_name(function.get("name"), join(at, "name")),
        "arguments": a_string(function.get("arguments"), join(at, "arguments")),
    }


def _output(message: Fields, path: str) -> Item:
    return {
        "type": "function_call_output",
        "call_id": a_name(message.get("tool_call_id"), join(path, "tool_call_id")),
        "output": _content(message.get("content"), join(path, "content"), ("text",)),
    }


def _content(content: object, path: str, known: tuple[str, ...]) -> list[Item]:
    return [_part(part, at, known) for at, part in parts_of(content, path)]


def _part(part: Fields, path: str, known: tuple[str, ...]) -> Item:
    kind = one_of(part.get("type"), join(path, "type"), "content", known)
    return {"type": _TAGS[kind], kind: a_string(part.get(kind), join(path, kind))}
