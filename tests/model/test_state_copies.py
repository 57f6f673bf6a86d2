"""A slot's state and its tail go down into one row and come up again, bit by bit."""

import random

import numpy as np
import pytest
import torch

from runtime.model.kv_pool import KVPool
from runtime.model.presets import random_model_config
from runtime.model.state_pool import StatePool
from runtime.offload.state_copies import StateCopies
from tests.support.executors import AtOnce, Later
from tests.support.model_shapes import with_other_keys
from tests.support.preset_kinds import DELTA

CPU = torch.device("cpu")


def made(dtype: torch.dtype, model: str, workers: object) -> tuple[StatePool, KVPool, StateCopies]:
    config = random_model_config(model.removesuffix(" of two groups"))
    if model.endswith("of two groups"):
        config = with_other_keys(config)
    states = StatePool(config, num_slots=5, num_rings=2, dtype=dtype, device=CPU)
    tails = KVPool(config, num_blocks=5, block_size=4, dtype=dtype, device=CPU)
    generator = torch.Generator().manual_seed(3)
    states.rows.copy_(torch.randn(states.rows.shape, generator=generator, dtype=torch.float64))
    for group in tails.groups:
        group.copy_(torch.randn(group.shape, generator=generator, dtype=torch.float64))
    return states, tails, StateCopies(states, tails, workers)  # type: ignore[arg-type]


def ids(*slots: int) -> np.ndarray:
    return np.array(slots, dtype=np.int32)


@pytest.mark.parametrize("model", ["lfm2-tiny", *DELTA, "lfm2-tiny of two groups"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_what_comes_up_is_what_went_down(dtype: torch.dtype, model: str) -> None:
    states, tails, copies = made(dtype, model, AtOnce())
    state, tail = states.rows.clone(), [group.clone() for group in tails.groups]
    rows = copies.new_rows(6)
    assert rows.shape == (6, states.state_bytes + tails.num_bytes // 5)
    copies.down(ids(3, 0, 1), rows, ids(0, 5, 2)).wait()
    states.rows.zero_()
    for group in tails.groups:
        group.zero_()
    copies.up(rows, ids(5, 0, 2), ids(4, 1, 2)).wait()
    assert torch.equal(states.rows[[4, 1, 2]], state[[0, 3, 1]])
    assert not states.rows[[0, 3]].any()
    for group, old in zip(tails.groups, tail, strict=True):
        assert torch.equal(group[:, :, [4, 1, 2]], old[:, :, [0, 3, 1]])
        assert not group[:, :, [0, 3]].any()
    copies.drop_rows(rows)


def test_a_copy_is_done_when_both_halves_are() -> None:
    states, _, copies = made(torch.float64, "lfm2-tiny", Later(random.Random(0)))
    rows = copies.new_rows(1)
    rows[:] = 0
    copy = copies.down(ids(2), rows, ids(0))
    copy.settle()
    assert copy.done
    assert copy.seconds >= 0
    assert rows[0, : states.state_bytes].tobytes() == states.rows[2].numpy().tobytes()
