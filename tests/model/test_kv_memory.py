"""The cache and its copies as the loop sees them: kept in step, and written down at the end."""

from typing import Any, cast

import numpy as np

from radix_cache.cache import PrefixCache
from runtime.engine.kv_memory import KVMemory
from runtime.offload.transfer import KVTransfer


class Notes:
    """Stands for cache and transfer alike, and notes what each was asked."""

    def __init__(self, pending: int = 0) -> None:
        self.calls: list[str] = []
        self.pending = pending
        self.wants_tending = True

    @property
    def num_pending_orders(self) -> int:
        self.pending -= 1
        return self.pending + 1

    def __getattr__(self, name: str) -> Any:
        return lambda *arguments: self.calls.append(name)


def memory(notes: Notes, *, tiers: bool = True) -> KVMemory:
    transfer = cast(KVTransfer, notes) if tiers else None
    return KVMemory(cast(PrefixCache, notes), transfer)


def test_copies_that_have_ended_are_taken_in_before_the_cache_is_tended() -> None:
    notes = Notes()
    memory(notes).tend()
    assert notes.calls == ["report", "tend"]


def test_a_step_waits_for_copies_that_touch_its_blocks() -> None:
    notes = Notes()
    memory(notes).settle(np.zeros((1, 2), dtype=np.int32))
    assert notes.calls == ["settle"]


def test_at_the_end_what_is_above_the_disk_is_written_to_the_last_order() -> None:
    notes = Notes(pending=2)
    memory(notes).close()
    assert notes.calls == ["report", "copy_down", "report", "report", "close"]


def test_without_memory_below_the_device_nothing_is_tended() -> None:
    notes = Notes()
    plain = memory(notes, tiers=False)
    plain.tend()
    plain.settle(np.zeros((1, 2), dtype=np.int32))
    plain.close()
    assert (notes.calls, plain.wants_tending) == ([], False)
    assert memory(notes).wants_tending
