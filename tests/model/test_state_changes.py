"""Orders on slots for states: states, and the keys and values that go with them."""

import numpy as np
import pytest
import torch

from radix_cache.snapshots import BeginState, EndState, SaveState, SlotOrder
from runtime.model.kv_pool import KVPool
from runtime.model.presets import random_model_config
from runtime.model.state_changes import StateChanges, keeps_state
from runtime.model.state_pool import StatePool

CONFIG = random_model_config("lfm2-tiny")
CPU = torch.device("cpu")


def pool(blocks: int) -> KVPool:
    made = KVPool(CONFIG, num_blocks=blocks, block_size=4, dtype=torch.float32, device=CPU)
    made.blocks.zero_()
    return made


class Slots:
    """Four slots, of which two may run."""

    def __init__(self) -> None:
        self.states = StatePool(CONFIG, num_slots=4, num_rings=2, dtype=torch.float32, device=CPU)
        self.tails, self.blocks = pool(4), pool(8)
        self.carry_out = StateChanges(self.states, self.tails, self.blocks).carry_out

    def write(self, slot: int, position: int, value: float) -> None:
        step = self.states.step(np.array([slot]), np.array([position]), np.array([0, 1]))
        for layer in range(len(CONFIG.recurrent)):
            step.keep(layer, torch.full((1, CONFIG.recurrent[0].channels), value))
        step.done()


def begin(slot: int, source: int | None = None, position: int = 0) -> BeginState:
    return BeginState(slot=slot, source=source, position=position, tail_block=None)


def test_a_snapshot_and_its_tail_are_what_another_sequence_begins_with() -> None:
    slots = Slots()
    assert slots.carry_out(begin(0))
    slots.write(0, 0, 5.0)
    slots.blocks.blocks[:, :, 6] = 7.0
    assert slots.carry_out(SaveState(slot=0, target=2, position=1, tail_block=6))
    slots.write(0, 1, 9.0)
    assert (slots.tails.blocks[:, :, 2] == 7.0).all()
    assert slots.carry_out(BeginState(slot=3, source=2, position=1, tail_block=1))
    assert (slots.blocks.blocks[:, :, 1] == 7.0).all()
    assert (slots.states.windows[3][:, -1] == 5.0).all()
    slots.blocks.blocks[:, :, 4] = 8.0
    assert slots.carry_out(EndState(slot=0, position=2, tail_block=4))
    assert (slots.tails.blocks[:, :, 0] == 8.0).all()
    assert (slots.states.windows[0][:, -1] == 9.0).all()


def test_what_is_not_finite_is_told_only_where_it_is_kept() -> None:
    slots = Slots()
    slots.carry_out(begin(1))
    slots.write(1, 0, float("nan"))
    assert not slots.carry_out(SaveState(slot=1, target=2, position=1, tail_block=None))
    assert slots.carry_out(EndState(slot=1, position=None, tail_block=None))


def test_no_more_begin_than_may_run() -> None:
    slots = Slots()
    for slot in (0, 1):
        slots.carry_out(begin(slot))
    with pytest.raises(ValueError, match="a sequence begins where 2 run already"):
        slots.carry_out(begin(2))
    assert slots.carry_out(begin(1))  # again, on its own


def test_a_step_on_a_slot_that_none_has_begun_on_is_refused() -> None:
    slots = Slots()
    slots.carry_out(begin(0))
    with pytest.raises(ValueError, match="a slot that none has begun on"):
        slots.write(2, 0, 1.0)
    slots.carry_out(EndState(slot=0, position=None, tail_block=None))
    with pytest.raises(ValueError, match="a slot that none has begun on"):
        slots.write(0, 0, 1.0)


@pytest.mark.parametrize(
    ("order", "kept"),
    [
        (begin(0), False),
        (SaveState(slot=0, target=1, position=3, tail_block=None), True),
        (EndState(slot=0, position=3, tail_block=None), True),
        (EndState(slot=0, position=None, tail_block=None), False),
    ],
)
def test_which_orders_keep_a_state(order: SlotOrder, kept: bool) -> None:
    assert keeps_state(order) == kept
