"""Which waiting turns begin to run, and which keep waiting."""

from runtime.scheduling.sequence import SequenceState
from tests.support.scheduler_bench import Bench, tokens_of


def test_a_turn_that_does_not_fit_now_does_not_block_those_behind_it() -> None:
    bench = Bench(num_blocks=16)
    bench.add(20, limit=30)
    bench.step()
    large = bench.add(50, limit=1)
    bench.add(4, limit=1)
    bench.step()
    assert [s.request.request_id for s in bench.done] == ["r3"]
    assert large.state is SequenceState.WAITING
    bench.run()
    assert len(bench.done) == 3


def test_first_come_first_served_makes_all_wait_for_one_that_does_not_fit() -> None:
    bench = Bench(num_blocks=16, policy="fcfs")
    bench.add(20, limit=30)
    bench.step()
    large = bench.add(50, limit=1)
    small = bench.add(4, limit=1)
    bench.step()
    assert small.state is SequenceState.WAITING
    bench.run()
    assert bench.done.index(large) < bench.done.index(small)


def test_a_turn_larger_than_the_pool_is_handed_back() -> None:
    bench = Bench(num_blocks=4)
    too_large = bench.add(16, limit=1)
    fits = bench.add(15, limit=1)
    assert bench.step().too_large == (too_large,)
    bench.run()
    assert bench.done == [fits]


def test_equal_prompts_wait_for_the_one_that_computes_their_prefix() -> None:
    bench = Bench(max_batch_tokens=32)
    prompt = list(range(50, 90))
    bench.add([*prompt, 1], limit=1)
    bench.add([*prompt, 2], limit=1)
    other = bench.add([*prompt, 3], limit=1, tenant="other")
    first = tokens_of(bench.step())
    assert "r2" not in first
    bench.run()
    assert len(bench.done) == 3
    assert other.uncached_estimate == 41, "another tenant's work was waited for"


def test_a_new_session_waits_while_the_live_transcripts_are_too_long() -> None:
    bench = Bench(num_blocks=40, session_context_percent=50)
    first = bench.add(60, limit=30)
    bench.step()
    second = bench.add(40, limit=1)
    bench.step()
    assert second.state is SequenceState.WAITING, "there is room, but not for another session"
    bench.run()
    assert bench.done == [first, second]
