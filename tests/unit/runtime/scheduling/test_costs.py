"""What steps are predicted to cost, and what life may teach of it."""

import itertools
import random

import pytest

from runtime.scheduling.costs import (
    MOST_SCALE,
    ROWS,
    TOKENS,
    CostProfile,
    CostTable,
    OutputLengths,
    StepCosts,
    StepWork,
)

LINEAR = CostProfile(
    prefill_token_s=3e-5,
    prefill_pair_s=1e-9,
    prefill_chunk_s=2e-3,
    decode_step_s=4e-3,
    decode_context_s=3e-8,
)


def work_of(tokens: int = 0, position: int = 0, rows: int = 0, context: int = 0) -> StepWork:
    return StepWork(
        prefill_tokens=tokens,
        prefill_pairs=tokens * (position + tokens / 2),
        prefill_chunks=int(tokens > 0),
        decode_rows=rows,
        decode_context=rows * context,
    )


def machine(rng: random.Random) -> CostTable:
    """A machine with a fixed cost a step, and products that are cheap for few rows."""
    fixed, token, knee = rng.uniform(2e-3, 2e-2), rng.uniform(2e-5, 3e-4), rng.choice([1, 16, 64])
    cells = [
        [
            fixed + token * max(n + rows - knee, 0) + 2e-5 * rows if n + rows else 0.0
            for rows in ROWS
        ]
        for n in TOKENS
    ]
    return CostTable(cells=cells, pair_s=token / 20_000, context_s=1e-8, chunk_s=fixed / 20)


def random_work(rng: random.Random, kind: str = "any") -> StepWork:
    kind = kind if kind != "any" else rng.choice(["prefill", "decode", "mixed"])
    tokens = 0 if kind == "decode" else rng.choice([1, 7, 16, 100, 512, 2048])
    rows = 0 if kind == "prefill" else rng.choice([1, 3, 8, 20])
    return work_of(tokens, rng.choice([0, 500, 4000]), rows, rng.choice([10, 2000]))


@pytest.mark.parametrize("seed", range(20))
def test_a_step_that_computes_more_is_never_predicted_to_be_shorter(seed: int) -> None:
    rng = random.Random(seed)
    costs = StepCosts(machine(rng))
    for _ in range(60):
        costs.observe(random_work(rng), seconds=rng.expovariate(50.0))
    for kind in ("prefill", "decode", "mixed"):
        rows = 0 if kind == "prefill" else 4
        sizes = [0] if kind == "decode" else sorted(rng.sample(range(1, 20_000), 40))
        times = [costs.step_s(work_of(n, 100, rows, 50)) for n in sizes]
        assert times == sorted(times)
        more_rows = [costs.step_s(work_of(16, 0, r, 50)) for r in range(1, 100)]
        assert more_rows == sorted(more_rows)


@pytest.mark.parametrize("seed", range(200))
def test_the_tokens_within_a_time_take_that_time_and_one_more_is_too_many(seed: int) -> None:
    rng = random.Random(seed)
    costs = StepCosts(machine(rng))
    seconds, position = rng.uniform(1e-4, 0.5), rng.choice([0, 2_000, 50_000])
    tokens, rows = rng.choice([0, 10, 300, 3000]), rng.choice([0, 1, 5, 50])
    found = costs.tokens_within(seconds, position, tokens=tokens, rows=rows)
    if found:
        added = costs.added_s(found, position, tokens=tokens, rows=rows)
        assert added <= seconds * (1 + 1e-6)
    more = costs.added_s(found + 1, position, tokens=tokens, rows=rows)
    assert more > seconds * (1 - 1e-6)


def test_nothing_fits_into_no_time() -> None:
    assert StepCosts(LINEAR).tokens_within(0.0, 10) == 0


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("slow", [*range(20), None])
def test_one_step_of_the_first_twenty_may_be_a_hundred_times_too_slow(
    seed: int, slow: int | None
) -> None:
    rng = random.Random(seed)
    truth = StepCosts(machine(rng))
    costs = StepCosts(truth.table)
    for number in range(20):
        work = random_work(rng)
        costs.observe(work, seconds=truth.step_s(work) * (100 if number == slow else 1))
    for tokens in (16, 100, 1000, 16_384):
        assert costs.prefill_s(tokens) == pytest.approx(truth.prefill_s(tokens), rel=0.3)
        for rows in (0, 1, 8):
            work = work_of(tokens, 0, rows, 500)
            assert costs.step_s(work) / truth.step_s(work) == pytest.approx(1.0, abs=0.3)


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("kind", ["prefill", "decode", "mixed"])
@pytest.mark.parametrize("size", ["one size", "all sizes"])
def test_a_thousand_steps_of_one_kind_leave_the_other_kinds_alone(
    seed: int, kind: str, size: str
) -> None:
    rng = random.Random(seed)
    truth = StepCosts(machine(rng))
    costs = StepCosts(truth.table)
    only = random_work(rng, kind)
    for _ in range(1000):
        work = only if size == "one size" else random_work(rng, kind)
        costs.observe(work, seconds=truth.step_s(work) * rng.uniform(0.8, 1.25))
    for tokens, rows in itertools.product((0, 16, 256, 4096), (0, 1, 8, 32)):
        if tokens or rows:
            work = work_of(tokens, 300, rows, 500)
            assert 0.5 < costs.step_s(work) / truth.step_s(work) < 2.0


