"""Some timed steps before the first turn, and what is made of them."""

import itertools

import numpy as np
import pytest
import torch

from runtime.batch import SequenceInput
from runtime.config import EngineConfig
from runtime.engine_loader import load_engine
from runtime.estimates import CostProfile
from runtime.model_runner import ModelRunner, load_runner
from runtime.startup_profile import measured_profile
from tests.support.engine_driver import FakeClock

TOKEN_S, DECODE_S, ONCE_S = 0.001, 0.004, 0.5


class _TimedRunner(ModelRunner):
    """Its steps take a known time, the first of each length half a second more."""

    clock: FakeClock
    steps: list[tuple[int, int]]

    def run(self, inputs: list[SequenceInput]) -> torch.Tensor:
        step = inputs[0]
        assert len(inputs) == (8 if step.start else 1)
        key = (len(step.tokens), step.start)
        assert len(step.block_table) * self.block_size >= sum(key)
        seconds = DECODE_S if step.start else TOKEN_S * len(step.tokens)
        self.clock.advance(seconds if key in self.steps else seconds + ONCE_S)
        self.steps.append(key)
        return super().run(inputs)


def _runner(num_blocks: int = 80) -> _TimedRunner:
    config = EngineConfig(
        model="random:qwen3-tiny", dtype="float32", device="cpu", num_blocks=2, threads=1
    )
    plain = load_runner(config)
    runner = _TimedRunner(plain.model, num_blocks=num_blocks, block_size=16)
    runner.clock, runner.steps = FakeClock(), []
    return runner


def _measured(runner: _TimedRunner, seconds: float, max_batch_tokens: int = 2048) -> CostProfile:
    return measured_profile(
        runner, seconds=seconds, max_batch_tokens=max_batch_tokens, clock=runner.clock
    )


def test_what_is_paid_once_does_not_count() -> None:
    runner = _runner()
    profile = _measured(runner, 60.0)
    assert profile.prefill_token_s == pytest.approx(TOKEN_S)
    assert profile.decode_step_s == pytest.approx(DECODE_S)
    assert (1024, 0) in runner.steps


@pytest.mark.parametrize("seconds", [0.0, 0.1, 0.6, 1.2, 3.0])
def test_it_ends_in_time_but_for_what_is_paid_once(seconds: float) -> None:
    runner = _runner()
    profile = _measured(runner, seconds)
    assert runner.clock.now <= seconds + ONCE_S
    start = CostProfile()
    timed = (profile.prefill_token_s, profile.decode_step_s)
    token_s = TOKEN_S if seconds > 1.0 else start.prefill_token_s
    decode_s = DECODE_S if seconds > 2.0 else start.decode_step_s
    assert timed == pytest.approx((token_s, decode_s))
    if not seconds:
        assert not runner.steps


@pytest.mark.parametrize(
    ("num_blocks", "max_batch_tokens", "longest"), [(80, 64, 64), (6, 2048, 64), (1, 2048, 0)]
)
def test_no_step_is_longer_than_the_pool_or_a_batch(
    num_blocks: int, max_batch_tokens: int, longest: int
) -> None:
    runner = _runner(num_blocks)
    profile = _measured(runner, 60.0, max_batch_tokens)
    assert max([tokens for tokens, _ in runner.steps], default=0) == longest
    assert (profile == CostProfile()) == (longest == 0)


def test_a_clock_that_stands_still_tells_nothing() -> None:
    runner = _runner()
    stopped = measured_profile(runner, seconds=1.0, max_batch_tokens=64, clock=lambda: 0.0)
    assert stopped == CostProfile()


def test_what_was_left_in_the_pool_changes_no_logits() -> None:
    step = SequenceInput(
        tokens=np.arange(50, dtype=np.int32),
        start=0,
        block_table=np.arange(4, dtype=np.int32),
        num_logits=50,
    )
    fresh, used = _runner(), _runner()
    _measured(used, 60.0)
    assert torch.equal(fresh.run([step]), used.run([step]))


@pytest.mark.parametrize(("milliseconds", "learns"), [(250, True), (0, False)])
def test_an_engine_starts_with_it_unless_it_is_turned_off(milliseconds: int, learns: bool) -> None:
    readings = itertools.count()
    config = EngineConfig(
        model="random:qwen3-tiny",
        device="cpu",
        num_blocks=40,
        threads=1,
        startup_profile_ms=milliseconds,
    )
    engine = load_engine(config, clock=lambda: 0.001 * next(readings))
    assert (engine.costs.profile != CostProfile()) == learns
