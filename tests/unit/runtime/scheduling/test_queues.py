"""Turns on their way from waiting to their end."""

from math import lcm

import numpy as np
import pytest

from runtime.messages import FinishReason
from runtime.scheduling.policy import ANSWER_LEVELS
from runtime.scheduling.queues import INTERVAL_TOKENS, interval
from runtime.scheduling.sequence import SequenceState
from tests.support.scheduler_bench import Bench, tokens_of


def test_a_thousand_turns_may_go_at_once() -> None:
    bench = Bench(num_blocks=64)
    for _ in range(1000):
        bench.add(8, limit=2)
    bench.step()
    for waiting in list(bench.scheduler.queues.waiting):
        bench.scheduler.queues.withdraw(waiting)
    for running in list(bench.scheduler.queues.running):
        bench.scheduler.queues.release(running, lease_s=0.0)
    assert not bench.scheduler.queues.has_work
    stats = bench.cache.stats()
    assert stats.free + stats.evictable == stats.total


def test_a_paused_turn_may_be_cancelled() -> None:
    bench = Bench(num_blocks=400, max_running=2, debug=False)
    for _ in range(2):
        bench.add(4, limit=400)
    for _ in range(ANSWER_LEVELS[0] + 2):
        bench.step()
    bench.add(4, limit=9)
    bench.step()
    (paused,) = bench.scheduler.queues.paused
    bench.scheduler.queues.release(paused, lease_s=0.0)
    assert not list(bench.scheduler.queues.paused)
    bench.run()
    assert paused not in bench.done


def test_a_turn_that_has_ended_for_the_client_writes_its_tail_and_decodes_no_more() -> None:
    bench = Bench()
    turns = [bench.add(6, limit=20) for _ in range(2)]
    for _ in range(2):
        bench.step()
    ended, other = turns
    ended.buffer.extend(np.array([1, 2, 3], dtype=np.int32))
    ended.final_length = len(ended.buffer)
    ended.finish = FinishReason.STOP
    bench.scheduler.queues.flush(ended)
    schedule = bench.scheduler.schedule(bench.now)
    assert schedule.decodes.sequences == (other,)
    assert tokens_of(schedule) == {"r1": 3, "r2": 1}


def test_a_paused_turn_may_end_for_the_client() -> None:
    bench = Bench(num_blocks=400, max_running=2, debug=False)
    for _ in range(2):
        bench.add(4, limit=400)
    for _ in range(ANSWER_LEVELS[0] + 2):
        bench.step()
    bench.add(4, limit=9)
    bench.step()
    (paused,) = bench.scheduler.queues.paused
    paused.final_length = len(paused.buffer)
    paused.finish = FinishReason.STOP
    bench.scheduler.queues.flush(paused)
    assert not list(bench.scheduler.queues.paused)
    bench.run()
    assert paused.state is SequenceState.DONE


@pytest.mark.parametrize("block_size", [1, 4, 16, 24, 48, 100])
def test_states_of_an_interval_are_where_blocks_and_chunks_of_64_end(block_size: int) -> None:
    step = interval(block_size)
    assert step % block_size == step % 64 == 0
    assert INTERVAL_TOKENS <= step < INTERVAL_TOKENS + lcm(block_size, 64)
