"""The snapshot of the cache in numbers."""

from dataclasses import fields

import numpy as np
import pytest

from radix_cache.stats import CacheStats
from tests.support.cache_turns import open_turn, run_turn, transcript
from tests.support.caches import make_cache


def test_blocks_by_state_are_where_the_turns_put_them() -> None:
    cache = make_cache(reserve_blocks=3)
    run_turn(cache, transcript(8, seed=1), "idle")
    run_turn(cache, transcript(12, seed=2), "leased", lease_s=9.0)
    run_turn(cache, transcript(16, seed=3), "queued")
    cache.set_queued("queued", True)
    open_turn(cache, transcript(22, seed=4), "running")
    stats = cache.stats()
    assert (stats.idle, stats.leased, stats.queued, stats.running) == (2, 3, 4, 5)
    assert stats.private == 1
    assert (stats.evictable, stats.protected, stats.reserved) == (5, 10, 3)
    assert stats.free == 32 - 5 - 10 - 3
    assert (stats.branches, stats.nodes) == (4, 4)


def test_without_lower_tiers_their_figures_are_zero() -> None:
    stats = make_cache(4).stats()
    assert (stats.host_total, stats.disk_total, stats.failed_blocks) == (0, 0, 0)
    assert stats.moved_blocks == {}


def test_a_snapshot_does_not_change_afterwards() -> None:
    cache = make_cache(16)
    before = cache.stats()
    copy = {field.name: getattr(before, field.name) for field in fields(CacheStats)}
    run_turn(cache, transcript(20))
    assert {field.name: getattr(before, field.name) for field in fields(CacheStats)} == copy
    assert cache.stats() != before


@pytest.mark.parametrize("seed", range(3))
def test_blocks_by_state_add_up_after_every_turn(seed: int) -> None:
    rng = np.random.default_rng(seed)
    cache = make_cache(24, reserve_blocks=2)
    for number in range(60):
        tokens = rng.integers(0, 3, size=int(rng.integers(1, 60)), dtype=np.int32)
        turn = cache.begin(branch_id=f"s{number}", tenant="t", tokens=tokens)
        needed = cache.blocks_for(len(tokens)) - turn.num_blocks
        if needed <= cache.available_blocks(turn):
            cache.allocate(turn, needed)
            cache.commit(turn, tokens)
        during = cache.stats()
        assert during.protected >= turn.num_blocks
        cache.finish(turn, lease_s=0.0)
        after = cache.stats()
        assert after.free + after.evictable + after.protected + after.reserved == after.total
        assert after.protected == 0
    assert cache.stats().total == 24
