"""Some timed steps before the first turn, and what is made of them."""

import logging
from pathlib import Path

import numpy as np
import pytest
import torch

from runtime.config import EngineConfig
from runtime.machine_files import MachineFile
from runtime.model.batch import SequenceInput
from runtime.model.runner import ModelRunner, load_runner
from runtime.process.loading import load_engine
from runtime.process.startup_profile import measured_table
from runtime.process.stored_profile import StoredProfile
from runtime.scheduling.costs import ROWS, TOKENS, CostProfile, CostTable, StepCosts
from tests.support.clock import FakeClock

FIXED_S, TOKEN_S, PAIR_S, ONCE_S = 0.004, 0.001, 1e-7, 0.5


def truth_s(tokens: int, rows: int, position: int = 0) -> float:
    pairs = tokens * (position + tokens / 2) + rows * position
    return FIXED_S + TOKEN_S * (tokens + rows) + PAIR_S * pairs


class _TimedRunner(ModelRunner):
    """Its steps take a known time, the first of each kind half a second more, and one of them a
    hundred times as long."""

    clock: FakeClock
    steps: list[tuple[int, int, int]]
    blocks: list[list[np.ndarray]]
    """Of the sequences of each step."""
    slow: int | None = None

    def run(self, inputs: list[SequenceInput]) -> torch.Tensor:
        rows = [step for step in inputs if len(step.tokens) == 1]
        prompts = [step for step in inputs if len(step.tokens) > 1]
        tokens = sum(len(step.tokens) for step in prompts)
        key = (tokens, len(rows), inputs[0].start)
        for step in inputs:
            assert len(step.block_table) * self.block_size >= step.start + len(step.tokens)
        seconds = truth_s(*key) + (0.0 if key in self.steps else ONCE_S)
        self.clock.advance(seconds * (100 if len(self.steps) == self.slow else 1))
        self.steps.append(key)
        self.blocks.append([step.block_table for step in inputs])
        return super().run(inputs)


def _runner(num_blocks: int = 160) -> _TimedRunner:
    config = EngineConfig(
        model="random:qwen3-tiny", dtype="float32", device="cpu", num_blocks=2, threads=1
    )
    plain = load_runner(config)
    runner = _TimedRunner(plain.model, num_blocks=num_blocks, block_size=16)
    runner.clock, runner.steps, runner.blocks = FakeClock(), [], []
    return runner


def _measured(
    runner: _TimedRunner,
    seconds: float,
    max_batch_tokens: int = 2048,
    stored: StoredProfile | None = None,
) -> CostTable:
    return measured_table(
        runner,
        seconds=seconds,
        max_batch_tokens=max_batch_tokens,
        clock=runner.clock,
        stored=stored,
    )


def test_no_step_counts_while_memory_is_being_provided(monkeypatch: pytest.MonkeyPatch) -> None:
    """That takes a core, so steps take three times as long; the first step of each kind has more
    provided."""
    runner = _runner()
    kinds: set[tuple[int, int, int]] = set()
    plain, settles = runner.run, []

    def run(inputs: list[SequenceInput]) -> torch.Tensor:
        before = runner.clock()
        logits = plain(inputs)
        if runner.steps[-1] in kinds and len(settles) < len(kinds):
            runner.clock.advance(2 * (runner.clock() - before))
        kinds.add(runner.steps[-1])
        return logits

    monkeypatch.setattr(runner, "run", run)
    monkeypatch.setattr(runner.pool, "settle", lambda: settles.append(runner.clock.advance(0.1)))
    table = _measured(runner, 600.0)
    assert table.seconds(0, 1) == pytest.approx(truth_s(0, 1), rel=0.01)
    assert table.seconds(256, 0) == pytest.approx(FIXED_S + 256 * TOKEN_S, rel=0.01)


def test_what_is_paid_once_does_not_count() -> None:
    table = _measured(_runner(), 600.0)
    assert table.pair_s == pytest.approx(PAIR_S, rel=0.01)
    for i, tokens in enumerate(TOKENS):
        for j, rows in enumerate(ROWS):
            if tokens + rows and table.timed[i][j]:
                plain_s = FIXED_S + TOKEN_S * (tokens + rows)
                assert table.cells[i][j] == pytest.approx(plain_s, rel=0.02)
    assert sum(map(sum, table.timed)) >= 16


@pytest.mark.parametrize("seconds", [4.0, 9.0, 600.0])
def test_what_was_not_timed_is_extrapolated_without_ever_falling(seconds: float) -> None:
    costs = StepCosts(_measured(_runner(), seconds))
    for tokens in (16, 64, 300, 1024, 16_384):
        assert 0.3 < costs.prefill_s(tokens) / truth_s(tokens, 0) < 3.0
    for rows in (1, 8, 32):
        assert 0.3 < costs.decode_s(0, rows) / truth_s(0, rows) < 3.0
    for i, row in enumerate(costs.table.cells):
        assert row == sorted(row)
        assert not i or all(b >= a for a, b in zip(costs.table.cells[i - 1], row, strict=True))


@pytest.mark.parametrize("slow", range(60))
@pytest.mark.samples(2)
def test_one_timed_step_may_be_a_hundred_times_too_slow(slow: int) -> None:
    runner = _runner()
    runner.slow = slow
    costs = StepCosts(_measured(runner, 30.0))
    for tokens in (16, 64, 300, 1024, 16_384):
        assert 1 / 3 < costs.prefill_s(tokens) / truth_s(tokens, 0) < 3.0
    for rows in (1, 8, 32):
        assert 1 / 3 < costs.decode_s(0, rows) / truth_s(0, rows) < 3.0


