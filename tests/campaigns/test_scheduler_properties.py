"""What holds for the scheduler whatever arrives, ends, is cancelled or preempted."""

import random

import pytest

from runtime.scheduling import policy, tenant_share
from runtime.scheduling.sequence import Sequence, SequenceState
from runtime.scheduling.step_plan import Schedule
from tests.support.scheduler_bench import Bench


class _Load:
    """Random sessions: turns that continue, fork, carry deadlines and priorities, end with
    leases or without, and are cancelled wherever they are. Each fits the pool alone."""

    def __init__(self, seed: int) -> None:
        self.rng = rng = random.Random(seed)
        self.places = rng.choice([1, 3, 12])
        self.policy = rng.choice(["fcfs", "short_turn_first", "fair"])
        self.rested = 0
        self.bench = Bench(
            num_blocks=rng.choice([10, 24, 100]),
            max_batch_tokens=rng.choice([3, 16, 64]),
            prefill_tokens_beside_decodes=rng.choice([2, 64]),
            max_running=self.places,
            output_reserve_percent=rng.choice([0, 100]),
            session_context_percent=rng.choice([50, 150]),
            policy=self.policy,
            cache_policy=rng.choice(["lease", "lru"]),
        )
        self.open: set[Sequence] = set()
        self.cancelled: set[Sequence] = set()
        self.over: list[Sequence] = []
        self.all: list[Sequence] = []

    def arrive(self) -> None:
        rng, bench = self.rng, self.bench
        most = bench.cache.usable_blocks * 4
        busy = {s.request.branch_id for s in self.open}
        idle = [s for s in self.over if s.request.branch_id not in busy]
        base = rng.choice(idle) if idle and rng.random() < 0.6 else None
        held = 0 if base is None else len(base.buffer)
        limit, prompt = rng.randint(1, 15), rng.randint(1, 20)
        if held + prompt + limit > most:
            return
        tenant = rng.choice("aaab") if base is None else base.request.tenant
        forks = base is None or rng.random() < 0.3
        sequence = bench.add(
            prompt,
            limit=limit,
            expected=rng.randint(0, limit),
            tenant=tenant,
            base=base,
            session=None if forks or base is None else base.request.branch_id,
            priority=rng.choice([0, 0, 0, 1, -1]),
            deadline_s=rng.choice([None, None, 0.001, 5.0]),
        )
        self.open.add(sequence)
        self.all.append(sequence)

    def cancel(self) -> None:
        sequence = self.rng.choice([each for each in self.all if each in self.open])
        if sequence.state is SequenceState.WAITING:
            self.bench.scheduler.queues.withdraw(sequence)
        else:
            self.bench.scheduler.queues.release(sequence, lease_s=0.0)
        self.open.discard(sequence)
        self.cancelled.add(sequence)

    def step(self) -> None:
        bench = self.bench
        decoding = {
            s: (s.num_emitted, s.preemptions)
            for s in bench.scheduler.queues.running
            if s.decoding and s.state is SequenceState.RUNNING
        }
        had_no_place = set(bench.scheduler.queues.paused)
        schedule = bench.step(lease_s=self.rng.choice([0.0, 0.05, 5.0]), flush=True)
        for sequence, (emitted, preemptions) in decoding.items():
            gave_way = sequence.preemptions == preemptions + 1
            paused = sequence in schedule.paused or sequence in had_no_place
            told = gave_way or paused or self._rests(sequence, schedule)
            assert told or sequence.num_emitted == emitted + 1, "a decode skipped a step"
        assert (
            len(bench.scheduler.queues.running) - len(list(bench.scheduler.queues.paused))
            <= self.places
        )
        assert sum(s.preemptions for s in self.all) >= bench.preempted
        self._no_more_than_fits(schedule)
        for sequence in [s for s in self.open if s in bench.done]:
            self.open.discard(sequence)
            self.over.append(sequence)
        bench.cache.check()

    def _rests(self, sequence: Sequence, schedule: Schedule) -> bool:
        """Whether a decode was left out of a step for those of another tenant."""
        share, tenant = self.bench.scheduler.tenant_share, sequence.request.tenant
        others = any(s.request.tenant != tenant for s in schedule.decodes.sequences)
        owes = share.owed_s(tenant) >= tenant_share.BURST_S
        rests = owes and others and self.policy != "fcfs"
        self.rested += rests
        return rests

    def _no_more_than_fits(self, schedule: Schedule) -> None:
        assert not schedule.exhausted, "a turn ended for want of room that fits alone"
        assert not schedule.too_large


