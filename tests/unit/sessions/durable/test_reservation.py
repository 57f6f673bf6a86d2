"""What turns hold: budgets are hard, what is held by running turns counts, grants are topped up."""

import random

import pytest

from runtime.messages import SequenceStart
from sessions.durable.account import Account, Amount, Budget, BudgetExceeded
from sessions.durable.ledger import Ledger, PriceTable, TurnUsage
from sessions.durable.reservation import (
    GRANT_TOKENS,
    LOW_TOKENS,
    Reservation,
    TurnNeeds,
    amount_of,
)

PRICES = PriceTable.per_million(input_uncached=0.15, input_cached=0.0375, output=0.6)
FREE = PriceTable()


def used(uncached: int, cached: int, output: int, reasoning: int = 0) -> TurnUsage:
    return TurnUsage(
        input_tokens=uncached + cached,
        cached_tokens=cached,
        output_tokens=output,
        reasoning_tokens=reasoning,
    )


def account(scope: str = "session", **bounds: int) -> Account:
    return Account(scope=scope, budget=Budget(**bounds))


def turn(
    *accounts: Account,
    prompt: int,
    max_output: int,
    prices: PriceTable = PRICES,
    bound: bool = True,
    thinks: bool = False,
) -> Reservation:
    needs = TurnNeeds(prompt_tokens=prompt, max_output=max_output, bound=bound, thinks=thinks)
    own, *above = accounts
    return Reservation(needs, Ledger(prices, account=own, above=tuple(above)))


def found(uncached: int, cached: int) -> SequenceStart:
    """The engine has found so much of the prompt."""
    return SequenceStart(input_tokens=uncached + cached, cached_tokens=cached, queue_s=0.0)


@pytest.mark.parametrize("bound", [True, False])
@pytest.mark.parametrize(
    ("bounds", "uncached", "cached", "max_output", "limit"),
    [
        ({}, 50, 0, 1000, 1000),
        ({"output": 7}, 50, 0, 1000, 7),
        ({"output": 7}, 50, 0, 7, 7),
        ({"output": 7}, 50, 0, 3, 3),
        ({"input_uncached": 50}, 50, 0, 9, 9),
        ({"input_cached": 50}, 5, 50, 9, 9),
        ({"cost": 150 * 100 + 600 * 10}, 100, 0, 1000, 10),
        ({"cost": 150 * 100 + 600 * 10 + 599}, 100, 0, 1000, 10),
        ({"cost": 3750 + 600}, 0, 100, 1000, 1),
        ({"cost": 15000}, 100, 0, 0, 0),
    ],
)
def test_the_limit_is_the_smallest_of_all_bounds(
    bounds: dict[str, int], uncached: int, cached: int, max_output: int, limit: int, bound: bool
) -> None:
    reservation = turn(
        account("tree", output=10**6),
        account(**bounds),
        prompt=uncached + cached,
        max_output=max_output,
        bound=bound,
    )
    reservation.admit(cached=cached)
    assert reservation.limit == limit
    assert reservation.limited == (limit < max_output)


@pytest.mark.parametrize(
    ("bounds", "uncached", "cached", "message"),
    [
        ({"input_uncached": 49}, 50, 0, "prompt has 50 uncached tokens, the tree's .* 49 left"),
        ({"input_cached": 49}, 5, 50, "prompt has 50 cached tokens, the tree's .* 49 left"),
        ({"output": 0}, 50, 0, "the tree's budget has no output token left"),
        ({"cost": 7499}, 50, 0, "prompt costs 0.000007500 dollars.*0.000007499 left"),
        ({"cost": 7500 + 599}, 50, 0, "no output token left"),
    ],
)
def test_a_turn_that_does_not_fit_is_refused_and_holds_nothing(
    bounds: dict[str, int], uncached: int, cached: int, message: str
) -> None:
    accounts = account(output=1000), account("tree", **bounds)
    with pytest.raises(BudgetExceeded, match=message):
        turn(*accounts, prompt=uncached + cached, max_output=10).admit(cached=cached)
    assert [each.held for each in accounts] == [Amount(), Amount()]


def test_a_warm_up_needs_no_output_budget() -> None:
    reservation = turn(account(output=0), prompt=50, max_output=0)
    reservation.admit(cached=0)
    assert reservation.limit == 0


def test_free_output_is_not_limited_by_a_budget_of_money() -> None:
    prices = PriceTable(input_uncached=1000)
    reservation = turn(account(cost=10), prompt=1, max_output=5000, prices=prices)
    reservation.admit(cached=0)
    assert reservation.limit == 5000


