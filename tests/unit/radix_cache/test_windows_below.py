"""Rows of layers with a window on their way below the device and back: whose go along, what can be
begun again, and who counts as running meanwhile.

Blocks of 4 tokens, a window of 8: two blocks before a block are read by it, two more are kept.
"""

import numpy as np
import pytest

from radix_cache.block_pool import OutOfBlocks
from radix_cache.cache import PrefixCache
from radix_cache.handle import CachedSequence
from radix_cache.nodes import Tier
from radix_cache.transfers import BlockMove, StoredRun
from radix_cache.window_rows import WindowRows, claim_of
from tests.support.cache_turns import transcript
from tests.support.caches import make_cache
from tests.support.clock import FakeClock

CLAIM = claim_of(8, 4)
STEP = 8
KEPT = 4
DEVICE, HOST, DISK = Tier.DEVICE, Tier.HOST, Tier.DISK


class Orders:
    """A mover that notes orders, and with each whose rows of windows go along."""

    def __init__(self) -> None:
        self.given: list[BlockMove] = []
        self.stored: dict[int, StoredRun] = {}

    def move(self, move: BlockMove) -> None:
        self.given.append(move)

    def near(self, source: Tier, target: Tier) -> list[int]:
        """How many blocks' rows went with each order from here to there."""
        orders = [each for each in self.given if (each.source, each.target) == (source, target)]
        found = [(each.source_near, each.target_near) for each in orders]
        assert all(
            here is not None and there is not None and ((here >= 0) == (there >= 0)).all()
            for here, there in found
        )
        return [int((here >= 0).sum()) for here, _ in found if here is not None]

    def complete(self, cache: PrefixCache) -> None:
        """All orders from and to the disk end well."""
        for order in self.given:
            if DISK in (order.source, order.target):
                cache.moved(order.number, ok=True)
        self.given = [each for each in self.given if DISK not in (each.source, each.target)]


def tiered(orders: Orders, room: int = CLAIM + 14, **knobs: object) -> PrefixCache:
    return make_cache(
        mover=orders,
        window_blocks=room,
        window_tokens=8,
        step_tokens=STEP,
        **{"num_blocks": 60, "host_blocks": 60, "host_window_blocks": 24} | knobs,
    )


def rows_of(cache: PrefixCache) -> WindowRows:
    assert cache.windows is not None
    return cache.windows


def begin(
    cache: PrefixCache, name: str, tokens: list[int], *, base: str | None = None
) -> CachedSequence:
    prompt = np.array(tokens, dtype=np.int32)
    sequence = cache.begin(branch_id=name, tenant="t", tokens=prompt, base_branch_id=base)
    cache.restore(sequence)
    return sequence


def compute(cache: PrefixCache, sequence: CachedSequence, tokens: list[int]) -> None:
    """All that is not cached, in steps."""
    cache.allocate(sequence, cache.blocks_for(len(tokens)) - sequence.num_blocks)
    prompt = np.array(tokens, dtype=np.int32)
    for start in range(sequence.num_cached_tokens, len(tokens), STEP):
        end = min(start + STEP, len(tokens))
        rows_of(cache).reach(sequence, end)
        assert (rows_of(cache).window_of(sequence, start, end)[1] >= 0).all()
        cache.commit(sequence, prompt[:end])


def turn(
    cache: PrefixCache,
    name: str,
    tokens: list[int],
    *,
    base: str | None = None,
    lease_s: float | None = 0.0,
) -> int:
    """A turn on tokens; how many of them were cached, or came back."""
    sequence = begin(cache, name, tokens, base=base)
    compute(cache, sequence, tokens)
    cache.finish(sequence, lease_s=lease_s)
    return sequence.num_cached_tokens


def words(seed: int, count: int = 40) -> list[int]:
    return transcript(count, seed=seed).tolist()


def test_a_session_that_goes_down_as_a_whole_is_gone_on_from_later() -> None:
    orders = Orders()
    cache = tiered(orders, num_blocks=16)
    turn(cache, "a", words(1))
    turn(cache, "b", words(2, 60))
    assert orders.near(DEVICE, HOST) == [10], "all that are still there"
    again = begin(cache, "a", [*words(1), 1], base="a")
    assert (again.num_cached_tokens, again.num_blocks) == (40, 10)
    assert again.miss_causes == {"first_sight": 1}
    assert orders.near(HOST, DEVICE) == [KEPT], "the last blocks alone have rows"
    compute(cache, again, [*words(1), 1])
    cache.finish(again, lease_s=0.0)


def test_a_place_whose_rows_lie_here_and_below_can_be_begun_at() -> None:
    """The last block goes down: of the two that a sequence reads one is below."""
    orders = Orders()
    cache = tiered(orders)
    turn(cache, "a", words(1))
    assert turn(cache, "fork", [*words(1)[:36], *range(1, 6)], base="a") == 36
    cache.drop_branch("a")
    assert orders.near(DEVICE, HOST) == [1]
    assert turn(cache, "b", [*words(1), 1]) == 40
    assert orders.near(HOST, DEVICE) == [1]