@pytest.fixture(autouse=True)
def _short_levels(monkeypatch: pytest.MonkeyPatch) -> None:
    """Turns of these loads are a few tokens long; some are to count as long ones, and some to owe
    time to others."""
    monkeypatch.setattr(policy, "ANSWER_LEVELS", (2, 6))
    monkeypatch.setattr(tenant_share, "BURST_S", 0.002)
    monkeypatch.setattr(tenant_share, "MOST_REST_S", 0.05)
    monkeypatch.setattr(tenant_share, "MOST_SLOWER", 0.5)
    monkeypatch.setattr(tenant_share, "_MOST_PACE", 1000.0)


@pytest.mark.parametrize("seed", range(25))
def test_every_turn_ends_no_decode_skips_and_every_block_comes_back(seed: int) -> None:
    load = _Load(seed)
    for _ in range(80):
        for _ in range(load.rng.randint(0, 2)):
            load.arrive()
        if load.open and load.rng.random() < 0.1:
            load.cancel()
        load.step()
    for _ in range(20_000):
        if not load.bench.scheduler.queues.has_work:
            break
        load.step()
    assert not load.open
    assert set(load.over) | load.cancelled == set(load.all)
    stats = load.bench.cache.stats()
    assert stats.protected == 0
    assert stats.free + stats.evictable + stats.reserved == stats.total


def test_the_random_loads_do_make_turns_give_way_pause_and_rest() -> None:
    """Guards the test above."""
    total = paused = rested = 0
    for seed in range(40):
        load = _Load(seed)
        for _ in range(60):
            load.arrive()
            load.step()
            paused += bool(list(load.bench.scheduler.queues.paused))
        total += load.bench.preempted
        rested += load.rested
    assert rested > 3
    assert total > 10
    assert paused > 10


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("cache_policy", ["lease", "lru"])
def test_many_running_turns_in_a_tiny_pool_all_reach_their_limit(
    seed: int, cache_policy: str
) -> None:
    """Each fits the pool alone, to the last block; leases and queued turns hold the rest."""
    rng = random.Random(seed)
    bench = Bench(num_blocks=6, max_running=16, output_reserve_percent=0, cache_policy=cache_policy)
    turns = []
    for n in range(16):
        prompt = rng.randint(1, 8)
        limit = 24 - prompt if n % 4 == 0 else rng.randint(1, 24 - prompt)
        turns.append(bench.add(prompt, limit=limit, expected=0))
    for _ in range(5000):
        if not bench.scheduler.queues.has_work:
            break
        schedule = bench.step(lease_s=rng.choice([0.0, 60.0]))
        assert not schedule.exhausted
        assert not schedule.too_large
    assert set(bench.done) == set(turns)
    assert all(turn.remaining == 0 for turn in turns)
    assert bench.preempted > 0


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("slots", [1, 2, 3, 6])
def test_backlogged_tenants_are_served_alike_up_to_what_runs_at_once(seed: int, slots: int) -> None:
    """The bound of the virtual token counter (arXiv:2401.00588, theorem 4.4), in seconds. With
    fewer slots than turns, what a turn that gave its slot away did not get is not charged."""
    assert _largest_difference("fair", seed, slots) <= 1.0


def test_by_default_tenants_may_differ_by_more_than_where_fairness_is_asked_for() -> None:
    """By a second of service: that much a short turn may go before another tenant's long one."""
    assert max(_largest_difference("short_turn_first", seed, slots=1) for seed in range(3)) > 1.5


def _largest_difference(policy: str, seed: int, slots: int) -> float:
    """Of the seconds served to two tenants while both have turns waiting, in units of twice
    what the turns that run at once may cost."""
    rng = random.Random(seed)
    bench = Bench(
        num_blocks=400, policy=policy, max_running=slots, max_batch_tokens=64, debug=False
    )
    sizes = {"long": (30, 60), "short": (2, 8)}
    costs = bench.costs
    dearest = costs.prefill_s(60) + 8 * costs.decode_s(68)
    served = dict.fromkeys(sizes, 0.0)
    worst = 0.0
    for _ in range(400):
        for tenant, (low, high) in sizes.items():
            waiting = [s for s in bench.scheduler.queues.waiting if s.request.tenant == tenant]
            for _ in range(3 - len(waiting)):
                bench.add(rng.randint(low, high), limit=rng.randint(1, 8), tenant=tenant)
        before = {
            s: s.decoding
            for s in [*bench.scheduler.queues.running, *bench.scheduler.queues.waiting]
        }
        schedule = bench.step()
        decodes = [c for c in schedule.chunks if before[c.sequence]]
        context = sum(c.start + c.num_tokens for c in decodes)
        for chunk in schedule.chunks:
            if before[chunk.sequence]:
                seconds = costs.decode_s(context) / len(decodes)
            else:
                seconds = costs.prefill_s(chunk.num_tokens, chunk.start)
            served[chunk.sequence.request.tenant] += seconds
        worst = max(worst, abs(served["long"] - served["short"]))
    return worst / (2 * slots * dearest)
