"""The prefix cache as the engine uses it: turns of sessions over a small pool."""

import numpy as np
import pytest

from radix_cache.block_pool import OutOfBlocks
from radix_cache.cache import PrefixCache
from radix_cache.edge import TokenArray
from tests.support.cache_turns import run_turn, transcript

BLOCK = 4


def make_cache(num_blocks: int = 32, *, reserve_blocks: int = 0) -> PrefixCache:
    return PrefixCache(
        num_blocks, BLOCK, clock=lambda: 0.0, reserve_blocks=reserve_blocks, debug=True
    )


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
    first = cache.begin(session_id="a", tenant="t", tokens=np.append(common, transcript(9, seed=1)))
    cache.allocate(first, 5)
    cache.commit(first, np.append(common, transcript(9, seed=1)))
    second = cache.begin(
        session_id="b", tenant="t", tokens=np.append(common, transcript(9, seed=2))
    )
    assert second.num_cached_tokens == 8
    assert second.block_table.tolist() == first.block_table[:2].tolist()


def test_a_tenant_never_sees_the_blocks_of_another() -> None:
    cache = make_cache()
    tokens = transcript(17)
    run_turn(cache, tokens, "a", tenant="one")
    assert cache.match_length(session_id="b", tenant="two", tokens=tokens) == 0
    assert cache.match_length(session_id="b", tenant="one", tokens=tokens) == 16


def test_a_session_of_another_tenant_is_refused() -> None:
    cache = make_cache()
    run_turn(cache, transcript(8), "a", tenant="one")
    with pytest.raises(ValueError, match="another tenant"):
        cache.begin(session_id="a", tenant="two", tokens=transcript(8))


def test_equal_blocks_of_two_running_turns_become_one() -> None:
    cache = make_cache()
    tokens = transcript(12)
    sequences = [cache.begin(session_id=s, tenant="t", tokens=tokens) for s in "ab"]
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
        session_id="base",
        tenant="t",
        tokens=np.append(tokens, tokens),
        base_session_id="base",
        base_offset=24,
    )
    assert sequence.num_cached_tokens == 16
    assert not sequence.warm


def test_a_partial_block_is_freed_when_the_turn_ends() -> None:
    cache = make_cache()
    sequence = cache.begin(session_id="s", tenant="t", tokens=transcript(10))
    cache.allocate(sequence, 3)
    cache.commit(sequence, transcript(10))
    assert cache.stats().private == 1
    cache.finish(sequence, lease_s=0.0)
    assert cache.stats().free == 30
    assert cache.stats().evictable == 2


def test_trim_returns_private_blocks_and_never_shared_ones() -> None:
    cache = make_cache()
    tokens = transcript(8)
    sequence = cache.begin(session_id="s", tenant="t", tokens=tokens)
    cache.allocate(sequence, 5)
    cache.commit(sequence, tokens)
    cache.trim(sequence, 13)
    assert sequence.num_blocks == 4
    cache.trim(sequence, 0)
    assert sequence.num_blocks == 2


def test_allocating_too_much_changes_nothing() -> None:
    cache = make_cache(8)
    run_turn(cache, transcript(12), "idle")
    sequence = cache.begin(session_id="s", tenant="t", tokens=transcript(99, seed=1))
    assert cache.available_blocks(sequence) == 8
    before = cache.stats()
    with pytest.raises(OutOfBlocks, match="asked for 9 blocks, 8 are available"):
        cache.allocate(sequence, 9)
    assert cache.stats() == before
    cache.allocate(sequence, 8)


def test_committing_beyond_the_table_changes_nothing() -> None:
    cache = make_cache()
    sequence = cache.begin(session_id="s", tenant="t", tokens=transcript(8))
    cache.allocate(sequence, 1)
    with pytest.raises(ValueError, match="8 tokens, 1 blocks of 4"):
        cache.commit(sequence, transcript(8))
    assert sequence.num_shared_blocks == 0


def test_a_running_turn_is_never_evicted() -> None:
    cache = make_cache(8)
    tokens = transcript(16)
    running = cache.begin(session_id="a", tenant="t", tokens=tokens)
    cache.allocate(running, 4)
    cache.commit(running, tokens)
    other = cache.begin(session_id="b", tenant="t", tokens=transcript(40, seed=1))
    assert cache.available_blocks(other) == 4
    with pytest.raises(OutOfBlocks):
        cache.allocate(other, 5)


def test_the_unused_end_of_a_locked_edge_can_be_evicted() -> None:
    cache = make_cache(10)
    tokens = transcript(36)
    run_turn(cache, tokens, "long")
    fork = np.append(tokens[:8], transcript(24, seed=1))
    sequence = cache.begin(session_id="fork", tenant="t", tokens=fork)
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
    assert cache.match_length(session_id="x", tenant="t", tokens=np.append(old, old)) == 8
    assert cache.match_length(session_id="x", tenant="t", tokens=np.append(young, old)) == 16


def test_the_reserve_serves_running_turns_only() -> None:
    cache = make_cache(8, reserve_blocks=2)
    assert cache.usable_blocks == 6
    assert cache.available_blocks() == 6
    sequence = cache.begin(session_id="s", tenant="t", tokens=transcript(8))
    with pytest.raises(OutOfBlocks):
        cache.allocate(sequence, 7)
    cache.allocate(sequence, 6)
    assert cache.stats().reserved == 2
    cache.allocate(sequence, 2)
    assert cache.stats().reserved == 0


def test_a_finished_sequence_refuses_further_calls() -> None:
    cache = make_cache()
    sequence = run_turn(cache, transcript(8))
    with pytest.raises(ValueError, match="finished"):
        cache.allocate(sequence, 1)
    with pytest.raises(ValueError, match="finished"):
        cache.finish(sequence)


def test_a_session_has_one_open_turn() -> None:
    cache = make_cache()
    cache.begin(session_id="s", tenant="t", tokens=transcript(8))
    with pytest.raises(ValueError, match="open turn"):
        cache.begin(session_id="s", tenant="t", tokens=transcript(8))


def test_a_session_released_in_mid_turn_leaves_nothing_when_it_ends() -> None:
    cache = make_cache()
    tokens = transcript(8)
    sequence = cache.begin(session_id="s", tenant="t", tokens=tokens)
    cache.allocate(sequence, 2)
    cache.release_session("s")
    cache.commit(sequence, tokens)
    cache.finish(sequence)
    assert cache.stats().sessions == 0
    assert cache.stats().evictable == 2


@pytest.mark.parametrize(
    "tokens",
    [
        np.zeros(0, dtype=np.int32),
        np.zeros(4, dtype=np.int64),
        np.zeros((2, 2), dtype=np.int32),
        np.zeros(8, dtype=np.int32)[::2],
    ],
    ids=["empty", "int64", "two-dimensional", "strided"],
)
def test_a_bad_prompt_is_refused_and_opens_nothing(tokens: TokenArray) -> None:
    cache = make_cache()
    with pytest.raises(ValueError):
        cache.begin(session_id="s", tenant="t", tokens=tokens)
    assert cache.stats().sessions == 0


@pytest.mark.parametrize("reserve_blocks", [-1, 8, 9])
def test_a_reserve_that_leaves_no_block_is_refused(reserve_blocks: int) -> None:
    with pytest.raises(ValueError, match="reserve"):
        make_cache(8, reserve_blocks=reserve_blocks)