def test_a_path_that_lacks_rows_below_is_computed_from_where_it_has_them() -> None:
    orders = Orders()
    cache = tiered(orders, num_blocks=16, host_window_blocks=1)
    turn(cache, "a", words(1))
    turn(cache, "b", words(2, 60))
    assert orders.near(DEVICE, HOST) == [1], "there is room for the last of them"
    again = begin(cache, "a", [*words(1), 1], base="a")
    assert again.num_cached_tokens == 0
    assert again.miss_causes == {"state_missing": 40, "first_sight": 1}
    cache.finish(again, lease_s=0.0)


def test_who_comes_back_counts_as_running_until_it_gives_up() -> None:
    cache = tiered(Orders(), room=2 * CLAIM + 2, num_blocks=40)
    turn(cache, "a", words(1))
    turn(cache, "b", words(2, 130))
    back = begin(cache, "a", [*words(1), 1], base="a")
    assert back.num_cached_tokens == 40
    one = begin(cache, "c", words(3, 8))
    compute(cache, one, words(3, 8))
    prompt = np.array(words(4, 8), dtype=np.int32)
    third = cache.begin(branch_id="d", tenant="t", tokens=prompt)
    assert cache.available_blocks(third) == 0
    with pytest.raises(OutOfBlocks, match="may be needed by 2 sequences that run"):
        cache.allocate(third, 2)
    assert cache.available_blocks(back) > 0
    cache.finish(back, lease_s=0.0)
    cache.allocate(third, 2)
    for sequence in (one, third):
        cache.finish(sequence, lease_s=0.0)
    assert turn(cache, "a", [*words(1), 1], base="a") == 40, "its place was kept"


def test_a_path_does_not_come_up_for_one_too_many() -> None:
    cache = tiered(Orders(), room=CLAIM + 2, num_blocks=34)
    turn(cache, "a", words(1))
    turn(cache, "b", words(2, 120))
    one = begin(cache, "c", words(3, 8))
    compute(cache, one, words(3, 8))
    before = cache.stats()
    prompt = np.array([*words(1), 1], dtype=np.int32)
    back = cache.begin(branch_id="a", tenant="t", tokens=prompt, base_branch_id="a")
    assert back.num_restorable_tokens == 40
    with pytest.raises(OutOfBlocks, match="may be needed by 1 sequences that run"):
        cache.restore(back)
    assert (back.num_cached_tokens, back.num_restorable_tokens) == (0, 40)
    cache.finish(back, lease_s=0.0)
    assert cache.stats().free_window_blocks == before.free_window_blocks
    cache.finish(one, lease_s=0.0)
    assert turn(cache, "a", [*words(1), 1], base="a") == 40


def test_rows_below_that_have_gone_since_they_were_found_bring_nobody_up() -> None:
    cache = tiered(Orders(), num_blocks=16, host_window_blocks=KEPT)
    turn(cache, "a", words(1))
    turn(cache, "b", words(2, 60))
    prompt = np.array([*words(1), 1], dtype=np.int32)
    back = cache.begin(branch_id="a", tenant="t", tokens=prompt, base_branch_id="a")
    assert back.num_restorable_tokens == 40
    turn(cache, "c", words(3))
    with pytest.raises(OutOfBlocks, match="evicted since they were found"):
        cache.restore(back)
    cache.finish(back, lease_s=0.0)


@pytest.mark.parametrize("lease_s", [0.0, 60.0])
def test_the_end_of_a_branch_goes_down_where_its_window_would_go(lease_s: float) -> None:
    """There are blocks for all, but window blocks for few; a lease is broken for it."""
    orders = Orders()
    cache = tiered(orders, room=CLAIM + 2, num_blocks=200)
    for seed in range(1, 6):
        turn(cache, f"s{seed}", words(seed), lease_s=lease_s)
    assert set(orders.near(DEVICE, HOST)) == {KEPT}
    assert cache.stats().host_total - cache.stats().host_free <= 5 * KEPT
    for seed in range(1, 6):
        assert turn(cache, f"s{seed}", [*words(seed), 1], base=f"s{seed}") == 40


def test_ends_that_others_hold_or_wait_for_do_not_go_down() -> None:
    orders = Orders()
    cache = tiered(orders, room=CLAIM + 2, num_blocks=200)
    turn(cache, "a", words(1))
    cache.set_queued("a", True)
    turn(cache, "b", words(2), lease_s=60.0)
    turn(cache, "fork", [*words(2), 7], base="b", lease_s=60.0)
    for seed in range(3, 6):
        turn(cache, f"s{seed}", words(seed, 80))
        cache.release_branch(f"s{seed}")
    assert orders.near(DEVICE, HOST) == []


