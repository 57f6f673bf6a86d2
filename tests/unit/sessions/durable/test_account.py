"""An account counts what is spent and held against its bounds."""

from sessions.durable.account import KINDS, NO_BUDGET, Account, Amount, Budget


def test_amounts_add_and_subtract_kind_by_kind() -> None:
    one, two = Amount(1, 2, 3, 4, 5, 6), Amount(10, 20, 30, 40, 50, 60)
    assert [getattr(one.plus(two), kind) for kind in KINDS] == [11, 22, 33, 44, 55, 66]
    assert two.minus(one).plus(one) == two


def test_what_is_held_is_not_left() -> None:
    account = Account(scope="session", budget=Budget(output=10, cost=100))
    account.spent, account.held = Amount(output=3, cost=30), Amount(output=4, cost=80)
    assert account.left() == Budget(output=3, cost=-10)


def test_without_a_budget_nothing_is_bounded() -> None:
    account = Account(scope="tenant", spent=Amount(output=10**12))
    assert account.left() == NO_BUDGET
    assert account.left().bounds() == {}
    assert Account(scope="tenant", budget=Budget()).left() == NO_BUDGET


def test_used_means_spent_or_held() -> None:
    assert not Account(scope="tree").used
    assert Account(scope="tree", spent=Amount(output=1)).used
    held = Account(scope="tree")
    held.held = Amount(cost=1)
    assert held.used


def test_a_soft_limit_is_reached_by_what_is_spent() -> None:
    account = Account(scope="tree", soft=Budget(output=10, reasoning=0, cost=5))
    account.held = Amount(output=100)
    account.spent = Amount(cost=5)
    assert account.beyond_soft() == ["reasoning", "cost"]
