"""Recorded sessions on the real scheduler and cache, in virtual time; the way to host memory."""

import json
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest

from benchmarks.host_link import HostLink
from benchmarks.simulation import CONTINUUM_LIKE, FCFS_LRU, OURS, DeviceProfile, Setting, Simulation
from benchmarks.trace_sessions import Session, Turn
from radix_cache.nodes import Tier
from radix_cache.transfers import BlockMove
from runtime.scheduling.costs import CostProfile
from tests.support.clock import FakeClock

DEVICE = DeviceProfile(
    costs=CostProfile(
        prefill_token_s=1e-3, prefill_pair_s=0.0, decode_step_s=0.01, decode_context_s=0.0
    ),
    kv_tokens=4096,
    reload_token_s=0.0,
)


def session(name: str, first_token: int, turns: int, *, step: int = 200, gap_s: float = 1.0):
    """Append-only: each turn adds ``step`` tokens, a quarter of them its answer."""
    tokens = np.arange(first_token, first_token + turns * step, dtype=np.int32)
    return Session(
        name=name,
        turns=tuple(
            Turn(
                tokens=tokens[: (i + 1) * step],
                prompt_tokens=i * step + step * 3 // 4,
                kept_tokens=i * step,
                gap_s=gap_s,
                calls_tool=True,
            )
            for i in range(turns)
        ),
    )


def test_a_turn_alone_takes_what_the_profile_says_of_its_work() -> None:
    setting = Setting(sessions=1, profile=DEVICE, stride=1)
    run = Simulation([session("s", 0, 1)], OURS, setting).run()
    prefill_s, decodes_s = 150 * 1e-3, 49 * 0.01
    assert run.turns[0].first_token_s == pytest.approx(prefill_s)
    assert run.turns[0].latency_s == pytest.approx(prefill_s + decodes_s)


def test_of_two_turns_the_one_that_may_say_less_is_answered_first() -> None:
    """Where the server is told."""

    def latencies(limit: int | None) -> list[float]:
        tokens = np.arange(400, dtype=np.int32)
        long = Turn(tokens=tokens, prompt_tokens=200, kept_tokens=0, gap_s=0.0, calls_tool=True)
        short = replace(long, tokens=tokens[:210] + 1000, limit_tokens=limit)
        sessions = [Session(name="long", turns=(long,)), Session(name="short", turns=(short,))]
        run = Simulation(sessions, OURS, Setting(sessions=2, profile=DEVICE, stride=1)).run()
        return [turn.first_token_s for turn in run.turns if turn.output_tokens == 10]

    assert latencies(10)[0] < 0.8 * latencies(None)[0]


def test_decodes_pay_once_for_what_their_contexts_begin_with() -> None:
    """Two turns of 150 + 50 tokens whose first 128 are two blocks in common: each decode that both
    are in reads 128 tokens less. What is computed of prompts costs nothing here."""
    costs = CostProfile(
        prefill_token_s=0.0, prefill_pair_s=0.0, decode_step_s=0.01, decode_context_s=1e-3
    )
    setting = Setting(sessions=2, profile=replace(DEVICE, costs=costs), stride=1)
    apart, alike = session("b", 100_000, 1), session("b", 100_000, 1)
    alike.turns[0].tokens[:130] = np.arange(130)
    walls = [
        Simulation([session("a", 0, 1), other], OURS, setting).run().end_s
        for other in (apart, alike)
    ]
    assert walls[0] - walls[1] == pytest.approx(48 * 128 * 1e-3, abs=0.02), "and one step more"


