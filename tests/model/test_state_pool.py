"""Slots of states: what a step reads is the state at the position where it begins."""

import numpy as np
import pytest
import torch

from runtime.model.batch import NO_STATE, TRIAL_STATE
from runtime.model.presets import random_model_config
from runtime.model.state_pool import StatePool, ring_bytes, state_bytes, state_dtype
from runtime.model.state_step import RING
from tests.support.preset_kinds import DELTA

CONFIG = random_model_config("lfm2-tiny")
LAYERS, CHANNELS = len(CONFIG.recurrent), CONFIG.recurrent[0].channels


def made(dtype: torch.dtype = torch.float64) -> StatePool:
    return StatePool(CONFIG, num_slots=4, num_rings=3, dtype=dtype, device=torch.device("cpu"))


def inputs_of(seed: int, count: int) -> torch.Tensor:
    """[count, layers, channels]"""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(count, LAYERS, CHANNELS, generator=generator, dtype=torch.float64)


def compute(
    pool: StatePool, parts: list[tuple[int, int, torch.Tensor]], *, done: bool = True
) -> None:
    """A step of (slot, position, inputs)."""
    slots, positions = (np.array([part[n] for part in parts]) for n in (0, 1))
    starts = np.concatenate(([0], np.cumsum([len(part[2]) for part in parts])))
    step = pool.step(slots, positions, starts)
    together = torch.cat([part[2] for part in parts])
    for layer in range(LAYERS):
        step.keep(layer, together[:, layer])
    if done:
        step.done()


def window(inputs: torch.Tensor, position: int) -> torch.Tensor:
    """What a state at ``position`` is: the last two inputs before it."""
    padded = torch.cat((torch.zeros(2, LAYERS, CHANNELS, dtype=inputs.dtype), inputs))
    return padded[position : position + 2].transpose(0, 1)


@pytest.mark.tail
def test_a_state_is_had_at_every_position_within_the_ring(request: pytest.FixtureRequest) -> None:
    seed = request.config.getoption("--seed")
    random = np.random.default_rng(seed)
    pool, inputs = made(), inputs_of(seed, 4000)
    pool.begin(2, source=None, position=0)
    position = committed = 0
    for _ in range(300):
        back = int(random.integers(committed, position + 1))
        assert pool.save(2, target=0, position=back)
        assert torch.equal(pool.windows[0], window(inputs, back)), f"seed {seed}, at {back}"
        count = int(random.choice([1, 2, 5, RING - 1, RING, RING + 1, RING + 2, RING + 3, 90]))
        compute(pool, [(2, back, inputs[back : back + count])])
        position = back + count
        committed = max(back, position - RING)
        committed = max(committed, back + 2) if count > RING else committed
        inputs[position:] = inputs_of(int(random.integers(1 << 30)), 4000 - position)
        if position > 3800:
            break


def test_a_step_that_fails_leaves_every_state_where_it_was() -> None:
    pool, inputs = made(), inputs_of(1, 200)
    pool.begin(0, source=None, position=0)
    compute(pool, [(0, 0, inputs[:40])])
    compute(pool, [(0, 40, inputs_of(2, 100))], done=False)
    compute(pool, [(0, 40, inputs[40:140])])
    assert pool.end(0, position=140)
    assert torch.equal(pool.windows[0], window(inputs, 140))


def test_sequences_of_a_step_keep_apart_and_a_trial_leaves_nothing() -> None:
    pool, first, second = made(), inputs_of(1, 60), inputs_of(2, 60)
    for slot in (3, 1):
        pool.begin(slot, source=None, position=0)
    trial = (TRIAL_STATE, 9, torch.full((7, LAYERS, CHANNELS), torch.nan, dtype=torch.float64))
    compute(pool, [(3, 0, first[:50]), trial, (1, 0, second[:3])])
    compute(pool, [trial, (1, 3, second[3:4]), (3, 50, first[50:60])])
    assert pool.end(3, position=60)
    assert pool.end(1, position=4)
    assert torch.equal(pool.windows[3], window(first, 60))
    assert torch.equal(pool.windows[1], window(second, 4))
    assert not pool.rows[-1].any()


def test_a_slot_that_begins_at_zero_has_nothing_of_who_was_there_before() -> None:
    pool = made()
    pool.begin(1, source=None, position=0)
    compute(pool, [(1, 0, torch.full((3, LAYERS, CHANNELS), torch.nan, dtype=torch.float64))])
    assert not pool.end(1, position=3)
    pool.begin(1, source=None, position=0)
    assert not pool.windows[1].any()
    compute(pool, [(1, 0, inputs_of(1, 1))])
    assert pool.end(1, position=1)


def test_a_sequence_that_goes_on_without_a_state_is_an_error() -> None:
    pool = made()
    compute(pool, [(NO_STATE, 0, inputs_of(1, 3))])
    with pytest.raises(ValueError, match="has no slot"):
        compute(pool, [(TRIAL_STATE, 7, inputs_of(1, 3)), (NO_STATE, 3, inputs_of(1, 3))])


def test_a_position_that_a_state_cannot_be_brought_to_is_an_error() -> None:
    pool = made()
    pool.begin(0, source=None, position=0)
    compute(pool, [(0, 0, inputs_of(1, 100))])
    with pytest.raises(ValueError, match="cannot be brought"):
        pool.end(0, position=60)
    with pytest.raises(ValueError, match="cannot be brought"):
        pool.end(0, position=101)


def test_a_state_goes_on_in_another_slot_and_rings_come_back() -> None:
    pool, inputs = made(torch.float32), inputs_of(1, 10)
    for _ in range(20):
        pool.begin(0, source=None, position=0)
        compute(pool, [(0, 0, inputs[:5])])
        pool.end(0, position=5)
        pool.begin(2, source=0, position=5)
        compute(pool, [(2, 5, inputs[5:6])])
        pool.end(2, position=6)
        pool.begin(3, source=2, position=6)
        pool.end(3, position=None)
    assert torch.equal(pool.windows[2], window(inputs, 6).float())


def test_sizes_follow_from_the_layers() -> None:
    assert (
        state_bytes(CONFIG, torch.bfloat16) == LAYERS * 2 * CHANNELS * 4 == made().state_bytes / 2
    )
    assert ring_bytes(CONFIG, torch.float64) == LAYERS * RING * CHANNELS * 8
    assert state_bytes(random_model_config("qwen3-tiny"), torch.float32) == 0
    assert state_dtype(torch.float64) == torch.float64


@pytest.mark.parametrize("family", ["lfm2-tiny", *DELTA])
def test_a_rehearsal_changes_no_state(family: str) -> None:
    config = random_model_config(family)
    pool = StatePool(
        config, num_slots=2, num_rings=1, dtype=torch.float32, device=torch.device("cpu")
    )
    pool.begin(1, source=None, position=0)
    pool.rows[:2] = 3
    before = pool.rows.clone()
    pool.rehearse()
    assert torch.equal(pool.rows, before)
    assert (pool.committed == 0).all()
