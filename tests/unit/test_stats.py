"""The cache in numbers."""

import numpy as np
import pytest

from radix_cache.cache import PrefixCache


@pytest.mark.parametrize("seed", range(3))
def test_blocks_by_state_add_up_after_every_turn(seed: int) -> None:
    rng = np.random.default_rng(seed)
    cache = PrefixCache(24, 4, clock=lambda: 0.0, reserve_blocks=2)
    for number in range(60):
        tokens = rng.integers(0, 3, size=int(rng.integers(1, 60)), dtype=np.int32)
        turn = cache.begin(session_id=f"s{number}", tenant="t", tokens=tokens)
        needed = -(-len(tokens) // 4) - turn.num_blocks
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
