"""KV and states of another rank than the leading one, on its device and below, as orders say.

The leading rank's cache decides; what is ordered is carried out here, each order behind those
before it, and what a step or a change reads or writes is waited for where copies touch it. Always
true: a rank that cannot carry an order out raises, and so ends.
"""

from collections.abc import Callable

import numpy as np

from radix_cache.snapshots import SaveBelow, SlotOrder
from runtime.engine.state_memory import StateMemory
from runtime.model.batch import StepBatch
from runtime.model.rank_link import RoomBelow
from runtime.model.runner import ModelRunner
from runtime.offload.opening import KVTiers
from runtime.process.frames import FrameError
from runtime.process.move_messages import MoveOrder


class RankMemory:
    """The memory of one runner.

    Args:
        runner: of the model's part.
        open_below: makes the tiers below the device.
    """

    def __init__(self, runner: ModelRunner, open_below: Callable[[], KVTiers]) -> None:
        self._runner = runner
        self._open_below = open_below
        self._tiers: KVTiers | None = None
        self._states = state_memory(runner, None)

    def open_below(self, told: RoomBelow) -> None:
        """Make the tiers below the device, as the leading rank has them.

        Raises:
            LoadError: they cannot be had.
            FrameError: the leading rank has another room, where parts are equal.
        """
        tiers = self._open_below()
        self._tiers = tiers
        if tiers.plan != told:
            raise FrameError(f"{told} where there is {tiers.plan}")
        self._states = state_memory(self._runner, tiers)

    def change(self, order: SlotOrder | SaveBelow) -> None:
        """Carry out an order on slots for states. Raises ValueError where it does not fit."""
        if self._states is None:
            raise ValueError("an order on states, and there are none")
        self._states.change(order)

    def move(self, order: MoveOrder) -> None:
        """Move blocks, or a state, between tiers. Raises HostMemoryDamaged: what went up is not
        what came down."""
        tiers = self._tiers
        transfer = None if tiers is None else tiers.transfer
        if order.of_states and tiers is not None:
            transfer = tiers.state_transfer
        assert transfer is not None, "a move that the limits of messages refuse"
        transfer.over()
        transfer.move(order.move, order.marks)

    def settle(self, batch: StepBatch) -> None:
        """See to it that a step may use its blocks and slots. Raises HostMemoryDamaged."""
        if self._tiers is None:
            return
        window = None if batch.window is None else batch.window.block_tables
        self._tiers.transfer.settle(batch.block_tables, window)
        if self._states is not None:
            self._states.settle(batch.state_slots.astype(np.int32))

    def close(self) -> None:
        """End the threads. Orders not begun are dropped."""
        if self._tiers is not None:
            for transfer in (self._tiers.transfer, self._tiers.state_transfer):
                if transfer is not None:
                    transfer.close()


def state_memory(runner: ModelRunner, tiers: KVTiers | None) -> StateMemory | None:
    """The memory of a runner's states; None: it has none."""
    if runner.states is None or runner.tails is None:
        return None
    if tiers is None or tiers.state_transfer is None:
        return StateMemory(runner.states, runner.tails, runner.pool, change=runner.change_state)
    return StateMemory(
        runner.states,
        runner.tails,
        runner.pool,
        change=runner.change_state,
        transfer=tiers.state_transfer,
        settle=tiers.transfer.settle,
    )
