"""Bad input and too much of it: an answer with a type at once, and every block comes back."""

import random

import pytest

from runtime.messages import CancelRequest, ErrorKind, FinishReason
from tests.support.engine_driver import EngineDriver

PROMPT = list(range(40, 60))


def _all_blocks_are_back(driver: EngineDriver) -> bool:
    driver.engine.check()
    stats = driver.last_stats
    assert stats is not None
    return stats.blocks_protected == 0 and stats.running == stats.waiting == 0


@pytest.mark.tail
def test_a_thousand_cancels_at_once_end_a_thousand_turns_in_one_step() -> None:
    driver = EngineDriver.load(num_blocks=64, max_running=8)
    names = [driver.request([40 + n % 200] * 20, max_new_tokens=50) for n in range(1000)]
    for _ in range(3):
        driver.step()
    cancels = [CancelRequest(request_id=name) for name in names]
    driver.engine.submit([*cancels, *reversed(cancels), CancelRequest(request_id="nobody")])
    driver.step()
    assert {driver.results[name].finish for name in names} == {FinishReason.CANCELLED}
    assert not driver.engine.has_work
    assert _all_blocks_are_back(driver)
    assert driver.turn(PROMPT, max_new_tokens=2).finish is FinishReason.LENGTH


@pytest.mark.parametrize("deadline_s", [0.0, -0.001, -1e300, float("-inf")])
def test_a_deadline_that_is_over_is_refused_before_anything_runs(deadline_s: float) -> None:
    driver = EngineDriver.load()
    late = driver.request(PROMPT, deadline_s=deadline_s)
    driver.step()
    assert driver.results[late].error is ErrorKind.OVERLOADED
    assert driver.results[late].start is None
    assert not driver.engine.has_work


def test_a_deadline_of_never_or_nonsense_is_no_deadline() -> None:
    driver = EngineDriver.load()
    names = [driver.request(PROMPT, deadline_s=s, max_new_tokens=1) for s in (float("inf"), 1e300)]
    driver.run()
    assert [driver.results[name].finish for name in names] == [FinishReason.LENGTH] * 2


def test_absurd_priorities_order_turns_and_starve_nobody_for_ever() -> None:
    driver = EngineDriver.load(max_running=1)
    names = [
        driver.request(PROMPT, priority=priority, max_new_tokens=2)
        for priority in (0, -(1 << 62), 1 << 62, 10**30, -(10**30))
    ]
    driver.run()
    assert all(driver.results[name].finish is FinishReason.LENGTH for name in names)


def test_a_turn_that_can_never_fit_is_refused_in_the_next_step_and_delays_nobody() -> None:
    driver = EngineDriver.load(num_blocks=8, max_running=1)
    running = driver.request(PROMPT, max_new_tokens=20)
    driver.step()
    never = driver.request(list(range(40, 40 + 8 * 16 + 1)), max_new_tokens=1)
    to_the_last_block = driver.request(list(range(40, 40 + 8 * 16)), max_new_tokens=1)
    driver.step()
    driver.step()
    assert driver.results[never].error is ErrorKind.TOO_LARGE
    assert driver.results[to_the_last_block].error is ErrorKind.TOO_LARGE
    driver.run()
    assert driver.results[running].finish is FinishReason.LENGTH
    assert _all_blocks_are_back(driver)


@pytest.mark.samples(2)
@pytest.mark.parametrize("seed", range(6))
def test_no_turn_is_told_its_context_is_full_that_fits_alone(seed: int) -> None:
    """Many turns in a tiny pool, leases on what they leave: somebody is preempted, and is
    restored, until each has reached its own limit."""
    rng = random.Random(seed)
    driver = EngineDriver.load(num_blocks=7, block_size=4, output_reserve_percent=0)
    limits = {}
    for n in range(14):
        prompt = rng.randint(1, 10)
        limit = 27 - prompt if n % 3 == 0 else rng.randint(1, 27 - prompt)
        name = driver.request(
            [40 + n] * prompt,
            max_new_tokens=limit,
            expects_tool_call=rng.random() < 0.5,
            expected_tool_s=rng.choice([None, 60.0]),
        )
        limits[name] = limit
        for _ in range(rng.randint(0, 3)):
            driver.step()
            driver.engine.check()
    driver.run()
    assert driver.preemptions > 0
    for name, limit in limits.items():
        result = driver.results[name]
        assert (result.finish, len(result.tokens)) == (FinishReason.LENGTH, limit)
    assert _all_blocks_are_back(driver)
