"""States in the prefix cache, rule by rule; ``tests/campaigns`` plays them at random."""

import pytest

from radix_cache.slot_pool import OutOfSlots
from radix_cache.snapshots import BeginState, EndState, SaveState, SnapshotKind
from radix_cache.state_slots import StateSlots
from tests.support.state_turns import begin, ids, stateful, turn


def test_a_turn_begins_at_the_exact_token_where_its_branch_ended() -> None:
    cache, text = stateful(), list(range(100))
    assert isinstance(cache.slots, StateSlots)
    assert turn(cache, "a", text[:10]) == 0
    assert turn(cache, "a", text[:17], base="a") == 10
    assert turn(cache, "b", text[:30]) == 17
    assert turn(cache, "c", [*text[:9], 999]) == 0


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


def test_a_paused_prompt_goes_on_where_it_stopped() -> None:
    cache = stateful()
    sequence = begin(cache, "a", list(range(20)))
    cache.commit(sequence, ids(range(13)))
    cache.finish(sequence, lease_s=0.0, state_of=ids(range(13)), kind=SnapshotKind.PAUSE)
    assert turn(cache, "a", list(range(20)), base="a") == 13
