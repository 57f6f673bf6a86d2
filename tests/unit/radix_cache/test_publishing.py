"""What commit does to a table when other turns were there first."""

import numpy as np

from radix_cache.cache import PrefixCache
from radix_cache.handle import CachedSequence
from tests.support.cache_turns import open_turn, run_turn, transcript
from tests.support.caches import make_cache

BLOCK = 4


def begin(cache: PrefixCache, tokens: np.ndarray, session: str) -> CachedSequence:
    sequence = cache.begin(branch_id=session, tenant="t", tokens=tokens)
    cache.allocate(sequence, cache.blocks_for(len(tokens)) - sequence.num_blocks)
    return sequence


def test_turns_that_diverge_share_what_is_equal() -> None:
    cache = make_cache(64)
    left, right = transcript(24, seed=1), transcript(24, seed=2)
    right[:12] = left[:12]
    a, b = begin(cache, left, "a"), begin(cache, right, "b")
    cache.commit(a, left)
    cache.commit(b, right)
    assert b.block_table[:3].tolist() == a.block_table[:3].tolist()
    assert not set(b.block_table[3:].tolist()) & set(a.block_table[3:].tolist())
    assert cache.stats().free == 64 - 9


def test_a_shorter_turn_ends_inside_the_edge_of_a_longer_one() -> None:
    cache = make_cache(64)
    tokens = transcript(40)
    short, long = begin(cache, tokens[:16], "short"), begin(cache, tokens, "long")
    cache.commit(long, tokens)
    cache.commit(short, tokens[:16])
    assert short.block_table.tolist() == long.block_table[:4].tolist()
    cache.finish(long, lease_s=0.0)
    assert cache.available_blocks(short) == 64 - 4


def test_decoding_the_same_text_twice_keeps_one_copy() -> None:
    cache = make_cache(64)
    tokens = transcript(48)
    run_turn(cache, tokens, "first")
    second = begin(cache, tokens[:9], "second")
    for end in range(9, 49):
        if end > second.num_blocks * BLOCK:
            cache.allocate(second, 1)
        cache.commit(second, tokens[:end])
    assert cache.stats().free == 64 - 12
    assert second.num_shared_blocks == 12


def test_committing_again_or_less_changes_nothing() -> None:
    cache = make_cache(64)
    tokens = transcript(20)
    sequence = open_turn(cache, tokens, "s")
    before = cache.stats()
    cache.commit(sequence, tokens)
    cache.commit(sequence, tokens[:8])
    assert cache.stats() == before
    assert sequence.num_shared_blocks == 5


def test_a_tenants_turn_never_lengthens_a_published_edge() -> None:
    cache = make_cache(64)
    tokens = transcript(24)
    run_turn(cache, tokens[:16], "prefix", tenant=None)
    cache.release_branch("prefix")
    run_turn(cache, tokens, "s", tenant="red")
    arguments = {"branch_id": "x", "tokens": np.append(tokens, tokens)}
    assert cache.match_length(**arguments, tenant="red") == 24
    assert cache.match_length(**arguments, tenant="blue") == 16
