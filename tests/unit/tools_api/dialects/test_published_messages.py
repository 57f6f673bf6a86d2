"""Each tool, block, edit and field that ``anthropic`` publishes works, is read as a note, or is
refused by its name; ``tests/support/published_messages.json`` says what it publishes, and
``tests/clients/test_published_types.py`` holds that to the pinned package."""

import json
from typing import Any

import pytest

from tests.support.architecture import ROOT
from tests.support.dialects import accepted, refused
from tools_api.dialects.anthropic_client_tools import CLIENT_TOOLS
from tools_api.dialects.anthropic_messages import MESSAGES
from tools_api.noted_items import NOTED_BLOCKS

PUBLISHED: dict[str, Any] = json.loads((ROOT / "tests/support/published_messages.json").read_text())
SCHEMA = {"type": "object", "properties": {}}
REFERENCE = {"type": "tool_reference", "name": "f"}
FUNCTION = {"name": "f", "input_schema": SCHEMA}
SEARCHES = {
    kind: {"name": kind.removesuffix("_20251119")}
    for kind in PUBLISHED["tools"]
    if kind.startswith("tool_search")
}
TOOLS: dict[str, dict[str, Any]] = {
    "custom": FUNCTION,
    **{kind: {"name": tool.name} for kind, tool in CLIENT_TOOLS.items()},
    **SEARCHES,
}
"""Those that work, with the fields that one needs."""
BLOCKS: dict[str, dict[str, dict[str, Any]]] = {
    "user": {"text": {"text": "x"}, "tool_result": {"tool_use_id": "u"}},
    "assistant": {
        "text": {"text": "x"},
        "tool_use": {"id": "u", "name": "f", "input": {}},
        "thinking": {"thinking": "x", "signature": ""},
        "redacted_thinking": {"data": "x"},
        "compaction": {"encrypted_content": "kw1w.AAAA.AAAA"},
        "tool_search_tool_result": {
            "tool_use_id": "s",
            "content": {"type": "tool_search_tool_search_result", "tool_references": []},
        },
        **{kind: {"content": "secret", "name": "n", "input": {}} for kind in NOTED_BLOCKS},
    },
    "system": {"text": {"text": "x"}, "tool_addition": {"tool": REFERENCE},
               "tool_removal": {"tool": REFERENCE}},
}  # fmt: skip
RESULTS: dict[str, dict[str, Any]] = {
    "text": {"text": "x"},
    "tool_reference": {"tool_name": "f"},
}
EDITS = ("clear_thinking_20251015", "clear_tool_uses_20250919", "compact_20260112")
FIELDS: dict[str, Any] = {
    "cache_control": {"type": "ephemeral"},
    "compaction": {"type": "summarize"},
    "context_management": {"edits": []},
    "diagnostics": {},
    "max_tokens": 9,
    "messages": [{"role": "user", "content": "x"}],
    "metadata": {"user_id": "u"},
    "model": "m",
    "output_config": {"effort": "low"},
    "service_tier": "auto",
    "speed": "standard",
    "stop_sequences": ["x"],
    "system": "x",
    "thinking": {"type": "adaptive"},
    "tool_choice": {"type": "auto"},
    "tools": [FUNCTION],
}
ELSEWHERE = frozenset({"betas", "user_profile_id", "workspace_id"})
"""Sent as headers or query by the package, not in a body: nothing to serve there."""
CHOICES: dict[str, dict[str, Any]] = {
    "auto": {}, "any": {}, "none": {}, "tool": {"name": "f"},
}  # fmt: skip
USE = {"type": "tool_use", "id": "u", "name": "f", "input": {}}
SEARCH = {"type": "server_tool_use", "id": "s", "name": "tool_search_tool_bm25", "input": {}}


ROLES_AND_BLOCKS = [(role, kind) for role, kinds in PUBLISHED["blocks"].items() for kind in kinds]


def body(*messages: dict[str, Any], **fields: Any) -> dict[str, Any]:
    user = {"role": "user", "content": "x"}
    whole = {"model": "m", "max_tokens": 9, "tools": [FUNCTION], "messages": [*messages, user]}
    return whole | fields


def with_block(role: str, block: dict[str, Any]) -> dict[str, Any]:
    before: dict[str, list[Any]] = {"tool_result": [USE], "tool_search_tool_result": [SEARCH]}
    said = {"role": "assistant", "content": before.get(block["type"], [])}
    return body(*([said] if said["content"] else []), {"role": role, "content": [block]})


