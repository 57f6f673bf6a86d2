import random

import numpy as np
import pytest
import torch

from radix_cache.nodes import Tier
from radix_cache.snapshots import BeginState, EndState, SaveBelow, SaveState, StateMove
from runtime.engine.state_memory import StateMemory
from runtime.model.kv_pool import KVPool
from runtime.model.presets import random_model_config
from runtime.model.state_pool import StatePool
from runtime.offload.state_copies import StateCopies
from runtime.offload.transfer import KVTransfer
from tests.support.executors import Later

CONFIG = random_model_config("lfm2-tiny")
CPU = torch.device("cpu")


def pool(blocks: int) -> KVPool:
    made = KVPool(CONFIG, num_blocks=blocks, block_size=4, dtype=torch.float32, device=CPU)
    made.blocks.zero_()
    return made


def written(states: StatePool, slot: int, position: int, value: float) -> None:
    step = states.step(np.array([slot]), np.array([position]), np.array([0, 1]))
    for layer in range(len(CONFIG.recurrent)):
        step.keep(layer, torch.full((1, CONFIG.recurrent[0].channels), value))
    step.done()


def test_orders_are_carried_out_one_after_the_other_tails_included() -> None:
    states = StatePool(CONFIG, num_slots=3, num_rings=2, dtype=torch.float32, device=CPU)
    blocks, tails = pool(8), pool(3)
    memory = StateMemory(states, tails, blocks)
    assert memory.carry_out([BeginState(slot=0, source=None, position=0, tail_block=None)]) == []
    written(states, 0, 0, 5.0)
    blocks.blocks[:, :, 6] = 7.0
    spoiled = memory.carry_out(
        [
            SaveState(slot=0, target=2, position=1, tail_block=6),
            EndState(slot=0, position=None, tail_block=None),
            BeginState(slot=0, source=2, position=1, tail_block=3),
        ]
    )
    assert spoiled == []
    assert torch.equal(states.windows[0], states.windows[2])
    assert (states.windows[0][:, -1] == 5.0).all()
    assert (blocks.blocks[:, :, 3] == 7.0).all()


@pytest.mark.parametrize("fails", ["begin", "save", "end"])
def test_an_order_that_fails_is_carried_out_before_those_behind_it(
    fails: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the orders before it what was not finite is told as well."""
    states = StatePool(CONFIG, num_slots=4, num_rings=2, dtype=torch.float32, device=CPU)
    memory = StateMemory(states, pool(4), pool(8))
    memory.carry_out(
        [BeginState(slot=slot, source=None, position=0, tail_block=None) for slot in (0, 1)]
    )
    written(states, 0, 0, torch.nan)
    written(states, 1, 0, 5.0)
    work = getattr(states, fails)

    def failing(*arguments: object, **more: object) -> object:
        monkeypatch.setattr(states, fails, work)
        raise RuntimeError("planted")

    orders = [
        EndState(slot=0, position=1, tail_block=None),
        SaveState(slot=1, target=2, position=1, tail_block=None),
        BeginState(slot=3, source=2, position=1, tail_block=None),
    ]
    monkeypatch.setattr(states, fails, failing)
    with pytest.raises(RuntimeError, match="planted"):
        memory.carry_out(orders)
    last = EndState(slot=3, position=1, tail_block=None)
    assert memory.carry_out([last]) == [(Tier.DEVICE, 0)]
    assert (states.windows[3][:, -1] == 5.0).all()
    assert memory.carry_out([]) == []


@pytest.mark.parametrize("finite", [True, False])
def test_a_running_state_goes_below_as_it_is_at_that_token(finite: bool) -> None:
    """Before the next step takes it on; a copy that is not finite is told by its own slot."""
    states = StatePool(CONFIG, num_slots=2, num_rings=2, dtype=torch.float32, device=CPU)
    tails, worker = pool(2), Later(random.Random(0))
    transfer = KVTransfer(
        tails,
        host_blocks=3,
        store=None,
        worker=worker,
        copies=StateCopies(states, tails, worker),
    )
    memory = StateMemory(states, tails, pool(8), transfer=transfer)
    memory.carry_out([BeginState(slot=1, source=None, position=0, tail_block=None)])
    written(states, 1, 0, 5.0 if finite else float("nan"))
    written(states, 1, 1, 6.0)
    spoiled = memory.carry_out([SaveBelow(slot=1, target=2, position=1)])
    assert spoiled == ([] if finite else [(Tier.HOST, 2)])
    if not finite:
        return
    written(states, 1, 1, 7.0)
    raised = StateMove(number=0, source=Tier.HOST, target=Tier.DEVICE, source_slot=2, target_slot=0)
    memory.carry_out([raised, BeginState(slot=0, source=0, position=1, tail_block=None)])
    assert (states.windows[0][:, -1] == 5.0).all()
    assert not states.windows[0][:, :-1].any()


def test_a_state_that_is_not_finite_is_told() -> None:
    states = StatePool(CONFIG, num_slots=2, num_rings=2, dtype=torch.float32, device=CPU)
    memory = StateMemory(states, pool(2), pool(8))
    memory.carry_out([BeginState(slot=1, source=None, position=0, tail_block=None)])
    written(states, 1, 0, float("nan"))
    assert memory.carry_out([EndState(slot=1, position=1, tail_block=None)]) == [(Tier.DEVICE, 1)]
