from radix_cache.snapshots import BeginState, SnapshotKind


def test_orders_are_told_apart_by_what_they_say() -> None:
    order = BeginState(slot=1, source=None, position=0, tail_block=None)
    assert order != BeginState(slot=1, source=1, position=0, tail_block=None)
    kinds = ["end", "header", "junction", "pause", "interval"]
    assert list(SnapshotKind) == kinds, "files on disk know them by their place here"
