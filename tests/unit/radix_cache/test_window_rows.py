"""Rows of layers with a window: who keeps them, whose go, and where a sequence can begin.

Blocks of 4 tokens, a window of 8: two blocks before a block are read by it, two more are kept.
"""

import numpy as np
import pytest

from radix_cache.block_pool import OutOfBlocks
from radix_cache.cache import PrefixCache
from radix_cache.handle import CachedSequence
from radix_cache.window_rows import WindowRows, blocks_of_window, claim_of
from tests.support.cache_turns import transcript
from tests.support.caches import make_cache

CLAIM = claim_of(8, 4)
STEP = 8
"""Tokens of a step."""


def windowed(room: int = CLAIM + 12, **knobs: object) -> PrefixCache:
    return make_cache(
        200, window_blocks=room, window_tokens=8, step_tokens=STEP, **{"block_size": 4} | knobs
    )


def rows_of(cache: PrefixCache) -> WindowRows:
    assert cache.windows is not None
    return cache.windows


def begin(
    cache: PrefixCache, name: str, tokens: list[int], *, base: str | None = None, tenant: str = "t"
) -> CachedSequence:
    prompt = np.array(tokens, dtype=np.int32)
    sequence = cache.begin(branch_id=name, tenant=tenant, tokens=prompt, base_branch_id=base)
    cache.allocate(sequence, cache.blocks_for(len(tokens)) - sequence.num_blocks)
    return sequence


def compute(cache: PrefixCache, sequence: CachedSequence, tokens: list[int]) -> None:
    """All that is not cached, in steps."""
    prompt = np.array(tokens, dtype=np.int32)
    for start in range(sequence.num_cached_tokens, len(tokens), STEP):
        end = min(start + STEP, len(tokens))
        rows_of(cache).reach(sequence, end)
        _, held = rows_of(cache).window_of(sequence, start, end)
        assert (held >= 0).all()
        cache.commit(sequence, prompt[:end])


def turn(
    cache: PrefixCache,
    name: str,
    tokens: list[int],
    *,
    base: str | None = None,
    tenant: str = "t",
    lease_s: float = 0.0,
) -> int:
    """A turn on tokens; how many of them were cached."""
    sequence = begin(cache, name, tokens, base=base, tenant=tenant)
    compute(cache, sequence, tokens)
    cache.finish(sequence, lease_s=lease_s)
    return sequence.num_cached_tokens


def words(seed: int, count: int = 40) -> list[int]:
    return transcript(count, seed=seed).tolist()


def test_a_window_takes_whole_blocks_and_one_at_least() -> None:
    sizes = [blocks_of_window(window, 4) for window in (1, 4, 5, 6, 9, 10)]
    assert sizes == [1, 1, 1, 2, 2, 3]


def test_too_few_for_a_sequence_and_a_step_are_refused() -> None:
    with pytest.raises(ValueError, match="a sequence and a step of 8 tokens take 9"):
        windowed(CLAIM + 1)


def test_a_turn_keeps_the_window_at_its_end_and_the_next_one_begins_there() -> None:
    cache = windowed()
    assert turn(cache, "a", words(1)) == 0
    assert turn(cache, "a", words(1) + words(2, 9), base="a") == 40
    stats = cache.stats()
    assert stats.window_blocks == CLAIM + 12
    assert stats.free_window_blocks + stats.left_window_blocks < stats.window_blocks


def test_what_nobody_reads_goes_first_then_the_end_used_longest_ago() -> None:
    cache = windowed()
    for name in "abcd":
        turn(cache, name, words(ord(name)))
    assert turn(cache, "a", [*words(ord("a")), 1], base="a") == 40
    for name in "efgh":
        turn(cache, name, words(ord(name)))
    assert rows_of(cache).evicted > 0
    assert turn(cache, "h", [*words(ord("h")), 1], base="h") == 40
    again = begin(cache, "b", [*words(ord("b")), 1], base="b")
    assert again.num_cached_tokens == 0
    assert again.miss_causes["state_missing"] == 40


def test_ends_of_leased_branches_go_last() -> None:
    cache = windowed()
    turn(cache, "leased", words(1), lease_s=60.0)
    for seed in range(2, 9):
        turn(cache, f"s{seed}", words(seed))
    assert turn(cache, "leased", [*words(1), 1], base="leased") == 40


def test_ends_of_the_tenant_that_has_most_go_first() -> None:
    cache = windowed()
    turn(cache, "mine", words(1), tenant="few")
    for seed in range(2, 9):
        turn(cache, f"s{seed}", words(seed), tenant="many")
    assert turn(cache, "mine", [*words(1), 1], base="mine", tenant="few") == 40


