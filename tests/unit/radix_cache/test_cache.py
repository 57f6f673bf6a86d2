"""The prefix cache as the engine uses it: turns of sessions over a small pool."""

import numpy as np
import pytest

from radix_cache.block_pool import OutOfBlocks
from tests.support.cache_turns import run_turn, transcript
from tests.support.caches import make_cache


def test_the_next_turn_finds_all_whole_blocks_of_the_last() -> None:
    cache = make_cache()
    tokens = transcript(30)
    assert run_turn(cache, tokens[:18]).num_cached_tokens == 0
    second = run_turn(cache, tokens, base="s", base_offset=18)
    assert second.num_cached_tokens == 16


def test_a_prompt_that_is_cached_wholly_keeps_one_token_to_compute() -> None:
    cache = make_cache()
    tokens = transcript(16)
    run_turn(cache, tokens)
    assert run_turn(cache, tokens, "other").num_cached_tokens == 12


def test_two_sessions_share_the_blocks_of_a_common_prefix() -> None:
    cache = make_cache()
    common = transcript(8)
    first = cache.begin(branch_id="a", tenant="t", tokens=np.append(common, transcript(9, seed=1)))
    cache.allocate(first, 5)
    cache.commit(first, np.append(common, transcript(9, seed=1)))
    second = cache.begin(branch_id="b", tenant="t", tokens=np.append(common, transcript(9, seed=2)))
    assert second.num_cached_tokens == 8
    assert second.block_table.tolist() == first.block_table[:2].tolist()


def test_a_tenant_never_sees_the_blocks_of_another() -> None:
    cache = make_cache()
    tokens = transcript(17)
    run_turn(cache, tokens, "a", tenant="one")
    assert cache.match_length(branch_id="b", tenant="two", tokens=tokens) == 0
    assert cache.match_length(branch_id="b", tenant="one", tokens=tokens) == 16


def test_equal_blocks_of_two_running_turns_become_one() -> None:
    cache = make_cache()
    tokens = transcript(12)
    sequences = [cache.begin(branch_id=s, tenant="t", tokens=tokens) for s in "ab"]
    for sequence in sequences:
        cache.allocate(sequence, 3)
    for sequence in sequences:
        cache.commit(sequence, tokens)
    assert sequences[0].block_table.tolist() == sequences[1].block_table.tolist()
    assert cache.stats().free == 32 - 3


def test_a_rewound_session_drops_what_follows_and_keeps_what_precedes() -> None:
    cache = make_cache()
    old, new = transcript(24), transcript(24, seed=1)
    run_turn(cache, old)
    new[:10] = old[:10]
    second = run_turn(cache, new, base="s", base_offset=10)
    assert second.num_cached_tokens == 8
    third = run_turn(cache, np.append(new, new), base="s", base_offset=24)
    assert third.num_cached_tokens == 24


def test_a_fork_starts_inside_its_base_without_comparing_it() -> None:
    cache = make_cache()
    tokens = transcript(24)
    run_turn(cache, tokens, "base")
    fork = np.append(tokens[:14], transcript(9, seed=3))
    sequence = run_turn(cache, fork, "fork", base="base", base_offset=14)
    assert sequence.num_cached_tokens == 12
    again = run_turn(cache, np.append(tokens, tokens), "base", base="base", base_offset=24)
    assert again.num_cached_tokens == 24


def test_a_base_that_lost_its_tail_is_matched_as_far_as_it_reaches() -> None:
    cache = make_cache(8)
    tokens = transcript(24)
    run_turn(cache, tokens, "base")
    run_turn(cache, transcript(16, seed=1), "other")
    sequence = cache.begin(
        branch_id="base",
        tenant="t",
        tokens=np.append(tokens, tokens),
        base_branch_id="base",
        base_offset=24,
    )
    assert sequence.num_cached_tokens == 16
    assert not sequence.warm


def test_a_running_turn_is_never_evicted() -> None:
    cache = make_cache(8)
    tokens = transcript(16)
    running = cache.begin(branch_id="a", tenant="t", tokens=tokens)
    cache.allocate(running, 4)
    cache.commit(running, tokens)
    other = cache.begin(branch_id="b", tenant="t", tokens=transcript(40, seed=1))
    assert cache.available_blocks(other) == 4
    with pytest.raises(OutOfBlocks):
        cache.allocate(other, 5)


def test_the_unused_end_of_a_locked_edge_can_be_evicted() -> None:
    cache = make_cache(10)
    tokens = transcript(36)
    run_turn(cache, tokens, "long")
    fork = np.append(tokens[:8], transcript(24, seed=1))
    sequence = cache.begin(branch_id="fork", tenant="t", tokens=fork)
    assert sequence.num_cached_tokens == 8
    assert cache.available_blocks(sequence) == 8
    cache.allocate(sequence, 8)
    assert cache.stats().free == 0


def test_the_least_recently_used_tail_goes_first() -> None:
    cache = make_cache(12)
    old, young = transcript(16), transcript(16, seed=1)
    run_turn(cache, old, "old")
    run_turn(cache, young, "young")
    run_turn(cache, transcript(24, seed=2), "new")
    assert cache.match_length(branch_id="x", tenant="t", tokens=np.append(old, old)) == 8
    assert cache.match_length(branch_id="x", tenant="t", tokens=np.append(young, old)) == 16


def test_a_session_has_one_open_turn() -> None:
    cache = make_cache()
    cache.begin(branch_id="s", tenant="t", tokens=transcript(8))
    with pytest.raises(ValueError, match="open turn"):
        cache.begin(branch_id="s", tenant="t", tokens=transcript(8))


@pytest.mark.parametrize(("num_tokens", "num_blocks"), [(0, 0), (1, 1), (4, 1), (5, 2), (8, 2)])
def test_a_part_of_a_block_takes_a_whole_one(num_tokens: int, num_blocks: int) -> None:
    assert make_cache().blocks_for(num_tokens) == num_blocks
