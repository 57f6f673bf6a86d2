import pytest

from radix_cache.slot_pool import OutOfSlots, SlotPool


def test_a_slot_is_free_or_run_on_or_a_snapshot() -> None:
    pool = SlotPool(3)
    first, second = pool.take("running"), pool.take("snapshot")
    pool.turn(first, "running", "snapshot")
    assert pool.counts == {"free": 1, "running": 0, "snapshot": 2}
    pool.release(second, "snapshot")
    pool.check(running=[], snapshots=[first])
    assert pool.num_free == 2


def test_what_is_taken_for_another_use_is_an_error() -> None:
    pool = SlotPool(1)
    slot = pool.take("running")
    with pytest.raises(OutOfSlots):
        pool.take("running")
    with pytest.raises(ValueError, match="is running, not snapshot"):
        pool.release(slot, "snapshot")
    with pytest.raises(AssertionError, match="lost or doubled"):
        pool.check(running=[], snapshots=[])
