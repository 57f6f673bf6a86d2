"""A tenant's share of the steps in which others decode."""

from collections.abc import Mapping

import numpy as np
import pytest

from runtime.scheduling.costs import CostProfile, StepCosts
from runtime.scheduling.draft import Draft
from runtime.scheduling.sequence import Sequence
from runtime.scheduling.step_plan import Schedule, StepPlan, step_work
from runtime.scheduling.tenant_share import (
    BURST_S,
    MOST_OWED_S,
    MOST_REST_S,
    PATIENCE_S,
    PAUSE_S,
    TenantShare,
)
from tests.support.scheduler_bench import Bench

_PROFILE = CostProfile(prefill_token_s=1e-3, decode_step_s=1e-2)


class _Steps:
    """Steps on one ``TenantShare``, each as long as predicted or ``pace`` times that."""

    def __init__(self, profile: CostProfile = _PROFILE) -> None:
        self.costs = StepCosts(profile)
        self.share = TenantShare(self.costs)
        self.now = 5.0
        self.rested: set[str] = set()
        """The tenants whose decodes rested in the last step."""

    def step(
        self,
        *,
        tenants: int = 2,
        pace: float = 1.0,
        prompts: tuple[str, float] = ("b", 0.0),
        **decoders: int,
    ) -> bool:
        """Plan one; False if the prompts of that tenant, which take so many seconds, have to
        wait."""
        step = self._decodes(decoders)
        self.rested = set(self.share.start_step(self.now, step, decoders=decoders, tenants=tenants))
        decoders = {each: n for each, n in decoders.items() if each not in self.rested}
        step = self._decodes(decoders)
        self.share.decode(step, decoders)
        self.now += pace * step.decode_s
        tenant, seconds = prompts
        if not seconds:
            return True
        if self.share.has_to_wait(tenant):
            return False
        self.share.takes_part(tenant)
        self.share.charge(tenant, seconds)
        self.now += pace * seconds
        return True

    def _decodes(self, decoders: Mapping[str, int]) -> StepPlan:
        step = StepPlan()
        step.decode_rows = sum(decoders.values())
        step.decode_s = self.costs.decode_s(0, step.decode_rows) if decoders else 0.0
        return step

    def waits(
        self, *, prompts: tuple[str, float], idle: int = 0, tenants: int = 2, **decoders: int
    ) -> int:
        """How many steps those prompts wait, with so many behind each where there are none."""
        for count in range(1000):
            if self.step(tenants=tenants, prompts=prompts, **decoders):
                return count
            for _ in range(idle):
                self.step(tenants=tenants, **decoders)
        raise AssertionError("nothing is ever open to them")

    def owed_s(self, tenant: str = "b") -> float:
        """After the last step."""
        self.step(tenants=1)
        return self.share.owed_s(tenant)


def test_a_prompt_beside_another_tenants_decodes_is_owed_less_the_share_of_the_time() -> None:
    steps = _Steps()
    steps.step(a=1, prompts=("b", 0.09))
    assert steps.owed_s() == pytest.approx(0.09 - 0.1 / 2)


@pytest.mark.parametrize(("tenants", "share"), [(1, 1 / 2), (2, 1 / 2), (5, 1 / 5)])
def test_time_pays_a_tenant_its_share_of_it(tenants: int, share: float) -> None:
    steps = _Steps()
    steps.step(a=1, prompts=("b", 0.8))
    before = steps.owed_s()
    steps.now += 0.5
    steps.step(a=1, tenants=tenants)
    assert before - steps.share.owed_s("b") == pytest.approx(0.5 * share)


def test_a_step_that_took_longer_than_predicted_is_owed_for_as_long_as_it_took() -> None:
    steps = _Steps()
    steps.step(a=1, prompts=("b", 0.09), pace=3.0)
    assert steps.owed_s() == pytest.approx(0.27 - 0.3 / 2)


