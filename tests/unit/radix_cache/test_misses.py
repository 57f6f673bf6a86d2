"""Every uncached prompt token has one cause."""

import numpy as np

from radix_cache.edge import TokenArray
from tests.support.cache_turns import run_turn, transcript
from tests.support.caches import make_cache
from tests.support.clock import FakeClock


def joined(*parts: TokenArray) -> TokenArray:
    return np.concatenate(parts)


def test_a_new_prompt_is_first_sight() -> None:
    sequence = run_turn(make_cache(8), transcript(10))
    assert sequence.miss_causes == {"first_sight": 10}


def test_a_prompt_with_nothing_to_explain_has_no_first_sight_of_zero() -> None:
    cache = make_cache(8)
    run_turn(cache, transcript(8))
    again = run_turn(cache, transcript(9), base="s", base_offset=8)
    assert again.miss_causes == {"first_sight": 1}


def test_what_was_evicted_is_told_with_its_time() -> None:
    clock = FakeClock(0.0)
    cache = make_cache(8, clock=clock)
    run_turn(cache, transcript(24, seed=1), "victim")
    clock.now_s = 7.0
    run_turn(cache, transcript(20, seed=2), "other")
    back = run_turn(cache, transcript(30, seed=1), "victim", base="victim", base_offset=24)
    assert back.num_cached_tokens == 12
    assert back.miss_causes == {"evicted": 12, "first_sight": 6}
    assert back.evicted_s == 7.0


def test_runs_evicted_piece_by_piece_are_told_as_one() -> None:
    cache = make_cache(10)
    run_turn(cache, transcript(40, seed=1), "victim")
    for seed in range(2, 6):
        run_turn(cache, transcript(8, seed=seed), f"s{seed}")
    back = cache.begin(branch_id="victim", tenant="t", tokens=transcript(41, seed=1))
    assert back.num_cached_tokens == 8
    assert back.miss_causes == {"evicted": 32, "first_sight": 1}


def test_a_branch_that_was_evicted_is_told_beside_the_one_that_stayed() -> None:
    cache = make_cache(10)
    common, left, right = transcript(12), transcript(12, seed=1), transcript(12, seed=2)
    run_turn(cache, joined(common, left), "left")
    run_turn(cache, joined(common, right), "right")
    run_turn(cache, transcript(12, seed=3), "other")
    back = cache.begin(branch_id="x", tenant="t", tokens=joined(common, left, right))
    assert back.num_cached_tokens == 16
    assert back.miss_causes == {"evicted": 8, "first_sight": 12}


def test_another_tenants_evictions_explain_nothing() -> None:
    cache = make_cache(8)
    run_turn(cache, transcript(24, seed=1), "victim", tenant="red")
    run_turn(cache, transcript(32, seed=2), "other", tenant="blue")
    sequence = run_turn(cache, transcript(24, seed=1), "same", tenant="blue")
    assert sequence.miss_causes == {"first_sight": 24}


def test_what_went_after_its_lease_ran_out_is_expired() -> None:
    clock = FakeClock(0.0)
    cache = make_cache(8, clock=clock)
    run_turn(cache, transcript(24, seed=1), "victim", lease_s=5.0)
    clock.now_s = 6.0
    run_turn(cache, transcript(32, seed=2), "other")
    back = run_turn(cache, transcript(25, seed=1), "victim", base="victim", base_offset=24)
    assert back.miss_causes == {"expired": 24, "first_sight": 1}


def test_what_was_taken_from_a_running_lease_is_evicted() -> None:
    cache = make_cache(8)
    run_turn(cache, transcript(24, seed=1), "victim", lease_s=5.0)
    run_turn(cache, transcript(32, seed=2), "other")
    back = run_turn(cache, transcript(25, seed=1), "victim", base="victim", base_offset=24)
    assert back.miss_causes == {"evicted": 24, "first_sight": 1}


def test_a_fork_inside_a_block_pays_for_that_block() -> None:
    cache = make_cache(32)
    base = transcript(24)
    run_turn(cache, base, "base")
    fork = run_turn(
        cache, joined(base[:10], transcript(5, seed=1)), "f", base="base", base_offset=10
    )
    assert fork.miss_causes == {"forked": 2, "first_sight": 5}


def test_a_rewind_inside_a_block_pays_for_that_block() -> None:
    cache = make_cache(32)
    base = transcript(24)
    run_turn(cache, base)
    back = run_turn(cache, joined(base[:10], transcript(5, seed=1)), base="s", base_offset=10)
    assert back.miss_causes == {"forked": 2, "first_sight": 5}


def test_a_continuation_never_pays_for_a_fork() -> None:
    cache = make_cache(32)
    run_turn(cache, transcript(22))
    following = run_turn(cache, transcript(30), base="s", base_offset=22)
    assert following.miss_causes == {"first_sight": 10}


def test_a_transcript_rebuilt_from_its_start_is_header_changed() -> None:
    cache = make_cache(32)
    run_turn(cache, transcript(24), "old")
    rebuilt = run_turn(cache, transcript(30, seed=1), "new", base="old", base_offset=0)
    assert rebuilt.miss_causes == {"header_changed": 24, "first_sight": 6}


def test_a_record_that_had_to_go_counts_as_first_sight() -> None:
    cache = make_cache(4, ghost_records=1)
    for seed in range(3):
        run_turn(cache, transcript(16, seed=seed), f"s{seed}")
    assert run_turn(cache, transcript(16, seed=0), "a").miss_causes == {"first_sight": 16}
    assert cache.stats().ghosts == 1


def test_totals_are_those_of_the_turns_that_ran() -> None:
    cache = make_cache(8)
    run_turn(cache, transcript(24, seed=1), "victim")
    run_turn(cache, transcript(20, seed=2), "other")
    cache.finish(cache.begin(branch_id="idle", tenant="t", tokens=transcript(9, seed=3)))
    run_turn(cache, transcript(30, seed=1), "victim", base="victim", base_offset=24)
    stats = cache.stats()
    assert stats.prompt_tokens == 74
    assert stats.hit_tokens == 12
    assert {c: n for c, n in stats.miss_tokens.items() if n} == {"first_sight": 50, "evicted": 12}
    assert stats.evicted_tokens == {"evicted": 32, "expired": 0}
