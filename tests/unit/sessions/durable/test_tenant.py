"""One object stands for a tenant: its terms hold at once, and nothing of it is another's."""

import random

import pytest

from sessions.durable.account import Amount, Budget
from sessions.durable.ledger import PriceTable
from sessions.durable.session import Session
from sessions.durable.store import Store
from sessions.tenants import BudgetTerms, TenantPolicy, Tenants
from tests.support.clock import FakeClock
from tools_api.limits import Limits
from tools_api.requests import Bounds


def make_store(tenants: Tenants | None = None, **limits: int) -> Store:
    return Store(
        limits=Limits(**limits),
        prices=PriceTable(),
        clock=FakeClock(1000.0),
        tenants=tenants,
        wall_clock=lambda: 1_800_000_000.0,
    )


def test_there_is_one_object_for_each_name_and_its_terms_are_those_of_the_moment() -> None:
    tenants = Tenants([], {"acme": TenantPolicy(budget=Bounds(output=5), turns_per_minute=1)})
    store = make_store(tenants)
    acme = store.tenant("acme")
    assert store.tenant("acme") is acme
    assert acme.account.budget == Budget(output=5)
    assert [each.limit for each in acme.quota.standing()] == [1]
    tenants.replace([], {"acme": TenantPolicy(budget=Bounds(output=9), warn_at=0.5)})
    assert (acme.account.budget, acme.account.warn_at) == (Budget(output=9), 0.5)  # type: ignore[attr-defined]
    assert acme.quota.standing() == []


def test_what_a_journal_knows_that_was_spent_is_spent_here() -> None:
    day = BudgetTerms(bounds=Bounds(output=9), every="day")
    store = make_store(Tenants([], {"acme": TenantPolicy(periods=(day,))}))
    spent = {("acme", "tenant/2027-01-16"): Amount(output=4)}
    store.know_spent({"acme": Amount(output=7)}, spent, clock_offset_s=86_400)
    acme = store.tenant("acme")
    assert acme.account.spent == Amount(output=7)
    (account,) = acme.policies.of("key")
    assert (account.name, account.spent) == ("tenant/2027-01-16", Amount(output=4))
    assert store.tenant("other").account.spent == Amount()


@pytest.mark.parametrize("seed", range(5))
def test_a_tenant_finds_its_own_sessions_alone(seed: int) -> None:
    draw, store = random.Random(seed), make_store(max_sessions_per_tenant=4)
    known: dict[tuple[str, str], Session] = {}
    for step in range(300):
        name, session = draw.choice(("t", "u", "v")), f"s{draw.randrange(4)}"
        tenant, key = store.tenant(name), (name, session)
        if draw.random() < 0.3:
            tenant.forget_session(session)
            known.pop(key, None)
        else:
            made = tenant.session(session)
            assert made is known.setdefault(key, made), (seed, step)
            assert made.tenant == name
        for (owner, each), expected in known.items():
            assert store.tenant(owner).known_session(each) is expected, (seed, step)
        assert store.live_sessions(name)[0] == sum(owner == name for owner, _ in known)
