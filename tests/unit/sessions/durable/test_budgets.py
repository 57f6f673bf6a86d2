"""Budgets as requests set them: scopes, trees, tenants, soft limits, and what is refused."""

from dataclasses import replace
from typing import Any

import pytest

from sessions.durable.account import Account
from sessions.durable.budgets import HeldBudget, held_budget, tightest
from sessions.durable.ledger import PriceTable
from sessions.pages.metrics import Metrics
from sessions.tenants import TenantPolicy, Tenants
from tests.support.sessions_rig import END, Client, Rig
from tools_api.limits import Limits
from tools_api.requests import Bounds

PRICES = PriceTable.per_million(input_uncached=1.0, input_cached=0.1, output=2.0)


@pytest.fixture
def rig() -> Rig:
    return Rig()


def turn(client: Client, session: str, words: int = 5, **keepwarm: Any) -> dict[str, Any]:
    """A turn of ``words`` and the end of turn, each a token or two; the final response."""
    client.create(input="hi", keepwarm={"session": session} | keepwarm)
    if client.last["type"] == "response.created":
        client.rig.reply("x" * words + END)
    return client.last


def refused(client: Client, **keepwarm: Any) -> tuple[str, str]:
    client.create(input="hi", keepwarm=keepwarm)
    assert client.last["type"] == "error"
    return client.last["error"]["param"], client.last["error"]["message"]


def test_a_tree_is_its_root_and_all_below(rig: Rig) -> None:
    client = rig.connect()
    turn(client, "root", budget={"scope": "tree", "output": 20})
    turn(client, "child", parent_session="root")
    left = turn(client, "grandchild", parent_session="child")["response"]["keepwarm"]["budget"]
    assert left["tree"]["output"] == 2
    last = turn(client, "root", words=1)
    assert last["response"]["keepwarm"]["budget"]["tree"]["output"] == 0
    event = turn(client, "grandchild")
    assert event["type"] == "response.failed"
    assert event["response"]["error"]["code"] == "rate_limit_exceeded"
    assert "the tree's budget has no output token left" in event["response"]["error"]["message"]
    assert turn(client, "other")["type"] == "response.completed"


def test_a_sessions_own_budget_is_not_its_childrens(rig: Rig) -> None:
    client = rig.connect()
    turn(client, "root", budget={"output": 6})
    assert turn(client, "child", parent_session="root")["type"] == "response.completed"
    assert turn(client, "root")["type"] == "response.failed"


def test_a_turn_may_bring_a_budget_of_its_own(rig: Rig) -> None:
    client = rig.connect()
    for _ in range(2):
        client.create(
            input="hi",
            keepwarm={
                "session": "s",
                "budget": [{"scope": "turn", "output": 4}, {"scope": "session", "output": 100}],
            },
        )
        assert rig.engine.last.max_new_tokens == 4
        rig.reply("xxxx")
        assert client.last["type"] == "response.incomplete"
        assert client.response["keepwarm"]["reason"] == "budget_exhausted"
    assert client.response["keepwarm"]["budget"]["left"]["output"] == 92


def test_a_tenants_budget_bounds_all_its_sessions() -> None:
    rig = Rig(tenants=Tenants([], {"one": TenantPolicy(budget=Bounds(output=12))}))
    one, two = rig.connect("one"), rig.connect("two")
    turn(one, "a")
    assert turn(one, "b")["response"]["keepwarm"]["budget"]["tenant"] == {"output": 0}
    event = turn(one, "c")
    assert "the tenant's budget has no output token left" in event["response"]["error"]["message"]
    assert turn(two, "a")["type"] == "response.completed"


def test_a_soft_limit_is_a_warning(rig: Rig) -> None:
    client = rig.connect()
    soft = {"output": 100, "soft": {"output": 7}}
    first = turn(client, "s", budget=soft)["response"]["keepwarm"]
    assert "soft" not in first["budget"]
    second = turn(client, "s")["response"]["keepwarm"]
    assert second["budget"]["soft"] == ["session.output"]
    assert second["warnings"] == ["budget: the soft limit session.output is reached"]


def test_a_parent_stays(rig: Rig) -> None:
    client = rig.connect()
    turn(client, "child", parent_session="root")
    turn(client, "child")
    turn(client, "child", parent_session="root")
    path = "keepwarm.parent_session"
    assert refused(client, session="child", parent_session="other") == (
        path,
        f"Invalid value for '{path}': the session is a part of 'root' already.",
    )
    for session, parent, reason in (
        ("root", "child", "a part of itself"),
        ("self", "self", "a part of itself"),
        ("root", "above", "has had turns without it"),
    ):
        assert reason in refused(client, session=session, parent_session=parent)[1]
    assert turn(client, "child")["type"] == "response.completed"


def test_a_parent_that_came_back_below_its_child_is_not_its_parent_again(rig: Rig) -> None:
    client = rig.connect()
    turn(client, "child", parent_session="root")
    rig.store.tenant("acme").forget_session("root")
    none = {"scope": "turn", "output": 0}
    assert turn(client, "root", parent_session="child", budget=none)["type"] == "response.failed"
    assert "a part of itself" in refused(client, session="child", parent_session="root")[1]


@pytest.mark.parametrize(("depth", "fits"), [(3, True), (4, False)])
def test_trees_have_a_bounded_depth(depth: int, fits: bool) -> None:
    rig = Rig(limits=replace(Limits(), max_session_depth=3))
    client = rig.connect()
    for level in range(1, depth + 1):
        turn(client, str(level), parent_session=str(level - 1))
    assert (client.last["type"] == "response.completed") == fits


