"""Who goes first: short turns, higher priorities, tenants that have had less."""

import numpy as np
import pytest

from runtime.scheduling.policy import TENANT_QUANTUM_S
from runtime.scheduling.sequence import Sequence, TokenBuffer
from tests.support.requests import make_request
from tests.support.scheduler_bench import Bench


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


def test_what_goes_before_is_the_others_work_and_not_ones_own() -> None:
    bench = Bench(num_blocks=400, max_running=1)
    waiting = Sequence(
        make_request(400), TokenBuffer(np.arange(400, dtype=np.int32)), arrival_s=0.0
    )
    assert bench.scheduler.order.work_before_s(waiting) == 0.0
    for _ in range(9):
        bench.add(40)
    assert bench.scheduler.order.work_before_s(waiting) == pytest.approx(9 * 40 * 2e-4)


@pytest.mark.parametrize(
    ("policy", "served_s", "tokens"),
    [
        ("short_turn_first", 0.0, 50 + (50 + 100) + 30),
        ("short_turn_first", 0.02, 50 + (50 + 100) + 30 + 100),
        ("fcfs", 0.0, 50 + 9 * 400 + 30),
    ],
)
def test_of_each_other_tenant_no_more_goes_before_a_prompt_than_its_own_tenant_has(
    policy: str, served_s: float, tokens: int
) -> None:
    """However much one tenant has queued, another's prompt is expected soon; later where its tenant
    had more than others."""
    bench = Bench(num_blocks=4000, max_running=1, policy=policy)
    bench.add(50, tenant="modest")
    for _ in range(9):
        bench.add(400, tenant="greedy")
    bench.add(30, tenant="third")
    bench.scheduler.service.charge("modest", served_s)
    prompt = TokenBuffer(np.arange(100, dtype=np.int32))
    coming = Sequence(make_request(100, tenant="modest"), prompt, arrival_s=0.0)
    before_s = bench.scheduler.order.work_before_s(coming)
    assert before_s == pytest.approx(tokens * 2e-4)


@pytest.mark.parametrize("priority", [-(1 << 40), 1 << 40])
def test_an_absurd_priority_is_an_order_and_nothing_else(priority: int) -> None:
    bench = Bench(max_running=1)
    odd = bench.add(8, limit=1, priority=priority)
    plain = bench.add(8, limit=1)
    bench.run()
    assert bench.done == ([odd, plain] if priority > 0 else [plain, odd])


@pytest.mark.samples(2)
@pytest.mark.parametrize("policy", ["short_turn_first", "fair"])
@pytest.mark.parametrize("deadline_s", [None, 0.5])
def test_a_tenants_priority_moves_no_other_tenant(policy: str, deadline_s: float | None) -> None:
    """One tenant keeps eight urgent sequences waiting; another's come one after the other and each
    is answered within about a second, as if the first had asked for nothing special."""
    bench = Bench(num_blocks=400, policy=policy, max_running=2, debug=False)
    longest_s = 0.0
    for _ in range(20):
        mine = bench.add(30, limit=4, tenant="modest")
        begun_s = bench.now
        while mine not in bench.done:
            waiting = sum(s.request.tenant == "greedy" for s in bench.scheduler.queues.waiting)
            for _ in range(8 - waiting):
                bench.add(30, limit=4, tenant="greedy", priority=100, deadline_s=deadline_s)
            bench.step()
            assert bench.now - begun_s < 30.0, "starved"
        longest_s = max(longest_s, bench.now - begun_s)
    assert longest_s < 3 * TENANT_QUANTUM_S
