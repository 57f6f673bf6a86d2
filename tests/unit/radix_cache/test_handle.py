"""What a turn can read of its claim."""

import numpy as np

from tests.support.cache_turns import open_turn, run_turn, transcript
from tests.support.caches import make_cache


def test_the_table_lists_shared_blocks_before_private_ones() -> None:
    cache = make_cache(16)
    run_turn(cache, transcript(16))
    sequence = open_turn(cache, transcript(22), "s")
    assert sequence.block_table.dtype == np.int32
    assert len(sequence.block_table) == sequence.num_blocks == 6
    assert sequence.num_shared_blocks == 5
    assert len(set(sequence.block_table.tolist())) == 6


def test_the_table_grows_in_place_as_a_view() -> None:
    cache = make_cache(64)
    sequence = open_turn(cache, transcript(4), "s")
    first = sequence.block_table.tolist()
    for _ in range(40):
        cache.allocate(sequence, 1)
    assert sequence.block_table[:1].tolist() == first
    assert len(sequence.block_table) == 41


def test_hits_and_misses_add_up_to_the_prompt() -> None:
    cache = make_cache(16)
    run_turn(cache, transcript(20, seed=1), "a")
    run_turn(cache, transcript(50, seed=2), "b")
    sequence = run_turn(cache, transcript(23, seed=1), "a")
    assert sequence.num_cached_tokens + sum(sequence.miss_causes.values()) == 23
