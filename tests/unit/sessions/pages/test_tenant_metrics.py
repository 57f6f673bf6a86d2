"""Series of tenants are bounded, and add up to those of the server."""

import random
from dataclasses import replace

from sessions.durable.ledger import Unsettled
from sessions.pages.metrics import Metrics
from sessions.pages.tenant_metrics import MOST_TENANTS, OTHER
from tests.unit.sessions.pages.test_metrics import report, values


def by_tenant(metrics: Metrics, name: str) -> dict[str, float]:
    first = f"keepwarm_tenant_{name}_total{{tenant="
    found = values(metrics).items()
    return {key[len(first) : -1]: value for key, value in found if key.startswith(first)}


def test_without_named_tenants_nothing_is_counted() -> None:
    metrics = Metrics()
    metrics.turn_finished(report())
    assert by_tenant(metrics, "turns") == {OTHER: 0.0}


def test_series_are_bounded_and_add_up_to_the_servers() -> None:
    rng, metrics = random.Random(0), Metrics()
    names = [f"t{n}" for n in range(MOST_TENANTS + 20)]
    metrics.tenants.names = lambda: names
    turns = 0
    for number in range(500):
        tenant = rng.choice([*names, "stranger"])
        if number % 7:
            metrics.turn_finished(replace(report(), tenant=tenant, cost=rng.randrange(10**9)))
            turns += 1
        else:
            metrics.residency_settled(tenant, Unsettled(5, rng.randrange(10**9)))
    cost = by_tenant(metrics, "cost_nanodollars")
    assert len(cost) == MOST_TENANTS + 1
    assert set(cost) <= {*names, OTHER}
    whole = values(metrics)
    assert sum(cost.values()) == whole["keepwarm_cost_nanodollars_total"]
    assert sum(by_tenant(metrics, "turns").values()) == turns
    for name in ("input_tokens", "cached_tokens", "output_tokens"):
        assert sum(by_tenant(metrics, name).values()) == whole[f"keepwarm_{name}_total"]


def test_names_that_come_with_a_new_file_get_series() -> None:
    metrics, names = Metrics(), ["a"]
    metrics.tenants.names = lambda: names
    metrics.turn_finished(replace(report(), tenant="b"))
    names.append("b")
    metrics.turn_finished(replace(report(), tenant="b"))
    assert by_tenant(metrics, "turns") == {OTHER: 1.0, "b": 1.0}


def test_warnings_of_budgets_are_counted_by_scope() -> None:
    metrics = Metrics()
    metrics.turn_finished(replace(report(), warned=("tenant", "key", "tenant")))
    found = values(metrics)
    assert found["keepwarm_budget_warnings_total{scope=tenant}"] == 2
    assert found["keepwarm_budget_warnings_total{scope=key}"] == 1
