"""What a running turn has, may do, and leaves when it ends."""

import pytest

from radix_cache.block_pool import OutOfBlocks
from tests.support.cache_turns import run_turn, transcript
from tests.support.caches import make_cache


def test_a_partial_block_is_freed_when_the_turn_ends() -> None:
    cache = make_cache()
    sequence = cache.begin(branch_id="s", tenant="t", tokens=transcript(10))
    cache.allocate(sequence, 3)
    cache.commit(sequence, transcript(10))
    assert cache.stats().private == 1
    cache.finish(sequence, lease_s=0.0)
    assert cache.stats().free == 30
    assert cache.stats().evictable == 2


def test_trim_returns_private_blocks_and_never_shared_ones() -> None:
    cache = make_cache()
    tokens = transcript(8)
    sequence = cache.begin(branch_id="s", tenant="t", tokens=tokens)
    cache.allocate(sequence, 5)
    cache.commit(sequence, tokens)
    cache.trim(sequence, 13)
    assert sequence.num_blocks == 4
    cache.trim(sequence, 0)
    assert sequence.num_blocks == 2


def test_allocating_too_much_changes_nothing() -> None:
    cache = make_cache(8)
    run_turn(cache, transcript(12), "idle")
    sequence = cache.begin(branch_id="s", tenant="t", tokens=transcript(99, seed=1))
    assert cache.available_blocks(sequence) == 8
    before = cache.stats()
    with pytest.raises(OutOfBlocks, match="asked for 9 blocks, 8 are available"):
        cache.allocate(sequence, 9)
    assert cache.stats() == before
    cache.allocate(sequence, 8)


def test_committing_beyond_the_table_changes_nothing() -> None:
    cache = make_cache()
    sequence = cache.begin(branch_id="s", tenant="t", tokens=transcript(8))
    cache.allocate(sequence, 1)
    with pytest.raises(ValueError, match="8 tokens, 1 blocks of 4"):
        cache.commit(sequence, transcript(8))
    assert sequence.num_shared_blocks == 0


def test_the_reserve_serves_running_turns_only() -> None:
    cache = make_cache(8, reserve_blocks=2)
    assert cache.usable_blocks == 6
    assert cache.available_blocks() == 6
    sequence = cache.begin(branch_id="s", tenant="t", tokens=transcript(8))
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
