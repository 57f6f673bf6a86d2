"""What a turn's plan tells of who pays for it."""

from dataclasses import replace

import pytest

from sessions.durable.ledger import ToolRun
from sessions.durable.miss_reasons import Miss, MissReason
from sessions.durable.usage_keys import OTHER, UsageKeys
from sessions.turns.usage_facts import computed_again, tool_runs, usage_keys
from tests.unit.sessions.turns.test_turn_plan import a_plan
from tools_api.items import FunctionCall, FunctionCallOutput, Item
from tools_api.requests import KeepwarmOptions, ToolReport


def output(name: str | None, number: int = 0) -> Item:
    return FunctionCallOutput(call_id=f"c{number}", output="x", name=name)


def test_tools_are_those_of_the_outputs_that_were_read_call_by_call() -> None:
    call = FunctionCall(call_id="c0", name="make", arguments="{}")
    items = (call, output("make"), output("grep", 1), output("make", 2), output(None, 3))
    plan = replace(a_plan(), input_items=items)
    labels = (("team", "red"),)
    assert usage_keys(plan, key="k", labels=labels) == UsageKeys(
        key="k", model=plan.model, labels=labels, tools=("make", "grep", "make", "")
    )


def test_a_turn_without_outputs_has_no_tools() -> None:
    assert usage_keys(a_plan(), key="", labels=()).tools == ()


def test_a_summary_is_for_no_tool() -> None:
    plan = replace(a_plan(), input_items=(output("grep"),), sums_up="resp_9")
    assert usage_keys(plan, key="", labels=()).tools == ()


@pytest.mark.parametrize("name", ["\x00", "a\nb", "x" * 513])
def test_a_name_that_no_store_keeps_is_counted_with_the_others(name: str) -> None:
    plan = replace(a_plan(), input_items=(output(name),))
    assert usage_keys(plan, key="", labels=()).tools == (OTHER,)


def test_computed_again_is_what_could_have_been_avoided() -> None:
    misses = [Miss(reason=reason, tokens=2**n) for n, reason in enumerate(MissReason)]
    own = {MissReason.NEW_INPUT, MissReason.NEW_SESSION, MissReason.PARTIAL_BLOCK}
    avoidable = sum(miss.tokens for miss in misses if miss.reason not in own)
    assert computed_again(tuple(misses)) == avoidable
    assert computed_again(()) == 0


def test_what_a_client_tells_of_its_tools_stands_with_the_calls_that_were_read() -> None:
    told = (
        ToolReport(call_id="c1", ms=12.5),
        ToolReport(call_id="c2", ms=3.0, failed=True),
        ToolReport(call_id="another", ms=1.0),
    )
    plan = a_plan(keepwarm=KeepwarmOptions(tools=told))
    plan = replace(plan, input_items=(output("grep", 1), output("ls", 2), output("make", 3)))
    assert tool_runs(plan) == (
        ToolRun("grep", 12.5, False),
        ToolRun("ls", 3.0, True),
        ToolRun("make", None, False),
    )
    assert tool_runs(replace(plan, sums_up="resp_9")) == ()
