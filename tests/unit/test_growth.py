"""Running turns that grow, and those that give way to them."""

import numpy as np

from runtime.messages import FinishReason
from runtime.sequence import Sequence, SequenceState
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
    bench.scheduler.end(sequence, lease_s=0.0)
    assert not bench.scheduler.has_work


def test_a_finished_turns_tail_gives_way_before_any_running_turn() -> None:
    bench = Bench(num_blocks=5)
    tail = bench.add(6, limit=8, expected=0)
    growing = bench.add(6, limit=8, expected=0)
    for _ in range(3):
        bench.step()
    tail.buffer.extend(np.array([1, 2, 3], dtype=np.int32))
    tail.final_length = len(tail.buffer)
    tail.finish = FinishReason.STOP
    bench.scheduler.flush(tail)
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
        if not bench.scheduler.has_work:
            break
        others = len(bench.scheduler.running) > 2
        bench.step()
        now = [t for t in turns if t.preemptions > counts[t]]
        counts = {t: t.preemptions for t in turns}
        if len(now) == 1 and others and victims:
            assert now[0] is not victims[-1]
        victims += now
    assert victims
