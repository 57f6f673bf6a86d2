"""Each principal sees the rows that are its own, and totals that add up."""

from dataclasses import replace
from typing import Any

import orjson

from runtime.messages import StepStats
from sessions.durable.ledger import PriceTable, TurnReport, TurnUsage, Unsettled
from sessions.durable.miss_reasons import Miss, MissReason
from sessions.durable.session_view import SessionView
from sessions.durable.store import Store
from sessions.pages.dashboard import MAX_SESSIONS_SHOWN, MAX_TURNS_SHOWN
from sessions.tenants import Principal, Role
from tests.support.clock import FakeClock
from tests.support.dashboards import make_dashboard
from tests.support.fake_engine import INFO as BY_HAND
from tools_api.limits import Limits

ACME = Principal(tenant="acme")
OPERATOR = Principal(tenant="boss", role=Role.OPERATOR)
VIEW = SessionView(
    session="s1",
    tenant="acme",
    state="idle",
    turns=3,
    input_tokens=200,
    cached_tokens=150,
    output_tokens=40,
    forced_tokens=10,
    cost=1_500_000_000,
    saved=500_000_000,
    budget_left={"output": 60, "cost": 250_000_000},
    idle_s=4.0,
)
REPORT = TurnReport(
    tenant="acme",
    session="s1",
    turn=1,
    response_id="resp_1",
    status="completed",
    reason=None,
    usage=TurnUsage(input_tokens=100, cached_tokens=80, output_tokens=11, forced_tokens=4),
    cost=1_000_000_000,
    saved=250_000_000,
    queue_s=0.1,
    ttft_s=0.5,
    total_s=2.5,
)
INFO = replace(BY_HAND, model_name="tiny", load_s=0.1)


class Views(Store):
    """A store that shows what it is told to."""

    def __init__(self, views: list[SessionView]) -> None:
        super().__init__(limits=Limits(), prices=PriceTable(), clock=FakeClock())
        self._views = views

    def sessions(self, tenant: str | None = None, most: int = 0) -> tuple[int, list[SessionView]]:
        found = [view for view in self._views if tenant in (None, view.tenant)]
        return len(found), found[:most]


class Board:
    """A dashboard with a clock in hand."""

    def __init__(self, views: list[SessionView] | None = None) -> None:
        self.clock = FakeClock(100.0)
        self.dashboard = make_dashboard(self.clock, Views(views or []))

    def shown(self, who: Principal = OPERATOR) -> dict[str, Any]:
        response = self.dashboard.sessions(who, num_connections=7)
        assert response.content_type == "application/json"
        found = orjson.loads(response.body)
        assert isinstance(found, dict)
        return found


def test_a_session_is_shown_in_dollars_with_its_ratio_and_what_is_left() -> None:
    (session,) = Board([VIEW]).shown()["sessions"]
    assert session["hit_ratio"] == 0.75
    assert session["cost"] == 1.5
    assert session["saved"] == 0.5
    assert session["budget_left"] == {"output": 60, "cost": 0.25}
    assert VIEW.budget_left["cost"] == 250_000_000


def test_a_session_without_a_prompt_has_no_ratio() -> None:
    fresh = replace(VIEW, input_tokens=0, cached_tokens=0, budget_left={})
    (session,) = Board([fresh]).shown()["sessions"]
    assert session["hit_ratio"] is None
    assert session["budget_left"] == {}


def test_totals_add_up_over_turns() -> None:
    board = Board()
    board.dashboard.turn_finished(REPORT)
    board.dashboard.turn_finished(replace(REPORT, status="failed", tenant="other"))
    board.dashboard.tokens_arrived("acme", 3, None)
    board.dashboard.tokens_arrived("other", 2, 0.1)
    assert board.shown()["totals"] == {
        "streamed_tokens": 5,
        "turns": 2,
        "failed": 1,
        "input_tokens": 200,
        "cached_tokens": 160,
        "output_tokens": 22,
        "forced_tokens": 8,
        "hit_ratio": 0.8,
        "block_seconds": 0.0,
        "cost": 2.0,
        "saved": 0.5,
    }


def test_what_kv_is_charged_after_the_last_turn_is_in_totals_and_curves() -> None:
    board = Board()
    board.dashboard.turn_finished(REPORT)
    before = board.shown()["totals"]
    board.dashboard.residency_settled("acme", Unsettled(2_500_000, 750_000_000))
    added = {"block_seconds": 2.5, "cost": before["cost"] + 0.75}
    assert board.shown()["totals"] == before | added
    (curve,) = board.dashboard.history.turns("hour", ["acme"], board.dashboard.now).values()
    assert (curve.turns, curve.numbers()["cost"]) == (1, before["cost"] + 0.75)


