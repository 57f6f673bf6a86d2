"""A match by handle agrees with a match by comparison, and looks at no more than it must."""

import random

import numpy as np
import pytest

from tests.support.cache_turns import run_turn, transcript
from tests.support.caches import make_cache


@pytest.mark.parametrize("seed", range(12))
def test_what_a_base_vouches_for_is_what_comparing_finds(seed: int) -> None:
    rng = random.Random(seed)
    cache = make_cache(60)
    tokens = transcript(100, seed=seed)
    run_turn(cache, tokens, "base")
    for number in range(3):  # branches split the base's edge
        at = rng.randrange(100)
        branch = np.append(tokens[:at], transcript(20, seed=100 + number))
        run_turn(cache, branch, f"branch{number}")
    for _ in range(20):
        at = rng.randrange(101)
        prompt = np.append(tokens[:at], transcript(rng.randrange(1, 30), seed=7))
        arguments = {"branch_id": "x", "tenant": "t", "tokens": prompt}
        compared = cache.match_length(**arguments)
        vouched = cache.match_length(**arguments, base_branch_id="base", base_offset=at)
        assert vouched == compared
        assert vouched <= len(prompt) - 1


def test_a_base_of_another_tenant_vouches_for_nothing() -> None:
    cache = make_cache(16)
    run_turn(cache, transcript(16), "base", tenant="red")
    found = cache.match_length(
        branch_id="x",
        tenant="blue",
        tokens=transcript(20),
        base_branch_id="base",
        base_offset=16,
    )
    assert found == 0


def test_an_unknown_base_is_no_obstacle() -> None:
    cache = make_cache(16)
    run_turn(cache, transcript(16), "s")
    found = cache.match_length(
        branch_id="x", tenant="t", tokens=transcript(20), base_branch_id="gone", base_offset=9
    )
    assert found == 16


def test_a_continuation_finds_what_others_have_added_behind_it() -> None:
    cache = make_cache(32)
    tokens = transcript(60)
    run_turn(cache, tokens[:20], "slow")
    run_turn(cache, tokens, "fast", base="slow", base_offset=20)
    again = run_turn(cache, tokens, "slow", base="slow", base_offset=20)
    assert again.num_cached_tokens == 56


def test_the_table_of_a_fork_is_that_of_its_base() -> None:
    cache = make_cache(32)
    tokens = transcript(40)
    base = run_turn(cache, tokens, "base")
    fork = cache.begin(
        branch_id="fork",
        tenant="t",
        tokens=np.append(tokens[:30], tokens),
        base_branch_id="base",
        base_offset=30,
    )
    assert fork.block_table.tolist() == base.block_table[:7].tolist()
