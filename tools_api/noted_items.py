"""Items of tools that ran elsewhere: what a history tells the model of them.

Another server ran them (a search, an MCP server, a computer); none of them runs here. A history
that was begun there is read all the same: what the tool was asked and gave stands as a note among
what the model said.

Always true: a note says the type of its item, and nothing that is binary or sealed.
"""

from collections.abc import Mapping
from typing import Any

from tools_api import exact_json
from tools_api.errors import ApiError, invalid_type
from tools_api.json_fields import join

NOTED: Mapping[str, tuple[str, ...]] = {
    "web_search_call": ("action",),
    "file_search_call": ("queries", "results"),
    "code_interpreter_call": ("code", "outputs"),
    "image_generation_call": ("revised_prompt",),
    "mcp_call": ("server_label", "name", "arguments", "output", "error"),
    "mcp_list_tools": ("server_label", "error"),
    "mcp_approval_request": ("server_label", "name", "arguments"),
    "mcp_approval_response": ("approve", "reason"),
    "computer_call": ("action", "actions"),
    "computer_call_output": ("call_id",),
}
"""Their types, and the fields that are told. Pictures are not: no model here reads any."""
NOTED_BLOCKS: Mapping[str, tuple[str, ...]] = {
    "server_tool_use": ("name", "input"),
    "mcp_tool_use": ("server_name", "name", "input"),
    "mcp_tool_result": ("is_error", "content"),
    "mcp_tool_listing": ("server_name",),
    "advisor_tool_result": ("content",),
    "web_search_tool_result": ("content",),
    "web_fetch_tool_result": ("content",),
    "code_execution_tool_result": ("content",),
    "bash_code_execution_tool_result": ("content",),
    "text_editor_code_execution_tool_result": ("content",),
}
"""The same of blocks in the messages of Anthropic's API, which its dialect hands on as items."""
TOLD = {**NOTED, **NOTED_BLOCKS}
"""All of them."""
_UNREAD = frozenset(
    {"data", "encrypted_content", "encrypted_index", "encrypted_stdout", "file_id", "signature"}
)
"""Keys of what is binary or sealed, wherever it stands in a block."""


def note_of(raw: dict[str, Any], path: str) -> str | None:
    """The note for an item; None: its type is none of those that ran elsewhere.

    Raises:
        ApiError: a field that is told is nested too deep, or is no JSON.
    """
    kind = raw.get("type")
    if not isinstance(kind, str) or kind not in TOLD:
        return None
    told = {name: raw[name] for name in TOLD[kind] if raw.get(name) is not None}
    if kind in NOTED_BLOCKS:
        told = _read(told)
    try:
        return f"[{kind}: {exact_json.written(told)}]"
    except (ValueError, RecursionError, TypeError):
        raise _unreadable(path, raw) from None


def _read(value: Any) -> Any:
    """A value without what is binary or sealed."""
    if isinstance(value, dict):
        return {key: _read(inner) for key, inner in value.items() if key not in _UNREAD}
    return list(map(_read, value)) if isinstance(value, list) else value


def _unreadable(path: str, raw: dict[str, Any]) -> ApiError:
    return invalid_type(join(path, "type"), "an item that can be written as JSON", raw.get("type"))
