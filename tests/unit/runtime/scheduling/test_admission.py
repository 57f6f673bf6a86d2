"""Which waiting turns begin to run, and which keep waiting."""

import random

import pytest

from runtime.scheduling.sequence import SequenceState
from tests.support.scheduler_bench import Bench, tokens_of


def test_a_turn_that_does_not_fit_now_does_not_block_those_behind_it() -> None:
    bench = Bench(num_blocks=16)
    bench.add(20, limit=30)
    bench.step()
    large = bench.add(50, limit=1)
    bench.add(4, limit=1)
    bench.step()
    assert [s.request.request_id for s in bench.done] == ["r3"]
    assert large.state is SequenceState.WAITING
    assert bench.cache.stats().block_waits >= 1, "each look is counted"
    bench.run()
    assert len(bench.done) == 3
    assert Bench(num_blocks=16).cache.stats().block_waits == 0


def test_first_come_first_served_makes_all_wait_for_one_that_does_not_fit() -> None:
    bench = Bench(num_blocks=16, policy="fcfs")
    bench.add(20, limit=30)
    bench.step()
    large = bench.add(50, limit=1)
    small = bench.add(4, limit=1)
    bench.step()
    assert small.state is SequenceState.WAITING
    bench.run()
    assert bench.done.index(large) < bench.done.index(small)


def test_a_turn_larger_than_the_pool_is_handed_back() -> None:
    bench = Bench(num_blocks=4)
    too_large = bench.add(16, limit=1)
    fits = bench.add(15, limit=1)
    assert bench.step().too_large == (too_large,)
    bench.run()
    assert bench.done == [fits]


def test_equal_prompts_wait_for_the_one_that_computes_their_prefix() -> None:
    bench = Bench(max_batch_tokens=32)
    prompt = list(range(50, 90))
    bench.add([*prompt, 1], limit=1)
    bench.add([*prompt, 2], limit=1)
    other = bench.add([*prompt, 3], limit=1, tenant="other")
    first = tokens_of(bench.step())
    assert "r2" not in first
    bench.run()
    assert len(bench.done) == 3
    assert other.uncached_estimate == 41, "another tenant's work was waited for"


def test_a_new_session_waits_while_the_live_transcripts_are_too_long() -> None:
    bench = Bench(num_blocks=40, session_context_percent=50)
    first = bench.add(60, limit=30)
    bench.step()
    second = bench.add(40, limit=1)
    bench.step()
    assert second.state is SequenceState.WAITING, "there is room, but not for another session"
    bench.run()
    assert bench.done == [first, second]


def test_a_new_session_does_not_wait_for_transcripts_of_others_beyond_its_tenants_share() -> None:
    bench = Bench(num_blocks=80, session_context_percent=50)
    bench.add(150, limit=40, tenant="greedy")
    bench.step()
    more = bench.add(8, limit=400, tenant="greedy")
    first = bench.add(30, limit=40, tenant="modest")
    bench.step()
    second = bench.add(60, limit=1, tenant="modest")
    bench.step()
    assert first.state is SequenceState.RUNNING
    assert more.state is SequenceState.WAITING
    assert second.state is SequenceState.WAITING, "with the first it is more than half"


def test_leases_of_a_tenant_above_its_share_keep_no_other_tenants_session_out() -> None:
    bench = Bench(num_blocks=64)
    for _ in range(5):
        bench.add(44, limit=1, tenant="greedy")
        bench.step(lease_s=100.0)
    bench.add(4, limit=40, tenant="greedy")
    bench.step()
    stats = bench.cache.stats()
    modest = bench.add(40, limit=1, tenant="modest")
    assert bench.cache.blocks_for(41) > stats.free + stats.idle
    bench.step()
    assert bench.done[-1] is modest


@pytest.mark.parametrize("policy", ["short_turn_first", "fair"])
@pytest.mark.parametrize("seed", [1, 2])
def test_a_tenant_of_many_short_turns_keeps_no_other_tenants_long_prompt_out(
    policy: str, seed: int
) -> None:
    """The blocks of each turn that ends are just enough for the next one of the same tenant."""
    rng = random.Random(seed)
    bench = Bench(num_blocks=64, policy=policy, session_context_percent=300, debug=False)
    for _ in range(12):
        bench.add(16, limit=rng.randint(1, 24), tenant="greedy")
    for _ in range(20):
        _play_on(bench, rng)
    modest = bench.add(90, limit=4, tenant="modest")
    for _ in range(60):
        _play_on(bench, rng)
    assert modest in bench.done


def _play_on(bench: Bench, rng: random.Random) -> None:
    """One step; each of the greedy tenant's sessions that ended a turn goes on, or begins anew."""
    before = len(bench.done)
    bench.step()
    for turn in bench.done[before:]:
        if turn.request.tenant == "greedy":
            goes_on = len(turn.buffer) < 24
            bench.add(
                1 if goes_on else 16,
                limit=rng.randint(1, 24),
                tenant="greedy",
                session=turn.request.branch_id,
                base=turn if goes_on else None,
            )
