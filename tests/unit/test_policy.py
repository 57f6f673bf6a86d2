"""Order of turns."""

from dataclasses import replace

import pytest

from runtime.policy import AGEING_S, POLICIES, TurnFacts, fcfs, short_turn_first

TURN = TurnFacts(
    priority=0,
    arrival_s=10.0,
    waited_s=0.0,
    uncached_tokens=100,
    expected_output=30,
    deadline_left_s=None,
    prefill_token_s=1e-3,
    decode_token_s=1e-2,
)


@pytest.mark.parametrize("policy", POLICIES.values(), ids=POLICIES.keys())
def test_a_higher_priority_goes_first_whatever_its_length(policy) -> None:
    long = replace(TURN, priority=1, uncached_tokens=100_000, arrival_s=99.0)
    assert policy(long) < policy(TURN)


def test_first_come_first_served_looks_at_arrival_only() -> None:
    later_and_short = replace(TURN, arrival_s=11.0, uncached_tokens=1)
    assert fcfs(TURN) < fcfs(later_and_short)


@pytest.mark.parametrize("change", [{"uncached_tokens": 99}, {"expected_output": 29}])
def test_less_remaining_work_goes_first(change: dict[str, int]) -> None:
    assert short_turn_first(replace(TURN, arrival_s=11.0, **change)) < short_turn_first(TURN)


def test_a_long_turn_overtakes_fresh_short_ones_once_it_has_waited() -> None:
    long = replace(TURN, uncached_tokens=1000)
    short = replace(TURN, arrival_s=50.0)
    ratio = (1000 * 1e-3 + 0.3) / (100 * 1e-3 + 0.3)
    before, after = (ratio - 1.1) * AGEING_S, (ratio - 0.9) * AGEING_S
    assert short_turn_first(replace(long, waited_s=before)) > short_turn_first(short)
    assert short_turn_first(replace(long, waited_s=after)) < short_turn_first(short)


def test_a_turn_about_to_miss_its_deadline_goes_first_within_its_class() -> None:
    long = replace(TURN, uncached_tokens=10_000, deadline_left_s=1.0)
    assert short_turn_first(long) < short_turn_first(TURN)
    assert short_turn_first(replace(long, deadline_left_s=1e6)) > short_turn_first(TURN)