@pytest.mark.parametrize("kind", ["prefill", "decode", "mixed"])
@pytest.mark.parametrize("times", [3.0, 1 / 3])
def test_a_machine_that_becomes_slower_or_faster_is_followed_within_fifty_steps(
    kind: str, times: float
) -> None:
    rng = random.Random(1)
    truth = StepCosts(machine(rng))
    costs = StepCosts(truth.table)
    for number in range(150):
        work = random_work(rng, kind)
        factor = times if number >= 100 else 1.0
        costs.observe(work, seconds=truth.step_s(work) * factor * rng.uniform(0.9, 1.1))
    work = random_work(rng, kind)
    assert costs.step_s(work) / truth.step_s(work) == pytest.approx(times, rel=0.15)


def test_no_observation_moves_predictions_beyond_the_ceiling_and_the_floor() -> None:
    for seconds, bound in ((1e9, MOST_SCALE), (1e-12, 1 / MOST_SCALE)):
        table = machine(random.Random(2))
        table.timed = [[True] * len(ROWS) for _ in TOKENS]
        costs = StepCosts(table)
        before = costs.decode_s(1000, 4)
        for _ in range(500):
            costs.observe(work_of(rows=4, context=250), seconds=seconds)
        assert costs.decode_s(1000, 4) / before == pytest.approx(bound)


def test_a_clock_that_stands_still_or_runs_back_teaches_nothing() -> None:
    costs = StepCosts(LINEAR)
    before = costs.decode_s(10)
    for seconds in (0.0, -1.0):
        costs.observe(work_of(rows=1, context=10), seconds=seconds)
    assert costs.decode_s(10) == before


def test_a_cell_that_was_never_timed_is_filled_in_by_steps_near_it() -> None:
    table = CostTable.linear(LINEAR)
    table.timed = [[(n, rows) != (1024, 0) for rows in ROWS] for n in TOKENS]
    costs = StepCosts(table)
    dear = work_of(1024)
    for _ in range(40):
        costs.observe(dear, seconds=0.2)
        costs.observe(work_of(16), seconds=costs.table.step_s(work_of(16)))
    assert costs.table.step_s(dear) == pytest.approx(0.2, rel=0.2)
    assert costs.prefill_s(16) == pytest.approx(StepCosts(LINEAR).prefill_s(16), rel=0.5)


def test_the_knee_is_where_tokens_cost_as_much_as_being_there() -> None:
    fixed = CostTable(cells=[[1e-2 + 1e-4 * n if n + r else 0.0 for r in ROWS] for n in TOKENS])
    assert StepCosts(fixed).knee_tokens(0) == pytest.approx(100, abs=2)
    assert StepCosts(CostProfile(prefill_token_s=1e-4)).knee_tokens(0) == 16
    assert StepCosts(CostProfile(prefill_chunk_s=9.0)).knee_tokens(0) == 256


def test_a_linear_machine_costs_what_its_profile_says() -> None:
    costs = StepCosts(LINEAR)
    for tokens, position in ((1, 0), (300, 1000), (5000, 0)):
        expected = 2e-3 + tokens * 3e-5 + 1e-9 * tokens * (position + tokens / 2)
        assert costs.prefill_s(tokens, position) == pytest.approx(expected)
    assert costs.decode_s(1_000_000, 12) == pytest.approx(4e-3 + 3e-2)


def test_restoring_costs_what_the_cheaper_way_costs() -> None:
    slow_tier = StepCosts(LINEAR, restore_s=lambda tokens: 1e9)
    fast_tier = StepCosts(LINEAR, restore_s=lambda tokens: tokens * 1e-6)
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