def with_result(part: dict[str, Any]) -> dict[str, Any]:
    block = {"type": "tool_result", "tool_use_id": "u", "content": [part]}
    return with_block("user", block)


@pytest.mark.parametrize("kind", PUBLISHED["tools"])
def test_each_tool_works_or_is_refused_by_its_type(kind: str) -> None:
    if kind in TOOLS:
        request = accepted(MESSAGES, body(tools=[TOOLS[kind] | {"type": kind}]))
        assert len(request.tools) == 1
        assert not request.warnings
    else:
        error = refused(MESSAGES, body(tools=[{"type": kind, "name": "x"}]))
        assert "'tools[0].type'" in error["message"]


@pytest.mark.parametrize(
    ("role", "kind"),
    [(role, kind) for role, kinds in PUBLISHED["blocks"].items() for kind in kinds],
)
def test_each_block_works_is_noted_or_is_refused_by_its_type(role: str, kind: str) -> None:
    if kind in BLOCKS[role]:
        request = accepted(MESSAGES, with_block(role, {"type": kind} | BLOCKS[role][kind]))
        assert bool(request.warnings) is (kind in NOTED_BLOCKS)
    else:
        error = refused(MESSAGES, with_block(role, {"type": kind}))
        assert ".content[0].type'" in error["message"]


@pytest.mark.parametrize("kind", PUBLISHED["results"])
def test_each_part_of_a_result_works_or_is_refused_by_its_type(kind: str) -> None:
    if kind in RESULTS:
        assert accepted(MESSAGES, with_result({"type": kind} | RESULTS[kind]))
    else:
        error = refused(MESSAGES, with_result({"type": kind}))
        assert ".content[0].content[0].type'" in error["message"]


@pytest.mark.parametrize("kind", PUBLISHED["edits"])
def test_each_edit_of_the_context_works(kind: str) -> None:
    assert kind in EDITS
    assert accepted(MESSAGES, body(context_management={"edits": [{"type": kind}]}))


@pytest.mark.parametrize("kind", PUBLISHED["tool_choices"])
def test_each_choice_works(kind: str) -> None:
    assert accepted(MESSAGES, body(tool_choice={"type": kind} | CHOICES[kind]))


@pytest.mark.parametrize("field", PUBLISHED["fields"])
def test_each_field_works_or_is_refused_by_its_name(field: str) -> None:
    if field in FIELDS:
        assert accepted(MESSAGES, body() | {field: FIELDS[field]})
    elif field not in ELSEWHERE:
        error = refused(MESSAGES, body() | {field: "x"})
        assert f"'{field}" in error["message"]


def test_nothing_that_is_built_is_refused() -> None:
    """Compaction, edits, tools that come later or that a client runs: all that is published."""
    marks = ("bash_2", "text_editor", "memory", "tool_search")
    assert {kind for kind in PUBLISHED["tools"] if kind.startswith(marks)} <= set(TOOLS)
    assert set(PUBLISHED["edits"]) == set(EDITS)
    assert {"compaction", "context_management"} <= set(FIELDS)
    wanted = {"compaction", "tool_search_tool_result", *NOTED_BLOCKS}
    assert wanted & set(PUBLISHED["blocks"]["assistant"]) <= set(BLOCKS["assistant"])
    assert {"tool_addition", "tool_removal"} <= set(BLOCKS["system"])


def test_what_works_is_published() -> None:
    assert set(TOOLS) <= set(PUBLISHED["tools"])
    assert set(FIELDS) | ELSEWHERE <= set(PUBLISHED["fields"])
    assert all(set(BLOCKS[role]) <= set(kinds) for role, kinds in PUBLISHED["blocks"].items())
    assert set(BLOCKS) == set(PUBLISHED["blocks"])
    assert set(RESULTS) <= set(PUBLISHED["results"])


def test_what_ran_elsewhere_is_a_note_without_what_is_sealed() -> None:
    block = {
        "type": "web_search_tool_result",
        "tool_use_id": "w",
        "content": [{"type": "web_search_result", "title": "Shoes", "encrypted_content": "A" * 99}],
    }
    request = accepted(MESSAGES, with_block("assistant", block))
    (note, _) = request.input
    text = getattr(note, "text", "")
    assert "Shoes" in text
    assert "AAA" not in text
    (warning,) = request.warnings
    assert "web_search_tool_result" in warning
