"""Each view holds what it says, for the eyes it is made for, and costs nothing twice."""

from dataclasses import replace
from typing import Any

import orjson
import pytest

from sessions.durable.account import Budget
from sessions.durable.ledger import PriceTable
from sessions.durable.store import Store
from sessions.pages.buckets import MachineBucket, TurnBucket
from sessions.pages.past import LEVELS, Curves
from sessions.pages.session_list import PAGE_ROWS, ListQuery
from sessions.pages.views import (
    LIST_KEPT_S,
    MANY_SESSIONS,
    MAX_TENANT_ROWS,
    MAX_TURNS_OF_PAGE,
    Views,
    Wish,
)
from sessions.tenants import Principal, Role, TenantPolicy, Tenants
from tests.support.clock import FakeClock
from tests.support.dashboards import make_dashboard
from tests.unit.sessions.pages.test_dashboard import REPORT
from tools_api.limits import Limits
from tools_api.requests import Bounds

ACME = Principal(tenant="acme")
READER = Principal(tenant="acme", role=Role.READ_ONLY)
OPERATOR = Principal(tenant="acme", role=Role.OPERATOR)
MARKUP = '<img src=x onerror="alert(1)">'


class Board:
    """Views over a store, at an hour that the test sets."""

    def __init__(self, prices: PriceTable | None = None, past: Any = None, **options: Any) -> None:
        self.clock = FakeClock(1000.0)
        self.store = Store(
            limits=Limits(), prices=prices or PriceTable(), clock=self.clock, **options
        )
        self.dashboard = make_dashboard(self.clock, self.store)
        self.views = Views(
            dashboard=self.dashboard,
            wall_clock=lambda: 5000.0,
            num_connections=lambda: 7,
            past=past,
        )

    def ended(self, tenant: str = "acme", session: str = "s1", **fields: Any) -> None:
        self.store.tenant(tenant).session(session)
        self.dashboard.turn_finished(replace(REPORT, tenant=tenant, session=session, **fields))

    def seen(self, who: Principal, view: str = "sessions", **wish: Any) -> dict[str, Any]:
        self.clock.advance(1.0)
        parts = self.views.parts(who, Wish(view=view, **wish))
        return {name: orjson.loads(part) for name, part in parts.items()}


def test_every_view_begins_with_the_same_summary() -> None:
    board = Board()
    board.ended()
    for view in ("sessions", "session", "curves", "cache", "tenants"):
        seen = board.seen(OPERATOR, view)
        assert seen["totals"]["input_tokens"] == 100
        assert (seen["engine"]["connections"], seen["engine"]["running"]) == (7, 0)
        assert (seen["server"]["started_at"], seen["server"]["priced"]) == (5000.0, False)
        assert seen["spark"][-1][:2] == [100, 80]
    assert Board(PriceTable(output=1)).seen(ACME)["server"]["priced"] is True


@pytest.mark.parametrize("who", [ACME, READER])
def test_a_tenants_key_sees_nothing_of_another_and_nothing_of_the_machine(who: Principal) -> None:
    board = Board()
    board.ended()
    board.ended("other", "secret")
    for view in ("sessions", "curves", "cache", "tenants"):
        seen = board.seen(who, view)
        assert seen["totals"]["turns"] == 1
        assert "engine" not in seen
        assert "other" not in orjson.dumps(seen).decode()
    assert board.seen(who, "session", tenant="other", session="secret")["session"] is None
    assert board.seen(OPERATOR)["totals"]["turns"] == 2


def test_the_list_is_in_order_and_names_with_markup_are_data() -> None:
    board = Board()
    board.ended(session="plain")
    board.clock.advance(1.0)
    board.ended(session=MARKUP)
    seen = board.seen(ACME)
    rows = [seen[name] for name in seen["order"]]
    assert [row["session"] for row in rows] == [MARKUP, "plain"]
    assert seen["list"] == {"total": 2, "matching": 2, "page": 0}
    assert rows[0]["active_at"] == 5001.0


def test_a_page_has_a_bounded_number_of_rows_however_many_sessions_there_are() -> None:
    board = Board()
    for number in range(PAGE_ROWS + 5):
        board.store.tenant("acme").session(f"s{number}")
    seen = board.seen(ACME)
    assert (len(seen["order"]), seen["list"]["total"]) == (PAGE_ROWS, PAGE_ROWS + 5)
    assert len(board.seen(ACME, query=ListQuery(page=1))["order"]) == 5


def test_a_sessions_page_has_its_newest_turns_with_why_they_missed() -> None:
    board = Board()
    for number in range(MAX_TURNS_OF_PAGE + 2):
        board.ended(turn=number)
    seen = board.seen(ACME, "session", session="s1")
    turns = [seen[name] for name in sorted(seen) if name.startswith("t0")]
    assert [turn["turn"] for turn in turns] == list(range(2, MAX_TURNS_OF_PAGE + 2))
    assert (seen["session"]["ended"], seen["session"]["items_visible"]) == (202, True)
    assert seen["account"]["session"] == "s1"
    assert turns[-1]["began_at"] == 5000.0 - 2.5
    assert board.seen(ACME, "session", session="unknown")["session"] is None


def test_an_operator_of_another_tenant_sees_turns_and_no_items() -> None:
    board = Board()
    board.ended("other", "theirs")
    seen = board.seen(OPERATOR, "session", tenant="other", session="theirs")
    assert seen["session"]["items_visible"] is False


