"""The recount finds what the counters would hide."""

import numpy as np
import pytest

from radix_cache.cache import PrefixCache


def test_a_sound_cache_passes_and_a_turn_that_claims_a_foreign_block_does_not() -> None:
    cache = PrefixCache(16, 4, clock=lambda: 0.0)
    tokens = np.arange(9, dtype=np.int32)
    turn = cache.begin(session_id="s", tenant="t", tokens=tokens)
    cache.allocate(turn, 3)
    cache.commit(turn, tokens)
    cache.check()
    turn.num_blocks -= 1
    with pytest.raises(AssertionError):
        cache.check()
    turn.num_blocks += 1
    cache.check()
