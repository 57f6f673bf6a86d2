"""Budgets of a day, a month and a key: their periods, names and warnings."""

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sessions.durable.account import Amount, Budget
from sessions.durable.policies import (
    PERIODS_KEPT,
    PolicyAccount,
    PolicyAccounts,
    PolicyBudget,
    newly_warned,
    period_at,
)


def at(*when: int) -> float:
    return datetime(*when, tzinfo=UTC).timestamp()  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("every", "now_s", "name", "ends"),
    [
        ("day", at(2026, 11, 30), "2026-11-30", "2026-12-01T00:00:00Z"),
        ("day", at(2026, 11, 30, 23, 59, 59), "2026-11-30", "2026-12-01T00:00:00Z"),
        ("day", at(2024, 2, 28, 5), "2024-02-28", "2024-02-29T00:00:00Z"),
        ("month", at(2026, 11, 30, 23, 59, 59), "2026-11", "2026-12-01T00:00:00Z"),
        ("month", at(2026, 12, 1), "2026-12", "2027-01-01T00:00:00Z"),
        (None, at(2026, 12, 1), "", ""),
    ],
)
def test_periods_are_those_of_utc(every: str | None, now_s: float, name: str, ends: str) -> None:
    assert period_at(every, now_s) == (name, ends)  # type: ignore[arg-type]


class Clock:
    def __init__(self, now_s: float) -> None:
        self.now_s = now_s


def accounts(clock: Clock, *policies: PolicyBudget) -> PolicyAccounts:
    return PolicyAccounts("t", lambda _key: policies, lambda: clock.now_s)


DAY = PolicyBudget(scope="tenant", every="day", budget=Budget(output=10))
MONTH = PolicyBudget(scope="key", every="month", budget=Budget(cost=9))
EVER = PolicyBudget(scope="key", budget=Budget(cost=99))


def test_a_period_has_an_account_of_its_own_and_the_next_one_another() -> None:
    clock = Clock(at(2026, 11, 30, 23))
    here = accounts(clock, DAY, MONTH, EVER)
    day, month, ever = here.for_key("ci")
    assert [each.name for each in (day, month, ever)] == [
        "tenant/2026-11-30",
        "key/ci/2026-11",
        "key/ci/ever",
    ]
    assert here.for_key("ci") == (day, month, ever)
    assert here.for_key("other")[1] is not month
    day.spend(Amount(output=7))
    clock.now_s += 3600
    tomorrow, next_month, still = here.for_key("ci")
    assert tomorrow.name == "tenant/2026-12-01"
    assert tomorrow.spent == Amount()
    assert next_month.name == "key/ci/2026-12"
    assert still is ever
    assert day.spent == Amount(output=7)


@given(
    st.lists(
        st.tuples(st.integers(0, PERIODS_KEPT - 1), st.integers(0, 6), st.booleans()), max_size=30
    )
)
def test_a_clock_that_is_set_back_brings_nobody_a_budget_anew(
    steps: list[tuple[int, int, bool]],
) -> None:
    clock = Clock(0.0)
    here = accounts(clock, DAY, MONTH)
    spent = dict.fromkeys(range(PERIODS_KEPT), 0)
    for day, wanted, in_day in steps:
        clock.now_s = at(2026, 11, 30, 23, 59, 59) + day * 86_400 - (not in_day) * 60
        account, month = here.for_key("ci")
        left = account.free().output
        account.spend(Amount(output=min(wanted, left), cost=1))
        month.spend(Amount(cost=1))
        spent[day] += min(wanted, left)
        assert account.spent.output == spent[day] <= 10


def test_accounts_of_periods_that_are_long_over_are_forgotten() -> None:
    clock = Clock(at(2026, 11, 30))
    here = accounts(clock, DAY, EVER)
    (first, ever) = here.for_key("ci")
    for _ in range(PERIODS_KEPT):
        assert here.for_key("ci")[1] is ever
        clock.now_s += 86_400
    here.for_key("ci")
    clock.now_s = at(2026, 11, 30)
    assert here.for_key("ci")[0] is not first


def test_what_a_journal_says_was_spent_is_spent() -> None:
    clock = Clock(at(2026, 11, 30))
    here = accounts(clock, DAY)
    here.load({"tenant/2026-11-30": Amount(output=4), "tenant/2026-11-29": Amount(1)})
    (day,) = here.for_key("")
    assert day.spent == Amount(output=4)
    day.spend(Amount(output=2))
    here.load({"tenant/2026-11-30": Amount(output=5)})
    assert day.spent == Amount(output=6)


def test_a_budget_that_was_lowered_holds_and_keeps_what_was_spent() -> None:
    policies = [DAY]
    here = PolicyAccounts("t", lambda _: policies, lambda: at(2026, 1, 1))
    (day,) = here.for_key("")
    day.spend(Amount(output=8))
    policies[0] = PolicyBudget(scope="tenant", every="day", budget=Budget(output=5))
    (same,) = here.for_key("")
    assert same is day
    assert day.left() == Budget(output=-3)


def test_an_error_says_whose_budget_it_is_and_from_when_there_is_more() -> None:
    day, month, ever = accounts(Clock(at(2026, 11, 30)), DAY, MONTH, EVER).for_key("ci")
    assert day.whose + day.renewal == (
        "the tenant's budget of this day; there is more from 2026-12-01T00:00:00Z"
    )
    assert month.whose == "the key's budget of this month"
    assert ever.whose + ever.renewal == "the key's budget"


def test_spending_is_told_once_for_each_kind() -> None:
    policy = PolicyBudget(scope="tenant", budget=Budget(output=10, cost=10), warn_at=0.8)
    (account,) = accounts(Clock(0.0), policy).for_key("")
    assert isinstance(account, PolicyAccount)
    account.spend(Amount(output=7))
    assert newly_warned([account]) == []
    account.spend(Amount(output=1))
    assert newly_warned([account]) == [(account, "output")]
    account.spend(Amount(output=1, cost=9))
    assert newly_warned([account]) == [(account, "cost")]
    assert newly_warned([account]) == []
    assert account.beyond_warning() == ["output", "cost"]


def test_spending_is_told_again_where_a_bound_was_raised_meanwhile() -> None:
    bounds = [10]
    here = PolicyAccounts(
        "t",
        lambda _: [PolicyBudget(scope="key", budget=Budget(output=bounds[0]), warn_at=0.8)],
        lambda: 0.0,
    )
    told = []
    for spent in range(1, 41):
        if spent == 10:
            bounds[0] = 20
        (account,) = here.for_key("k")
        account.spend(Amount(output=1))
        told += [spent for _ in newly_warned([account])]
    assert told == [8, 16]


def test_without_policies_nothing_is_drawn_on() -> None:
    assert PolicyAccounts("t", lambda _: (), lambda: 0.0).for_key("k") == ()
