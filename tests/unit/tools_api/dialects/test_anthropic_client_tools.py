"""Anthropic's own tools that a client runs: bound by their published commands."""

import json
from typing import Any

import jsonschema
import pytest

from tests.support.dialects import accepted, refused
from tests.support.sessions_rig import END, Rig, call
from tools_api.dialects.anthropic_client_tools import CLIENT_TOOLS
from tools_api.dialects.anthropic_messages import MESSAGES

VIEW = {"command": "view", "path": "/a"}
CREATE = {"command": "create", "path": "/a", "file_text": "x"}
REPLACE = {"command": "str_replace", "path": "/a", "old_str": "x", "new_str": "y"}
INSERT = {"command": "insert", "path": "/a", "insert_line": 0}
OLD_INSERT, NEW_INSERT = INSERT | {"new_str": "z"}, INSERT | {"insert_text": "z"}
EDITS = [VIEW, VIEW | {"view_range": [1, -1]}, CREATE, REPLACE]
EXAMPLES: dict[str, list[dict[str, Any]]] = {
    "bash_20241022": [{"command": "ls"}, {"restart": True}],
    "bash_20250124": [{"command": "ls"}, {"restart": True}],
    "text_editor_20241022": [*EDITS, OLD_INSERT, {"command": "undo_edit", "path": "/a"}],
    "text_editor_20250124": [*EDITS, OLD_INSERT, {"command": "undo_edit", "path": "/a"}],
    "text_editor_20250429": [*EDITS, OLD_INSERT],
    "text_editor_20250728": [*EDITS, NEW_INSERT],
    "memory_20250818": [
        *EDITS, NEW_INSERT, {"command": "delete", "path": "/a"},
        {"command": "rename", "old_path": "/a", "new_path": "/b"},
    ],
}  # fmt: skip
OTHERS: list[dict[str, Any]] = [
    {}, {"command": "fly"}, {"command": "view"}, {"restart": False}, CREATE | {"file_text": 1},
    VIEW | {"view_range": [1]}, INSERT | {"insert_line": "0"}, {"command": "rename", "path": "/a"},
]  # fmt: skip


def entry(kind: str, **more: Any) -> dict[str, Any]:
    return {"type": kind, "name": CLIENT_TOOLS[kind].name, **more}


def body(*tools: dict[str, Any], **fields: Any) -> dict[str, Any]:
    messages = [{"role": "user", "content": "hi"}]
    return {"model": "m", "max_tokens": 99, "tools": list(tools), "messages": messages, **fields}


def test_every_tool_is_tried() -> None:
    assert set(EXAMPLES) == set(CLIENT_TOOLS)


@pytest.mark.samples(2)
@pytest.mark.parametrize("kind", CLIENT_TOOLS)
def test_its_schema_lets_its_commands_pass_and_nothing_else(kind: str) -> None:
    schema = CLIENT_TOOLS[kind].schema
    for arguments in EXAMPLES[kind]:
        jsonschema.validate(arguments, schema)
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(arguments | {"more": 1}, schema)
    for arguments in OTHERS:
        if kind.startswith("bash") and set(arguments) == {"command"}:
            continue
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(arguments, schema)


@pytest.mark.parametrize("kind", CLIENT_TOOLS)
def test_it_is_a_function_whose_uses_come_back_under_its_name(kind: str) -> None:
    rig = Rig(max_context_tokens=100_000)
    client = rig.connect()
    name = CLIENT_TOOLS[kind].name
    choice = {"type": "tool", "name": name}
    request = MESSAGES.read(body(entry(kind, max_characters=5), tool_choice=choice))
    client.create(**request.create)
    grammar = rig.engine.last.grammar
    assert grammar is not None
    assert grammar.binds_all
    rig.reply(call(name, json.dumps(EXAMPLES[kind][0])) + END)
    (use,) = request.writer.whole(client.response)["content"]
    assert (use["type"], use["name"], use["input"]) == ("tool_use", name, EXAMPLES[kind][0])


@pytest.mark.parametrize("kind", CLIENT_TOOLS)
def test_its_name_goes_with_its_type(kind: str) -> None:
    error = refused(MESSAGES, body({"type": kind, "name": "mine"}))
    assert "'tools[0].name'" in error["message"]


def test_it_may_be_deferred() -> None:
    request = accepted(MESSAGES, body(entry("bash_20250124", defer_loading=True)))
    assert request.tool_choice.callable(request.tools) == ()
