"""Block-microseconds: whose they are, when they stop, and when they are told."""

import numpy as np

from radix_cache.cache import PrefixCache
from radix_cache.residency import MICROSECONDS, TOLD_AT_ONCE, Residency
from radix_cache.transfers import BlockMove
from tests.support.cache_turns import run_turn, transcript
from tests.support.caches import make_cache


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class NoMover:
    def move(self, move: BlockMove) -> None:
        pass


def told(cache: PrefixCache) -> dict[str, float]:
    """Block-seconds by branch."""
    rows: dict[str, float] = {}
    for row in cache.take_residency():
        rows[row.branch_id] = rows.get(row.branch_id, 0) + row.block_us / MICROSECONDS
    return rows


def test_a_branch_pays_for_its_blocks_while_its_sequence_runs_and_while_it_is_idle() -> None:
    clock = Clock()
    cache = make_cache(clock=clock)
    sequence = cache.begin(branch_id="s", tenant="t", tokens=transcript(8))
    cache.allocate(sequence, 3)
    clock.now = 10.0
    cache.commit(sequence, transcript(8))
    clock.now = 11.0
    cache.finish(sequence, lease_s=0.0)
    assert told(cache) == {"s": 33.0}
    clock.now = 61.0
    assert told(cache) == {"s": 100.0}


def test_a_shared_block_is_divided_and_is_the_last_holder_s_alone() -> None:
    clock = Clock()
    cache = make_cache(clock=clock)
    run_turn(cache, transcript(16), "a")
    run_turn(cache, transcript(16, seed=1), "other")
    run_turn(cache, transcript(16).copy(), "b")
    clock.now = 4.0
    assert told(cache) == {"a": 8.0, "other": 16.0, "b": 8.0}
    cache.release_branch("a")
    cache.release_branch("other")
    clock.now = 5.0
    assert told(cache) == {"a": 0.0, "other": 0.0, "b": 4.0}


def test_what_nobody_holds_is_on_nobody_s_account() -> None:
    clock = Clock()
    cache = make_cache(clock=clock)
    run_turn(cache, transcript(16), "a")
    cache.release_branch("a")
    told(cache)
    clock.now = 100.0
    assert told(cache) == {}
    assert cache.stats().idle == 4


def test_a_sequence_that_ends_inside_an_edge_pays_for_what_is_before_its_end() -> None:
    clock = Clock()
    cache = make_cache(clock=clock)
    run_turn(cache, transcript(16), "a")
    sequence = cache.begin(branch_id="b", tenant="t", tokens=transcript(16)[:9])
    assert sequence.num_shared_blocks == 2
    clock.now = 2.0
    cache.finish(sequence)
    assert told(cache) == {"a": 2 * 1.0 + 2 * 2.0, "b": 2 * 1.0}


def test_evicted_blocks_are_paid_for_no_more() -> None:
    clock = Clock()
    cache = make_cache(8, clock=clock)
    run_turn(cache, transcript(16), "a")
    sequence = cache.begin(branch_id="b", tenant="t", tokens=transcript(24, seed=1))
    clock.now = 1.0
    cache.allocate(sequence, 6)
    clock.now = 2.0
    cache.finish(sequence)
    assert told(cache) == {"a": 4.0 + 2.0, "b": 6.0}


def test_host_memory_is_free_of_charge() -> None:
    clock = Clock()
    cache = make_cache(8, clock=clock, host_blocks=8, mover=NoMover())
    run_turn(cache, transcript(16), "a")
    sequence = cache.begin(branch_id="b", tenant="t", tokens=transcript(32, seed=1))
    cache.allocate(sequence, 8)
    clock.now = 5.0
    cache.finish(sequence, lease_s=0.0)
    assert cache.match_length(branch_id="a", tenant="t", tokens=transcript(17)) == 16
    assert told(cache) == {"b": 40.0}