def test_idle_time_behind_a_step_is_not_charged() -> None:
    steps = _Steps()
    steps.step(a=1, prompts=("b", 0.09))
    steps.now += 100.0
    assert steps.owed_s() == 0.0


def test_decodes_are_owed_for_what_the_step_would_be_shorter_without_them() -> None:
    """Ten milliseconds however many decode: nobody's make a step longer."""
    steps = _Steps()
    steps.step(a=1, prompts=("b", 1.0))
    before = steps.owed_s()
    steps.step(a=1, b=3)
    assert before - steps.owed_s() == pytest.approx(0.01 / 2)


def test_decodes_that_make_steps_longer_are_owed_for_it() -> None:
    steps = _Steps()
    steps.costs.table.cells[0][1:] = [0.01, 0.02, 0.05]  # of 1, 8 and 32 that decode
    steps.step(a=1, prompts=("b", 1.0))
    before = steps.owed_s()
    steps.step(a=1, b=31)
    assert steps.owed_s() - before == pytest.approx((0.05 - 0.01) - 0.05 / 2)
    assert steps.share.owed_s("a") == 0.0  # without it a step is hardly shorter


def test_decodes_of_all_tenants_are_owed_for_no_more_than_the_step() -> None:
    """Where two rows cost far more than one, each tenant is charged its half, not both it all."""
    steps = _Steps()
    steps.costs.table.cells[0][1:] = [0.01, 0.5, 0.5]
    steps.step(a=1, b=1)
    step_s = steps.costs.decode_s(0, 2)
    rest_s = steps.costs.decode_s(0, 1)
    assert step_s - rest_s > step_s / 2
    assert steps.owed_s("a") == steps.owed_s("b") == 0.0  # half a step each, and paid as much


def test_who_owes_the_burst_waits_beside_others_and_nowhere_else() -> None:
    steps = _Steps()
    assert steps.step(a=1, prompts=("b", 2.5))  # all at once: half of it is paid by its own time
    assert not steps.step(a=1, prompts=("b", 0.1))
    assert not steps.step(a=1, b=1, prompts=("b", 0.1))
    assert steps.step(a=1, prompts=("c", 0.1))
    assert steps.step(b=1, prompts=("b", 0.001))
    assert steps.step(prompts=("b", 0.001))


def test_a_tenant_goes_on_as_soon_as_it_is_paid() -> None:
    steps = _Steps()
    steps.step(a=1, prompts=("b", 2 * BURST_S + 0.205))
    # 1.0975 s are owed, and each step of decodes pays five milliseconds.
    assert steps.waits(a=1, prompts=("b", 0.1)) == 20


def test_no_more_is_owed_than_is_remembered() -> None:
    steps = _Steps()
    steps.step(prompts=("b", 100.0))
    assert steps.owed_s() == MOST_OWED_S


def test_a_tenant_whose_decodes_take_its_share_has_a_step_for_prompts_now_and_then() -> None:
    steps = _Steps()
    steps.costs.table.cells[0][1:] = [0.01, 0.015, 0.019]
    steps.step(a=1, prompts=("b", 100.0))
    for _ in range(3):
        waits = steps.waits(tenants=3, a=1, b=31, prompts=("b", 0.001))
        assert waits == pytest.approx(PATIENCE_S / (0.019 / 3), abs=1)
        assert steps.share.owed_s("b") == MOST_OWED_S


def test_patience_counts_only_while_a_prompt_waits_and_ends_with_its_step() -> None:
    steps = _Steps()
    steps.costs.table.cells[0][1:] = [0.01, 0.015, 0.019]
    steps.step(a=1, prompts=("b", 100.0))
    for _ in range(200):
        steps.step(tenants=3, a=1, b=31)
    waits = steps.waits(tenants=3, a=1, b=31, prompts=("b", 0.001), idle=5)
    assert waits == pytest.approx(PATIENCE_S / (0.019 / 3), abs=1)
    assert not steps.step(tenants=3, a=1, b=31, prompts=("b", 0.001))