def test_a_tenant_sees_its_own_rows_and_nothing_of_the_machine() -> None:
    board = Board([VIEW, replace(VIEW, session="s2", tenant="other")])
    board.dashboard.turn_finished(REPORT)
    board.dashboard.turn_finished(replace(REPORT, tenant="other"))
    mine = board.shown(ACME)
    assert [s["session"] for s in mine["sessions"]] == ["s1"]
    assert [t["tenant"] for t in mine["turns"]] == ["acme"]
    assert (mine["totals"]["turns"], mine["num_sessions"]) == (1, 1)
    assert mine["engine"] is None
    assert "connections" not in mine["server"]
    stranger = board.shown(Principal(tenant="nobody"))
    assert (stranger["sessions"], stranger["turns"], stranger["totals"]["turns"]) == ([], [], 0)


def test_an_operator_sees_all_tenants_and_the_machine() -> None:
    board = Board([VIEW, replace(VIEW, tenant="other")])
    board.dashboard.engine_ready(INFO)
    board.dashboard.step_finished(
        StepStats(
            running=2,
            waiting=1,
            blocks_total=4,
            blocks_free=1,
            blocks_protected=2,
            blocks_evictable=1,
        )
    )
    board.clock.advance(60)
    seen = board.shown()
    assert [s["tenant"] for s in seen["sessions"]] == ["acme", "other"]
    assert seen["engine"]["running"] == 2
    assert seen["engine"]["kv_usage"] == 0.5
    assert seen["server"]["connections"] == 7
    assert seen["server"]["uptime_s"] == 60
    assert (seen["server"]["model"], seen["server"]["engine_up"]) == ("tiny", True)


def test_a_dead_engine_is_shown_as_such() -> None:
    board = Board()
    board.dashboard.engine_ready(INFO)
    board.dashboard.step_finished(StepStats(running=2))
    board.dashboard.engine_died()
    seen = board.shown()
    assert seen["server"]["engine_up"] is False
    assert seen["engine"]["running"] == 0


def test_the_latest_turns_come_first_across_tenants() -> None:
    board = Board()
    for number in range(MAX_TURNS_SHOWN + 5):
        board.clock.advance(1)
        tenant = ("acme", "other")[number % 2]
        board.dashboard.turn_finished(replace(REPORT, turn=number, tenant=tenant))
    turns = board.shown()["turns"]
    assert [t["turn"] for t in turns] == list(range(MAX_TURNS_SHOWN + 4, 4, -1))
    assert [t["ago_s"] for t in turns[:3]] == [0, 1, 2]


def test_a_turns_speed_counts_from_its_first_token() -> None:
    board = Board()
    board.dashboard.turn_finished(REPORT)
    board.dashboard.turn_finished(replace(REPORT, ttft_s=None, usage=TurnUsage(output_tokens=1)))
    single, several = board.shown()["turns"]
    assert several["tokens_per_s"] == 5.0
    assert single["tokens_per_s"] is None


def test_more_sessions_than_fit_are_counted_but_not_sent() -> None:
    seen = Board([VIEW] * (MAX_SESSIONS_SHOWN + 1)).shown()
    assert len(seen["sessions"]) == MAX_SESSIONS_SHOWN
    assert seen["num_sessions"] == MAX_SESSIONS_SHOWN + 1


def test_misses_errors_and_budgets_are_counted_for_their_tenant_alone() -> None:
    board = Board()
    evicted = Miss(reason=MissReason.EVICTED, tokens=15)
    own = Miss(reason=MissReason.NEW_INPUT, tokens=5)
    board.dashboard.turn_finished(replace(REPORT, misses=(evicted, own)))
    board.dashboard.turn_finished(replace(REPORT, misses=(own,), reason="budget_exhausted"))
    board.dashboard.error_sent("acme", "invalid_value")
    board.dashboard.error_sent("other", None)
    mine = board.dashboard.totals({"acme"})
    assert (mine.out_of_budget, dict(mine.errors)) == (1, {"invalid_value": 1})
    assert [(miss["reason"], miss["tokens"]) for miss in board.shown(ACME)["misses"]] == [
        ("evicted", 15),
        ("new_input", 10),
    ]
    assert board.dashboard.totals({"other"}).errors == {"none": 1}
