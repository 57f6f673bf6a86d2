"""Who may evict whom: leases, queued branches, published prefixes, budgets."""

from typing import Any

import pytest

from radix_cache.block_pool import OutOfBlocks
from radix_cache.cache import PrefixCache
from tests.support.cache_turns import open_turn, run_turn, transcript
from tests.support.caches import make_cache
from tests.support.clock import FakeClock

BLOCK = 4
LONG = 1e6


def leasing_cache(num_blocks: int, **knobs: Any) -> PrefixCache:
    """Leases are as long as the transcript has tokens."""
    return make_cache(num_blocks, kappa=10.0, restore_cost=lambda tokens: tokens / 10, **knobs)


def resident(cache: PrefixCache, seed: int, length: int) -> int:
    """Blocks that are still there of ``transcript(length, seed=seed)``."""
    probe = transcript(length + 1, seed=seed)
    return cache.match_length(branch_id="probe", tenant="t", tokens=probe) // BLOCK


def keep_busy(cache: PrefixCache) -> None:
    """A turn that runs in one block, so that no other is alone."""
    open_turn(cache, transcript(BLOCK, seed=99), "busy")


def test_a_cold_turn_takes_idle_blocks_and_never_leased_ones() -> None:
    cache = leasing_cache(12)
    keep_busy(cache)
    run_turn(cache, transcript(16, seed=1), "leased", lease_s=50.0)
    run_turn(cache, transcript(16, seed=2), "idle")
    cold = cache.begin(branch_id="cold", tenant="t", tokens=transcript(40, seed=3))
    assert cache.available_blocks(cold) == 7
    with pytest.raises(OutOfBlocks, match="asked for 8 blocks, 7 are available"):
        cache.allocate(cold, 8)
    cache.allocate(cold, 7)
    assert (resident(cache, 1, 16), resident(cache, 2, 16)) == (4, 0)


def grow_warm(cache: PrefixCache, seed: int, num_blocks: int) -> None:
    """The session ``warm``, of ``seed`` and 16 tokens, comes back and takes blocks."""
    warm = cache.begin(
        branch_id="warm",
        tenant="t",
        tokens=transcript(30, seed=seed),
        base_branch_id="warm",
        base_offset=16,
    )
    assert warm.warm
    cache.allocate(warm, num_blocks)


def test_a_warm_turn_breaks_the_lease_of_whom_it_expects_last() -> None:
    cache = leasing_cache(17)
    keep_busy(cache)
    for seed, lease_s in ((1, 20.0), (2, 80.0), (3, 40.0)):
        run_turn(cache, transcript(16, seed=seed), f"s{seed}", lease_s=lease_s)
    run_turn(cache, transcript(16, seed=4), "warm", lease_s=10.0)
    grow_warm(cache, 4, 4)
    assert [resident(cache, seed, 16) for seed in (1, 2, 3)] == [4, 0, 4]
    assert cache.stats().leases["broken"] == 1


@pytest.mark.parametrize(
    ("left_at", "taken"),
    [((0.0, 3.0, 6.0), 1), ((3.0, 0.0, 6.0), 2)],
    ids=["the first left first", "the second left first"],
)
def test_without_a_hint_who_has_been_away_longest_is_expected_last(
    left_at: tuple[float, ...], taken: int
) -> None:
    clock = FakeClock(0.0)
    cache = leasing_cache(17, clock=clock)
    keep_busy(cache)
    for left_s, seed in sorted(zip(left_at, (1, 2, 3), strict=True)):
        clock.now_s = left_s
        run_turn(cache, transcript(16, seed=seed), f"s{seed}", lease_s=None)
    run_turn(cache, transcript(16, seed=4), "warm", lease_s=None)
    grow_warm(cache, 4, 4)
    assert [resident(cache, seed, 16) for seed in (1, 2, 3)] == [
        0 if seed == taken else 4 for seed in (1, 2, 3)
    ]


def test_a_hinted_pause_goes_before_others_only_if_it_has_longer_to_go() -> None:
    for hint_s, expected in ((3.0, (4, 0)), (9.0, (0, 4))):
        clock = FakeClock(0.0)
        cache = leasing_cache(13, clock=clock)
        keep_busy(cache)
        run_turn(cache, transcript(16, seed=2), "guessed", lease_s=None)
        clock.now_s = 5.0
        run_turn(cache, transcript(16, seed=1), "hinted", lease_s=hint_s)
        run_turn(cache, transcript(16, seed=4), "warm", lease_s=None)
        grow_warm(cache, 4, 4)
        assert (resident(cache, 1, 16), resident(cache, 2, 16)) == expected


