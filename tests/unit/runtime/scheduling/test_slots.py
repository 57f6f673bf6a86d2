"""Long turns that are paused for shorter ones."""

import numpy as np
import pytest

from runtime.scheduling import policy
from runtime.scheduling.costs import CostProfile
from runtime.scheduling.draft import Draft
from runtime.scheduling.policy import ANSWER_LEVELS
from runtime.scheduling.sequence import Sequence, SequenceState
from tests.support.scheduler_bench import Bench, tokens_of


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
    assert long[-1] not in [chunk.sequence for chunk in schedule.chunks]
    assert list(bench.scheduler.queues.paused) == [long[-1]]
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
    assert not list(bench.scheduler.queues.paused)
    for _ in range(5):
        bench.step()
    assert list(bench.scheduler.queues.paused) == [second]
    bench.add(4, limit=3)
    bench.step()
    assert list(bench.scheduler.queues.paused) == [second], "one place stays with long turns"
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


def test_a_prefill_that_is_planned_and_then_paused_computes_nothing_in_that_step(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It goes first, since its tenant has had least; with its chunk the tenant has had most."""
    monkeypatch.setattr(policy, "PROMPT_LEVELS", (2, 6))
    bench = Bench(num_blocks=2000, max_running=2, policy="fair", token_gap_ms=60, debug=False)
    bench.add(10, limit=1, tenant="b")
    first = bench.add(450, tenant="a")
    second = bench.add(450, tenant="b")
    for _ in range(2):
        bench.step()
    computed = [first.num_computed, second.num_computed]
    short = bench.add(10, tenant="b")
    service_s = bench.scheduler.service.service_s("a")
    schedule = bench.step()
    assert schedule.admitted == (short,)
    assert schedule.paused == (first,)
    assert bench.scheduler.service.service_s("a") == pytest.approx(service_s)
    assert tokens_of(schedule) == {"r4": 10, "r3": 106}
    assert [first.num_computed, second.num_computed] == [computed[0], computed[1] + 106]
    bench.run()
    assert set(bench.done) >= {first, second, short}


def test_first_come_first_served_pauses_nobody() -> None:
    bench = Bench(num_blocks=400, max_running=2, policy="fcfs", debug=False)
    for _ in range(2):
        bench.add(4, limit=300)
    for _ in range(ANSWER_LEVELS[0] + 2):
        bench.step()
    waiting = bench.add(4, limit=3)
    bench.step()
    assert waiting.state is SequenceState.WAITING


def fill(bench: Bench, *tenants: str, limit: int = 400) -> list[Sequence]:
    """Turns that run, one after the other."""
    turns = []
    for tenant in tenants:
        turns.append(bench.add(4, limit=limit, tenant=tenant))
        bench.step()
    return turns


@pytest.mark.parametrize("policy", ["short_turn_first", "fair"])
@pytest.mark.parametrize("prompt", [4, 600])
def test_a_tenant_without_a_slot_has_one_of_the_tenant_that_has_most(
    policy: str, prompt: int
) -> None:
    """Though none of those turns has shown to be longer than its own."""
    bench = Bench(num_blocks=1000, max_running=4, policy=policy, debug=False)
    single, *greedy = fill(bench, "single", "greedy", "greedy", "greedy")
    modest = bench.add(prompt, limit=3, tenant="modest")
    schedule = bench.step()
    assert schedule.admitted == (modest,)
    assert len(schedule.paused) == 1
    assert schedule.paused[0] in greedy
    more = bench.add(4, limit=3, tenant="modest")
    bench.step()
    assert more.state is SequenceState.WAITING, "it has one"
    bench.run()
    assert len(bench.done) == 6
    assert bench.preempted == 0
    assert single.num_emitted == 400


@pytest.mark.parametrize("drafted", [0, 3])
def test_a_tenant_is_charged_for_what_runs_not_for_what_lost_its_slot(drafted: int) -> None:
    """And for the first token of what has a slot again."""
    profile = CostProfile(decode_context_s=1e-3)
    bench = Bench(num_blocks=1000, max_running=2, policy="fair", profile=profile, debug=False)
    greedy = fill(bench, "greedy", "greedy")
    service = bench.scheduler.service
    modest = bench.add(600, limit=1, tenant="modest")
    before = service.service_s("greedy")
    draft = Draft(tokens=np.zeros(drafted, dtype=np.int32), sources=(), survival=(1.0,) * drafted)
    schedule = bench.scheduler.schedule(bench.now, dict.fromkeys(greedy, draft))
    assert schedule.admitted == (modest,)
    (lost,) = schedule.paused
    (kept,) = set(greedy) - {lost}
    context = len(kept.buffer)
    one = bench.costs.decode_s(context, 1 + drafted)
    assert service.service_s("greedy") - before == pytest.approx(one)
    bench.scheduler.queues.release(modest, lease_s=0.0)
    before = service.service_s("greedy")
    schedule = bench.scheduler.schedule(bench.now)
    assert {chunk.sequence for chunk in schedule.chunks} == set(greedy)
    two = bench.costs.decode_s(context + len(lost.buffer), 2)
    assert service.service_s("greedy") - before == pytest.approx(two)


def test_no_tenant_loses_its_only_slot_to_another_that_has_one_or_wants_one() -> None:
    bench = Bench(num_blocks=1000, max_running=2, debug=False)
    fill(bench, "a", "b")
    waiting = [bench.add(4, limit=3, tenant=tenant) for tenant in ("a", "b", "c")]
    for _ in range(20):
        assert not bench.step().paused
    assert {turn.state for turn in waiting} == {SequenceState.WAITING}


def test_a_paused_turn_takes_no_other_tenants_only_slot(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(policy, "ANSWER_LEVELS", (2, 6))
    bench = Bench(num_blocks=1000, max_running=3, policy="fair", debug=False)
    (single,) = fill(bench, "single")
    for _ in range(8):
        bench.step()
    mine = fill(bench, "mixed", "mixed")
    for _ in range(2):
        bench.step()
    service = bench.scheduler.service
    service.charge("mixed", 5.0)
    short = bench.add(4, limit=20, tenant="mixed")
    assert bench.step().paused == (mine[1],)
    service.charge("single", 10.0)  # the last in the order, and the longest
    while short not in bench.done:
        assert single not in bench.step().paused


@pytest.mark.parametrize("policy", ["short_turn_first", "fair"])
def test_two_tenants_that_want_all_slots_pause_nobody_in_turns(policy: str) -> None:
    """Once each has one, only turns that are shorter than another pause it."""
    bench = Bench(num_blocks=4000, max_running=4, policy=policy, debug=False)
    fill(bench, *["first"] * 4, limit=ANSWER_LEVELS[0])
    for tenant in ["second", "first"] * 4:
        bench.add(4, limit=ANSWER_LEVELS[0], tenant=tenant)
    paused = sum(len(bench.step().paused) for _ in range(200))
    assert paused == 1
    assert not bench.done