def test_a_replaced_budget_keeps_what_was_consumed() -> None:
    own = account(output=10)
    reservation = turn(own, prompt=1, max_output=8)
    reservation.admit(cached=0)
    reservation.settle(used(1, 0, 8))
    own.budget = Budget(output=20)
    assert own.left().output == 12
    own.budget = Budget(output=5)
    with pytest.raises(BudgetExceeded):
        turn(own, prompt=1, max_output=0).admit(cached=0)


def test_free_text_is_held_in_grants_so_that_parallel_turns_share() -> None:
    own = account(output=1000)
    first, second = (turn(own, prompt=1, max_output=1000, bound=False) for _ in range(2))
    for each in (first, second):
        each.admit(cached=0)
        assert each.limit == 1000
    assert own.held.output == 2 * GRANT_TOKENS
    assert first.allow(GRANT_TOKENS - LOW_TOKENS) == GRANT_TOKENS - LOW_TOKENS
    assert own.held.output == 2 * GRANT_TOKENS, "not before it runs low"
    assert first.allow(GRANT_TOKENS - LOW_TOKENS + 1) == GRANT_TOKENS - LOW_TOKENS + 1
    assert own.held.output == 3 * GRANT_TOKENS
    told = 0
    while (allowed := first.allow(told + 1)) > told:
        told = allowed
    assert told == 1000 - GRANT_TOKENS, "to the exact token that the other leaves"
    second.settle(used(1, 0, 10))
    assert first.allow(1000) == 990


def test_a_bound_output_is_held_whole() -> None:
    own = account(output=1000)
    turn(own, prompt=1, max_output=900).admit(cached=0)
    assert own.held.output == 900
    late = turn(own, prompt=1, max_output=900)
    late.admit(cached=0)
    assert (late.limit, late.limited) == (100, True)


def test_what_the_engine_was_asked_for_is_not_raised() -> None:
    own = account(cost=150 * 100 + 600 * 10)
    reservation = turn(own, prompt=100, max_output=50)
    reservation.admit(cached=0)
    assert reservation.limit == 10
    reservation.adjust(found(0, 100))
    assert (reservation.limit, reservation.limited) == (10, True)
    assert own.held.cost == 3750 + 6000
    reservation.adjust(found(100, 0))
    assert (reservation.limit, own.held.cost) == (10, 15000 + 6000)
    own.budget = Budget(cost=150 * 100 + 600 * 9)
    reservation.adjust(found(100, 0))
    assert reservation.limit == 10, "what is held already stays held"
    own.budget = Budget(cost=100 * 150 + 600 * 9, input_cached=10)
    with pytest.raises(BudgetExceeded, match="cached"):
        reservation.adjust(found(80, 20))
    assert own.held == Amount()


def test_reasoning_has_a_bound_of_its_own() -> None:
    own = account(reasoning=30)
    first = turn(own, prompt=1, max_output=1000, bound=False, thinks=True)
    first.admit(cached=0)
    assert (first.reasoning, own.held.reasoning) == (30, 30)
    with pytest.raises(BudgetExceeded, match="no reasoning token"):
        turn(own, prompt=1, max_output=10, thinks=True).admit(cached=0)
    plain = turn(own, prompt=1, max_output=10)
    plain.admit(cached=0)
    assert plain.reasoning is None
    first.settle(used(1, 0, 100, 20))
    assert own.left().reasoning == 10


def test_reasoning_that_is_given_back_is_held_by_another_turn_only_where_there_is_money() -> None:
    prices = PriceTable(output=600_000_000, reasoning=1_900_000_000)
    for spare, reasoning in ((0, 5), (5 * 1300 - 1, 5), (5 * 1300, 10)):
        shared = account(cost=10**6, reasoning=10)
        first = turn(shared, prompt=0, max_output=5, prices=prices, thinks=True)
        first.admit(cached=0)
        thinks = turn(shared, prompt=0, max_output=1000, prices=prices, bound=False, thinks=True)
        thinks.admit(cached=0)
        assert (thinks.granted, thinks.reasoning) == (GRANT_TOKENS, 5)
        first.settle(used(0, 0, 0))
        shared.spend(Amount(cost=10**6 - thinks.held.cost - spare))
        assert thinks.allow(200) == 200
        assert thinks.reasoning == thinks.held.reasoning == reasoning
        assert all(left >= 0 for left in shared.left().bounds().values())


