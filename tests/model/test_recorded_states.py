"""Recorded steps of models with recurrent layers: logits, states and what is noted of them are
those of steps that run as they come, whatever steps there are.

On a CPU "recording" is calling: what is tested is the choice, the padding and what is noted. On
Triton's kernels: ``tests/gpu/test_whole_model.py``.
"""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

from runtime.model.batch import SequenceInput
from runtime.model.rank_link import RunnerBroken
from runtime.model.runner import ModelRunner, Recording
from runtime.model.state_plan import StatePlan
from runtime.model.weights import load_model
from tests.support.preset_kinds import HYBRIDS

SEQUENCES, BLOCKS_EACH = 4, 40


def runner_of(family: str, record: Callable[[Callable[[], Tensor]], Callable[[], Tensor]] | None):
    runner = ModelRunner(
        load_model(f"random:{family}", dtype=torch.float64, device=torch.device("cpu")),
        num_blocks=SEQUENCES * BLOCKS_EACH,
        block_size=16,
        recording=Recording(record=record, max_sequences=8, max_tokens=512),
        states=StatePlan(slots=SEQUENCES + 2, rings=SEQUENCES + 2),
    )
    assert runner.states is not None
    for slot in range(SEQUENCES):
        runner.states.begin(slot, source=None, position=0)
    return runner


def as_it_is(call: Callable[[], Tensor]) -> Callable[[], Tensor]:
    return call


def part(sequence: int, start: int, tokens: np.ndarray) -> SequenceInput:
    first = sequence * BLOCKS_EACH
    return SequenceInput(
        tokens=tokens,
        start=start,
        block_table=np.arange(first, first + BLOCKS_EACH, dtype=np.int32),
        num_logits=min(len(tokens), 3),
        state_slot=sequence,
    )


@pytest.mark.samples(2)
@pytest.mark.parametrize("family", HYBRIDS)
def test_steps_of_any_kind_leave_what_plain_ones_leave(
    family: str, request: pytest.FixtureRequest
) -> None:
    seed = request.config.getoption("--seed")
    random = np.random.default_rng(seed)
    recording, plain = runner_of(family, as_it_is), runner_of(family, None)
    assert recording.states is not None
    assert plain.states is not None
    reached = [0] * SEQUENCES
    for number in range(24):
        parts = []
        for sequence in random.permutation(SEQUENCES)[: random.integers(1, SEQUENCES + 1)].tolist():
            count = int(random.choice([1, 1, 1, 2, 5, 9, 40, 100, 200]))
            count = count if reached[sequence] + count < BLOCKS_EACH * 16 else 1
            behind = reached[sequence] - int(plain.states.committed[sequence])
            start = reached[sequence] - int(min(behind, random.choice([0, 0, 0, 2])))
            tokens = random.integers(0, 256, count, dtype=np.int32)
            parts.append(part(sequence, start, tokens))
            reached[sequence] = start + count
        found, wanted = recording.run(parts).clone(), plain.run(parts)
        assert torch.allclose(found, wanted, rtol=1e-9, atol=1e-9), f"seed {seed}, step {number}"
        assert np.array_equal(recording.states.committed, plain.states.committed)
        assert np.array_equal(recording.states.reached, plain.states.reached)
    for sequence, position in enumerate(reached):
        for states in (recording.states, plain.states):
            assert states.bring(sequence, position=position)
    same = torch.isclose(recording.states.rows, plain.states.rows, rtol=1e-9, atol=1e-9)
    assert same.all(), f"seed {seed}"
    assert not recording.states.rows[-1].any()
    assert recording.graphs is not None
    assert recording.graphs.counts.replayed > 4
    assert recording.graphs.counts.replayed_chunks > 2


def test_a_replay_that_fails_breaks_a_runner_with_states() -> None:
    """Layers before the failure have moved their states, and nobody knows which."""
    failing = False

    def record(call: Callable[[], Tensor]) -> Callable[[], Tensor]:
        def replay() -> Tensor:
            if failing:
                raise RuntimeError("planted")
            return call()

        return replay

    runner = runner_of("qwen3.5-tiny", record)
    runner.run([part(0, 0, np.zeros(3, dtype=np.int32))])
    failing = True
    with pytest.raises(RunnerBroken, match="planted"):
        runner.run([part(0, 3, np.zeros(1, dtype=np.int32))])


def test_slots_that_steps_are_recorded_over_stay() -> None:
    runner = runner_of("lfm2-tiny", as_it_is)
    with pytest.raises(RuntimeError, match="recorded over"):
        runner.hold_states(slots=9, rings=9)