def test_curves_are_parts_of_their_own_so_that_only_the_newest_changes() -> None:
    board = Board()
    board.ended()
    board.dashboard.tick()
    before = board.seen(OPERATOR, "curves")
    board.ended()
    after = board.seen(OPERATOR, "curves")
    (turns,) = [name for name in after if name.startswith("b")]
    assert (before[turns]["turns"], after[turns]["turns"]) == (1, 2)
    assert any(name.startswith("m") and name[1:].isdigit() for name in after)
    assert not any(name[0] == "m" and name[1:].isdigit() for name in board.seen(ACME, "curves"))


def test_operators_see_tenants_with_their_limits_met_and_errors() -> None:
    board = Board()
    board.ended()
    board.ended("other", reason="budget_exhausted", status="failed")
    board.dashboard.error_sent("other", "invalid_value")
    seen = board.seen(OPERATOR, "tenants")
    other = seen['n["other"]']
    assert (other["sessions"], other["budget_ends"], other["errors"]) == (
        1,
        {"refused": 1},
        {"invalid_value": 1},
    )
    for number in range(MAX_TENANT_ROWS + 1):
        board.dashboard.tokens_arrived(f"t{number}", 1, None)
    seen = board.seen(OPERATOR, "tenants")
    assert seen["num_tenants"] == MAX_TENANT_ROWS + 3
    assert sum(name.startswith("n[") for name in seen) == MAX_TENANT_ROWS


def test_pages_that_ask_alike_share_what_is_made_once_a_second() -> None:
    board = Board()
    board.ended()
    wish = Wish(view="sessions")
    assert board.views.parts(ACME, wish) is board.views.parts(ACME, wish)
    assert board.views.parts(READER, wish) is not board.views.parts(ACME, wish)
    made = board.views.parts(ACME, wish)
    board.clock.advance(1.0)
    assert board.views.parts(ACME, wish) is not made


def test_a_searched_list_is_looked_through_at_once_or_every_few_seconds_if_it_is_long() -> None:
    board = Board()
    wish = {"query": ListQuery(search="late")}
    board.seen(ACME, **wish)
    board.store.tenant("acme").session("late-1")
    assert board.seen(ACME, **wish)["list"]["matching"] == 1
    for number in range(MANY_SESSIONS):
        board.store.tenant("acme").session(f"s{number}")
    assert board.seen(ACME, **wish)["list"]["matching"] == 1
    board.store.tenant("acme").session("late-2")
    assert board.seen(ACME, **wish)["list"]["matching"] == 1
    board.clock.advance(LIST_KEPT_S)
    assert board.seen(ACME, **wish)["list"]["matching"] == 2


class Remembered:
    """What a journal has: a turn in each of the last two buckets, of one tenant."""

    def __init__(self) -> None:
        self.asked: set[tuple[str, str]] = set()

    def curves(self, level: str, tenant: str) -> Curves:
        self.asked.add((level, tenant))
        curves, newest = Curves(), int(5000.0 // LEVELS[level].width_s)
        for at in (newest - 1, newest, newest - 1000):
            curves.turns[at] = TurnBucket(turns=1, input=10)
            curves.machine[at] = MachineBucket(sums={"running": 2.0}, samples=1)
        return curves


@pytest.mark.parametrize("level", LEVELS)
def test_curves_are_of_memory_and_journal_together_and_none_is_counted_twice(level: str) -> None:
    past = Remembered()
    board = Board(past=past)
    board.ended()  # 100 tokens, which the journal of a week is told of with its minute
    seen = board.seen(OPERATOR, "curves", level=level)
    buckets = {n: part for n, part in seen.items() if n[0] == "b" and n[1:].lstrip("-").isdigit()}
    memory = 100 if level in ("hour", "day") else 0
    assert sum(part["input"] for part in buckets.values()) == 20 + memory
    curve = seen["curve"]
    newest_s = curve["epoch_s"] + curve["newest"] * curve["width_s"]
    assert 5000.0 - 2 * curve["width_s"] < newest_s <= 5001.0
    assert past.asked == {("hour", ""), (level, "")}  # the summary has its hour
    assert seen["server"]["journal"]
    own = board.seen(ACME, "curves", level=level)
    assert past.asked == {("hour", ""), (level, ""), ("hour", "acme"), (level, "acme")}
    assert not [name for name in own if name.startswith("m") and name != "misses"]


def test_a_tenants_budget_is_a_part_of_its_own_so_that_rows_stay_as_they_are() -> None:
    board = Board(tenants=Tenants([], {"acme": TenantPolicy(budget=Bounds(output=100))}))
    board.ended("acme", "lead")
    board.ended("other", "theirs")
    lead = board.store.tenant("acme").session("lead")
    lead.ledger.tree.budget = Budget(output=50)
    before = board.seen(OPERATOR)
    assert before["tenant_budgets"]["acme"]["left"] == {"output": 100}
    assert set(before["tenant_budgets"]) == {"acme"}
    account = board.store.tenant("acme").account
    account.spent = account.spent._replace(output=30)
    after = board.seen(OPERATOR)
    changed = {name for name in after if after[name] != before[name]}
    assert changed == {"tenant_budgets"}
    page = board.seen(ACME, "session", session="lead")
    assert page["tenant_budgets"]["acme"]["left"] == {"output": 70}
    assert [each["left"] for each in page["account"]["budgets"]] == [{"output": 50}]
