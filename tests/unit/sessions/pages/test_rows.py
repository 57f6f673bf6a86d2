"""Money leaves in dollars, ages become moments, and a turn says why."""

from collections import Counter
from dataclasses import replace

from runtime.messages import SNAPSHOT_KINDS, ResumePoint
from sessions.durable.budgets import HeldBudget
from sessions.durable.ledger import TurnReport
from sessions.durable.miss_reasons import Miss, MissReason
from sessions.pages.rows import live_row, logged_row, miss_rows, session_row, turn_row
from sessions.pages.turn_log import LoggedTurn, SessionLog
from tests.unit.sessions.pages.test_dashboard import REPORT, VIEW


def test_a_live_row_has_a_moment_in_place_of_an_age() -> None:
    row = live_row(replace(VIEW, budget={"cost": 2_000_000_000}), None, 1234.56)
    assert "idle_s" not in row
    assert (row["active_at"], row["budget"], row["budget_left"]["cost"]) == (
        1234.6,
        {"cost": 2.0},
        0.25,
    )
    assert (row["failed"], row["avoidable_tokens"], row["why"]) == (0, 0, None)


def test_it_says_what_was_computed_again_and_why() -> None:
    miss = Miss(reason=MissReason.TOOLS_CHANGED, tokens=40, at_token=212)
    log = SessionLog()
    log.add(logged(replace(REPORT, misses=(miss,))))
    row = live_row(VIEW, log, 0.0)
    assert (row["avoidable_tokens"], row["why"]) == (40, "tools changed at token 212")


def logged(report: TurnReport) -> LoggedTurn:
    return LoggedTurn(number=1, report=report, ended_s=9.0, tool_wait_s=None)


def test_a_logged_turn_has_its_times_tokens_and_reasons() -> None:
    miss = Miss(reason=MissReason.NEW_INPUT, tokens=20)
    report = replace(REPORT, misses=(miss,), parent_response_id="resp_0", open_calls=2)
    row = logged_row(LoggedTurn(number=1, report=report, ended_s=9.0, tool_wait_s=3.0), 1000.0)
    assert (row["queue_s"], row["ttft_s"], row["total_s"], row["tool_wait_s"]) == (
        0.1,
        0.5,
        2.5,
        3.0,
    )
    assert (row["cost"], row["saved"], row["parent"], row["open_calls"]) == (1.0, 0.25, "resp_0", 2)
    assert row["misses"] == [
        {"reason": "new_input", "tokens": 20, "words": miss.words(), "own": True}
    ]


def test_a_turn_says_by_which_name_it_was_asked_for_and_whether_that_is_an_adapter() -> None:
    under = replace(REPORT, model="sql", adapter="sql")
    row = logged_row(logged(under), 0.0)
    assert (row["model"], row["adapter"]) == ("sql", "sql")
    assert turn_row(under, 0.0)["model"] == "sql"
    assert logged_row(logged(REPORT), 0.0)["adapter"] is None


def test_a_turn_says_where_each_of_its_requests_began() -> None:
    """With a model that has recurrent layers; every kind of state has its words."""
    assert logged_row(logged(REPORT), 0.0)["resumed"] == []
    points = [ResumePoint(position=1234, kind=kind, tier="device") for kind in SNAPSHOT_KINDS]
    points += [ResumePoint(position=0), ResumePoint(position=7, kind="end", tier="host")]
    rows = logged_row(logged(replace(REPORT, resumed=tuple(points))), 0.0)["resumed"]
    assert [row["position"] for row in rows] == [point.position for point in points]
    words = [row["words"] for row in rows]
    assert len(set(words)) == len(words)
    assert words[0] == "from token 1,234, where a turn ended"
    assert words[-2:] == [
        "from the start, as no state was kept before",
        "from token 7, where a turn ended, state from host memory",
    ]


def test_sums_of_misses_come_largest_first() -> None:
    found = miss_rows(Counter({MissReason.EVICTED: 3, MissReason.NEW_INPUT: 9}))
    assert [(row["reason"], row["own"]) for row in found] == [
        ("new_input", True),
        ("evicted", False),
    ]


def test_a_turn_without_a_first_token_has_no_pace() -> None:
    assert turn_row(replace(REPORT, ttft_s=None), 1.0)["tokens_per_s"] == 4.0
    assert turn_row(REPORT, 1.0)["tokens_per_s"] == 5.0


def test_a_row_says_whose_each_budget_is_and_a_live_one_leaves_the_tenants_out() -> None:
    limit, left, soft = {"cost": 2_000_000_000}, {"cost": 500_000_000}, {"residency": 1_500_000}
    budgets = tuple(
        HeldBudget(scope=scope, owner=owner, limit=limit, left=left, soft=soft)
        for scope, owner in (("tree", "lead"), ("tenant", "acme"))
    )
    view = replace(VIEW, budgets=budgets)
    row = session_row(view)
    assert row["budgets"][0] == {
        "scope": "tree",
        "owner": "lead",
        "limit": {"cost": 2.0},
        "spent": {},
        "every": None,
        "renews": None,
        "warned": [],
        "held": {},
        "left": {"cost": 0.5},
        "soft": {"residency": 1.5},
    }
    assert [each["scope"] for each in row["budgets"]] == ["tree", "tenant"]
    assert [each["scope"] for each in live_row(view, None, 0.0)["budgets"]] == ["tree"]
