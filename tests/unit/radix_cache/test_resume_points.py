from radix_cache.resume_points import below, find
from tests.support.state_turns import ids, stateful, turn


def test_a_prompt_that_differs_inside_the_tail_does_not_begin_behind_it() -> None:
    cache = stateful()
    turn(cache, "a", list(range(10)))
    assert turn(cache, "b", [*range(8), 8, 77, 10]) == 0
    assert turn(cache, "c", [*range(10), 10]) == 10


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


def test_the_next_state_below_is_the_deepest_on_the_same_path() -> None:
    cache = stateful(8)
    turn(cache, "a", list(range(20)), keep=(4, 8))
    turn(cache, "b", [*range(6), 99, 98, 97])
    slots = cache.slots
    assert slots is not None
    by_position = {each.position: each for each in slots.kept.snapshots.values()}
    assert below(cache.tree, by_position[20], lambda _: True) == 8
    assert below(cache.tree, by_position[9], lambda _: True) == 4
    assert below(cache.tree, by_position[9], lambda other: other.position != 4) == 0
    owner = cache.tree.owner("t")
    found = find(cache.tree, owner, by_position[20].node, 5, ids(range(20)))
    assert found is by_position[8]
