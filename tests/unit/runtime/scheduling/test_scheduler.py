"""The scheduler over the real cache, with a model that only makes up tokens."""

import random

import pytest

from runtime.scheduling.sequence import Sequence
from tests.support.scheduler_bench import Bench, tokens_of


def test_a_prompt_is_computed_in_chunks_and_then_decodes() -> None:
    bench = Bench(max_batch_tokens=6)
    bench.add(14, limit=3)
    assert [tokens_of(bench.step()) for _ in range(5)] == [
        {"r1": 6},
        {"r1": 6},
        {"r1": 2},
        {"r1": 1},
        {"r1": 1},
    ]
    assert not bench.scheduler.queues.has_work


@pytest.mark.samples(3)
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
        decoding = [s for s in bench.scheduler.queues.running if s.decoding]
        before = {s: s.num_emitted for s in decoding}
        had_no_slot = set(bench.scheduler.queues.paused)
        schedule = bench.step()
        resumed = had_no_slot.difference(bench.scheduler.queues.paused)
        assert len(schedule.paused) <= len(schedule.admitted) + len(resumed), "paused for nobody"
        if not schedule.preempted:
            for sequence, emitted in before.items():
                has_slot = sequence not in bench.scheduler.queues.paused
                assert sequence.num_emitted == emitted + has_slot, "a decode missed its step"
        for waiting in [s for s in bench.scheduler.queues.waiting if rng.random() < 0.02]:
            bench.scheduler.queues.withdraw(waiting)
            added.remove(waiting)
        bench.cache.check()
    bench.run()
    assert set(bench.done) == set(added)
    stats = bench.cache.stats()
    assert stats.free + stats.evictable + stats.reserved == stats.total
    assert stats.protected == 0


def test_a_step_begins_no_prompt_behind_one_that_it_cuts_short() -> None:
    bench = Bench(num_blocks=400)
    bench.add(3, limit=200)
    bench.step()
    long = bench.add(300, limit=1)
    bench.add(320, limit=1)
    while long.num_computed < 300:
        step = tokens_of(bench.step())
        assert long.num_computed == 300 or "r3" not in step


def test_blocks_that_decodes_fill_are_found_while_their_turn_still_speaks() -> None:
    bench = Bench()
    turn = bench.add(3, limit=40)
    for _ in range(14):
        bench.step()
    transcript = turn.buffer.view()
    found = bench.cache.match_length(branch_id="other", tenant="t", tokens=transcript)
    assert found == turn.num_computed // 4 * 4 == 16
