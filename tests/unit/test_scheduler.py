"""The scheduler over the real cache, with a model that only makes up tokens."""

import random

import numpy as np
import pytest

from runtime.messages import FinishReason
from runtime.policy import ANSWER_LEVELS
from runtime.scheduler import Schedule
from runtime.sequence import Sequence, SequenceState, TokenBuffer
from tests.support.scheduler_bench import Bench


def _tokens(schedule: Schedule) -> dict[str, int]:
    return {c.sequence.request.request_id: c.num_tokens for c in schedule.chunks}


def test_a_prompt_is_computed_in_chunks_and_then_decodes() -> None:
    bench = Bench(max_batch_tokens=6)
    bench.add(14, limit=3)
    assert [_tokens(bench.step()) for _ in range(5)] == [
        {"r1": 6},
        {"r1": 6},
        {"r1": 2},
        {"r1": 1},
        {"r1": 1},
    ]
    assert not bench.scheduler.has_work


def test_running_decodes_come_before_prefill_and_never_miss_a_step() -> None:
    bench = Bench(max_batch_tokens=16, prefill_tokens_beside_decodes=5)
    short = bench.add(3, limit=20)
    bench.step()
    bench.add(40, limit=1)
    for _ in range(8):
        tokens = _tokens(bench.step())
        assert tokens == {"r1": 1, "r2": 5}
    assert short.num_emitted == 9


def test_a_short_turn_overtakes_a_long_prefill() -> None:
    bench = Bench(max_batch_tokens=8)
    bench.add(100, limit=1)
    bench.step()
    bench.add(5, limit=1)
    bench.step()
    bench.step()
    assert [s.request.request_id for s in bench.done] == ["r2"]


def test_first_come_first_served_does_not_let_it_overtake() -> None:
    bench = Bench(max_batch_tokens=8, policy="fcfs")
    bench.add(100, limit=1)
    bench.step()
    bench.add(5, limit=1)
    bench.run()
    assert [s.request.request_id for s in bench.done] == ["r1", "r2"]


def test_a_higher_priority_is_admitted_first() -> None:
    bench = Bench(max_running=1)
    bench.add(8, limit=2)
    bench.step()
    bench.add(8, limit=1)
    bench.add(30, limit=1, priority=5)
    bench.run()
    assert [s.request.request_id for s in bench.done] == ["r1", "r3", "r2"]


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


def test_equal_prompts_wait_for_the_one_that_computes_their_prefix() -> None:
    bench = Bench(max_batch_tokens=32)
    prompt = list(range(50, 90))
    bench.add([*prompt, 1], limit=1)
    bench.add([*prompt, 2], limit=1)
    other = bench.add([*prompt, 3], limit=1, tenant="other")
    first = _tokens(bench.step())
    assert "r2" not in first
    bench.run()
    assert len(bench.done) == 3
    assert other.uncached_estimate == 41, "another tenant's work was waited for"


@pytest.mark.parametrize("seed", range(20))
def test_under_random_load_every_turn_ends_and_the_blocks_add_up(seed: int) -> None:
    rng = random.Random(seed)
    bench = Bench(
        num_blocks=rng.choice([12, 30, 100]),
        max_batch_tokens=rng.choice([3, 16, 64]),
        max_running=rng.choice([1, 3, 8]),
        policy=rng.choice(["fcfs", "short_turn_first", "fair"]),
    )
    added: list[Sequence] = []
    for _ in range(60):
        if rng.random() < 0.5:
            limit = rng.randint(1, 15)
            expected = rng.randint(0, limit)
            prompt, tenant = rng.randint(1, 28), rng.choice("ab")
            added.append(bench.add(prompt, limit=limit, tenant=tenant, expected=expected))
        decoding = [s for s in bench.scheduler.running if s.decoding]
        before = {s: s.num_emitted for s in decoding}
        schedule = bench.step()
        if not schedule.preempted:
            for sequence, emitted in before.items():
                assert sequence.num_emitted == emitted + 1, "a decode missed its step"
        for waiting in [s for s in bench.scheduler.waiting if rng.random() < 0.02]:
            bench.scheduler.drop_waiting(waiting)
            added.remove(waiting)
        bench.cache.check()
    bench.run()
    assert set(bench.done) == set(added)
    stats = bench.cache.stats()
    assert stats.free + stats.evictable + stats.reserved == stats.total
    assert stats.protected == 0


def test_a_finished_turns_tail_gives_way_before_any_running_turn() -> None:
    bench = Bench(num_blocks=5)
    tail = bench.add(6, limit=8, expected=0)
    growing = bench.add(6, limit=8, expected=0)
    for _ in range(3):
        bench.step()
    tail.buffer.extend(np.array([1, 2, 3], dtype=np.int32))
    tail.final_length = len(tail.buffer)
    tail.finish = FinishReason.STOP
    tail.state = SequenceState.FLUSHING
    assert _tokens(bench.step()) == {"r2": 1}
    assert tail.state is SequenceState.DONE
    bench.run()
    assert bench.done == [growing]
    assert growing.preemptions == 0


