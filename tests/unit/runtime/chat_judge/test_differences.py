"""A template may differ from our renderers where the list says so, and nowhere else."""

import json
from typing import Any

import pytest

from runtime.chat_judge.conversations import Conversation, probes
from runtime.chat_judge.differences import (
    differing,
    is_compared,
    may_be_refused,
    without_empty_thoughts,
    written,
)
from tests.support.architecture import ROOT
from tools_api.chat_families import chat_format_named
from tools_api.item_reading import parse_items
from tools_api.tools import parse_tools

TABLE: dict[str, Any] = json.loads(
    (ROOT / "tests" / "support" / "published_chats.json").read_text()
)
NAMES = {
    "qwen3": "qwen3",
    "qwen3-thinking": "qwen3",
    "qwen25": "qwen2.5",
    "llama31": "llama3.1",
    "mistral_v3_spm": "mistral",
    "mistral_v3_tekken": "mistral",
    "mistral_v7_spm": "mistral",
    "mistral_v7_tekken": "mistral",
}


def cases() -> list[Any]:
    return [
        pytest.param(entry, case, id=f"{entry['format']}: {case['name']}")
        for entry in TABLE["formats"]
        for case in TABLE["cases"]
        if case["name"] in entry["expected"]
    ]


@pytest.mark.parametrize(("entry", "case"), cases())
def test_what_the_published_template_writes_agrees(
    entry: dict[str, Any], case: dict[str, Any]
) -> None:
    """The table holds what the templates write where that is not what we do."""
    name = NAMES.get(entry["format"], entry.get("name", ""))
    conversation = Conversation(
        name=case["name"],
        instructions=case["instructions"],
        tools=parse_tools(TABLE["tools"]) if case["tools"] else (),
        items=parse_items(case["input"]),
        thinking=entry["thinking"],
    )
    if not is_compared(name, conversation):
        return
    published = (
        entry["differs"].get(case["name"], {}).get("published", entry["expected"][case["name"]])
    )
    if published is None or not isinstance(published, str):
        assert may_be_refused(name, conversation)
        return
    chat_format = chat_format_named(name, frozenset(entry["tokens"]).__contains__)
    found = differing(published, name, chat_format, conversation)
    assert found is None or may_be_refused(name, conversation), found


@pytest.mark.parametrize("at", [0, 20, -30, -1])
def test_any_other_character_is_a_difference_with_its_place(at: int) -> None:
    entry = next(entry for entry in TABLE["formats"] if entry["format"] == "qwen3")
    chat_format = chat_format_named("qwen3", frozenset(entry["tokens"]).__contains__)
    for probe in probes():
        text = written(chat_format, probe)
        assert differing(text, "qwen3", chat_format, probe) is None
        at %= len(text)
        spoiled = text[:at] + "\0" + text[at + 1 :]
        found = differing(spoiled, "qwen3", chat_format, probe)
        assert found is not None, probe.name
        if "reasoning" not in probe.name:
            assert (found.at, found.template[0]) == (at, "\0")
        assert probe.name in str(found)


def test_only_empty_think_blocks_are_left_out() -> None:
    text = "a<think>\n\n</think>\n\nb<think>\nhm\n</think>\n\nc"
    assert without_empty_thoughts(text) == "ab<think>\nhm\n</think>\n\nc"
