"""States that are kept, rule by rule; ``tests/campaigns`` plays them at random."""

from collections.abc import Iterable

import pytest

from radix_cache.cache import PrefixCache
from radix_cache.kept_states import KeptStates
from radix_cache.nodes import Tier
from radix_cache.slot_pool import OutOfSlots
from radix_cache.snapshots import SaveBelow, SnapshotKind
from tests.support.state_turns import begin, ids, stateful, turn


class Book:
    """Takes orders for blocks, and carries out none."""

    def move(self, move: object) -> None: ...


def kept(cache: PrefixCache) -> KeptStates:
    assert cache.slots is not None
    return cache.slots.kept


def tiered(host: int, *, slots: int = 2) -> PrefixCache:
    return stateful(slots, blocks=64, mover=Book(), host_blocks=64, host_states=host)


def long_turn(
    cache: PrefixCache, name: str, tokens: Iterable[int], *, every: int = 8
) -> list[bool]:
    """A whole turn that would have its state kept every so many tokens; whether each was."""
    prompt = list(tokens)
    sequence, found = begin(cache, name, prompt), []
    for point in range(every, len(prompt), every):
        cache.commit(sequence, ids(prompt[:point]))
        found.append(cache.keep_state(sequence, ids(prompt[:point]), SnapshotKind.INTERVAL))
    cache.commit(sequence, ids(prompt))
    cache.finish(sequence, lease_s=0.0, state_of=ids(prompt))
    return found


def test_a_state_that_is_not_finite_is_found_by_nobody() -> None:
    cache = stateful()
    turn(cache, "a", [1, 2, 3, 4, 5, 6])
    order = cache.take_state_orders()[-1]
    cache.state_spoiled(Tier.DEVICE, order.slot)
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


@pytest.mark.tail
def test_a_point_that_is_forked_a_thousand_times_stays() -> None:
    cache = stateful(4, blocks=40)
    text = list(range(41))
    turn(cache, "a", text)
    for number in range(1000):
        assert turn(cache, f"fork{number}", [*text, 1000 + number], base="a") == 41
        cache.release_branch(f"fork{number - 20}")
    assert turn(cache, "a", [*text, 7], base="a") == 41


def test_states_of_an_interval_are_in_host_memory_alone_and_found_there() -> None:
    cache = tiered(8)
    assert cache.keeps_intervals
    assert long_turn(cache, "a", range(30)) == [True, True, True]
    orders = [each for each in cache.take_state_orders() if isinstance(each, SaveBelow)]
    assert [each.position for each in orders] == [8, 16, 24]
    assert cache.stats().snapshots == 1, "the end"
    assert cache.stats().snapshots_taken[SnapshotKind.INTERVAL] == 3
    other = begin(cache, "b", [*range(18), 99])
    assert other.num_cached_tokens == 16
    assert other.resumed == (SnapshotKind.INTERVAL, Tier.HOST)


def test_without_host_memory_none_is_kept() -> None:
    cache = stateful()
    assert not cache.keeps_intervals
    assert long_turn(cache, "a", range(30)) == [False, False, False]


def test_states_of_an_interval_are_in_nobodys_way() -> None:
    """What somebody comes back to takes their slots, and they take none of it."""
    cache = tiered(3, slots=4)
    ends = [list(range(first, first + 6)) for first in (100, 200, 300)]
    turn(cache, "one", ends[0])
    assert long_turn(cache, "a", range(30)) == [True, True, True]
    assert sum(each.host >= 0 for each in kept(cache).snapshots.values()) == 2, "and the ends"
    turn(cache, "two", ends[1])
    turn(cache, "three", ends[2])
    assert long_turn(cache, "b", range(500, 530)) == [False, False, False]
    assert cache.stats().snapshots_lost == {SnapshotKind.INTERVAL: 3}
    for name, end in zip(("one", "two", "three"), ends, strict=True):
        assert turn(cache, name, [*end, 1], base=name) == 6


def test_one_that_is_named_or_ends_a_turn_is_kept_for_that() -> None:
    cache = tiered(8)
    sequence = begin(cache, "a", list(range(30)))
    for point, kind in ((8, "interval"), (8, "header"), (16, "interval"), (16, "interval")):
        cache.commit(sequence, ids(range(point)))
        cache.keep_state(sequence, ids(range(point)), SnapshotKind(kind))
    cache.finish(sequence, state_of=ids(range(16)))
    kinds = {each.position: each.kind for each in kept(cache).lower.kept[Tier.HOST].values()}
    assert kinds == {8: SnapshotKind.HEADER, 16: SnapshotKind.END}
    assert [each.position for each in kept(cache).snapshots.values()] == [16]


def test_one_where_no_block_ends_is_refused() -> None:
    cache = tiered(8)
    sequence = begin(cache, "a", list(range(30)))
    cache.commit(sequence, ids(range(10)))
    with pytest.raises(ValueError, match="where no block ends"):
        cache.keep_state(sequence, ids(range(10)), SnapshotKind.INTERVAL)


def test_one_that_is_not_finite_is_found_by_nobody() -> None:
    cache = tiered(8)
    long_turn(cache, "a", range(14))
    (order,) = (each for each in cache.take_state_orders() if isinstance(each, SaveBelow))
    cache.state_spoiled(Tier.HOST, order.target)
    assert turn(cache, "b", [*range(10), 99]) == 0
    cache.state_spoiled(Tier.HOST, order.target)  # told twice, or of a slot that is free by now