def test_what_a_warm_turn_leaves_of_a_lease_stays_leased_until_its_end() -> None:
    clock = FakeClock(0.0)
    cache = leasing_cache(9, clock=clock)
    keep_busy(cache)
    run_turn(cache, transcript(16, seed=1), "away", lease_s=50.0)
    run_turn(cache, transcript(16, seed=4), "warm", lease_s=10.0)
    grow_warm(cache, 4, 1)
    assert resident(cache, 1, 16) == 3
    stats = cache.stats()
    assert (stats.leased, stats.idle, stats.leases["broken"]) == (3, 0, 0)
    assert cache.available_blocks() == 0, "a cold turn has no claim on the rest"
    clock.now_s = 50.0
    assert cache.available_blocks() == 3
    assert cache.stats().leases["expired"] == 1


def test_nobody_takes_a_queued_session_while_something_runs() -> None:
    cache = leasing_cache(9)
    keep_busy(cache)
    run_turn(cache, transcript(16, seed=1), "queued")
    cache.set_queued("queued", True)
    run_turn(cache, transcript(12, seed=2), "warm")
    warm = cache.begin(
        branch_id="warm",
        tenant="t",
        tokens=transcript(30, seed=2),
        base_branch_id="warm",
        base_offset=12,
    )
    assert warm.warm
    assert cache.available_blocks(warm) == 1
    cache.set_queued("queued", False)
    assert cache.available_blocks(warm) == 5


def test_a_turn_that_is_alone_takes_all_that_does_not_run() -> None:
    cache = leasing_cache(12)
    run_turn(cache, transcript(16, seed=1), "leased", lease_s=50.0)
    run_turn(cache, transcript(16, seed=2), "queued")
    cache.set_queued("queued", True)
    run_turn(cache, transcript(16, seed=3), tenant=None, session="published")
    cold = cache.begin(branch_id="cold", tenant="t", tokens=transcript(48, seed=4))
    cache.allocate(cold, 4)
    assert (resident(cache, 1, 16), resident(cache, 2, 16), resident(cache, 3, 16)) == (0, 4, 4)
    cache.allocate(cold, 4)
    assert (resident(cache, 2, 16), resident(cache, 3, 16)) == (0, 4)
    cache.allocate(cold, 4)
    assert resident(cache, 3, 16) == 0


def test_a_lone_turn_waits_for_a_lease_that_ends_soon() -> None:
    clock = FakeClock(0.0)
    cache = leasing_cache(8, clock=clock, rescue_share=1.0)
    run_turn(cache, transcript(16, seed=1), "leased", lease_s=8.0)
    cold = cache.begin(branch_id="cold", tenant="t", tokens=transcript(48, seed=4))
    assert cache.available_blocks(cold) == 8
    clock.now_s = 4.0
    assert cache.available_blocks(cold) == 4
    clock.now_s = 8.0
    assert cache.available_blocks(cold) == 8


@pytest.mark.parametrize("alone", [False, True])
def test_a_running_turn_that_must_grow_takes_leased_blocks_at_once(alone: bool) -> None:
    cache = leasing_cache(14, rescue_share=1.0)
    if not alone:
        keep_busy(cache)
    run_turn(cache, transcript(16, seed=1), "leased", lease_s=3.0)
    cold = cache.begin(branch_id="cold", tenant="t", tokens=transcript(24, seed=3))
    cache.allocate(cold, 6)
    free = cache.stats().free
    cache.allocate(cold, free + 1)
    assert resident(cache, 1, 16) == cache.stats().leased == 3


def test_a_lone_turn_waits_no_longer_than_its_own_prompt_takes() -> None:
    cache = leasing_cache(12, rescue_share=1.0)
    run_turn(cache, transcript(16, seed=1), "leased", lease_s=3.0)
    cheap = cache.begin(branch_id="cheap", tenant="t", tokens=transcript(28, seed=2))
    assert cache.available_blocks(cheap) == 12
    cache.finish(cheap)
    dear = cache.begin(branch_id="dear", tenant="t", tokens=transcript(32, seed=3))
    assert cache.available_blocks(dear) == 8


def test_a_lease_ends_by_the_clock() -> None:
    clock = FakeClock(0.0)
    cache = leasing_cache(8, clock=clock)
    keep_busy(cache)
    run_turn(cache, transcript(16, seed=1), "s", lease_s=None)
    assert cache.stats().leased == 4
    clock.now_s = 15.9
    assert cache.available_blocks() == 3
    clock.now_s = 16.0
    assert cache.available_blocks() == 7
    assert cache.stats().leases["expired"] == 1


