"""Facts of a turn that usage is counted by: key, model, labels, tools.

Tools are those of the calls whose outputs the turn read: what it computed is for them. Knows a
plan and a session; nothing is looked up.

Always true: a turn has one key, one model and at most one value of each label.
"""

from sessions.durable.ledger import ToolRun
from sessions.durable.miss_reasons import OWN, Miss
from sessions.durable.usage_keys import Labels, UsageKeys, kept_value, kept_values
from sessions.turns.turn_plan import TurnPlan
from tools_api.items import CallOutput


def usage_keys(plan: TurnPlan, *, key: str, labels: Labels) -> UsageKeys:
    """The keys under which a turn's usage is counted.

    Args:
        key: name of the API key that asked for it; empty: there are no keys.
        labels: of its session.
    """
    tools: tuple[str, ...] = ()
    if plan.sums_up is None:
        outputs = (item for item in plan.input_items if isinstance(item, CallOutput))
        tools = kept_values(output.name or "" for output in outputs)
    return UsageKeys(key=key, model=kept_value(plan.model), labels=labels, tools=tools)


def tool_runs(plan: TurnPlan) -> tuple[ToolRun, ...]:
    """The calls whose outputs a turn reads, with what its client tells of them. What it tells of
    others is left out."""
    if plan.sums_up is not None:
        return ()
    told = {report.call_id: report for report in plan.request.keepwarm.tools}
    runs = list[ToolRun]()
    for item in plan.input_items:
        if isinstance(item, CallOutput):
            report = told.get(item.call_id)
            ms, failed = (None, False) if report is None else (report.ms, report.failed)
            runs.append(ToolRun(name=item.name or "", ms=ms, failed=failed))
    return tuple(runs)


def computed_again(misses: tuple[Miss, ...]) -> int:
    """Prompt tokens that were computed though they had been before."""
    return sum(miss.tokens for miss in misses if miss.reason not in OWN)
