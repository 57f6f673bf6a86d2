"""Prices are exact, and totals are sums."""

import random

import pytest

from sessions.durable.account import Account, Amount, Budget
from sessions.durable.ledger import (
    Ledger,
    PriceTable,
    PromptTokens,
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


THINKING = PriceTable(input_uncached=150_000_000, output=600_000_000, reasoning=2_000_000_000)


def thought(output: int, reasoning: int) -> TurnUsage:
    return TurnUsage(input_tokens=10, output_tokens=output, reasoning_tokens=reasoning)


def test_reasoning_has_a_price_of_its_own_where_the_table_says_so() -> None:
    assert THINKING.cost(thought(100, 40)) == 10 * 150 + 60 * 600 + 40 * 2000
    assert PRICES.cost(thought(100, 40)) == PRICES.cost(thought(100, 0))
    with pytest.raises(ValueError, match="price reasoning is -1"):
        PriceTable(reasoning=-1)


@pytest.mark.parametrize("reasoning", [None, 0, 100_000_000, 2_000_000_000])
@pytest.mark.parametrize("nano", [0, 1499, 1500, 2099, 2100, 3_500, 100_000, 123_457])
def test_what_is_affordable_is_the_most_that_costs_no_more(
    reasoning: int | None, nano: int
) -> None:
    prices = PriceTable(input_uncached=150_000_000, output=600_000_000, reasoning=reasoning)
    prompt = PromptTokens(uncached=10)
    for thinks in (False, True):
        most = prices.affordable(prompt, nano, thinks=thinks)
        assert most is not None
        if most < 0:
            assert prices.cost(thought(0, 0)) > nano
            continue
        worst = most if thinks and (reasoning or 0) > 600_000_000 else 0
        assert prices.cost(thought(most, worst)) <= prices.most(prompt, most, worst) <= nano
        one_more = prices.cost(
            thought(
                most + 1,
                most + 1
                if worst or (most == 0 and thinks and (reasoning or 0) > 600_000_000)
                else 0,
            )
        )
        assert one_more > nano


def test_a_ledger_is_the_sum_of_its_turns() -> None:
    ledger = Ledger(PRICES)
    for usage in (used(10, 5, 3), used(0, 100, 1)):
        ledger.settled(usage, PRICES.cost(usage))
    assert (ledger.usage, ledger.turns) == (used(10, 105, 4), 2)
    assert ledger.cost == sum(PRICES.cost(u) for u in (used(10, 5, 3), used(0, 100, 1)))


def test_free_means_that_nothing_costs_anything() -> None:
    assert FREE.free
    assert PriceTable(reasoning=0).free
    assert not PriceTable(reasoning=1).free
    assert not PRICES.free


KV = PriceTable(residency=5_000_000_000)
"""Five dollars for a million block-seconds: 5 nano-dollars for a block-millisecond."""


@pytest.mark.parametrize(
    ("block_us", "nano"), [(0, 0), (1, 1), (200, 1), (201, 2), (1_000_000, 5_000)]
)
def test_kv_on_the_device_costs_by_block_and_time_rounded_up(block_us: int, nano: int) -> None:
    assert KV.residency_cost(block_us) == nano
    assert KV.residency_cost(KV.affordable_residency(nano)) == nano


def test_what_is_charged_bit_by_bit_costs_what_its_sum_costs() -> None:
    ledger = Ledger(KV)
    for _ in range(1000):
        assert ledger.charge(7)
    assert ledger.account.spent == Amount(cost=35, residency=7000)
    assert ledger.settle_residency() == (7000, 35)
    assert (ledger.cost, ledger.usage.residency, ledger.turns) == (35, 7000, 0)
    assert ledger.settle_residency() == (0, 0)


def test_no_budget_of_residency_is_exceeded_and_the_rest_costs_nobody_anything() -> None:
    ledger = Ledger(KV)
    ledger.above = (Account(scope="tenant", budget=Budget(residency=1_500)),)
    ledger.account.budget = Budget(residency=1_000)
    assert ledger.charge(900)
    assert ledger.without_residency() == []
    assert not ledger.charge(900)
    assert ledger.account.spent.residency == ledger.above[0].spent.residency == 1_000
    assert ledger.without_residency() == ["session"]
    assert not ledger.charge(1)
    ledger.account.budget = Budget(residency=400)
    assert not ledger.charge(1)
    assert ledger.account.spent.residency == 1_000


@pytest.mark.parametrize("seed", range(20))
def test_no_budget_of_money_is_exceeded_by_kv(seed: int) -> None:
    rng = random.Random(seed)
    ledger = Ledger(PriceTable(residency=rng.randint(1, 10**12)))
    ledger.account.budget = Budget(cost=rng.randint(0, 10**6))
    ledger.account.held = Amount(cost=rng.randint(0, 10**5))
    recorded, within = 0, True
    for _ in range(300):
        within = ledger.charge(rng.randint(0, 10**6))
        spent, bound = ledger.account.spent.cost, ledger.account.limits.cost
        assert not spent or spent + ledger.account.held.cost <= bound
        if rng.random() < 0.1:
            recorded += ledger.settle_residency().cost
    assert ledger.account.spent.cost == recorded + ledger.settle_residency().cost
    assert not within or "session" not in ledger.without_residency()


def test_money_bounds_kv_only_where_that_has_a_price() -> None:
    ledger = Ledger(PRICES)
    ledger.account.budget = Budget(cost=0)
    assert ledger.charge(10**12)
    assert ledger.without_residency() == []
