"""Anthropic's own tools that a client runs: a shell, an editor of files, a memory.

Their bodies of ``/v1/messages`` name a type and no schema. To the model each is a function with
the arguments that are published for it, one way for each command; its uses come back under the
tool's name like any other's.

Always true: a schema lets pass what the published commands hold, and nothing else.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

_TEXT = {"type": "string"}
_PATH = {"type": "string", "minLength": 1}
_LINE = {"type": "integer", "minimum": 0}
_RANGE = {"type": "array", "items": {"type": "integer"}, "minItems": 2, "maxItems": 2}


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientTool:
    """A tool as the model reads of it."""

    name: str
    """The one that its type goes with."""
    description: str
    schema: dict[str, Any]


def _way(required: tuple[str, ...], **properties: Any) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": list(required),
        "additionalProperties": False,
    }


def _command(name: str, optional: Mapping[str, Any] | None = None, **needed: Any) -> dict[str, Any]:
    """One command with what it needs and what it may have."""
    properties = {"command": {"const": name}, **needed}
    return _way(tuple(properties), **properties, **(optional or {}))


def _ways(*ways: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "anyOf": list(ways)}


_VIEW = _command("view", {"view_range": _RANGE}, path=_PATH)
_CREATE = _command("create", path=_PATH, file_text=_TEXT)
_REPLACE = _command("str_replace", {"new_str": _TEXT}, path=_PATH, old_str=_PATH)
_UNDO = _command("undo_edit", path=_PATH)


def _insert(text: str) -> dict[str, Any]:
    return _command("insert", path=_PATH, insert_line=_LINE, **{text: _TEXT})


_BASH = ClientTool(
    name="bash",
    description="Runs a command in a shell that goes on from one use to the next; restart begins "
    "it anew.",
    schema=_ways(_way(("command",), command=_PATH), _way(("restart",), restart={"const": True})),
)
_EDITS = "Views, creates and edits files. view shows a file or lists a folder, create writes a new "
_EDITS += "file, str_replace replaces a text that stands there once, insert puts a text behind a "
_EDITS += "line."
_MEMORY = ClientTool(
    name="memory",
    description="Keeps notes in files below /memories, which outlast this conversation. View that "
    "folder first.",
    schema=_ways(
        _VIEW,
        _CREATE,
        _command("str_replace", path=_PATH, old_str=_PATH, new_str=_TEXT),
        _insert("insert_text"),
        _command("delete", path=_PATH),
        _command("rename", old_path=_PATH, new_path=_PATH),
    ),
)


def _editor(name: str, *more: dict[str, Any], inserts: str) -> ClientTool:
    schema = _ways(_VIEW, _CREATE, _REPLACE, _insert(inserts), *more)
    return ClientTool(name=name, description=_EDITS, schema=schema)


_OLD_EDITOR = _editor("str_replace_editor", _UNDO, inserts="new_str")
CLIENT_TOOLS: Mapping[str, ClientTool] = {
    "bash_20241022": _BASH,
    "bash_20250124": _BASH,
    "text_editor_20241022": _OLD_EDITOR,
    "text_editor_20250124": _OLD_EDITOR,
    "text_editor_20250429": _editor("str_replace_based_edit_tool", inserts="new_str"),
    "text_editor_20250728": _editor("str_replace_based_edit_tool", inserts="insert_text"),
    "memory_20250818": _MEMORY,
}
"""Tools that clients of Anthropic's API bring, by the types of their entries."""