def test_fair_shares_the_engine_between_tenants_however_many_turns_each_sends() -> None:
    bench = Bench(num_blocks=400, policy="fair", max_running=2)
    for tenant, count in (("many", 40), ("few", 10)):
        for _ in range(count):
            bench.add(30, limit=4, tenant=tenant)
    while sum(s.request.tenant == "few" for s in bench.done) < 10:
        bench.step()
    served = [s.request.tenant for s in bench.done]
    assert abs(served.count("many") - served.count("few")) <= 4


def test_without_fairness_the_one_that_sent_first_is_served_first() -> None:
    bench = Bench(num_blocks=400, policy="fcfs", max_running=2)
    for tenant in ["many"] * 20 + ["few"]:
        bench.add(30, limit=4, tenant=tenant)
    bench.run()
    assert bench.done[-1].request.tenant == "few"


def test_a_new_session_waits_while_the_live_transcripts_are_too_long() -> None:
    bench = Bench(num_blocks=40, session_context_percent=50)
    first = bench.add(60, limit=30)
    bench.step()
    second = bench.add(40, limit=1)
    bench.step()
    assert second.state is SequenceState.WAITING, "there is room, but not for another session"
    bench.run()
    assert bench.done == [first, second]


def test_a_long_queue_predicts_a_late_first_token() -> None:
    bench = Bench(num_blocks=400, max_running=1)
    waiting = Sequence(
        bench.add(40).request, TokenBuffer(np.arange(40, dtype=np.int32)), arrival_s=0.0
    )
    alone = bench.scheduler.predicted_first_token_s(waiting)
    for _ in range(9):
        bench.add(40)
    assert bench.scheduler.predicted_first_token_s(waiting) == pytest.approx(alone * 11 / 2)


def test_a_thousand_turns_may_go_at_once() -> None:
    bench = Bench(num_blocks=64)
    for _ in range(1000):
        bench.add(8, limit=2)
    bench.step()
    for waiting in list(bench.scheduler.waiting):
        bench.scheduler.drop_waiting(waiting)
    for running in list(bench.scheduler.running):
        bench.scheduler.end(running, lease_s=0.0)
    assert not bench.scheduler.has_work
    stats = bench.cache.stats()
    assert stats.free + stats.evictable == stats.total


@pytest.mark.parametrize("priority", [-(1 << 40), 1 << 40])
def test_an_absurd_priority_is_an_order_and_nothing_else(priority: int) -> None:
    bench = Bench(max_running=1)
    odd = bench.add(8, limit=1, priority=priority)
    plain = bench.add(8, limit=1)
    bench.run()
    assert bench.done == ([odd, plain] if priority > 0 else [plain, odd])


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


def test_a_step_is_filled_to_a_multiple_of_sixteen_tokens_unless_a_prompt_ends() -> None:
    bench = Bench(num_blocks=200, prefill_tokens_beside_decodes=30)
    bench.add(3, limit=60)
    bench.step()
    bench.add(100, limit=1)
    shares = [_tokens(bench.step()).get("r2", 0) for _ in range(7)]
    assert shares == [15, 15, 15, 15, 15, 25, 0]


def test_one_step_in_many_only_decodes_beside_a_long_prefill() -> None:
    bench = Bench(num_blocks=400, prefill_tokens_beside_decodes=4)
    bench.add(3, limit=200)
    bench.step()
    bench.add(400, limit=1)
    alone = [n for n in range(90) if "r2" not in _tokens(bench.step())]
    assert alone == [31, 63]


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


def test_a_paused_turn_may_be_cancelled() -> None:
    bench = Bench(num_blocks=400, max_running=2, debug=False)
    for _ in range(2):
        bench.add(4, limit=400)
    for _ in range(ANSWER_LEVELS[0] + 2):
        bench.step()
    bench.add(4, limit=9)
    bench.step()
    (paused,) = bench.scheduler.paused
    bench.scheduler.end(paused, lease_s=0.0)
    assert not list(bench.scheduler.paused)
    bench.run()
    assert paused not in bench.done


def test_first_come_first_served_pauses_nobody() -> None:
    bench = Bench(num_blocks=400, max_running=2, policy="fcfs", debug=False)
    for _ in range(2):
        bench.add(4, limit=300)
    for _ in range(ANSWER_LEVELS[0] + 2):
        bench.step()
    waiting = bench.add(4, limit=3)
    bench.step()
    assert waiting.state is SequenceState.WAITING