_STEEP = [0.01, 0.02, 0.05]
"""Seconds of a step in which 1, 8 and 32 decode."""


def _steep() -> _Steps:
    steps = _Steps()
    steps.costs.table.cells[0][1:] = _STEEP
    return steps


def test_decodes_rest_that_would_make_a_step_much_longer_for_others() -> None:
    steps = _steep()
    steps.step(a=1, prompts=("b", 100.0))
    before = steps.now
    steps.step(a=1, b=31)
    assert steps.rested == {"b"}
    assert steps.now - before == pytest.approx(0.01)


@pytest.mark.parametrize("decoders", [{"a": 1, "b": 7}, {"a": 8, "b": 24}, {"b": 31}])
def test_nobody_rests_where_a_step_is_at_most_twice_as_long_or_nobody_else_decodes(
    decoders: dict[str, int],
) -> None:
    steps = _steep()
    steps.costs.table.cells[0][1:] = [0.01, 0.02, 0.04]
    steps.step(a=1, prompts=("b", 100.0))
    steps.step(**decoders)
    assert not steps.rested


def test_who_owes_less_than_the_burst_does_not_rest() -> None:
    steps = _steep()
    steps.step(a=1, prompts=("b", 2 * BURST_S - 0.1))
    steps.step(a=1, b=31)
    assert not steps.rested


@pytest.mark.parametrize("tenants", [1, 2])
def test_time_in_which_a_tenant_decodes_alone_does_not_pay_for_its_decodes_beside_others(
    tenants: int,
) -> None:
    """Beside another's turn forty decodes take most of the time. However much of it they have
    without that turn, whether its tenant has others waiting or not, they have half of it beside."""
    beside = {}
    for alone in (0, 3):
        steps = _Steps()
        steps.costs.table.cells[0][1:] = [0.01, 0.1, 0.1]
        shared_s = rested_s = 0.0
        for number in range(4000):
            before = steps.now
            steps.step(a=1, b=40)
            if "b" in steps.rested:
                rested_s += steps.now - before
            elif number > 400:
                shared_s += steps.now - before
            for _ in range(alone):
                steps.step(b=40, tenants=tenants)
        beside[alone] = shared_s / (shared_s + rested_s)
    assert beside[3] == pytest.approx(beside[0], rel=0.05)
    assert beside[0] < 0.65


@pytest.mark.parametrize("behind", ["a step of one", "a shared step"])
def test_idle_time_pays_for_decodes_as_well(behind: str) -> None:
    steps = _Steps()
    steps.costs.table.cells[0][1:] = [0.01, 0.1, 0.1]
    while not steps.rested:
        steps.step(a=1, b=40)
    if behind == "a step of one":
        steps.step(a=1, tenants=2)
    steps.now += 3600.0
    for _ in range(5):
        steps.step(a=1, b=40)
        assert not steps.rested


@pytest.mark.parametrize(("alone_s", "rests"), [(PAUSE_S - 0.2, True), (PAUSE_S + 3.0, False)])
def test_who_has_the_engine_alone_is_paid_for_decodes_after_a_pause(
    alone_s: float, rests: bool
) -> None:
    steps = _Steps()
    steps.costs.table.cells[0][1:] = [0.01, 0.1, 0.1]
    while not steps.rested:
        steps.step(a=1, b=40)
    until = steps.now + alone_s
    while steps.now < until:
        steps.step(b=40, tenants=1)
    steps.step(a=1, b=40)
    assert bool(steps.rested) is rests


def test_decodes_that_rest_have_their_share_of_the_time_in_the_long_run() -> None:
    steps = _steep()
    steps.step(a=1, prompts=("b", 100.0))
    together_s = 0.0
    for step in range(4000):
        if step == 1000:
            together_s, begun = 0.0, steps.now
        before = steps.now
        steps.step(a=1, b=31)
        together_s += 0.0 if steps.rested else steps.now - before
    added_s = together_s * (_STEEP[2] - _STEEP[0]) / _STEEP[2]
    assert added_s == pytest.approx((steps.now - begun) / 2, rel=0.01)


