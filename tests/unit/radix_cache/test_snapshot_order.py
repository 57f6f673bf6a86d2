from radix_cache.snapshot_order import SnapshotOrder
from tests.support.state_turns import ids, stateful, turn


def test_what_a_tenant_has_above_its_share_goes_first() -> None:
    cache = stateful(4)
    turn(cache, "mine", list(range(40)), tenant="red")
    for number in range(20):
        turn(cache, f"flood{number}", [1000 + number], tenant="blue")
    assert turn(cache, "mine", list(range(41)), tenant="red", base="mine") == 40


def test_a_replaced_end_goes_before_the_one_that_took_its_place_and_a_fork_keeps_it() -> None:
    cache, text = stateful(4), list(range(200))
    turn(cache, "a", text[:40])
    turn(cache, "fork", [*text[:40], *range(900, 920)], base="a")
    turn(cache, "a", text[:44], base="a")
    turn(cache, "a", text[:46], base="a")
    turn(cache, "else", [5] * 30)
    slots = cache.slots
    assert slots is not None
    positions = sorted(each.position for each in slots.kept.snapshots.values())
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


def test_an_end_costs_the_way_from_the_one_below_for_each_that_would_use_it() -> None:
    cache = stateful(8)
    turn(cache, "a", list(range(20)), keep=(8,))
    slots = cache.slots
    assert slots is not None
    order: SnapshotOrder = slots.kept.order
    (end,) = (each for each in slots.kept.snapshots.values() if each.position == 20)
    assert order.worth(end) == 12
    turn(cache, "b", [*range(20), 99], base="a")
    turn(cache, "c", [*range(20), 98], base="a")
    assert order.worth(end) == 3 * 12
    assert order.is_wanted(end)