def test_a_session_that_comes_back_in_time_is_counted() -> None:
    cache = leasing_cache(8)
    run_turn(cache, transcript(8), "s", lease_s=5.0)
    run_turn(cache, transcript(12), "s", base="s", base_offset=8, lease_s=5.0)
    cache.release_branch("s")
    outcomes = {name: count for name, count in cache.stats().leases.items() if count}
    assert outcomes == {"granted": 2, "returned": 1, "released": 1}


def test_a_turn_that_never_ran_leaves_lease_and_queue_as_they_were() -> None:
    clock = FakeClock(0.0)
    cache = leasing_cache(8, clock=clock)
    keep_busy(cache)
    run_turn(cache, transcript(8), "s", lease_s=5.0)
    cache.set_queued("s", True)
    for _ in range(3):
        cache.finish(
            cache.begin(
                branch_id="s",
                tenant="t",
                tokens=transcript(12),
                base_branch_id="s",
                base_offset=8,
            )
        )
    assert cache.stats().queued == 2
    cache.set_queued("s", False)
    assert cache.stats().leased == 2
    clock.now_s = 5.0
    assert cache.available_blocks() == 7
    assert cache.stats().leases["granted"] == 1


def test_what_a_tenant_has_leased_above_its_share_is_anyones() -> None:
    cache = leasing_cache(21)
    keep_busy(cache)
    for seed in (1, 2, 3, 4):
        run_turn(cache, transcript(16, seed=seed), f"s{seed}", lease_s=30.0 + seed)
    newcomer = cache.begin(branch_id="n", tenant="u", tokens=transcript(60, seed=9))
    # 21 blocks, two tenants: a share of 10. The first has 17 of them, 16 leased.
    assert cache.available_blocks(newcomer) == 4 + 7
    cache.allocate(newcomer, 8)
    assert [resident(cache, seed, 16) for seed in (1, 2, 3, 4)] == [4, 4, 4, 0]
    assert cache.stats().leases["broken"] == 1


def test_a_tenant_alone_keeps_its_leases_from_its_own_cold_turns() -> None:
    cache = leasing_cache(21)
    keep_busy(cache)
    for seed in (1, 2, 3, 4):
        run_turn(cache, transcript(16, seed=seed), f"s{seed}", lease_s=30.0)
    assert cache.available_blocks() == 4


def test_lru_knows_neither_leases_nor_queues() -> None:
    cache = leasing_cache(16, policy="lru")
    keep_busy(cache)
    run_turn(cache, transcript(16, seed=1), "leased", lease_s=50.0)
    run_turn(cache, transcript(16, seed=2), "queued")
    cache.set_queued("queued", True)
    assert cache.available_blocks() == 15
    assert cache.stats().leases["granted"] == 0


def test_a_published_prefix_stays_until_it_is_released() -> None:
    cache = leasing_cache(12)
    keep_busy(cache)
    run_turn(cache, transcript(16, seed=1), "prefix", tenant=None)
    assert cache.available_blocks() == 7
    shared = run_turn(cache, transcript(18, seed=1), "s", tenant="anyone")
    assert shared.num_cached_tokens == 16
    cache.release_branch("prefix")
    assert cache.available_blocks() == 11


def test_a_sequence_with_little_of_its_transcript_left_is_cold() -> None:
    cache = leasing_cache(16)
    run_turn(cache, transcript(40, seed=1), "s")
    run_turn(cache, transcript(40, seed=2), "other")
    for base_offset, warm in ((40, False), (36, False), (28, True), (0, False)):
        sequence = cache.begin(
            branch_id="fork",
            tenant="t",
            tokens=transcript(48, seed=1),
            base_branch_id="s",
            base_offset=base_offset,
        )
        assert sequence.num_cached_tokens == 24
        assert sequence.warm == warm, base_offset
        cache.finish(sequence)


def test_of_queued_sessions_on_one_path_the_longer_one_goes_first() -> None:
    """The shorter one's blocks bear the longer one's: breaking it first would free nothing."""
    cache = leasing_cache(8)
    run_turn(cache, transcript(16, seed=1), "short")
    run_turn(cache, transcript(24, seed=1), "long")
    for name in ("short", "long"):
        cache.set_queued(name, True)
    lone = cache.begin(branch_id="lone", tenant="t", tokens=transcript(40, seed=3))
    cache.allocate(lone, cache.stats().free + 1)
    assert cache.stats().queued == 4
    assert resident(cache, 1, 24) == 5


def test_unknown_sessions_may_be_queued_and_released() -> None:
    cache = leasing_cache(4)
    cache.set_queued("nobody", True)
    cache.release_branch("nobody")
    assert cache.stats().branches == 0
