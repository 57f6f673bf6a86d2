"""A checked request: frozen, and what follows from its fields."""

from typing import Any

import pytest

from tools_api.requests import ContextManagement, CreateRequest, ReasoningConfig


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, None),
        ({"top_logprobs": 5}, None),
        ({"include": ("message.output_text.logprobs",)}, 0),
        ({"include": ("message.output_text.logprobs",), "top_logprobs": 5}, 5),
    ],
)
def test_log_probabilities_must_be_included(fields: dict[str, Any], expected: int | None) -> None:
    assert CreateRequest(**fields).num_logprobs == expected


@pytest.mark.parametrize(
    ("effort", "thinking"), [(None, False), ("none", False), ("minimal", False), ("low", True)]
)
def test_effort_turns_thinking_on(effort: Any, thinking: bool) -> None:
    assert ReasoningConfig(effort=effort).thinking is thinking


def test_a_context_is_recast_only_where_a_request_says_so() -> None:
    assert not CreateRequest().may_compact
    managed = ContextManagement(type="compaction", compact_threshold=1000)
    assert CreateRequest(context_management=(managed,)).may_compact
    assert CreateRequest(compacts="alone").may_compact


def test_a_request_is_frozen() -> None:
    with pytest.raises(ValueError, match="frozen"):
        CreateRequest().store = False  # type: ignore[misc]
