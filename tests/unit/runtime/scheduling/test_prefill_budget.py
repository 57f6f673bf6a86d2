"""What of a step goes to prompts, beside decodes and without."""

import pytest

from runtime.scheduling.costs import CostProfile, StepWork
from tests.support.scheduler_bench import Bench, tokens_of


def test_a_step_is_filled_to_a_multiple_of_sixteen_tokens_unless_a_prompt_ends() -> None:
    bench = Bench(num_blocks=200, prefill_tokens_beside_decodes=40)
    bench.add(3, limit=60)
    bench.step()
    bench.add(100, limit=1)
    shares = [tokens_of(bench.step()).get("r2", 0) for _ in range(4)]
    assert shares == [31, 31, 38, 0]


DEAR_CHUNKS = CostProfile(prefill_chunk_s=0.02, prefill_token_s=2e-4, decode_step_s=0.01)
"""A chunk costs as much as a hundred tokens."""


@pytest.mark.parametrize(("gap_ms", "seconds"), [(100, 0.1), (5, 0.02), (12, 0.02)])
def test_prefill_beside_decodes_takes_as_long_as_the_gap_between_tokens_may_be(
    gap_ms: int, seconds: float
) -> None:
    """A step of decodes takes 10 ms, a token of a prompt 0.2; twice the former is allowed. Plans
    aim at four fifths of what is allowed: a step may take longer than predicted."""
    bench = Bench(num_blocks=900, token_gap_ms=gap_ms)
    bench.add(3, limit=200)
    bench.step()
    bench.add(1500, limit=1)
    tokens = tokens_of(bench.step())["r2"]
    assert bench.scheduler.prefill_budget.gap_bound_s == pytest.approx(seconds)
    assert 0 <= (0.8 * seconds - 0.01) / 2e-4 - tokens <= 16


@pytest.mark.parametrize(
    ("length", "shorter", "first"),
    [(350, 0, 350), (420, 0, 420), (430, 0, 335), (300, 40, 300), (400, 40, 295)],
)
def test_the_rest_of_a_prompt_may_take_nearly_all_of_the_gap_where_it_has_the_step_for_itself(
    length: int, shorter: int, first: int
) -> None:
    """350 tokens fit into four fifths of 100 ms beside a decode, 425 into all but a twentieth."""
    bench = Bench(num_blocks=900, token_gap_ms=100)
    bench.add(3, limit=200)
    bench.step()
    bench.add(length, limit=1)
    if shorter:
        bench.add(shorter, limit=1)
    tokens = tokens_of(bench.step())
    assert tokens["r2"] == first
    assert tokens.get("r3", 0) == shorter


@pytest.mark.parametrize(("decodes", "every"), [(1, 1), (2, 1), (5, 2), (10, 4), (20, 7), (32, 7)])
def test_chunks_that_end_no_prompt_are_owed_the_less_the_more_turns_decode(
    decodes: int, every: int
) -> None:
    """A chunk takes 70 of the 100 ms beside decodes. For each step all is owed beside two decodes
    at most, 40 ms beside five, 20 beside ten and 10 beside twenty and more."""
    bench = Bench(num_blocks=8000, max_running=40, token_gap_ms=100)
    for _ in range(decodes):
        bench.add(3, limit=200)
    for _ in range(2):
        bench.step()
    assert len(bench.scheduler.queues.decoders) == decodes
    bench.add(2000, limit=1)
    last = f"r{decodes + 1}"
    shares = [tokens_of(bench.step()).get(last, 0) for _ in range(2 * every)]
    assert [bool(share) for share in shares] == [True, *[False] * (every - 1)] * 2
    assert all(320 <= share <= 350 for share in shares if share)