def test_the_end_of_a_released_branch_is_nobodys() -> None:
    cache = windowed()
    turn(cache, "a", words(1))
    held = cache.stats()
    cache.release_branch("a")
    after = cache.stats()
    assert after.left_window_blocks > held.left_window_blocks


def test_where_a_fork_has_begun_others_can_begin_later() -> None:
    """The place is kept though the first one's turn went far beyond it."""
    cache = windowed()
    turn(cache, "a", words(1))
    assert turn(cache, "b", words(1) + words(2), base="a") == 40
    assert turn(cache, "a", words(1) + words(3, 80), base="a") == 40
    cache.release_branch("b")
    turn(cache, "other", words(4, 60))
    assert turn(cache, "c", words(1) + words(5), base="a") == 40


def test_where_rows_were_missing_they_are_kept_when_they_are_computed_again() -> None:
    cache = windowed()
    turn(cache, "a", words(1) + words(2, 60))
    for seed in range(3, 10):
        turn(cache, f"s{seed}", words(seed))
    first = begin(cache, "b", words(1) + words(11), base="a")
    assert first.num_cached_tokens == 0
    assert first.rows_points == [10]
    compute(cache, first, words(1) + words(11))
    cache.finish(first, lease_s=0.0)
    turn(cache, "far", words(12, 60))
    assert turn(cache, "c", words(1) + words(13), base="a") == 40


def test_where_others_are_expected_the_window_is_kept_before_they_come() -> None:
    """Behind 30 tokens: its seven whole blocks can be begun at, once."""
    cache = windowed()
    tokens = words(1, 90)
    first = begin(cache, "a", tokens)
    cache.keep_rows(first, [30, 0, 3])
    assert first.rows_points == [7]
    compute(cache, first, tokens)
    cache.finish(first, lease_s=0.0)
    turn(cache, "far", words(2, 60))
    assert turn(cache, "b", tokens[:30] + words(3)) == 28
    again = begin(cache, "c", tokens[:30] + words(4))
    cache.keep_rows(again, [30])
    assert again.rows_points == []
    cache.finish(again, lease_s=0.0)


def test_rows_computed_again_are_given_to_the_blocks_that_lack_them() -> None:
    cache = windowed()
    turn(cache, "a", words(1))
    for seed in range(3, 10):
        turn(cache, f"s{seed}", words(seed))
    before = cache.stats()
    assert turn(cache, "a", [*words(1), 1], base="a") == 0
    after = cache.stats()
    assert after.nodes == before.nodes
    assert after.free + after.evictable == before.free + before.evictable
    assert turn(cache, "b", [*words(1), 2], base="a") == 40


def test_no_more_run_than_would_ever_find_room() -> None:
    cache = windowed(2 * CLAIM + 2)
    one, other = begin(cache, "a", words(1)), begin(cache, "b", words(2))
    assert cache.available_blocks() == 0
    prompt = np.array(words(3), dtype=np.int32)
    third = cache.begin(branch_id="c", tenant="t", tokens=prompt)
    with pytest.raises(OutOfBlocks, match="may be needed by 2 sequences that run"):
        cache.allocate(third, 10)
    cache.finish(third, lease_s=0.0)
    for sequence, seed in ((one, 1), (other, 2)):
        compute(cache, sequence, words(seed))
        cache.finish(sequence, lease_s=0.0)
    assert turn(cache, "c", words(3)) == 0


def test_rows_that_have_gone_since_they_were_found_let_nobody_in() -> None:
    cache = windowed()
    turn(cache, "a", words(1))
    prompt = np.array([*words(1), 1], dtype=np.int32)
    waiting = cache.begin(branch_id="b", tenant="t", tokens=prompt, base_branch_id="a")
    assert waiting.num_cached_tokens == 40
    for seed in range(3, 10):
        turn(cache, f"s{seed}", words(seed))
    with pytest.raises(OutOfBlocks, match="evicted since they were found"):
        cache.allocate(waiting, 1)
    cache.finish(waiting, lease_s=0.0)


def test_a_check_tells_what_does_not_agree() -> None:
    cache = windowed(debug=False)
    turn(cache, "a", words(1))
    rows = rows_of(cache)
    cache.check()
    rows.place[150] = rows.place.max()
    with pytest.raises(AssertionError, match="a window block of two blocks"):
        cache.check()
