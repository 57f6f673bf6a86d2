"""Which session a call means, and which calls are refused before anything happens."""

import numpy as np
import pytest

from radix_cache.cache import PrefixCache
from radix_cache.edge import TokenArray
from tests.support.cache_turns import run_turn, transcript

BLOCK = 4


def make_cache(num_blocks: int = 32, *, reserve_blocks: int = 0) -> PrefixCache:
    return PrefixCache(
        num_blocks, BLOCK, clock=lambda: 0.0, reserve_blocks=reserve_blocks, debug=True
    )


def test_a_session_of_another_tenant_is_refused() -> None:
    cache = make_cache()
    run_turn(cache, transcript(8), "a", tenant="one")
    with pytest.raises(ValueError, match="another tenant"):
        cache.begin(session_id="a", tenant="two", tokens=transcript(8))


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


def test_a_base_of_another_tenant_is_no_base() -> None:
    cache = make_cache()
    run_turn(cache, transcript(16), "theirs", tenant="one")
    sequence = cache.begin(
        session_id="mine",
        tenant="two",
        tokens=transcript(16),
        base_session_id="theirs",
        base_offset=16,
    )
    assert sequence.num_cached_tokens == 0


def test_names_that_nobody_knows_are_ignored() -> None:
    cache = make_cache()
    cache.release_session("nobody")
    cache.set_queued("nobody", True)
    assert cache.stats().sessions == 0