@pytest.mark.parametrize("reasoning", [0, 1, None])
def test_a_budget_that_is_replaced_while_a_turn_thinks_costs_other_accounts_nothing(
    reasoning: int | None,
) -> None:
    """What is told may be reasoning already, and its price is held of all accounts."""
    prices = PriceTable(output=600_000_000, reasoning=1_900_000_000)
    shared, own = account("tenant", cost=10**6), account(reasoning=150)
    thinks = turn(own, shared, prompt=0, max_output=1000, prices=prices, bound=False, thinks=True)
    thinks.admit(cached=0)
    assert thinks.allow(120) == 120
    own.budget = Budget(reasoning=reasoning)
    shared.spend(Amount(cost=10**6 - shared.held.cost))
    told = thinks.allow(200)
    most = told if thinks.reasoning is None else min(told, thinks.reasoning)
    assert most >= 120
    thinks.settle(used(0, 0, told, most))
    assert shared.left().bounds()["cost"] >= 0


def test_a_turn_is_settled_once_and_not_at_all_once_it_is_released() -> None:
    own = account(output=1000)
    ledger = Ledger(PRICES, account=own)
    needs = TurnNeeds(prompt_tokens=1, max_output=10, bound=True, thinks=False)
    first, second = Reservation(needs, ledger), Reservation(needs, ledger)
    first.admit(cached=0)
    spent = first.settle(used(1, 0, 10))
    assert spent[1] > 0
    assert first.settle(used(1, 0, 10))[1] == 0
    second.admit(cached=0)
    second.release()
    assert second.settle(used(1, 0, 10))[1] == 0
    assert (ledger.turns, ledger.cost, own.spent.output) == (1, spent[1], 10)
    assert own.held == Amount()


def test_soft_limits_are_reached_not_enforced() -> None:
    own = Account(scope="session", soft=Budget(output=10, cost=10**9))
    reservation = turn(own, prompt=1, max_output=100)
    reservation.admit(cached=0)
    reservation.settle(used(1, 0, 10))
    assert own.beyond_soft() == ["output"]


@pytest.mark.parametrize("seed", range(20))
def test_no_schedule_of_turns_spends_more_than_any_budget(seed: int) -> None:
    rng = random.Random(seed)
    prices = PriceTable(
        input_uncached=150_000_000, input_cached=37_500_001, output=600_000_000,
        reasoning=rng.choice([None, 0, 2_000_000_000]),
    )  # fmt: skip
    accounts = [
        account(
            scope,
            input_uncached=rng.randint(0, 2000),
            input_cached=rng.randint(0, 5000),
            output=rng.randint(0, 2500),
            reasoning=rng.randint(0, 500),
            cost=rng.randint(0, 1_800_000),
        )
        for scope in ("session", "session", "tree", "tenant")
    ]
    open_turns: list[tuple[Reservation, int, int, int, bool]] = []
    total = Amount()
    for _ in range(400):
        for each in accounts:
            left = each.left().bounds()
            assert all(bound >= 0 for bound in left.values()), left
        if open_turns and rng.random() < 0.7:
            at = rng.randrange(len(open_turns))
            reservation, uncached, cached, told, thinks = open_turns[at]
            if rng.random() < 0.7:
                told = reservation.allow(told + rng.randint(1, 60))
                open_turns[at] = (reservation, uncached, cached, told, thinks)
                continue
            del open_turns[at]
            if rng.random() < 0.2:
                reservation.release()
                continue
            most = told if reservation.reasoning is None else min(told, reservation.reasoning)
            usage = used(uncached, cached, told, rng.randint(0, most) if thinks else 0)
            total = total.plus(amount_of(*reservation.settle(usage)))
            continue
        uncached, cached, thinks = rng.randint(0, 200), rng.randint(0, 200), rng.random() < 0.3
        prompt = uncached + cached
        reservation = turn(
            accounts[rng.randrange(2)], *accounts[2:], prices=prices, thinks=thinks,
            bound=rng.random() < 0.5, prompt=prompt, max_output=rng.choice([0, 1, 30, 700]),
        )  # fmt: skip
        try:
            reservation.admit(cached=cached)
        except BudgetExceeded:
            assert reservation.held == Amount()
            continue
        cached = rng.randint(0, prompt)
        try:
            reservation.adjust(found(prompt - cached, cached))
        except BudgetExceeded:
            assert reservation.held == Amount()
            continue
        open_turns.append((reservation, prompt - cached, cached, 0, thinks))
    for reservation, *_ in open_turns:
        reservation.release()
    assert [each.held for each in accounts] == [Amount()] * 4
    assert accounts[2].spent == accounts[3].spent == total
    assert accounts[0].spent.plus(accounts[1].spent) == total
