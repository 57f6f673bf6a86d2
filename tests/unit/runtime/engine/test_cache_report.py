"""Totals of the cache and of its transfers become what happened since the last step."""

import pytest

from radix_cache.slot_pool import OutOfSlots
from runtime.engine.cache_report import CacheReport
from runtime.messages import StepStats
from tests.support.cache_turns import open_turn, run_turn, transcript
from tests.support.caches import make_cache
from tests.support.state_turns import begin, stateful, turn
from tests.support.tiered_driver import ContentMover

BLOCK = 4


class Counted:
    """Transfers that a test counts up."""

    def __init__(self) -> None:
        self.damaged_blocks = 0
        self.moved = {"device_host": (0, 0.0)}

    def totals(self) -> dict[str, tuple[int, float]]:
        return self.moved


def test_without_lower_tiers_blocks_hits_and_evictions_are_told() -> None:
    cache = make_cache(8)
    report = CacheReport(cache, [])
    run_turn(cache, transcript(20, seed=1), "a")
    open_turn(cache, transcript(20, seed=1), "a")
    stats = StepStats(**report.collect())
    assert (stats.blocks_total, stats.blocks_free, stats.blocks_protected) == (8, 3, 5)
    assert (stats.device_hit_tokens_delta, stats.evicted_blocks_delta) == (16, 0)
    again = StepStats(**report.collect())
    assert again.device_hit_tokens_delta == 0
    assert (again.host_blocks_total, again.transfer_bytes_delta) == (0, {})


def test_evicted_blocks_count_from_the_last_report() -> None:
    cache = make_cache(8)
    report = CacheReport(cache, [])
    evicted = []
    for seed in range(3):
        run_turn(cache, transcript(32, seed=seed), f"s{seed}")
        evicted.append(report.collect()["evicted_blocks_delta"])
    assert evicted == [0, 8, 8]


def test_with_lower_tiers_their_blocks_hits_and_copies_are_told() -> None:
    cache = make_cache(8, mover=_noting(), host_blocks=16, disk_blocks=32)
    transfers = Counted()
    report = CacheReport(cache, [transfers])
    run_turn(cache, transcript(32, seed=1), "a")
    run_turn(cache, transcript(32, seed=2), "b")
    transfers.moved, transfers.damaged_blocks = {"device_host": (800, 0.5)}, 3
    stats = StepStats(**report.collect())
    assert (stats.host_blocks_total, stats.host_blocks_used) == (16, 8)
    assert (stats.disk_blocks_total, stats.disk_blocks_used) == (32, 0)
    assert (stats.transfer_bytes_delta, stats.transfer_s_delta) == (
        {"device_host": 800},
        {"device_host": 0.5},
    )
    assert stats.damaged_blocks_delta == 3
    back = cache.begin(branch_id="a", tenant="t", tokens=transcript(33, seed=1))
    cache.restore(back)
    cache.allocate(back, 0)
    transfers.moved = {"device_host": (1000, 0.75)}
    later = StepStats(**report.collect())
    assert (later.host_hit_tokens_delta, later.device_hit_tokens_delta) == (32, 0)
    assert later.transfer_bytes_delta == {"device_host": 200}
    assert (later.damaged_blocks_delta, later.transfer_s_delta) == (0, {"device_host": 0.25})


def _noting() -> ContentMover:
    mover = ContentMover(BLOCK)
    mover.copy = lambda move: None  # type: ignore[method-assign]
    return mover


def test_of_state_slots_is_told_what_is_and_what_was_since() -> None:
    cache = stateful(3)
    report = CacheReport(cache, [])
    for name in ("a", "b"):
        turn(cache, name, [*range(9), ord(name)])
    stats = StepStats(**report.collect())
    assert (stats.state_slots_total, stats.state_slots_free, stats.state_snapshots) == (3, 1, 2)
    assert stats.snapshots_taken_delta["end"] == 2
    assert (stats.snapshots_lost_delta, stats.slot_waits_delta) == ({}, 0)
    for name in "cde":
        begin(cache, name, [ord(name)])
    with pytest.raises(OutOfSlots):
        begin(cache, "f", [5])
    stats = StepStats(**report.collect())
    assert (stats.state_slots_free, stats.state_snapshots) == (0, 0)
    assert (stats.snapshots_taken_delta, stats.snapshots_lost_delta) == ({}, {"end": 2})
    assert stats.slot_waits_delta == 1