def test_nobody_rests_for_more_than_a_quarter_of_a_second_of_its_share() -> None:
    steps = _steep()
    steps.step(prompts=("b", 100.0))  # two seconds are owed
    runs, run = [], 0
    for _ in range(200):
        steps.step(a=1, b=31)
        if steps.rested:
            run += 1
        else:
            runs.append(run)
            run = 0
    assert runs[0] == pytest.approx(MOST_REST_S / (0.01 / 2), abs=1)
    assert max(runs) == runs[0]
    assert MOST_REST_S * 2 == 0.5  # seconds of two tenants, and the step before


def test_of_all_that_owe_the_burst_one_decodes() -> None:
    steps = _steep()
    steps.step(prompts=("a", 100.0))
    steps.step(prompts=("b", 100.0))
    steps.step(tenants=9, a=1, b=31)
    assert steps.rested == {"b"}  # of which more is owed: time has paid for a
    steps.step(tenants=9, a=31, b=1)
    assert not steps.rested  # without b a step would not be shorter


def test_beside_a_prompt_of_another_tenant_who_owes_the_burst_waits() -> None:
    steps = _Steps()
    steps.step(prompts=("b", 100.0))
    assert steps.step(prompts=("b", 0.1))  # nobody else has a prompt
    assert steps.step(prompts=("a", 0.1))
    assert steps.share.has_to_wait("b")
    assert not steps.share.has_to_wait("c")
    steps.step()
    assert not steps.share.has_to_wait("b")


def test_of_two_that_owe_the_burst_neither_waits_for_the_other() -> None:
    steps = _Steps()
    steps.step(prompts=("a", 100.0))
    steps.step(prompts=("b", 100.0))
    for _ in range(2):
        assert steps.step(tenants=100, prompts=("a", 0.1))
        assert steps.share.late == {"a", "b"}
        assert not steps.share.has_to_wait("b")


def test_prompts_of_others_do_not_hold_up_for_ever_who_owes_the_burst() -> None:
    steps = _Steps()
    steps.step(prompts=("b", 100.0))
    waited = 0
    while True:
        steps.step(tenants=40, prompts=(f"t{waited}", 0.01))
        if not steps.share.has_to_wait("b"):
            break
        waited += 1
    assert waited == pytest.approx(PATIENCE_S / (0.01 / 40), abs=1)


def test_nothing_is_kept_of_tenants_that_owe_nothing() -> None:
    steps = _Steps()
    for number in range(50):
        steps.step(a=1, prompts=(f"t{number}", 0.01))
    steps.now += 10.0
    steps.step(a=1)
    assert not steps.share.remembered


# In the scheduler, on a machine as fast as predicted


_SLOW = CostProfile(prefill_token_s=5e-3, decode_step_s=1e-2)
"""Eighteen tokens of a prompt fit beside decodes, for a gap of 100 ms."""


class _Machine(Bench):
    """Its clock moves by what the step's work takes."""

    def __init__(self, policy: str = "short_turn_first") -> None:
        super().__init__(
            num_blocks=20_000, debug=False, profile=_SLOW, max_batch_tokens=4096, policy=policy
        )
        self.decoding_s = self.prompts_s = 0.0
        """Of the steps in which tenant a decodes: what its decodes take, and what is added."""
        self.gaps_s: list[float] = []

    def step(self, *, lease_s: float = 0.0, flush: bool = False) -> Schedule:
        begun = self.now
        decoding = [s for s in self.scheduler.queues.running if s.decoding]
        work: list[float] = []
        plan = self.scheduler.schedule

        def planned(now: float) -> Schedule:
            schedule = plan(now)
            work.append(self.costs.step_s(step_work(schedule.chunks)))
            return schedule

        self.scheduler.schedule = planned  # type: ignore[assignment, method-assign]
        try:
            schedule = super().step(lease_s=lease_s, flush=flush)
        finally:
            self.scheduler.schedule = plan  # type: ignore[method-assign]
        self.now = begun + work[0]
        if any(s.request.tenant == "a" for s in decoding):
            self.gaps_s.append(work[0])
            self.decoding_s += _SLOW.decode_step_s
            self.prompts_s += work[0] - _SLOW.decode_step_s
        return schedule

    def keep_asking(self, tenant: str, prompt: int, *, waiting: int = 4) -> None:
        mine = [s for s in self.scheduler.queues.waiting if s.request.tenant == tenant]
        for _ in range(waiting - len(mine)):
            self.add(prompt, limit=1, tenant=tenant)