def test_who_is_expected_back_comes_up_at_the_cost_of_those_who_are_not() -> None:
    clock, orders = FakeClock(), Orders()
    cache = tiered(orders, room=CLAIM + 2, num_blocks=100, clock=clock, restore_cost=lambda n: n)
    turn(cache, "a", words(1), lease_s=30.0)
    turn(cache, "b", words(2), lease_s=30.0)
    turn(cache, "c", words(3))
    assert orders.near(DEVICE, HOST) != []
    clock.advance(29.0)
    cache.tend()
    assert orders.near(HOST, DEVICE) == [KEPT, KEPT]
    cache.check()
    tiers = {name: cache.branches.by_id[name].node.tier for name in "abc"}
    assert tiers == {"a": DEVICE, "b": DEVICE, "c": HOST}
    for name, seed in (("a", 1), ("b", 2), ("c", 3)):
        assert turn(cache, name, [*words(seed), 1], base=name) == 40


def test_who_is_expected_back_takes_no_rows_of_those_who_are_too() -> None:
    clock = FakeClock()
    cache = tiered(Orders(), room=CLAIM + 2, num_blocks=100, clock=clock, restore_cost=lambda n: n)
    turn(cache, "a", words(1), lease_s=10.0)
    turn(cache, "b", words(2), lease_s=100.0)
    running = begin(cache, "c", words(3, 16))
    compute(cache, running, words(3, 16))
    before = {name: cache.branches.by_id[name].node.tier for name in "ab"}
    assert before == {"a": HOST, "b": DEVICE}
    clock.advance(9.5)
    cache.tend()
    assert {name: cache.branches.by_id[name].node.tier for name in "ab"} == before
    cache.finish(running, lease_s=0.0)
    clock.advance(0.2)
    cache.tend()
    assert turn(cache, "a", [*words(1), 1], base="a") == 40


def test_of_a_window_that_goes_down_in_part_the_rest_stays() -> None:
    """A window of 81 blocks, of which one eviction moves 64."""
    orders = Orders()
    cache = make_cache(
        300,
        block_size=1,
        mover=orders,
        window_blocks=120,
        window_tokens=80,
        step_tokens=STEP,
        host_blocks=300,
        host_window_blocks=200,
    )
    turn(cache, "a", words(1, 200))
    turn(cache, "b", words(2, 150))
    assert orders.near(DEVICE, HOST) == [64]
    assert turn(cache, "a", [*words(1, 200), 1], base="a") == 200
    assert orders.near(HOST, DEVICE) == [64]


def test_a_restart_knows_whose_rows_are_on_the_disk() -> None:
    orders = Orders()
    sizes = {"num_blocks": 40, "disk_blocks": 100}
    cache = tiered(orders, **sizes)
    turn(cache, "a", words(1))
    cache.copy_down()
    (order,) = [each for each in orders.given if each.target == DISK]
    assert orders.near(DEVICE, DISK) == [10]
    near = np.array([False] * 6 + [True] * 4)
    run = StoredRun(content=order.content, blocks=order.target_blocks, near=near)  # type: ignore[arg-type]
    bare = StoredRun(
        content=run.content, blocks=order.target_blocks + 50, near=np.zeros(10, dtype=np.bool_)
    )
    again = Orders()
    cache = tiered(again, **sizes)
    assert cache.load([bare, run])[0] == 10, "of two the one with rows"
    prompt = {"branch_id": "x", "tenant": "t", "tokens": np.array([*words(1), 1], dtype=np.int32)}
    assert cache.prefetch(**prompt) == 10
    assert again.near(DISK, HOST) == [KEPT]
    again.complete(cache)
    assert turn(cache, "x", [*words(1), 1]) == 40


def test_only_what_can_be_begun_behind_is_read_from_the_disk() -> None:
    orders = Orders()
    cache = tiered(orders, num_blocks=40, disk_blocks=100)
    turn(cache, "a", words(1))
    cache.copy_down()
    (order,) = [each for each in orders.given if each.target == DISK]
    near = np.array([False] * 4 + [True] * 2 + [False] * 4)
    run = StoredRun(content=order.content, blocks=order.target_blocks, near=near)  # type: ignore[arg-type]
    again = Orders()
    cache = tiered(again, num_blocks=40, disk_blocks=100)
    cache.load([run])
    prompt = {"branch_id": "x", "tenant": "t", "tokens": np.array([*words(1), 1], dtype=np.int32)}
    assert cache.prefetch(**prompt) == 6
    again.complete(cache)
    assert turn(cache, "x", [*words(1), 1]) == 24


def test_a_copy_on_disk_that_lacks_rows_is_made_again_when_they_are_there() -> None:
    orders = Orders()
    cache = tiered(orders, num_blocks=200, disk_blocks=300, host_blocks=2, host_window_blocks=2)
    turn(cache, "a", words(1))
    rows_of(cache).freed(np.arange(200, dtype=np.int32))
    cache.copy_down()
    assert orders.near(DEVICE, DISK) == [0]
    orders.complete(cache)
    cache.copy_down()
    assert orders.near(DEVICE, DISK) == [], "there is such a copy"
    assert turn(cache, "a", [*words(1), 1], base="a") == 0
    cache.copy_down()
    assert orders.near(DEVICE, DISK) == [10]
    orders.complete(cache)
    cache.copy_down()
    assert orders.near(DEVICE, DISK) == []
    cache.check()
