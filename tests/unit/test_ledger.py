"""Prices are exact, budgets are hard, allowances of running turns count."""

import random

import pytest

from sessions.durable.ledger import (
    Allowance,
    Budget,
    BudgetExceeded,
    Ledger,
    PriceTable,
    TurnUsage,
    dollars,
    nano_dollars,
)

PRICES = PriceTable.per_million(input_uncached=0.15, input_cached=0.0375, output=0.6)
FREE = PriceTable()


def used(uncached: int, cached: int, output: int) -> TurnUsage:
    return TurnUsage(input_tokens=uncached + cached, cached_tokens=cached, output_tokens=output)


@pytest.mark.parametrize(
    ("usage", "cost", "saved"),
    [
        (used(0, 0, 0), 0, 0),
        (used(1_000_000, 0, 0), 150_000_000, 0),
        (used(0, 1_000_000, 0), 37_500_000, 112_500_000),
        (used(0, 0, 1_000_000), 600_000_000, 0),
        (used(1, 0, 0), 150, 0),
        (used(0, 1, 0), 38, 112),
        (used(0, 2, 0), 75, 225),
        (used(812, 0, 42), 147_000, 0),
    ],
)
def test_a_turn_costs_what_the_table_says_rounded_up(
    usage: TurnUsage, cost: int, saved: int
) -> None:
    assert (PRICES.cost(usage), PRICES.saved(usage)) == (cost, saved)


@pytest.mark.parametrize("nano", [0, 1, 38, 999_999_999, 123_456_789_012_345])
def test_money_survives_the_wire_exactly(nano: int) -> None:
    assert nano_dollars(dollars(nano)) == nano


def test_a_cached_part_larger_than_the_whole_is_refused() -> None:
    with pytest.raises(ValueError, match=r"cached_tokens 91 not in 0\.\.90"):
        TurnUsage(input_tokens=90, cached_tokens=91)


def test_a_negative_price_is_refused() -> None:
    with pytest.raises(ValueError, match="price output is -1"):
        PriceTable(output=-1)


def test_cached_input_does_not_touch_the_input_budget() -> None:
    ledger = Ledger(FREE, Budget(input_uncached=100))
    allowance = ledger.admit(uncached=10, cached=80, max_output=5)
    ledger.settle(allowance, used(10, 80, 5))
    assert ledger.left().input_uncached == 90


@pytest.mark.parametrize(
    ("budget", "uncached", "cached", "max_output", "limit"),
    [
        (Budget(), 50, 0, 1000, 1000),
        (Budget(output=7), 50, 0, 1000, 7),
        (Budget(output=7), 50, 0, 7, 7),
        (Budget(output=7), 50, 0, 3, 3),
        (Budget(input_uncached=50), 50, 0, 9, 9),
        (Budget(cost=150 * 100 + 600 * 10), 100, 0, 1000, 10),
        (Budget(cost=150 * 100 + 600 * 10 + 599), 100, 0, 1000, 10),
        (Budget(cost=3750 + 600), 0, 100, 1000, 1),
        (Budget(cost=15000), 100, 0, 0, 0),
    ],
)
def test_the_limit_is_the_smallest_of_all_bounds(
    budget: Budget, uncached: int, cached: int, max_output: int, limit: int
) -> None:
    ledger = Ledger(PRICES, budget)
    allowance = ledger.admit(uncached=uncached, cached=cached, max_output=max_output)
    assert allowance.output == limit
    assert allowance.limited == (limit < max_output)


@pytest.mark.parametrize(
    ("budget", "uncached", "message"),
    [
        (Budget(input_uncached=49), 50, "prompt has 50 uncached tokens.* 49 left"),
        (Budget(output=0), 50, "no output token left"),
        (Budget(cost=7499), 50, "prompt costs 0.000007500 dollars.*0.000007499 left"),
        (Budget(cost=7500 + 599), 50, "no output token left"),
    ],
)
def test_a_turn_that_does_not_fit_is_refused_and_holds_nothing(
    budget: Budget, uncached: int, message: str
) -> None:
    ledger = Ledger(PRICES, budget)
    with pytest.raises(BudgetExceeded, match=message):
        ledger.admit(uncached=uncached, cached=0, max_output=10)
    assert ledger.left() == budget


def test_a_warm_up_needs_no_output_budget() -> None:
    ledger = Ledger(FREE, Budget(output=0))
    assert ledger.admit(uncached=50, cached=0, max_output=0).output == 0


def test_free_output_is_not_limited_by_a_cost_budget() -> None:
    ledger = Ledger(PriceTable(input_uncached=1000), Budget(cost=10))
    assert ledger.admit(uncached=1, cached=0, max_output=5000).output == 5000


def test_a_replaced_budget_keeps_what_was_consumed() -> None:
    ledger = Ledger(FREE, Budget(output=10))
    ledger.settle(ledger.admit(uncached=1, cached=0, max_output=8), used(1, 0, 8))
    ledger.budget = Budget(output=20)
    assert ledger.left().output == 12


@pytest.mark.parametrize("seed", range(20))
def test_no_schedule_of_turns_spends_more_than_the_budget(seed: int) -> None:
    rng = random.Random(seed)
    budget = Budget(
        input_uncached=rng.randint(0, 2000),
        output=rng.randint(0, 500),
        cost=rng.randint(0, 800_000),
    )
    ledger, open_turns = Ledger(PRICES, budget), list[tuple[Allowance, int]]()
    total = TurnUsage()
    for _ in range(200):
        if open_turns and rng.random() < 0.5:
            allowance, cached = open_turns.pop(rng.randrange(len(open_turns)))
            if rng.random() < 0.2:
                ledger.cancel(allowance)
                continue
            usage = used(allowance.input_uncached, cached, rng.randint(0, allowance.output))
            ledger.settle(allowance, usage)
            total = total + usage
            continue
        uncached, cached = rng.randint(0, 200), rng.randint(0, 200)
        try:
            allowance = ledger.admit(
                uncached=uncached, cached=cached, max_output=rng.choice([0, 1, 30])
            )
        except BudgetExceeded:
            continue
        open_turns.append((allowance, cached))
    assert ledger.usage == total
    assert total.uncached_tokens <= (budget.input_uncached or 0)
    assert total.output_tokens <= (budget.output or 0)
    assert ledger.cost <= (budget.cost or 0)