def _speaks(machine: _Machine, tenant: str = "a") -> Sequence:
    sequence = machine.add(4, limit=100_000, expected=0, tenant=tenant)
    while not sequence.num_emitted:
        machine.step()
    return sequence


@pytest.mark.parametrize("policy", ["short_turn_first", "fair"])
def test_decodes_have_half_of_the_time_beside_another_tenants_endless_prompts(policy: str) -> None:
    machine = _Machine(policy)
    _speaks(machine)
    for step in range(1000):
        if step == 100:  # the burst is over
            machine.decoding_s = machine.prompts_s = 0.0
        machine.keep_asking("b", 140)
        machine.step()
    assert machine.prompts_s == pytest.approx(machine.decoding_s, rel=0.02)
    ordered = sorted(machine.gaps_s)
    assert ordered[len(ordered) // 2] == pytest.approx(_SLOW.decode_step_s)
    assert ordered[-1] <= machine.scheduler.prefill_budget.gap_bound_s + 1e-9


def test_prompts_of_two_tenants_leave_a_third_to_the_decodes_of_another() -> None:
    machine = _Machine()
    _speaks(machine)
    done = {"b": 0, "c": 0}
    for step in range(1000):
        if step == 100:  # both have had their bursts
            machine.decoding_s = machine.prompts_s = 0.0
        machine.keep_asking("b", 140)
        machine.keep_asking("c", 140)
        machine.step()
    for sequence in machine.done:
        done[sequence.request.tenant] += 1
    assert machine.prompts_s == pytest.approx(2 * machine.decoding_s, rel=0.02)
    assert done["b"] == pytest.approx(done["c"], rel=0.1)


def test_strict_policies_know_no_shares() -> None:
    machine = _Machine("fcfs")
    _speaks(machine)
    for _ in range(50):
        machine.keep_asking("b", 140)
        machine.step()
    assert machine.prompts_s > 20 * machine.decoding_s


def test_a_first_prompt_behind_a_pause_has_the_whole_gap_until_it_used_the_burst() -> None:
    machine = _Machine()
    _speaks(machine)
    for _ in range(2):
        asked = machine.add(290, limit=1, tenant="b")
        machine.gaps_s.clear()
        while asked.num_computed < 290 and asked not in machine.done:
            machine.step()
        assert min(machine.gaps_s[:12]) > 0.08
        for _ in range(200):
            machine.step()  # the pause


def test_a_prompt_within_its_share_goes_before_those_beyond_theirs() -> None:
    machine = _Machine()
    _speaks(machine)
    while not machine.scheduler.tenant_share.has_to_wait("b"):
        machine.keep_asking("b", 140)
        machine.step()
    asked = machine.add(10, limit=1, tenant="c", priority=-1)
    schedule = machine.step()
    assert {c.sequence.request.tenant for c in schedule.chunks} == {"a", "c"}
    assert asked in machine.done


def test_where_nobody_decodes_a_prompt_of_another_goes_before_those_beyond_the_share() -> None:
    """By their length they would go first, and with them it would take ten times as long."""
    machine = _Machine()
    for _ in range(30):
        machine.keep_asking("b", 140)
        machine.step()
    asked = machine.add(10, limit=200, tenant="a")
    machine.keep_asking("b", 140)
    schedule = machine.step()
    assert {c.sequence: c.num_tokens for c in schedule.chunks} == {asked: 10}


def test_prompts_that_wait_are_not_looked_at_in_steps_that_are_not_open_to_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    machine = _Machine()
    _speaks(machine)
    while not machine.scheduler.tenant_share.has_to_wait("b"):
        machine.keep_asking("b", 140)
        machine.step()
    monkeypatch.setattr(machine.scheduler.order, "key", lambda *_: pytest.fail("looked at"))
    machine.step()


def _plays(tenant: str, *, shares: bool) -> list[dict[str, int]]:
    """The plans of a load whose decodes are those of tenant b."""
    machine = _Machine()
    if not shares:
        machine.scheduler.tenant_share.has_to_wait = lambda _: False  # type: ignore[method-assign]
    _speaks(machine, tenant)
    plans = []
    for _ in range(150):
        machine.keep_asking("b", 140)
        plans.append({c.sequence.request.request_id: c.num_tokens for c in machine.step().chunks})
    return plans


def test_a_tenant_alone_is_not_slowed_by_a_token() -> None:
    assert _plays("b", shares=True) == _plays("b", shares=False)
    assert _plays("a", shares=True) != _plays("a", shares=False)


def test_a_limited_prompt_goes_on_however_many_others_decode() -> None:
    machine = _Machine()
    for _ in range(6):
        _speaks(machine)
    _speaks(machine, "c")
    asked = [machine.add(600, limit=2, tenant="b") for _ in range(3)]
    for _ in range(3000):
        if all(sequence in machine.done for sequence in asked):
            break
        machine.step()
    assert all(sequence in machine.done for sequence in asked)


def _beside_forty(policy: str = "short_turn_first") -> tuple[int, int, list[int]]:
    """Tokens that one turn of tenant a and forty of tenant b emit in five seconds of a machine
    whose steps are as long as they have rows; and of each step, how many of b decoded in it."""
    machine = _Machine(policy)
    for cells in machine.costs.table.cells:
        cells[1:] = [0.002, 0.016, 0.064]
    mine = _speaks(machine)
    theirs = [machine.add(4, limit=100_000, expected=0, tenant="b") for _ in range(40)]
    while not all(each.num_emitted for each in theirs):
        machine.step()
    until = machine.now + 5.0
    before, begun = mine.num_emitted, sum(each.num_emitted for each in theirs)
    rows = []
    while machine.now < until:
        sequences = machine.step().decodes.sequences
        assert mine in sequences
        rows.append(sum(s.request.tenant == "b" for s in sequences))
    emitted = sum(each.num_emitted for each in theirs) - begun
    return mine.num_emitted - before, emitted, rows


def test_a_turn_beside_forty_of_another_tenant_has_half_of_the_time() -> None:
    mine, theirs, rows = _beside_forty()
    strict_mine, strict_theirs, strict_rows = _beside_forty("fcfs")
    assert set(rows) == {0, 40}
    assert set(strict_rows) == {40}
    assert mine > 10 * strict_mine
    assert theirs > 0.45 * strict_theirs


def test_drafts_of_who_rests_are_left_out_with_its_decodes() -> None:
    machine = _Machine()
    for cells in machine.costs.table.cells:
        cells[1:] = [0.002, 0.016, 0.064]
    mine = _speaks(machine)
    theirs = [machine.add(4, limit=100_000, expected=0, tenant="b") for _ in range(40)]
    while not all(each.num_emitted for each in theirs):
        machine.step()
    machine.scheduler.tenant_share.charge("b", 100.0)
    draft = Draft(tokens=np.zeros(3, dtype=np.int32), sources=(), survival=(1.0, 1.0, 1.0))
    machine.now += 100.0
    schedule = machine.scheduler.schedule(machine.now, dict.fromkeys([mine, theirs[0]], draft))
    assert [chunk.sequence for chunk in schedule.chunks] == [mine]
    assert schedule.chunks[0].num_drafted == 3