def test_a_named_branch_is_told_of_at_once_and_others_once_a_second() -> None:
    clock = Clock()
    cache = make_cache(512, clock=clock)
    for number in range(TOLD_AT_ONCE + 4):
        run_turn(cache, transcript(4, seed=number), f"s{number}")
    clock.now = 0.5
    assert told(cache) == {}
    cache.tell_residency("s3")
    cache.tell_residency("unknown")
    assert told(cache) == {"s3": 0.5}
    clock.now = 1.0
    assert len(told(cache)) == TOLD_AT_ONCE
    assert len(told(cache)) == 4


def test_a_branch_that_is_forgotten_is_told_of_for_the_last_time() -> None:
    cache = make_cache()
    run_turn(cache, transcript(16), "a")
    sequence = cache.begin(branch_id="b", tenant="t", tokens=transcript(8))
    cache.release_branch("b")
    cache.release_branch("a")
    assert [(row.branch_id, row.gone) for row in cache.take_residency()] == [("a", True)]
    assert cache.tells_residency
    cache.finish(sequence)
    assert [(row.branch_id, row.gone) for row in cache.take_residency()] == [("b", True)]
    cache.take_residency()
    assert not cache.tells_residency


def test_whoever_releases_a_name_that_no_branch_has_is_told_that_it_is_gone() -> None:
    cache = make_cache()
    cache.release_branch("never begun")
    assert cache.take_residency() == [Residency("never begun", 0, gone=True)]
    assert cache.take_residency() == []


def test_a_sequence_that_is_put_back_has_not_gone() -> None:
    clock = Clock()
    cache = make_cache(clock=clock)
    run_turn(cache, transcript(16), "a")
    sequence = cache.begin(branch_id="b", tenant="t", tokens=transcript(16)[:9])
    clock.now = 2.0
    cache.finish(sequence)
    rows = cache.take_residency()
    assert ("b", 2.0, False) in [(r.branch_id, r.block_us / MICROSECONDS, r.gone) for r in rows]
    cache.release_branch("b")
    assert Residency("b", 0, gone=True) in cache.take_residency()


def test_a_dropped_branch_leaves_the_device_but_for_what_others_hold() -> None:
    clock = Clock()
    cache = make_cache(clock=clock)
    shared, own = transcript(8), transcript(8, seed=1)
    run_turn(cache, np.concatenate([shared, own]), "a", lease_s=60.0)
    run_turn(cache, np.concatenate([shared, own[::-1].copy()]), "b")
    clock.now = 1.0
    cache.drop_branch("a")
    cache.drop_branch("unknown")
    clock.now = 2.0
    assert told(cache) == {"a": 3.0, "b": 3.0 + 4.0}
    assert cache.stats().leases["broken"] == 1
    assert cache.stats().free == 32 - 4
    assert cache.match_length(branch_id="c", tenant="t", tokens=np.append(shared, own)) == 8
    turn = cache.begin(branch_id="a", tenant="t", tokens=np.concatenate([shared, own, shared]))
    assert turn.num_cached_tokens == 8
    cache.finish(turn)


def test_a_branch_that_runs_is_not_dropped() -> None:
    cache = make_cache()
    turn = cache.begin(branch_id="a", tenant="t", tokens=transcript(8))
    cache.allocate(turn, 2)
    cache.commit(turn, transcript(8))
    cache.drop_branch("a")
    assert cache.stats().running == 2
    cache.finish(turn)
    cache.drop_branch("a")
    assert cache.stats().free == 32


def test_what_is_dropped_goes_one_tier_down() -> None:
    cache = make_cache(8, host_blocks=8, mover=NoMover())
    run_turn(cache, transcript(16), "a")
    cache.drop_branch("a")
    assert cache.stats().free == 8
    assert cache.match_length(branch_id="a", tenant="t", tokens=transcript(17)) == 16


def test_a_sequence_that_ends_inside_the_edge_keeps_what_it_reads() -> None:
    cache = make_cache()
    run_turn(cache, transcript(16), "a")
    turn = cache.begin(branch_id="b", tenant="t", tokens=transcript(16)[:9])
    cache.drop_branch("a")
    assert cache.stats().free == 30
    assert turn.num_shared_blocks == 2
    cache.finish(turn)
