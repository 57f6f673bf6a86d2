"""Recast contexts on the real engine, in float64: the tokens are those of servers without a past.

Behind a cut a session says what a fresh server says that was sent the compaction item; a fork from
before it what a session says that was never cut.
"""

from typing import Any

import pytest

from sessions.durable.compaction import KEY_BYTES, Seal
from tests.support.engine_agent import EngineAgent, next_input
from tests.support.sessions_rig import tool

pytestmark = pytest.mark.tail
KEY = bytes(range(KEY_BYTES))
THRESHOLD = 700
TOOL = tool("count_sales")
OUTPUT = "The shop sold {} of item {} today, at the usual price. " * 3
SAMPLED = {"temperature": 1.0, "keepwarm": {"sampling": {"seed": 7}}}
CUTS = 2

Turn = dict[str, Any]


def server() -> EngineAgent:
    return EngineAgent(model="default", seal=Seal(KEY, b"default"))


class Loop:
    """A tool loop; what each turn was asked and what it gave."""

    def __init__(self, fields: dict[str, Any]) -> None:
        self.agent = server()
        self.fields: dict[str, Any] = {"tools": [TOOL], "tool_choice": "required"} | fields
        self.asked: list[dict[str, Any]] = []
        self.turns: list[Turn] = []

    def go_on(self, **fields: Any) -> Turn:
        number = len(self.turns)
        asked: dict[str, Any] = {"input": "Count what the shop has sold today, item by item."}
        if self.turns:
            text = f"{number}: " + OUTPUT.format(*[number * 7 % 100, number] * 3)
            asked = {
                "input": next_input(self.turns[-1], text),
                "previous_response_id": self.turns[-1]["id"],
            }
        self.asked.append(asked)
        self.turns.append(self.agent.turn(**self.fields, **asked, **fields))
        return self.turns[-1]

    def until_cut(self) -> tuple[Turn, Turn]:
        """The turn before a cut and that with it."""
        for _ in range(40):
            if "context" in self.go_on()["keepwarm"]:
                return self.turns[-2], self.turns[-1]
        raise AssertionError("nothing was cut")


def said(turn: Turn, start: int = 0) -> tuple[Any, ...]:
    """What was read and written, ids aside."""
    items = [
        {key: value for key, value in item.items() if key not in ("id", "call_id")}
        for item in turn["output"][start:]
    ]
    return items, turn["usage"]["input_tokens"], turn["usage"]["output_tokens"]


@pytest.mark.parametrize("ahead", [False, True], ids=["in the turn", "ahead"])
@pytest.mark.parametrize("drawn", [{}, SAMPLED], ids=["greedy", "sampled"])
def test_behind_a_cut_the_tokens_are_those_of_a_fresh_server(
    drawn: dict[str, Any], ahead: bool
) -> None:
    keepwarm = drawn.get("keepwarm", {}) | {"compaction": {"ahead": ahead}}
    compaction = {"context_management": [{"type": "compaction", "compact_threshold": THRESHOLD}]}
    loop, summaries = Loop(drawn | compaction | {"keepwarm": keepwarm}), 0
    for _ in range(CUTS):
        _, cut = loop.until_cut()
        item, context = cut["output"][0], cut["keepwarm"]["context"]
        assert item["type"] == "compaction"
        assert context.get("ahead", False) is ahead
        summaries += context["summarised"]["turns"] > 0
        fresh = server()
        plain = {key: loop.fields[key] for key in ("tools", "tool_choice")} | drawn
        first = fresh.turn(input=[item], **plain)
        assert said(first) == said(cut, 1)
        behind = loop.go_on()
        second = fresh.turn(
            input=next_input(first, loop.asked[-1]["input"][0]["output"]),
            previous_response_id=first["id"],
            **plain,
        )
        if "context" not in behind["keepwarm"]:
            assert said(second) == said(behind)
    assert summaries, "every cut cleared alone"


def test_a_trigger_gives_an_item_that_a_fresh_server_reads_as_this_one_does() -> None:
    loop = Loop({})
    for _ in range(6):
        last = loop.go_on()
    answer = next_input(last, "The shop sold 3 of item 9 today.")
    cut = loop.agent.turn(
        input=[*answer, {"type": "compaction_trigger"}],
        previous_response_id=last["id"],
        **loop.fields,
    )
    (item,) = cut["output"]
    asked = {"role": "user", "content": "Go on."}
    here = loop.agent.turn(input=[asked], previous_response_id=cut["id"], **loop.fields)
    there = server().turn(input=[item, asked], **loop.fields)
    assert said(here) == said(there)


def test_a_fork_from_before_a_cut_says_what_a_session_says_that_was_never_cut() -> None:
    compaction = {"context_management": [{"type": "compaction", "compact_threshold": THRESHOLD}]}
    loop, never = Loop(compaction), Loop({})
    before, _ = loop.until_cut()
    for _ in loop.turns[:-1]:
        last = never.go_on()
    assert said(last) == said(before)
    fork = [{"role": "user", "content": "Something else: which item was sold most?"}]
    plain = {"tools": [TOOL], "tool_choice": "none", "max_output_tokens": 48}
    answers = [
        each.agent.turn(
            input=[*next_input(turn, "none"), *fork], previous_response_id=turn["id"], **plain
        )
        for each, turn in ((loop, before), (never, last))
    ]
    assert said(answers[0]) == said(answers[1])
    assert answers[0]["usage"]["input_tokens"] > THRESHOLD * 3 // 4, "its context is whole"
