"""What a turn holds while it runs, and what its session keeps."""

import numpy as np

from radix_cache.cache import PrefixCache

TOKENS = np.arange(40, dtype=np.int32)


def _cache() -> PrefixCache:
    return PrefixCache(32, 4, clock=lambda: 0.0, debug=True)


def test_the_table_of_a_turn_grows_in_place_and_keeps_its_blocks() -> None:
    cache = _cache()
    turn = cache.begin(session_id="s", tenant="t", tokens=TOKENS)
    assert (turn.num_blocks, turn.num_cached_tokens) == (0, 0)
    cache.allocate(turn, 3)
    first = turn.block_table.tolist()
    cache.allocate(turn, 7)
    assert turn.block_table.tolist()[:3] == first
    assert len(set(turn.block_table.tolist())) == turn.num_blocks == 10
    assert turn.block_table.dtype == np.int32


def test_the_causes_of_a_turn_add_up_to_its_uncached_tokens() -> None:
    cache = _cache()
    first = cache.begin(session_id="s", tenant="t", tokens=TOKENS)
    assert sum(first.miss_causes.values()) == 40
    cache.allocate(first, 10)
    cache.commit(first, TOKENS)
    cache.finish(first)
    longer = np.concatenate((TOKENS, TOKENS[:3]))
    second = cache.begin(
        session_id="s", tenant="t", tokens=longer, base_session_id="s", base_offset=40
    )
    assert second.num_cached_tokens == 40
    assert second.warm
    assert sum(second.miss_causes.values()) == 3
