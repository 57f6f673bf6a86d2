"""Prices are exact, and totals are sums."""

import pytest

from sessions.durable.ledger import Ledger, PriceTable, TurnUsage, dollars, nano_dollars

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
    for thinks in (False, True):
        most = prices.affordable(thought(0, 0), nano, thinks=thinks)
        assert most is not None
        if most < 0:
            assert prices.cost(thought(0, 0)) > nano
            continue
        worst = most if thinks and (reasoning or 0) > 600_000_000 else 0
        assert prices.cost(thought(most, worst)) <= prices.most(thought(0, 0), most, worst) <= nano
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
