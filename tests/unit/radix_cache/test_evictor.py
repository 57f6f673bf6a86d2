"""Whose blocks go when a turn needs some, and that all that may go can be had."""

import random

import numpy as np
import pytest

from radix_cache.block_pool import OutOfBlocks
from tests.support.cache_turns import open_turn, run_turn, transcript
from tests.support.caches import make_cache


@pytest.mark.parametrize("seed", range(10))
def test_exactly_what_is_available_can_be_allocated(seed: int) -> None:
    rng = random.Random(seed)
    cache = make_cache(40, reserve_blocks=rng.randrange(4))
    for number in range(6):
        tokens = transcript(rng.randrange(4, 40), seed=number % 3)
        run_turn(cache, tokens, f"s{number}", lease_s=rng.choice([0.0, 9.0]))
    open_turn(cache, transcript(12, seed=1), "busy")
    prompt = np.append(transcript(rng.randrange(20), seed=2), transcript(90, seed=9))
    sequence = cache.begin(branch_id="new", tenant="t", tokens=prompt)
    available = cache.available_blocks(sequence)
    with pytest.raises(OutOfBlocks):
        cache.allocate(sequence, available + 1)
    cache.allocate(sequence, available)
    with pytest.raises(OutOfBlocks):
        cache.allocate(sequence, cache.available_blocks(sequence) + 1)


def test_a_prefix_stays_while_anything_below_it_does() -> None:
    cache = make_cache(12)
    common = transcript(16)
    for seed in (1, 2):
        run_turn(cache, np.append(common, transcript(12, seed=seed)), f"s{seed}")
    run_turn(cache, transcript(20, seed=3), "other")
    matched = [
        cache.match_length(
            branch_id="x", tenant="t", tokens=np.append(common, transcript(13, seed=seed))
        )
        for seed in (1, 2)
    ]
    assert matched == [16, 28], "the older branch goes first, and no further than the prefix"


def test_a_lone_turn_gets_every_block_but_the_reserve() -> None:
    cache = make_cache(10, reserve_blocks=3)
    for seed in range(4):
        run_turn(cache, transcript(12, seed=seed), f"s{seed}", lease_s=60.0)
    sequence = cache.begin(branch_id="new", tenant="t", tokens=transcript(50, seed=9))
    assert cache.available_blocks(sequence) == cache.usable_blocks == 7
    cache.allocate(sequence, 7)
    cache.allocate(sequence, 3)
    assert cache.stats().private == 10
