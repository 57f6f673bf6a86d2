"""What the engine learns of its own speed."""

import random

import pytest

from runtime.estimates import CostProfile, OutputLengths, StepCosts, StepWork

TRUTH = CostProfile(
    prefill_token_s=3e-5,
    prefill_pair_s=1e-9,
    prefill_chunk_s=2e-3,
    decode_step_s=4e-3,
    decode_context_s=3e-8,
)


def step_s(work: StepWork) -> float:
    prefill_s = TRUTH.prefill_token_s * work.prefill_tokens
    prefill_s += TRUTH.prefill_pair_s * work.prefill_pairs
    prefill_s += TRUTH.prefill_chunk_s * work.prefill_chunks
    if not work.decode_rows:
        return prefill_s
    return prefill_s + TRUTH.decode_step_s + TRUTH.decode_context_s * work.decode_context


def random_work(rng: random.Random) -> StepWork:
    rows = rng.randint(0, 12)
    n = rng.choice([0, rng.randint(1, 2048)]) if rows else rng.randint(1, 2048)
    return StepWork(
        prefill_tokens=n,
        prefill_pairs=n * (rng.randint(0, 150_000) + n / 2),
        prefill_chunks=n > 0,
        decode_rows=rows,
        decode_context=rows and rng.randint(rows, 800_000),
    )


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("noise", [0.0, 0.1])
def test_predictions_approach_a_steady_machine(seed: int, noise: float) -> None:
    rng = random.Random(seed)
    costs = StepCosts()
    for _ in range(2000):
        work = random_work(rng)
        costs.observe(work, seconds=step_s(work) * rng.uniform(1 - noise, 1 + noise))
    tolerance = 0.03 + noise
    for n, c in [(4, 0), (300, 0), (300, 100_000), (100_000, 0)]:
        truth = step_s(StepWork(prefill_tokens=n, prefill_pairs=n * (c + n / 2), prefill_chunks=1))
        assert costs.prefill_s(n, c) == pytest.approx(truth, rel=tolerance)
    for context in (1_000, 500_000):
        truth = step_s(StepWork(decode_rows=1, decode_context=context))
        assert costs.decode_s(context) == pytest.approx(truth, rel=tolerance)


@pytest.mark.parametrize("seed", range(5))
def test_no_coefficient_becomes_negative_whatever_is_observed(seed: int) -> None:
    rng = random.Random(seed)
    costs = StepCosts()
    for _ in range(300):
        costs.observe(random_work(rng), seconds=rng.expovariate(100.0))
        profile = costs.profile
        assert profile.prefill_token_s >= 0
        assert profile.prefill_pair_s >= 0
        assert profile.prefill_chunk_s >= 0
        assert profile.decode_step_s >= 0
        assert profile.decode_context_s >= 0


def test_one_hiccup_of_the_machine_does_not_move_the_estimate_far() -> None:
    costs = StepCosts(TRUTH)
    work = StepWork(decode_rows=4, decode_context=100_000)
    for _ in range(100):
        costs.observe(work, seconds=step_s(work))
    costs.observe(work, seconds=100.0)
    assert costs.decode_s(100_000) < 2 * step_s(work)


@pytest.mark.parametrize("position", [0, 1_000, 150_000])
@pytest.mark.parametrize("seconds", [0.001, 0.06, 5.0])
def test_the_tokens_within_a_time_take_that_time_and_one_more_is_too_many(
    position: int, seconds: float
) -> None:
    costs = StepCosts(TRUTH)
    tokens = costs.prefill_tokens_within(seconds, position)
    assert not tokens or costs.prefill_s(tokens, position) <= seconds * (1 + 1e-9)
    assert costs.prefill_s(tokens + 1, position) > seconds