def test_the_next_turn_finds_the_blocks_of_the_last_one() -> None:
    setting = Setting(sessions=1, profile=DEVICE, stride=1)
    run = Simulation([session("s", 0, 3)], OURS, setting).run()
    # Whole blocks of the turn before, but never the token whose KV nobody has written yet.
    assert [t.cached_tokens for t in run.turns] == [0, 199 // 64 * 64, 399 // 64 * 64]


@pytest.mark.parametrize("mode", [FCFS_LRU, CONTINUUM_LIKE, OURS], ids=lambda m: m.name)
@pytest.mark.parametrize("stride", [1, 8])
def test_every_turn_of_an_overloaded_fleet_ends_once(mode, stride: int) -> None:
    fleet = [session(f"s{i}", 100_000 * i, 6) for i in range(12)]
    setting = Setting(sessions=8, profile=DEVICE, stride=stride)
    run = Simulation(fleet, mode, setting).run()
    assert len(run.turns) == 72
    assert len(run.session_s) == 12
    assert all(0 < t.first_token_s <= t.latency_s for t in run.turns)


def test_merging_device_steps_changes_the_mean_little() -> None:
    fleet = [session(f"s{i}", 100_000 * i, 6) for i in range(12)]
    means = [
        Simulation(fleet, OURS, Setting(sessions=6, profile=DEVICE, stride=stride)).run().mean_s
        for stride in (1, 4)
    ]
    assert means[1] == pytest.approx(means[0], rel=0.1)


def test_without_limits_on_memory_everything_but_the_new_is_cached() -> None:
    fleet = [session(f"s{i}", 100_000 * i, 6) for i in range(12)]
    setting = Setting(sessions=8, profile=DEVICE, unlimited_kv=True, stride=4)
    run = Simulation(fleet, FCFS_LRU, setting).run()
    fresh = sum(t.prompt_tokens - t.cached_tokens for t in run.turns)
    assert fresh <= 72 * (150 + 64)


def test_with_host_memory_all_comes_back_but_takes_its_time() -> None:
    fleet = [session(f"s{i}", 100_000 * i, 6) for i in range(12)]
    ends = {}
    for reload_s in (1e-6, 5e-4):
        device = replace(DEVICE, host_kv_tokens=1 << 16, reload_token_s=reload_s)
        setting = Setting(sessions=8, profile=device, host_tier=True, stride=4)
        run = Simulation(fleet, FCFS_LRU, setting).run()
        fresh = sum(t.prompt_tokens - t.cached_tokens for t in run.turns)
        assert fresh <= 72 * (150 + 64)
        ends[reload_s] = run.mean_s
    without = Simulation(fleet, FCFS_LRU, replace(setting, host_tier=False)).run().mean_s
    assert ends[1e-6] < ends[5e-4] < without


def test_a_parent_goes_on_its_pause_after_its_last_sub_agent() -> None:
    parent = session("parent", 0, 2, gap_s=100.0)
    helpers = tuple(
        Session(name=f"helper {n}", turns=session("", 10_000 * n, n).turns) for n in (1, 2)
    )
    first = replace(parent.turns[0], sub_agents=helpers)
    fleet = [replace(parent, turns=(first, parent.turns[1])), session("next", 50_000, 1)]
    run = Simulation(fleet, OURS, Setting(sessions=1, profile=DEVICE, stride=1)).run()
    assert len(run.turns) == 2 + 1 + 2 + 1
    assert len(run.session_s) == 2, "sub-agents are no sessions of their own"
    alone = Simulation([parent], OURS, Setting(sessions=1, profile=DEVICE, stride=1)).run()
    longest = Simulation([helpers[1]], OURS, Setting(sessions=1, profile=DEVICE, stride=1)).run()
    assert run.session_s[0] > alone.session_s[0] + longest.session_s[0]


def test_a_sub_agent_finds_the_context_it_shares_with_its_parent() -> None:
    parent = session("parent", 0, 1)
    tokens = np.append(parent.turns[0].tokens, np.arange(9000, 9100, dtype=np.int32))
    begin = replace(parent.turns[0], tokens=tokens, prompt_tokens=280)
    helper = Session(name="helper", turns=(begin,))
    calling = replace(parent.turns[0], sub_agents=(helper,))
    fleet = [replace(parent, turns=(calling,))]
    run = Simulation(fleet, OURS, Setting(sessions=1, profile=DEVICE, stride=1)).run()
    assert [t.cached_tokens for t in run.turns] == [0, 199 // 64 * 64]


def test_pauses_are_divided_as_the_device_says(tmp_path: Path) -> None:
    file = tmp_path / "device.json"
    row = {"kv_tokens": 4096, "reload_token_s": 0.0, "lengths_by": 32, "pauses_by": 4.0}
    file.write_text(json.dumps(asdict(DEVICE.costs) | row))
    device = DeviceProfile.load(file)
    assert (device.costs, device.lengths_by) == (DEVICE.costs, 32)
    fleet = [session("s", 0, 3, gap_s=8.0)]
    ends = [
        Simulation(fleet, OURS, Setting(sessions=1, profile=profile, stride=1)).run().end_s
        for profile in (DEVICE, device)
    ]
    assert ends[0] - ends[1] == pytest.approx(2 * (8.0 - 2.0))


def move(blocks: list[int], source: Tier = Tier.HOST, target: Tier = Tier.DEVICE) -> BlockMove:
    ids = np.array(blocks, dtype=np.int32)
    return BlockMove(
        number=1,
        source=source,
        target=target,
        source_blocks=ids,
        target_blocks=ids,
        content=None,
    )


def test_blocks_arrive_one_order_after_the_other() -> None:
    clock = FakeClock(1.0)
    link = HostLink(8, block_s=0.5, clock=clock)
    link.move(move([0, 1]))
    link.move(move([2]))
    assert link.free_s == pytest.approx(2.5)
    assert not link.arrived(np.array([1], dtype=np.int32))
    assert link.arrived(np.array([5], dtype=np.int32))
    clock.now_s = 2.0
    assert link.arrived(np.array([0, 1], dtype=np.int32))
    assert not link.arrived(np.array([0, 2], dtype=np.int32))
    clock.now_s = 2.5
    assert link.arrived(np.array([0, 1, 2], dtype=np.int32))


def test_what_leaves_delays_nothing() -> None:
    link = HostLink(8, block_s=0.5, clock=FakeClock())
    link.move(move([3], source=Tier.DEVICE, target=Tier.HOST))
    assert link.free_s == 0.0
