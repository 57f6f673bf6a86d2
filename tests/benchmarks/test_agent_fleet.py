"""The benchmark of recorded sessions on the real engine: its contents and its simulator."""

import numpy as np
import pytest

from benchmarks.agent_fleet import ASKED, Load, as_words, gap_scale_of, play, simulation_of
from benchmarks.fleet_engine import RecordedLengths, tokenizer_of
from benchmarks.simulation import FCFS_LRU, OURS
from benchmarks.trace_sessions import Session, Turn
from runtime.config import EngineConfig
from runtime.model.runner import load_runner
from runtime.process.loading import assemble
from runtime.scheduling.costs import CostProfile, CostTable, StepCosts, StepWork
from tests.support.clock import FakeClock

BLOCK = 16
VOCABULARY = 1536
COSTS = CostProfile(
    prefill_token_s=1e-3,
    prefill_pair_s=2e-7,
    prefill_chunk_s=2e-3,
    decode_step_s=0.01,
    decode_context_s=2e-7,
)


class VirtualCosts(StepCosts):
    """Costs that are what ``COSTS`` says, whatever the machine took; so long takes the work."""

    def __init__(self, clock: FakeClock) -> None:
        super().__init__(COSTS)
        self._clock = clock

    def observe(self, work: StepWork, *, seconds: float) -> None:
        spent_s = COSTS.prefill_token_s * work.prefill_tokens
        spent_s += COSTS.prefill_pair_s * work.prefill_pairs
        spent_s += COSTS.prefill_chunk_s * work.prefill_chunks
        if work.decode_rows:
            spent_s += COSTS.decode_step_s + COSTS.decode_context_s * work.decode_context
        self._clock.advance(spent_s)
        super().observe(work, seconds=spent_s)


def fleet_of(seed: int, *, sessions: int, turns: int) -> list[Session]:
    """Sessions whose turns append; half of them begin alike. Token ids are those of a
    recording: large, and each session's a run of its own."""
    rng = np.random.default_rng(seed)
    fleet = []
    for number in range(sessions):
        first = 0 if number % 2 else 10_000_000 * (number + 1)
        begin = np.arange(first, first + 100, dtype=np.int32) * 32
        own = 10_000_000 * (number + 1) + np.arange(5_000, dtype=np.int32) * 32
        tokens = np.concatenate([begin, own])
        made: list[Turn] = []
        length = 0
        for index in range(turns):
            kept, prompt = length, length + int(rng.integers(100, 400))
            length = prompt + int(rng.integers(4, 30))
            made.append(
                Turn(
                    tokens=tokens[:length],
                    prompt_tokens=prompt,
                    kept_tokens=kept,
                    gap_s=float(rng.integers(1, 60)) if index else 0.0,
                    calls_tool=bool(rng.random() < 0.8),
                )
            )
        fleet.append(Session(name=f"s{number}", turns=tuple(made)))
    return fleet


@pytest.mark.parametrize("mode", [FCFS_LRU, OURS], ids=lambda mode: mode.name)
@pytest.mark.parametrize("seed", [pytest.param(2, marks=pytest.mark.slow), 3, 4])
def test_the_simulator_schedules_as_the_engine_does(mode, seed: int) -> None:
    """Of seeds 1 to 8 two part ways where a turn waits for the end of a lease, and are other
    schedules from then on (docs/log/scheduling.md)."""
    load = Load(fleet=fleet_of(seed, sessions=10, turns=5), at_a_time=6, kv_tokens=3_200)
    config = EngineConfig(
        model="default",
        dtype="float32",
        device="cpu",
        threads=1,
        num_blocks=load.kv_tokens // BLOCK,
        block_size=BLOCK,
        max_draft_tokens=0,
        policy=mode.policy,
        cache_policy="lease" if mode.lease else "lru",
    )
    runner, clock = load_runner(config), FakeClock()
    tokenizer = tokenizer_of(runner)
    engine = assemble(
        config,
        runner,
        tokenizer,
        costs=VirtualCosts(clock),
        emission_type=RecordedLengths,
        clock=clock,
    )
    played = play(engine, tokenizer, load, clock=clock, sleep=lambda s: clock.advance(max(s, 1e-5)))
    run = simulation_of(load, mode, COSTS).run()
    assert len(played.latencies_s) == len(run.turns) == 50
    assert played.hit == pytest.approx(run.hit_ratio, abs=0.02)
    assert np.mean(played.latencies_s) == pytest.approx(run.mean_s, rel=0.05)


def test_recorded_texts_without_a_common_beginning_get_none() -> None:
    texts = [1_000_000 * i + np.arange(BLOCK, dtype=np.int32) * 32 for i in range(500)]
    words = {tuple(as_words(text, VOCABULARY)) for text in texts}
    assert len(words) == len(texts)


def test_the_same_recorded_text_is_the_same_words_within_the_vocabulary() -> None:
    text = np.arange(2**31 - 5000, 2**31 - 1, dtype=np.int32)
    words = as_words(text, VOCABULARY)
    assert (words == as_words(text.copy(), VOCABULARY)).all()
    assert words.dtype == np.int32
    assert words.min() >= 300
    assert words.max() < VOCABULARY


def table_of(scale: float) -> CostTable:
    """What ``COSTS`` says, so many times slower."""
    costs = StepCosts(COSTS).table
    return CostTable(
        cells=[[cell * scale for cell in row] for row in costs.cells],
        pair_s=costs.pair_s * scale,
        context_s=costs.context_s * scale,
        chunk_s=costs.chunk_s * scale,
    )


def test_an_engine_twice_as_fast_has_half_the_pauses() -> None:
    load = Load(fleet=fleet_of(1, sessions=10, turns=5), at_a_time=6, kv_tokens=3_200)
    slow, fast = gap_scale_of(load, table_of(1.0)), gap_scale_of(load, table_of(0.5))
    assert fast == pytest.approx(slow / 2)


def test_pauses_make_the_load_that_is_said() -> None:
    """One session of two turns, 100 tokens and 1 s each: by hand."""
    tokens = np.arange(220, dtype=np.int32)
    turns = [
        Turn(tokens=tokens[:110], prompt_tokens=100, kept_tokens=0, gap_s=0.0, calls_tool=True),
        Turn(tokens=tokens, prompt_tokens=210, kept_tokens=110, gap_s=10.0, calls_tool=True),
    ]
    load = Load(fleet=[Session(name="s", turns=tuple(turns))], at_a_time=1, kv_tokens=3_200)
    table = table_of(1.0)
    work_s = sum(
        table.step_s(StepWork(prefill_tokens=100, prefill_pairs=pairs, prefill_chunks=1))
        + 10 * table.step_s(StepWork(decode_rows=1, decode_context=length))
        for pairs, length in ((5_000, 110), (16_000, 220))
    )
    assert work_s / (work_s + 10.0 * gap_scale_of(load, table)) == pytest.approx(ASKED)