def test_what_goes_beside_decodes_is_learnt_from_what_went_there() -> None:
    """Prompts that have steps of their own, in which tokens are cheaper, do not change it."""
    costs = StepCosts()
    alone = StepWork(prefill_tokens=2048, prefill_chunks=1)
    beside = StepWork(prefill_tokens=40, prefill_chunks=1, decode_rows=8, decode_context=800)
    for _ in range(50):
        costs.observe(StepWork(decode_rows=8, decode_context=800), seconds=4e-3)
    for _ in range(200):
        costs.observe(alone, seconds=2048 * 5e-5)
        costs.observe(alone, seconds=2048 * 5e-5)
        costs.observe(beside, seconds=4e-3 + 40 * 2e-4)
    assert costs.prefill_tokens_within(4e-3, 0, beside_decodes=True) == pytest.approx(20, abs=1)
    assert costs.prefill_tokens_within(0.1, 0) > 1500


def test_tokens_beside_decodes_at_most_double_from_step_to_step() -> None:
    """Whatever a fit of little data promises."""
    costs = StepCosts(CostProfile(prefill_token_s=1e-9))
    taken = []
    for _ in range(5):
        taken.append(costs.prefill_tokens_within(1.0, 0, beside_decodes=True))
        work = StepWork(prefill_tokens=taken[-1], prefill_chunks=1, decode_rows=1)
        costs.observe(work, seconds=1e-2)
    assert taken == [64, 128, 256, 512, 1024]
    for _ in range(40):
        costs.observe(StepWork(prefill_tokens=5, prefill_chunks=1, decode_rows=1), seconds=1e-2)
    assert costs.prefill_tokens_within(1.0, 0, beside_decodes=True) < 40


def test_seven_tokens_fit_into_the_time_of_seven() -> None:
    costs = StepCosts(CostProfile(prefill_token_s=1e-3))
    assert costs.prefill_tokens_within(0.7 * 0.01, 0) == 7


def test_nothing_fits_into_no_time() -> None:
    assert StepCosts(TRUTH).prefill_tokens_within(0.0, 10) == 0


def test_restoring_costs_what_the_cheaper_way_costs() -> None:
    slow_tier = StepCosts(TRUTH, restore_s=lambda tokens: 1e9)
    fast_tier = StepCosts(TRUTH, restore_s=lambda tokens: tokens * 1e-6)
    assert slow_tier.restore_s(1000) == slow_tier.prefill_s(1000)
    assert fast_tier.restore_s(1000) == pytest.approx(1e-3)


def test_output_lengths_follow_each_session_and_forget_the_oldest() -> None:
    lengths = OutputLengths(initial=300, weight=0.5, capacity=2)
    assert lengths.expected("a") == 300
    lengths.observe("a", output_tokens=100)
    assert lengths.expected("a") == 200
    lengths.observe("b", output_tokens=0)
    lengths.observe("a", output_tokens=200)
    lengths.observe("c", output_tokens=300)
    assert [lengths.expected(name) for name in "abc"] == [200, 300, 300]


def test_what_a_chunk_costs_however_short_it_is_is_told_apart_from_its_tokens() -> None:
    costs = StepCosts()
    for number in range(400):
        n = (4, 16, 64, 512)[number % 4]
        work = StepWork(prefill_tokens=n, prefill_pairs=n * n / 2, prefill_chunks=1)
        costs.observe(work, seconds=step_s(work))
    assert costs.profile.prefill_chunk_s == pytest.approx(TRUTH.prefill_chunk_s, rel=0.02)
    assert costs.prefill_tokens_within(TRUTH.prefill_chunk_s, 0) <= 1


def test_a_fit_that_forgets_nothing_gives_the_mean_of_all_steps() -> None:
    fading, whole = StepCosts(), StepCosts(forget=1.0)
    work = StepWork(decode_rows=1, decode_context=1)
    for number in range(4000):
        for costs in (fading, whole):
            costs.observe(work, seconds=1e-3 if number < 2000 else 2e-3)
    assert fading.decode_s(1) == pytest.approx(2e-3, rel=0.01)
    # Of relative errors: sum(1 / y) / sum(1 / y ** 2).
    assert whole.decode_s(1) == pytest.approx(1.2e-3, rel=0.01)
