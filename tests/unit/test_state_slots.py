"""States in the prefix cache, rule by rule; ``tests/campaigns`` plays them at random."""

from collections.abc import Sequence

import numpy as np
import pytest

from radix_cache.cache import PrefixCache
from radix_cache.edge import TokenArray
from radix_cache.handle import CachedSequence
from radix_cache.resume_points import below, find
from radix_cache.slot_pool import OutOfSlots
from radix_cache.snapshot_order import SnapshotOrder
from radix_cache.snapshots import BeginState, EndState, SaveState, SnapshotKind
from tests.support.caches import make_cache


def ids(tokens: Sequence[int]) -> TokenArray:
    return np.array(tokens, dtype=np.int32)


def stateful(slots: int = 4, *, running: int = 0, blocks: int = 32, **more: object) -> PrefixCache:
    return make_cache(
        blocks,
        block_size=4,
        restore_cost=float,
        state_slots=slots,
        running_slots=running,
        **more,  # type: ignore[arg-type]
    )


def begin(
    cache: PrefixCache,
    name: str,
    tokens: Sequence[int],
    *,
    tenant: str = "t",
    base: str | None = None,
) -> CachedSequence:
    sequence = cache.begin(
        branch_id=name,
        tenant=tenant,
        tokens=ids(tokens),
        base_branch_id=base,
        base_offset=None,
    )
    cache.allocate(sequence, cache.blocks_for(len(tokens) + 1) - sequence.num_blocks)
    return sequence


def turn(
    cache: PrefixCache,
    name: str,
    tokens: Sequence[int],
    *,
    tenant: str = "t",
    base: str | None = None,
    kind: SnapshotKind = SnapshotKind.END,
    lease_s: float = 0.0,
    keep: Sequence[int] = (),
) -> int:
    """A whole turn that computes all of ``tokens``; returns what it found."""
    sequence = begin(cache, name, tokens, tenant=tenant, base=base)
    for position in keep:
        cache.commit(sequence, ids(tokens[:position]))
        cache.keep_state(sequence, ids(tokens[:position]), SnapshotKind.HEADER)
    cache.commit(sequence, ids(tokens))
    cache.finish(sequence, lease_s=lease_s, state_of=ids(tokens), kind=kind)
    return sequence.num_cached_tokens


def test_a_turn_begins_at_the_exact_token_where_its_branch_ended() -> None:
    cache, text = stateful(), list(range(100))
    assert turn(cache, "a", text[:10]) == 0
    assert turn(cache, "a", text[:17], base="a") == 10
    assert turn(cache, "b", text[:30]) == 17
    assert turn(cache, "c", [*text[:9], 999]) == 0


def test_a_prompt_that_differs_inside_the_tail_does_not_begin_behind_it() -> None:
    cache = stateful()
    turn(cache, "a", list(range(10)))
    assert turn(cache, "b", [*range(8), 8, 77, 10]) == 0
    assert turn(cache, "c", [*range(10), 10]) == 10


def test_keys_and_values_behind_the_last_state_are_told_and_show_where_to_cut() -> None:
    cache, text = stateful(), list(range(40))
    turn(cache, "a", text[:22])
    other = [*text[:18], 500, 501, 502]
    sequence = begin(cache, "b", other)
    assert sequence.num_cached_tokens == 0
    assert sequence.miss_causes == {"state_missing": 16, "first_sight": 5}
    assert sequence.junction == 16
    cache.commit(sequence, ids(other[:16]))
    assert cache.keep_state(sequence, ids(other[:16]), SnapshotKind.JUNCTION)
    assert not cache.keep_state(sequence, ids(other[:16]), SnapshotKind.JUNCTION)
    cache.finish(sequence)
    assert turn(cache, "c", [*text[:17], 600]) == 16


def test_a_state_is_copied_while_there_are_slots_and_moved_when_there_are_none() -> None:
    cache = stateful(2)
    turn(cache, "a", [1, 2, 3, 4, 5])
    cache.take_state_orders()
    sequence = begin(cache, "a", [1, 2, 3, 4, 5, 6], base="a")
    (order,) = cache.take_state_orders()
    assert isinstance(order, BeginState)
    assert order.source not in (None, order.slot)
    assert (order.position, order.tail_block) == (5, int(sequence.block_table[1]))
    other = begin(cache, "b", [9, 9])  # takes the slot that the first one came from
    assert cache.stats().snapshots == 0
    cache.finish(other)
    cache.finish(sequence, state_of=ids([1, 2, 3, 4, 5, 6]))
    full = begin(cache, "c", [8, 8])
    cache.take_state_orders()
    moved = begin(cache, "a", [1, 2, 3, 4, 5, 6, 7], base="a")
    (order,) = cache.take_state_orders()
    assert isinstance(order, BeginState)
    assert order.source == order.slot == moved.state_slot
    with pytest.raises(OutOfSlots):
        begin(cache, "d", [7, 7])
    cache.finish(full)


def test_an_end_is_donated_and_not_copied() -> None:
    cache = stateful()
    sequence = begin(cache, "a", [1, 2, 3, 4, 5, 6])
    slot, tail = sequence.state_slot, int(sequence.block_table[1])
    cache.take_state_orders()
    cache.commit(sequence, ids([1, 2, 3, 4, 5, 6]))
    assert cache.keep_state(sequence, ids([1, 2, 3, 4]), SnapshotKind.HEADER)
    cache.finish(sequence, state_of=ids([1, 2, 3, 4, 5, 6]))
    saved, ended = cache.take_state_orders()
    assert isinstance(saved, SaveState)
    assert (saved.slot, saved.position, saved.tail_block) == (slot, 4, None)
    assert ended == EndState(slot=slot, position=6, tail_block=tail)


