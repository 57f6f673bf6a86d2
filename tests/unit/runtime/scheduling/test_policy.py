"""Order of turns, and the account of service."""

import random
from collections.abc import Callable
from dataclasses import replace

import pytest

from runtime.scheduling.policy import (
    AGEING_S,
    ANSWER_LEVELS,
    PATIENCE_S,
    POLICIES,
    PROMPT_LEVELS,
    TENANT_QUANTUM_S,
    SequenceFacts,
    ServiceAccount,
    fair,
    fcfs,
    level,
    short_turn_first,
)

Order = Callable[[SequenceFacts], tuple[float, ...]]

TURN = SequenceFacts(
    priority=0,
    arrival_s=10.0,
    waited_s=0.0,
    work_s=0.4,
    deadline_left_s=None,
    warm=True,
    branch_start_s=0.0,
    service_s=0.0,
)


@pytest.mark.parametrize("policy", [p.key for p in POLICIES.values()], ids=POLICIES.keys())
def test_a_higher_priority_goes_first_whatever_its_length(policy) -> None:
    long = replace(TURN, priority=1, work_s=1e6, warm=False, arrival_s=99.0)
    assert policy(long) < policy(TURN)


def test_first_come_first_served_looks_at_arrival_only() -> None:
    later_and_short = replace(TURN, arrival_s=11.0, work_s=0.01)
    assert fcfs(TURN) < fcfs(later_and_short)


def test_less_remaining_work_goes_first() -> None:
    assert short_turn_first(replace(TURN, arrival_s=11.0, work_s=0.39)) < short_turn_first(TURN)


def test_a_long_turn_overtakes_fresh_short_ones_once_it_has_waited() -> None:
    ratio = 3.5
    long, short = replace(TURN, work_s=ratio * TURN.work_s), replace(TURN, arrival_s=50.0)
    before, after = (ratio - 1.1) * AGEING_S, (ratio - 0.9) * AGEING_S
    assert short_turn_first(replace(long, waited_s=before)) > short_turn_first(short)
    assert short_turn_first(replace(long, waited_s=after)) < short_turn_first(short)


@pytest.mark.parametrize("policy", [short_turn_first, fair])
def test_no_wait_lets_a_cold_turn_overtake_a_warm_one(policy) -> None:
    cold = replace(TURN, warm=False, work_s=0.01, waited_s=1e6)
    assert policy(TURN) < policy(cold)


@pytest.mark.parametrize("order", [short_turn_first, fair])
def test_cold_turns_go_by_arrival_however_long_and_whoever_began_first(order: Order) -> None:
    first = replace(TURN, warm=False, branch_start_s=9.0, work_s=100.0, level=2)
    assert order(first) < order(replace(first, arrival_s=10.5, work_s=0.1, level=0))
    assert order(first) < order(replace(first, arrival_s=10.5, branch_start_s=0.0))


def test_a_turn_rises_by_what_it_has_said_or_has_to_read_and_comes_down_with_time() -> None:
    assert level(ANSWER_LEVELS[0] - 1, PROMPT_LEVELS[0] - 1, 0.0) == 0
    assert level(ANSWER_LEVELS[0], 0.0, 0.0) == 1
    assert level(0, PROMPT_LEVELS[0], 0.0) == 1
    assert level(ANSWER_LEVELS[1], 0.0, 0.0) == level(0, PROMPT_LEVELS[1], 0.0) == 2
    assert level(ANSWER_LEVELS[1], 0.0, PATIENCE_S) == 1
    assert level(ANSWER_LEVELS[1], 0.0, 9 * PATIENCE_S) == 0


@pytest.mark.parametrize("order", [short_turn_first, fair])
def test_longer_turns_come_after_short_ones_and_go_by_arrival(order) -> None:
    long = replace(TURN, level=1, work_s=0.001, waited_s=1e6)
    assert order(TURN) < order(long)
    assert order(long) < order(replace(long, level=2, arrival_s=0.0))
    assert order(replace(long, work_s=9.0)) < order(replace(long, arrival_s=10.5, work_s=0.1))


def test_a_turn_about_to_miss_its_deadline_goes_first_within_its_class() -> None:
    long = replace(TURN, work_s=4.0, deadline_left_s=1.0)
    assert short_turn_first(long) < short_turn_first(TURN)
    assert short_turn_first(replace(long, deadline_left_s=1e6)) > short_turn_first(TURN)


def test_a_little_service_decides_between_equals_only_unless_the_policy_is_fair() -> None:
    served = replace(TURN, service_s=TENANT_QUANTUM_S / 2)
    assert short_turn_first(TURN) < short_turn_first(served)
    assert fair(TURN) < fair(served)
    short_but_served = replace(served, work_s=0.1)
    assert short_turn_first(short_but_served) < short_turn_first(TURN)
    assert fair(TURN) < fair(short_but_served)


@pytest.mark.parametrize("order", [short_turn_first, fair])
def test_no_priority_and_no_deadline_makes_up_for_anothers_lack_of_service(order: Order) -> None:
    greedy = replace(TURN, service_s=TENANT_QUANTUM_S, priority=10**9, deadline_left_s=0.0)
    assert order(replace(TURN, warm=False, level=2, work_s=1e6)) < order(greedy)


def test_a_tenant_that_was_away_has_no_credit_over_one_that_worked() -> None:
    account = ServiceAccount()
    account.request_opened("busy")
    account.charge("busy", 100.0)
    account.request_opened("back")
    assert account.service_s("back") == account.service_s("busy")


def test_a_tenant_keeps_its_debt_while_another_is_active() -> None:
    account = ServiceAccount()
    account.request_opened("light")
    account.request_opened("heavy")
    account.charge("heavy", 100.0)
    account.request_closed("heavy")
    account.request_opened("heavy")
    assert account.service_s("heavy") == account.service_s("light") + 100.0


@pytest.mark.parametrize("seed", range(10))
def test_tenants_that_always_wait_get_the_same_service_up_to_two_turns(seed: int) -> None:
    rng = random.Random(seed)
    account, names = ServiceAccount(), "abc"
    for name in names:
        account.request_opened(name)
    longest = 0.0
    for _ in range(500):
        name = min(names, key=account.service_s)
        seconds = rng.uniform(0.1, 1.0) * (1 + names.index(name))
        longest = max(longest, seconds)
        account.charge(name, seconds)
        served = [account.service_s(n) for n in names]
        assert max(served) - min(served) <= 2 * longest


def test_first_come_first_served_alone_is_strict() -> None:
    assert [name for name, policy in POLICIES.items() if policy.strict] == ["fcfs"]
