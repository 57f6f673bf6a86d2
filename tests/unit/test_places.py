"""Long turns that are paused for shorter ones."""

from runtime.policy import ANSWER_LEVELS
from runtime.sequence import SequenceState
from tests.support.scheduler_bench import Bench


def test_a_long_answer_gives_its_place_to_a_short_turn_and_goes_on_after_it() -> None:
    bench = Bench(num_blocks=400, max_running=3, debug=False)
    long = []
    for _ in range(3):
        long.append(bench.add(4, limit=400))
        bench.step()
    for _ in range(ANSWER_LEVELS[0] + 2):
        bench.step()
    before = bench.cache.stats().protected
    short = bench.add(4, limit=3)
    schedule = bench.step()
    assert schedule.admitted == (short,)
    assert schedule.paused == (long[-1],), "the last one of the long"
    assert list(bench.scheduler.paused) == [long[-1]]
    assert bench.cache.stats().protected > before, "it keeps its blocks"
    bench.run()
    assert bench.done == [short, *long]
    assert bench.preempted == 0


def test_neither_a_short_answer_nor_the_last_long_one_loses_its_place() -> None:
    bench = Bench(num_blocks=400, max_running=2, debug=False)
    first = bench.add(4, limit=400)
    bench.step()
    second = bench.add(4, limit=400)
    for _ in range(ANSWER_LEVELS[0] - 3):
        bench.step()
    waiting = bench.add(4, limit=3)
    bench.step()
    assert waiting.state is SequenceState.WAITING
    assert not list(bench.scheduler.paused)
    for _ in range(5):
        bench.step()
    assert list(bench.scheduler.paused) == [second]
    bench.add(4, limit=3)
    bench.step()
    assert list(bench.scheduler.paused) == [second], "one place stays with long turns"
    assert first.num_emitted > ANSWER_LEVELS[0]


def test_a_turn_of_higher_priority_is_not_paused_for_one_of_lower() -> None:
    bench = Bench(num_blocks=400, max_running=2, debug=False)
    for _ in range(2):
        bench.add(4, limit=400, priority=1)
    for _ in range(ANSWER_LEVELS[0] + 2):
        bench.step()
    waiting = bench.add(4, limit=3)
    bench.step()
    assert waiting.state is SequenceState.WAITING


def test_first_come_first_served_pauses_nobody() -> None:
    bench = Bench(num_blocks=400, max_running=2, policy="fcfs", debug=False)
    for _ in range(2):
        bench.add(4, limit=300)
    for _ in range(ANSWER_LEVELS[0] + 2):
        bench.step()
    waiting = bench.add(4, limit=3)
    bench.step()
    assert waiting.state is SequenceState.WAITING