def test_what_ends_a_prompt_goes_at_once_where_nothing_is_owed() -> None:
    bench = Bench(num_blocks=900, token_gap_ms=100)
    for _ in range(5):
        bench.add(3, limit=200)
    bench.step()
    bench.add(2000, limit=1)
    assert tokens_of(bench.step())["r6"] >= 320
    bench.add(100, limit=1)
    tokens = tokens_of(bench.step())
    assert tokens["r7"] == 100
    assert "r6" not in tokens


def test_several_prompts_share_a_step_and_its_fixed_cost() -> None:
    bench = Bench(num_blocks=400, token_gap_ms=150, profile=DEAR_CHUNKS)
    bench.add(3, limit=200)
    bench.step()
    for _ in range(3):
        bench.add(60, limit=1)
    assert tokens_of(bench.step()) == {"r1": 1, "r2": 60, "r3": 60, "r4": 60}


@pytest.mark.parametrize("gap_ms", [1, 40, 100])
def test_no_chunk_is_shorter_than_what_is_worth_its_cost_unless_it_ends_a_prompt(
    gap_ms: int,
) -> None:
    bench = Bench(num_blocks=900, token_gap_ms=gap_ms, profile=DEAR_CHUNKS)
    bench.add(3, limit=400)
    bench.step()
    prompts = [bench.add(n, limit=1) for n in (700, 90, 350, 20)]
    ends = {f"r{number}": len(p.buffer) for number, p in enumerate(prompts, 2)}
    while any(p.num_computed < p.prompt_length for p in prompts):
        for name, tokens in tokens_of(bench.step()).items():
            if name != "r1":
                ends[name] -= tokens
                assert tokens >= 84 or ends[name] == 0  # 100, in steps of 16
    assert set(ends.values()) == {0}


def test_a_gap_shorter_than_one_chunk_worth_its_cost_is_stretched_to_it() -> None:
    bench = Bench(num_blocks=900, token_gap_ms=1, profile=DEAR_CHUNKS)
    bench.add(3, limit=400)
    bench.step()
    bench.add(700, limit=1)
    tokens = tokens_of(bench.step())["r2"]
    assert bench.scheduler.prefill_budget.gap_bound_s == pytest.approx(0.01 + 0.02 + 100 * 2e-4)
    assert 84 <= tokens <= 100


def test_now_and_then_a_chunk_goes_by_the_table_though_small_ones_seemed_dear() -> None:
    bench = Bench(num_blocks=40_000)
    work = StepWork(prefill_tokens=16, prefill_pairs=128, prefill_chunks=1, decode_rows=1)
    for _ in range(200):
        bench.costs.observe(work, seconds=0.2)
    bench.add(3, limit=400)
    bench.step()
    bench.add(60_000, limit=1)
    shares = [share for _ in range(250) if (share := tokens_of(bench.step()).get("r2", 0))][:100]
    assert len(shares) == 100
    assert max(shares) > 5 * sorted(shares)[50]
    assert sum(share > 2 * sorted(shares)[50] for share in shares) == 3


def test_behind_a_long_context_the_gap_is_what_the_least_chunk_takes_there() -> None:
    profile = CostProfile(prefill_token_s=2e-4, prefill_pair_s=1e-6, decode_step_s=0.01)
    bench = Bench(num_blocks=9000, profile=profile)
    bench.add(3, limit=4000)
    bench.step()
    prompt = bench.add(11_000, limit=1)
    for _ in range(2500):
        behind = prompt.num_computed
        if behind == 11_000:
            break
        if not (tokens := tokens_of(bench.step()).get("r2", 0)):
            continue  # more is owed with each step
        alone_s = 0.01 + 16 * 2e-4 + 1e-6 * 16 * (behind + 8)
        bound_s = bench.scheduler.prefill_budget.gap_bound_s
        assert bound_s == pytest.approx(max(0.1, alone_s))
        assert 0.01 + tokens * (2e-4 + 1e-6 * (behind + tokens / 2)) <= bound_s + 1e-9
    assert prompt.num_computed == 11_000
    assert bound_s > 0.15
