"""What usage is counted under."""

import pytest

from sessions.durable.usage_keys import (
    MAX_VALUE_CHARS,
    OTHER,
    UsageKeys,
    kept_value,
    kept_values,
    sorted_labels,
)


@pytest.mark.parametrize("text", ["", "a", "ü<b>#&=%", "日本", "x" * MAX_VALUE_CHARS])
def test_printable_text_is_kept(text: str) -> None:
    assert kept_value(text) == text


@pytest.mark.parametrize(
    "text", ["\x00", "\n", "a\tb", "\ud800", "\u202e", "x" * (MAX_VALUE_CHARS + 1)]
)
def test_what_no_store_keeps_or_nobody_reads_is_other(text: str) -> None:
    assert kept_values(["a", text]) == ("a", OTHER)


def test_labels_are_sorted_by_name() -> None:
    assert sorted_labels({"b": "1", "a": "2"}) == (("a", "2"), ("b", "1"))


def test_what_is_charged_beside_a_turn_is_for_no_tool() -> None:
    keys = UsageKeys(key="k", model="m", labels=(("a", "1"),), tools=("grep",))
    assert keys.without_tools() == UsageKeys(key="k", model="m", labels=(("a", "1"),))
    assert keys.without_tools().without_tools() is not keys