@pytest.mark.parametrize("seconds", [0.0, 0.1, 0.6, 1.2, 3.0])
def test_it_ends_in_time_but_for_what_is_paid_once(seconds: float) -> None:
    runner = _runner()
    table = _measured(runner, seconds)
    once = len(set(runner.steps))
    timed_s = runner.clock.now_s - once * ONCE_S - sum(truth_s(*key) for key in set(runner.steps))
    assert timed_s <= seconds + truth_s(1024, 0) + 0.1
    assert runner.clock.now_s <= 8 * seconds + ONCE_S + truth_s(1024, 0)
    if not seconds:
        assert not runner.steps
        assert table.cells == CostTable.linear(CostProfile()).cells


@pytest.mark.parametrize(
    ("num_blocks", "max_batch_tokens", "longest"), [(80, 64, 64), (6, 2048, 64), (1, 2048, 16)]
)
def test_no_step_is_longer_than_the_pool_or_a_batch(
    num_blocks: int, max_batch_tokens: int, longest: int
) -> None:
    runner = _runner(num_blocks)
    _measured(runner, 60.0, max_batch_tokens)
    assert max([tokens for tokens, _, _ in runner.steps], default=0) == longest
    assert max(tokens + rows for tokens, rows, _ in runner.steps) <= max_batch_tokens


def test_a_clock_that_stands_still_tells_nothing() -> None:
    runner = _runner()
    stopped = measured_table(runner, seconds=1.0, max_batch_tokens=64, clock=FakeClock())
    assert stopped.cells == CostTable.linear(CostProfile()).cells


def test_what_was_left_in_the_pool_changes_no_logits() -> None:
    step = SequenceInput(
        tokens=np.arange(50, dtype=np.int32),
        start=0,
        block_table=np.arange(4, dtype=np.int32),
        num_logits=50,
    )
    fresh, used = _runner(), _runner()
    _measured(used, 600.0)
    assert torch.equal(fresh.run([step]), used.run([step]))


@pytest.mark.parametrize(("milliseconds", "learns"), [(250, True), (0, False)])
def test_an_engine_starts_with_it_unless_it_is_turned_off(milliseconds: int, learns: bool) -> None:
    config = EngineConfig(
        model="random:qwen3-tiny",
        device="cpu",
        num_blocks=40,
        threads=1,
        startup_profile_ms=milliseconds,
    )
    engine = load_engine(config, clock=FakeClock(tick_s=0.001))
    assert any(map(any, engine.costs.table.timed)) == learns


@pytest.mark.parametrize("num_blocks", [1100, 160, 40])
def test_sequences_of_a_timed_step_have_blocks_of_their_own(num_blocks: int) -> None:
    """Contexts that begin with the same block are read together: eight would cost as much as one.
    In a small pool they begin with other blocks, at least."""
    runner = _runner(num_blocks)
    _measured(runner, 600.0)
    several = [tables for tables in runner.blocks if len(tables) > 1]
    assert len(several) > 10
    for tables in several:
        assert len({int(table[0]) for table in tables}) == len(tables)
        wanted = sum(len(table) for table in tables)
        if len(tables) * max(len(table) for table in tables) <= num_blocks:
            assert len({int(block) for table in tables for block in table}) == wanted
    assert ((0, 8, 2048) in runner.steps) == (num_blocks >= 160)


def _stored(folder: Path) -> StoredProfile:
    return StoredProfile(MachineFile(path=folder / "times.json", facts={"processor": "a"}))


def test_each_start_knows_what_those_before_it_found_out(tmp_path: Path) -> None:
    stored = _stored(tmp_path)
    timed = []
    for _ in range(8):
        runner = _runner()
        table = _measured(runner, 1.2, stored=stored)
        assert runner.clock.now_s <= 8 * 1.2 + ONCE_S + truth_s(1024, 0)
        timed.append(sum(map(sum, table.timed)))
    assert timed == sorted(timed)
    assert timed[-1] > timed[0]
    assert table.pair_s == pytest.approx(PAIR_S, rel=0.01)


@pytest.mark.parametrize(("times", "kept"), [(1.0, True), (1.3, True), (3.0, False), (0.3, False)])
def test_what_holds_no_longer_is_timed_anew(
    times: float, kept: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    stored = _stored(tmp_path)
    plain = {(0, 1): truth_s(0, 1), (64, 0): truth_s(64, 0), (256, 8): truth_s(256, 8)}
    stored.write({cell: seconds * times for cell, seconds in plain.items()})
    runner = _runner()
    with caplog.at_level(logging.INFO):
        table = _measured(runner, 0.5, stored=stored)
    assert table.timed[TOKENS.index(256)][ROWS.index(8)] == kept
    assert sum("timed anew" in record.message for record in caplog.records) == (not kept)


def test_one_cell_that_a_hiccup_spoiled_is_mended_by_a_later_start(tmp_path: Path) -> None:
    stored = _stored(tmp_path)
    _measured(_runner(), 600.0, stored=stored)
    good = stored.read()
    stored.write(good | {(256, 8): 100 * good[256, 8]})
    table = _measured(_runner(), 600.0, stored=stored)
    assert stored.read()[256, 8] == pytest.approx(good[256, 8])
    assert table.cells[TOKENS.index(256)][ROWS.index(8)] < 2 * good[256, 8]


def test_where_all_is_known_only_a_part_of_the_time_is_taken(tmp_path: Path) -> None:
    stored = _stored(tmp_path)
    first, second = _runner(512), _runner(512)
    _measured(first, 600.0, stored=stored)
    assert len(stored.read()) == 21
    _measured(second, 6.0, stored=stored)
    assert len(second.steps) < 0.7 * len(first.steps)
    assert len(stored.read()) == 21
