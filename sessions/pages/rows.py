"""Sessions and turns as the page and ``/sessions.json`` read them.

Money leaves here in dollars, tokens as counts, durations in seconds. What clients named
themselves goes through as data; the page never makes markup of it.
"""

from collections import Counter
from typing import Any

from runtime.messages import ResumePoint
from sessions.durable.budgets import HeldBudget
from sessions.durable.ledger import TurnReport, TurnUsage, block_seconds, dollars, wire_bounds
from sessions.durable.miss_reasons import OWN, Miss, MissReason
from sessions.durable.session_view import SessionView
from sessions.pages.turn_log import LoggedTurn, SessionLog

RESUMED = {
    "end": "where a turn ended",
    "header": "where a header ends",
    "junction": "where transcripts part",
    "pause": "where a turn was stopped",
    "interval": "inside a long prompt",
}
"""A place at which a state was kept, in words, by its kind."""
_NOTHING = SessionLog()


def tokens(usage: TurnUsage) -> dict[str, Any]:
    """The counts of a usage, and its hit ratio."""
    return {
        "input_tokens": usage.input_tokens,
        "cached_tokens": usage.cached_tokens,
        "output_tokens": usage.output_tokens,
        "forced_tokens": usage.forced_tokens,
        "hit_ratio": ratio(usage.cached_tokens, usage.input_tokens),
        "block_seconds": block_seconds(usage.residency),
    }


def session_row(view: SessionView) -> dict[str, Any]:
    """A session's row of the list, in JSON."""
    return {
        "session": view.session,
        "tenant": view.tenant,
        "state": view.state,
        "turns": view.turns,
        "input_tokens": view.input_tokens,
        "cached_tokens": view.cached_tokens,
        "output_tokens": view.output_tokens,
        "forced_tokens": view.forced_tokens,
        "hit_ratio": ratio(view.cached_tokens, view.input_tokens),
        "cost": dollars(view.cost),
        "saved": dollars(view.saved),
        "block_seconds": block_seconds(view.residency),
        "budget_left": wire_bounds(view.budget_left),
        "budgets": [budget_row(each) for each in view.budgets],
        "parent": view.parent,
        "idle_s": view.idle_s,
    }


def budget_row(budget: HeldBudget) -> dict[str, Any]:
    """A budget that holds for a session."""
    return {
        "scope": budget.scope,
        "owner": budget.owner,
        "limit": wire_bounds(budget.limit),
        "spent": wire_bounds(budget.spent),
        "held": wire_bounds(budget.held),
        "left": wire_bounds(budget.left),
        "soft": wire_bounds(budget.soft),
        "every": budget.every,
        "renews": budget.renews,
        "warned": list(budget.warned),
    }


def live_row(view: SessionView, log: SessionLog | None, active_at: float) -> dict[str, Any]:
    """The same for the stream: a moment in place of an age, and without its tenant's budget, so
    that it changes only when the session or its tree does; and what its turns missed.

    Args:
        active_at: seconds since the epoch.
    """
    log = log or _NOTHING
    row = session_row(view) | {
        "budget": wire_bounds(view.budget),
        "budgets": [budget_row(each) for each in view.budgets if each.scope != "tenant"],
        "active_at": round(active_at, 1),
        "failed": log.failed,
        "avoidable_tokens": log.avoidable_tokens,
        "why": None if log.last_avoidable is None else log.last_avoidable.words(),
    }
    del row["idle_s"]
    return row


def turn_row(report: TurnReport, ago_s: float) -> dict[str, Any]:
    """A turn of ``/sessions.json``."""
    usage = report.usage
    decode_s = report.total_s - (report.ttft_s or 0.0)
    return {
        "session": report.session,
        "tenant": report.tenant,
        "turn": report.turn,
        "model": report.model,
        "status": report.status,
        "reason": report.reason,
        **tokens(usage),
        "cost": dollars(report.cost),
        "ttft_s": report.ttft_s,
        "tokens_per_s": (usage.output_tokens - 1) / decode_s
        if usage.output_tokens > 1 and decode_s > 0
        else None,
        "ago_s": ago_s,
    }


def logged_row(turn: LoggedTurn, began_at: float) -> dict[str, Any]:
    """A turn of a session's own page.

    Args:
        began_at: seconds since the epoch.
    """
    report, usage = turn.report, turn.report.usage
    return {
        "turn": report.turn,
        "response": report.response_id,
        "parent": report.parent_response_id,
        "model": report.model,
        "adapter": report.adapter,
        "status": report.status,
        "reason": report.reason,
        **tokens(usage),
        "reasoning_tokens": usage.reasoning_tokens,
        "drafted_tokens": usage.drafted_tokens,
        "accepted_tokens": usage.accepted_tokens,
        "forwards": usage.forwards,
        "cost": dollars(report.cost),
        "saved": dollars(report.saved),
        "began_at": round(began_at, 3),
        "queue_s": report.queue_s,
        "ttft_s": report.ttft_s,
        "total_s": report.total_s,
        "tool_wait_s": turn.tool_wait_s,
        "open_calls": report.open_calls,
        "misses": [miss_row(miss) for miss in report.misses],
        "resumed": [resume_row(point) for point in report.resumed],
        "context": report.context,
        "tools": [{"name": run.name, "ms": run.ms, "failed": run.failed} for run in report.tools],
    }


def miss_row(miss: Miss) -> dict[str, Any]:
    """Tokens that had to be computed, and why."""
    return {
        "reason": miss.reason.value,
        "tokens": miss.tokens,
        "words": miss.words(),
        "own": miss.reason in OWN,
    }


def resume_row(point: ResumePoint) -> dict[str, Any]:
    """Where a request began, with a model that has recurrent layers."""
    words = "from the start, as no state was kept before"
    if point.position:
        words = f"from token {point.position:,}, {RESUMED[point.kind]}"
        words += ", state from host memory" if point.tier == "host" else ""
    return {
        "position": point.position,
        "kind": point.kind,
        "tier": point.tier,
        "words": words,
    }


def miss_rows(missed: Counter[MissReason]) -> list[dict[str, Any]]:
    """Sums over many turns, the largest first."""
    return [miss_row(Miss(reason=reason, tokens=count)) for reason, count in missed.most_common()]


def ratio(part: int, whole: int) -> float | None:
    """``part`` of ``whole``; None where there is no whole."""
    return part / whole if whole else None
