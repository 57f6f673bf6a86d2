"""A tenant's row says what it may use, how much of it is used, and what it was refused."""

from dataclasses import replace

from runtime.messages import StepStats
from sessions.durable.ledger import PriceTable
from sessions.durable.store import Store
from sessions.pages.tenant_rows import TenantRows
from sessions.tenants import ApiKey, TenantPolicy, Tenants
from tests.support.clock import FakeClock
from tests.support.dashboards import make_dashboard
from tests.unit.sessions.pages.test_dashboard import REPORT
from tools_api.limits import Limits
from tools_api.requests import Bounds

POLICY = TenantPolicy(
    models=frozenset({"small", "large"}),
    turns_per_minute=60,
    tokens_per_minute=1000,
    budget=Bounds(output=500, cost=2.5),
)


def test_limits_refusals_and_blocks_of_a_tenant_are_told() -> None:
    clock = FakeClock(100.0)
    keys = [ApiKey.of(f"key-of-{name}", tenant=name) for name in ("acme", "quiet")]
    tenants = Tenants(keys, {"acme": POLICY})
    store = Store(
        limits=Limits(),
        prices=PriceTable(),
        clock=clock,
        tenants=tenants,
    )
    board, quotas = make_dashboard(clock, store), store.quotas
    rows = TenantRows(board, quotas)
    for _ in range(3):
        quotas.of("acme").begin_turn()
    quotas.of("acme").spend(1400)
    account = store.tenant("acme").account
    account.spent = account.spent._replace(output=100, cost=1_500_000_000)
    account.held = account.held._replace(output=20)
    board.step_finished(StepStats(blocks_total=40, blocks_evictable=10, blocks_free=30))
    for status in ("failed", "incomplete", "incomplete"):
        board.turn_finished(replace(REPORT, reason="budget_exhausted", status=status))
    board.error_sent("acme", "rate_limit_exceeded")
    row = rows.row("acme", {"acme": 10})
    assert {
        (each["kind"], each["per"]): (each["used"], each["limit"]) for each in row["limits"]
    } == {
        ("turns", "minute"): (3, 60),
        ("tokens", "minute"): (1400, 1000),
        ("output", "all"): (120, 500),
        ("cost", "all"): (1.5, 2.5),
    }
    assert row["models"] == ["large", "small"]
    assert row["budget_ends"] == {"refused": 1, "cut": 2}
    assert row["errors"] == {"rate_limit_exceeded": 1}
    assert (row["kv_blocks"], row["kv_share"]) == (10, 0.25)
    clock.advance(30.0)
    refilled = {each["kind"]: each["used"] for each in rows.row("acme", None)["limits"]}
    assert (refilled["turns"], refilled["tokens"]) == (0, 900)
    assert rows.named() == {"acme", "quiet"}
    quiet = rows.row("quiet", None)
    assert (quiet["limits"], quiet["models"], quiet["kv_blocks"]) == ([], None, None)


def test_a_budget_is_told_in_the_units_in_which_it_was_set() -> None:
    policy = TenantPolicy(budget=Bounds(input_uncached=9, cost=2.5, residency=100_000))
    clock, tenants = FakeClock(100.0), Tenants([], {"acme": policy})
    store = Store(
        limits=Limits(),
        prices=PriceTable(),
        clock=clock,
        tenants=tenants,
    )
    account = store.tenant("acme").account
    account.spent = account.spent._replace(residency=25_000_500_000, cost=500_000_000)
    row = TenantRows(make_dashboard(clock, store), None).row("acme", None)
    told = {each["kind"]: (each["used"], each["limit"]) for each in row["limits"]}
    assert told == {
        "input_uncached": (0, 9),
        "cost": (0.5, 2.5),
        "residency": (25_000.5, 100_000.0),
    }
