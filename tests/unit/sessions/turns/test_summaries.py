"""What is asked for a summary, and which answer counts as one."""

from dataclasses import replace
from typing import Any

import pytest

from sessions.durable.ledger import COMPACTION
from sessions.turns.summaries import (
    BEHIND_SHORT_TURNS,
    INSTRUCTION,
    LONGEST_SUMMARY,
    asking_for_summary,
    instruction,
    most_summary_tokens,
    read_summary,
)
from sessions.turns.turn_plan import Due
from tests.support.sessions_rig import END, Rig, tool
from tools_api.limits import DEFAULT_LIMITS
from tools_api.request_reading import parse_create


def asked(**fields: Any) -> Any:
    return parse_create({"type": "response.create", "input": "x"} | fields, None, DEFAULT_LIMITS)


@pytest.mark.parametrize(("threshold", "most"), [(10, 16), (3000, 375), (10**6, LONGEST_SUMMARY)])
def test_a_summary_is_an_eighth_of_the_threshold_at_most(threshold: int, most: int) -> None:
    assert most_summary_tokens(Due(threshold=threshold, entry=None, inner=False)) == most


def test_the_request_for_one_calls_nothing_and_waits_behind_short_turns() -> None:
    request = asked(
        tools=[tool("g")],
        tool_choice="required",
        temperature=0.7,
        include=["reasoning.encrypted_content"],
        context_management=[{"type": "compaction", "compact_threshold": 500}],
        keepwarm={"priority": 5, "deadline_ms": 100, "request_id": "r"},
    )
    asking = asking_for_summary(request, 99)
    assert asking.tool_choice.mode == "none"
    assert asking.tools == request.tools, "the header stays byte for byte"
    assert (asking.max_output_tokens, asking.temperature) == (99, 0.0)
    assert (asking.context_management, asking.include, asking.compacts) == ((), (), "no")
    assert asking.keepwarm.priority == 5 - BEHIND_SHORT_TURNS
    assert (asking.keepwarm.deadline_ms, asking.keepwarm.request_id) == (None, None)


def test_the_instruction_is_the_requests_own_before_that_of_an_entry() -> None:
    entry = asked(
        context_management=[{"type": "compaction", "compact_threshold": 9}]
    ).context_management[0]
    entry = entry.model_copy(update={"instructions": "of the entry"})
    own = asked(keepwarm={"compaction": {"instructions": "own"}})
    texts = [
        instruction(request, each).content[0].text
        for request, each in ((asked(), None), (asked(), entry), (own, entry))
    ]
    assert texts == [INSTRUCTION, "of the entry", "own"]


@pytest.mark.parametrize(
    ("written", "changed", "text"),
    [
        (" a summary\n", {}, "a summary"),
        ("", {}, None),
        (" \n", {}, None),
        (f"They said: {INSTRUCTION}", {}, None),
        ("cut short", {"reason": "max_output_tokens"}, None),
        ("not ended", {"status": "failed"}, None),
    ],
)
def test_what_is_empty_cut_short_or_the_instruction_itself_is_no_summary(
    written: str, changed: dict[str, Any], text: str | None
) -> None:
    rig = Rig()
    rig.connect().turn("x" + END, input="x")
    report = replace(rig.reports[0], **({"status": COMPACTION, "reason": None} | changed))
    found, cost = read_summary(written, instruction(asked(), None), report)
    assert found == text
    assert cost["output"] == report.usage.output_tokens
    assert cost["computed"] == report.usage.uncached_tokens
