"""Running sequences that grow, and those preempted for them."""

import numpy as np
import pytest

from runtime.messages import FinishReason
from runtime.scheduling.block_allocation import allocate_ahead
from runtime.scheduling.sequence import Sequence, SequenceState
from runtime.scheduling.step_plan import StepPlan
from tests.support.scheduler_bench import Bench, tokens_of


def test_growing_turns_make_another_give_way_and_all_end() -> None:
    bench = Bench(num_blocks=10)
    for _ in range(4):
        bench.add(6, limit=20, expected=0)
    bench.run()
    assert bench.preempted > 0
    assert len(bench.done) == 4


def test_a_turn_alone_in_a_full_pool_is_reported_as_exhausted() -> None:
    bench = Bench(num_blocks=4)
    sequence = bench.add(8, limit=50)
    schedule = bench.step()
    while not schedule.exhausted:
        schedule = bench.step()
    assert schedule.exhausted == (sequence,)
    bench.scheduler.queues.release(sequence, lease_s=0.0)
    assert not bench.scheduler.queues.has_work


def test_a_finished_turns_tail_gives_way_before_any_running_turn() -> None:
    bench = Bench(num_blocks=5)
    tail = bench.add(6, limit=8, expected=0)
    growing = bench.add(6, limit=8, expected=0)
    for _ in range(3):
        bench.step()
    tail.buffer.extend(np.array([1, 2, 3], dtype=np.int32))
    tail.final_length = len(tail.buffer)
    tail.finish = FinishReason.STOP
    bench.scheduler.queues.flush(tail)
    assert tokens_of(bench.step()) == {"r2": 1}
    assert tail.state is SequenceState.DONE
    bench.run()
    assert bench.done == [growing]
    assert growing.preemptions == 0


def test_no_turn_gives_way_twice_in_a_row_while_others_run() -> None:
    bench = Bench(num_blocks=14)
    turns = [bench.add(6, limit=20, expected=0) for _ in range(4)]
    victims: list[Sequence] = []
    counts = dict.fromkeys(turns, 0)
    for _ in range(500):
        if not bench.scheduler.queues.has_work:
            break
        others = len(bench.scheduler.queues.running) > 2
        bench.step()
        now = [t for t in turns if t.preemptions > counts[t]]
        counts = {t: t.preemptions for t in turns}
        if len(now) == 1 and others and victims:
            assert now[0] is not victims[-1]
        victims += now
    assert victims


def preemptions(priority: int) -> list[int]:
    """Of four sequences of two tenants that grow beyond the pool, one of them with a priority."""
    bench = Bench(num_blocks=14, policy="fair")
    turns = []
    for n, (tenant, own) in enumerate([("modest", 0), ("greedy", priority)] * 2):
        turns.append(bench.add(6 + n, limit=20, expected=0, tenant=tenant, priority=own))
        bench.step()  # so that they come in one order whatever they say
    bench.run()
    assert len(bench.done) == 4
    return [turn.preemptions for turn in turns]


def test_a_priority_moves_no_preemption_to_another_tenant() -> None:
    """All of a tenant's sequences have it, so it says nothing."""
    assert preemptions(0) == preemptions(100) == preemptions(-100)
    assert sum(preemptions(0)) > 0


@pytest.mark.parametrize(("tenant", "preempted"), [("modest", [1, 0]), ("greedy", [0, 1])])
def test_a_tenant_above_its_share_of_the_blocks_is_preempted_before_others(
    tenant: str, preempted: list[int]
) -> None:
    """Though a tenant's turn within it is cheaper to restore, as it is for a tenant alone."""
    bench = Bench(num_blocks=20, output_reserve_percent=0)
    growing = bench.add(24, limit=4, expected=0, tenant="greedy")
    large = bench.add(16, limit=4, expected=0, tenant="greedy")
    small = bench.add(7, limit=4, expected=0, tenant=tenant)
    for _ in range(3):
        bench.step()
    room = bench.cache.block_size * (bench.cache.stats().free + 1)
    growing.buffer.extend(np.arange(room, dtype=np.int32))
    plan = StepPlan()
    assert bench.scheduler.allocator.grow(growing, plan)
    assert [large.preemptions, small.preemptions] == preempted


