from radix_cache.snapshots import BeginState, SnapshotKind


def test_orders_are_told_apart_by_what_they_say() -> None:
    order = BeginState(slot=1, source=None, position=0, tail_block=None)
    assert order != BeginState(slot=1, source=1, position=0, tail_block=None)
    assert {kind.value for kind in SnapshotKind} == {"end", "header", "junction", "pause"}