def test_a_turn_that_failed_leaves_no_state() -> None:
    cache = stateful()
    sequence = begin(cache, "a", [1, 2, 3, 4, 5, 6])
    cache.commit(sequence, ids([1, 2, 3, 4, 5, 6]))
    cache.finish(sequence, lease_s=0.0)
    assert (cache.stats().snapshots, cache.stats().free_slots) == (0, 4)


def test_a_state_that_is_not_finite_is_found_by_nobody() -> None:
    cache = stateful()
    turn(cache, "a", [1, 2, 3, 4, 5, 6])
    order = cache.take_state_orders()[-1]
    cache.state_spoiled(order.slot)
    assert turn(cache, "a", [1, 2, 3, 4, 5, 6, 7], base="a") == 0


def test_a_snapshot_goes_with_the_blocks_before_it() -> None:
    cache = stateful(blocks=6)
    turn(cache, "a", list(range(12)))
    assert cache.stats().snapshots == 1
    turn(cache, "b", list(range(100, 116)))
    assert cache.stats().snapshots == 1
    assert turn(cache, "a", list(range(13)), base="a") == 0


def test_blocks_behind_the_last_state_go_before_older_ones_below_one() -> None:
    cache = stateful(blocks=8)
    turn(cache, "old", list(range(8)))
    sequence = begin(cache, "new", list(range(100, 108)))
    cache.commit(sequence, ids(range(100, 108)))
    cache.finish(sequence, lease_s=0.0)  # no state: nothing of it can be used
    turn(cache, "third", list(range(200, 216)))
    assert cache.match_length(branch_id="?", tenant="t", tokens=ids(range(9))) == 8


def test_the_lease_of_an_end_that_goes_is_broken() -> None:
    cache = stateful(2)
    turn(cache, "a", list(range(8)), lease_s=50.0)
    other = begin(cache, "b", [9, 9])
    assert cache.stats().leased == 2
    cold = cache.begin(branch_id="c", tenant="t", tokens=ids([8, 8]))
    with pytest.raises(OutOfSlots):  # one that is cold, beside another, breaks none
        cache.allocate(cold, 1)
    cache.finish(cold)
    assert cache.stats().leases["broken"] == 0
    cache.finish(other)
    one = stateful(1)
    turn(one, "a", list(range(8)), lease_s=50.0)
    alone = begin(one, "b", [9, 9])
    assert (one.stats().leased, one.stats().leases["broken"]) == (0, 1)
    one.finish(alone)


def test_what_a_tenant_has_above_its_share_goes_first() -> None:
    cache = stateful(4)
    turn(cache, "mine", list(range(40)), tenant="red")
    for number in range(20):
        turn(cache, f"flood{number}", [1000 + number], tenant="blue")
    assert turn(cache, "mine", list(range(41)), tenant="red", base="mine") == 40


def test_nothing_of_another_tenant_is_found_and_all_of_what_is_published() -> None:
    cache = stateful(6)
    turn(cache, "a", list(range(10)), tenant="red")
    assert turn(cache, "b", list(range(11)), tenant="blue") == 0
    published = cache.begin(branch_id="-", tenant=None, tokens=ids(range(50, 57)))
    cache.allocate(published, 2)
    cache.commit(published, ids(range(50, 57)))
    cache.finish(published, state_of=ids(range(50, 57)))
    for tenant in ("red", "blue"):
        assert turn(cache, f"p-{tenant}", list(range(50, 59)), tenant=tenant) == 7


def test_a_replaced_end_goes_before_the_one_that_took_its_place_and_a_fork_keeps_it() -> None:
    cache, text = stateful(4), list(range(200))
    turn(cache, "a", text[:40])
    turn(cache, "fork", [*text[:40], *range(900, 920)], base="a")
    turn(cache, "a", text[:44], base="a")
    turn(cache, "a", text[:46], base="a")
    turn(cache, "else", [5] * 30)
    slots = cache._slots
    assert slots is not None
    positions = sorted(each.position for each in slots.snapshots.values())
    assert 40 in positions
    assert 46 in positions
    assert 44 not in positions


def test_released_branches_lose_their_ends_first() -> None:
    cache = stateful(3)
    turn(cache, "long", list(range(100)))
    turn(cache, "short", [7, 7, 7])
    cache.release_branch("long")
    turn(cache, "third", [8, 8])
    turn(cache, "fourth", [9, 9, 9])
    assert cache.match_length(branch_id="?", tenant="t", tokens=ids(range(101))) == 0
    assert cache.match_length(branch_id="?", tenant="t", tokens=ids([7, 7, 7, 7])) == 3


def test_a_paused_prompt_goes_on_where_it_stopped() -> None:
    cache = stateful()
    sequence = begin(cache, "a", list(range(20)))
    cache.commit(sequence, ids(range(13)))
    cache.finish(sequence, lease_s=0.0, state_of=ids(range(13)), kind=SnapshotKind.PAUSE)
    assert turn(cache, "a", list(range(20)), base="a") == 13


def test_the_next_state_below_is_the_deepest_on_the_same_path() -> None:
    cache = stateful(8)
    turn(cache, "a", list(range(20)), keep=(4, 8))
    turn(cache, "b", [*range(6), 99, 98, 97])
    slots = cache._slots
    assert slots is not None
    by_position = {each.position: each for each in slots.snapshots.values()}
    assert below(cache._tree, by_position[20]) == 8
    assert below(cache._tree, by_position[9]) == 4
    owner = cache._tree.owner("t")
    found = find(cache._tree, owner, by_position[20].node, 5, ids(range(20)))
    assert found is by_position[8]
    assert isinstance(slots._order, SnapshotOrder)