def full_turn(bench: Bench, **options: object) -> Sequence:
    """A turn that decodes and whose two blocks of four are full."""
    sequence = bench.add(6, limit=20, expected=0, **options)  # type: ignore[arg-type]
    for _ in range(2):
        bench.step()
    assert len(sequence.buffer) == sequence.block_limit == 8
    return sequence


def held(sequence: Sequence) -> int:
    assert sequence.cached is not None
    return sequence.cached.num_blocks


@pytest.mark.parametrize(
    ("num_blocks", "num_running", "given"),
    [(10, 4, True), (10, 5, False), (4, 1, True), (3, 1, False)],
)
def test_a_full_turn_is_given_a_block_ahead_while_two_are_left_for_each_that_runs(
    num_blocks: int, num_running: int, given: bool
) -> None:
    bench = Bench(num_blocks=num_blocks)
    sequence = full_turn(bench)
    assert bench.cache.stats().free == num_blocks - 2
    assert allocate_ahead(bench.cache, sequence, num_running=num_running) is given
    assert (held(sequence), sequence.block_limit) == ((3, 12) if given else (2, 8))
    assert bench.cache.stats().free == num_blocks - 2 - given


def test_a_turn_with_room_in_its_blocks_needs_none_however_few_are_left() -> None:
    bench = Bench(num_blocks=3)
    sequence = bench.add(6, limit=20, expected=0)
    bench.step()
    assert (len(sequence.buffer), sequence.block_limit) == (7, 8)
    assert allocate_ahead(bench.cache, sequence, num_running=9)
    assert held(sequence) == 2


def test_room_ahead_is_used_in_the_next_step_and_not_given_twice() -> None:
    bench = Bench(num_blocks=10)
    sequence = full_turn(bench)
    for _ in range(2):
        assert allocate_ahead(bench.cache, sequence, num_running=1)
    for length in range(9, 13):
        bench.step()
        assert (len(sequence.buffer), held(sequence)) == (length, 3)


@pytest.mark.parametrize(("lease_s", "given"), [(0.0, True), (60.0, False)])
def test_room_ahead_is_made_of_what_nobody_waits_for(lease_s: float, given: bool) -> None:
    """A session that is over leaves its blocks; one whose tool runs is to find them again."""
    bench = Bench(num_blocks=5)
    bench.add(12, limit=1)
    bench.step(lease_s=lease_s)
    stats = bench.cache.stats()
    assert (stats.free, stats.idle, stats.leased) == ((2, 3, 0) if given else (2, 0, 3))
    sequence = full_turn(bench)
    assert bench.cache.stats().free == 0
    assert allocate_ahead(bench.cache, sequence, num_running=1) is given
    after = bench.cache.stats()
    assert (after.idle, after.leased) == ((2, 0) if given else (0, 3))


def test_room_ahead_makes_nobody_give_way() -> None:
    bench = Bench(num_blocks=5)
    first = full_turn(bench)
    other = bench.add(6, limit=20, expected=0)
    for _ in range(2):
        bench.step()
    stats = bench.cache.stats()
    assert (stats.free, stats.evictable, held(first)) == (0, 0, 3)
    assert len(other.buffer) == other.block_limit == 8
    for num_running in (2, 0):
        assert not allocate_ahead(bench.cache, other, num_running=num_running)
    assert (held(first), held(other)) == (3, 2)
    assert first.preemptions == other.preemptions == 0


def test_who_is_admitted_and_preempted_in_one_plan_is_not_told_as_admitted() -> None:
    bench = Bench(num_blocks=6, output_reserve_percent=0)
    grows, newcomer = bench.add(7, limit=40), bench.add(7, limit=40)
    bench.step()
    plan = StepPlan()
    plan.admitted = [newcomer]
    grows.buffer.extend(np.arange(12, dtype=np.int32))
    assert bench.scheduler.allocator.grow(grows, plan)
    assert (plan.preempted, newcomer.preemptions, newcomer.cached) == (1, 1, None)
    assert plan.admitted == []