def test_a_child_in_use_keeps_its_parents_account(rig: Rig) -> None:
    client = rig.connect()
    turn(client, "root", budget={"scope": "tree", "output": 20})
    turn(client, "child", parent_session="root")
    for _ in range(2):
        rig.clock.advance(0.6 * Limits().stored_response_ttl_s)
        client = rig.connect()
        event = turn(client, "child", words=1)
        rig.store.sweep()
    assert event["response"]["keepwarm"]["budget"]["tree"]["output"] == 4
    event = turn(client, "root", words=3)
    assert event["response"]["keepwarm"]["budget"]["tree"]["output"] == 0


def test_money_needs_prices(rig: Rig) -> None:
    client = rig.connect()
    for budget in ({"cost": 0.1}, {"scope": "turn", "cost": 0}, {"soft": {"cost": 1}}):
        param, message = refused(client, session="s", budget=budget)
        assert param == "keepwarm.budget.cost"
        assert "no prices" in message
    priced = Rig(prices=PRICES).connect()
    assert turn(priced, "s", budget={"cost": 0.1})["type"] == "response.completed"


@pytest.mark.parametrize(
    "budget",
    [
        {"output": -1},
        {"output": 2**63},
        {"input_cached": -1},
        {"reasoning": 1.5},
        {"cost": -0.01},
        {"cost": 1e13},
        {"cost": "1"},
        {"residency": -0.5},
        {"residency": 1e13},
        {"residency": "1"},
        {"scope": "turn", "residency": 1},
        {"scope": "turn", "soft": {"residency": 1}},
        {"scope": "galaxy"},
        {"soft": {"scope": "turn"}},
        {"soft": {"output": -1}},
        [{"output": 1}, {"scope": "session", "output": 2}],
        [{"scope": "turn"}] * 5,
        [5],
    ],
)
def test_bad_budgets_are_refused_by_name(rig: Rig, budget: Any) -> None:
    param, _ = refused(rig.connect(), session="s", budget=budget)
    assert param.startswith("keepwarm.budget")
    assert not rig.engine.requests


def test_of_several_trees_a_turn_tells_what_the_tightest_of_them_leaves(rig: Rig) -> None:
    client = rig.connect()
    turn(client, "root", budget={"scope": "tree", "output": 30, "reasoning": 7})
    roomy = {"scope": "tree", "output": 1000}
    told = turn(client, "child", parent_session="root", budget=roomy)["response"]["keepwarm"]
    assert told["budget"]["tree"] == {"output": 18, "reasoning": 7}
    told = turn(client, "grandchild", parent_session="child")["response"]["keepwarm"]
    assert told["budget"]["tree"] == {"output": 12, "reasoning": 7}
    assert told["budget"]["left"] == {}


def test_soft_limits_of_every_scope_are_told(rig: Rig) -> None:
    client = rig.connect()
    for scope in ("turn", "session", "tree"):
        budget = {"scope": scope, "output": 100, "soft": {"output": 3}}
        told = turn(client, scope, budget=budget)["response"]["keepwarm"]
        assert told["budget"]["soft"] == [f"{scope}.output"]
        assert [each for each in told["warnings"] if f"{scope}.output" in each]
    within = {"scope": "turn", "output": 100, "soft": {"output": 50}}
    told = turn(client, "within", budget=within)["response"]["keepwarm"]
    assert "soft" not in told["budget"]
    assert told["budget"]["turn"] == {"output": 94}


def test_budgets_that_hold_at_once_are_joined_to_the_least_of_each_kind() -> None:
    def held(scope: str, limit: int, left: int) -> HeldBudget:
        amounts = {"limit": {"output": limit}, "left": {"output": left}}
        return HeldBudget(scope=scope, owner="o", soft={}, **amounts)

    assert tightest([]) == {}
    assert tightest([held("tree", 100, 40), held("tenant", 50, 45)]) == {"output": (40, 100)}
    assert tightest([held("tenant", 50, 5), held("tree", 100, 40)]) == {"output": (5, 50)}
    assert held_budget("tree", "o", Account(scope="tree")) is None


@pytest.mark.parametrize("scope", ["turn", "session", "tree", "tree above", "tenant"])
def test_whosever_budget_ends_a_turn_the_metrics_count_it(scope: str) -> None:
    bound = Bounds(output=2) if scope == "tenant" else Bounds()
    rig = Rig(tenants=Tenants([], {"acme": TenantPolicy(budget=bound)}))
    client, metrics = rig.connect("acme"), Metrics()
    options: dict[str, Any] = {}
    if scope in {"turn", "session", "tree"}:
        options = {"budget": {"scope": scope, "output": 2}}
    if scope == "tree above":
        turn(client, "root", words=0, budget={"scope": "tree", "output": 3})
        options = {"parent_session": "root"}
    for _ in range(2):
        client.create(input="hi", keepwarm={"session": "s"} | options)
        if client.last["type"] != "response.failed":
            rig.reply("xx")  # all that it leaves
    ends = ["cut", "cut"] if scope == "turn" else ["cut", "refused"]
    assert [report.out_of_budget for report in rig.reports][-2:] == ends
    for report in rig.reports:
        metrics.turn_finished(report)
    text = metrics.text().decode()
    for outcome in ("cut", "refused"):
        counted = f'keepwarm_budget_refusals_total{{outcome="{outcome}"}} {ends.count(outcome)}.0'
        assert counted in text
