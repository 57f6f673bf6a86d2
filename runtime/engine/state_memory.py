"""Carries out the cache's orders on the memory of states, and of the tails that go with them.

Knows slots, blocks and tensors. Knows no sequences. Always true: orders are carried out as they
were given, one after the other, before the next step; what is copied to or from a slot or a block
beside the steps is waited for where an order touches it.
"""

import logging
from collections import deque
from collections.abc import Callable, Iterable

import numpy as np

from radix_cache.block_pool import BlockArray
from radix_cache.nodes import Tier
from radix_cache.snapshots import (
    SaveBelow,
    SaveState,
    SlotOrder,
    StateMove,
    StateOrder,
)
from radix_cache.transfers import BlockMove
from runtime.model.kv_pool import KVPool
from runtime.model.state_changes import StateChanges
from runtime.model.state_pool import StatePool
from runtime.offload.transfer import KVTransfer

log = logging.getLogger(__name__)


class StateMemory:
    """The states of one runner.

    Args:
        states: in slots.
        tails: a block for each slot.
        pool: the blocks that steps read and write.
        change: carries out an order on slots of the device (``ModelRunner``), on all ranks where
            this one leads; None: there is no other rank.
        transfer: copies states and tails to the tiers below and back; None where there are none.
        settle: waits for copies to and from these blocks of ``pool``.
    """

    def __init__(
        self,
        states: StatePool,
        tails: KVPool,
        pool: KVPool,
        *,
        change: Callable[[SlotOrder | SaveBelow], bool] | None = None,
        transfer: KVTransfer | None = None,
        settle: Callable[[BlockArray], None] = lambda blocks: None,
    ) -> None:
        self._states = states
        self._change = change or StateChanges(states, tails, pool).carry_out
        self.transfer = transfer
        self._settle_blocks = settle
        self._due: deque[StateOrder] = deque()
        self._spoiled: list[tuple[Tier, int]] = []

    def carry_out(self, orders: Iterable[StateOrder]) -> list[tuple[Tier, int]]:
        """Returns the slots whose states were to be kept and are not finite. An order that fails
        comes first the next time, and those behind it after it: none is left out."""
        self._due += orders
        while self._due:
            spoiled = self._carry_out(self._due[0])
            self._due.popleft()
            if spoiled is not None:
                self._spoiled.append(spoiled)
        told, self._spoiled = self._spoiled, []
        return told

    def _carry_out(self, order: StateOrder) -> tuple[Tier, int] | None:
        if isinstance(order, StateMove):
            self._move(order)
            return None
        if isinstance(order, SaveBelow):
            return None if self._save_below(order) else _spoiled(Tier.HOST, order.target)
        slot = order.target if isinstance(order, SaveState) else order.slot
        return None if self.change(order) else _spoiled(Tier.DEVICE, slot)

    def change(self, order: SlotOrder | SaveBelow) -> bool:
        """Carry out an order as far as it is one on slots of the device, behind the copies that
        touch these; False where a state that is to be kept is not finite."""
        if not isinstance(order, SaveBelow) and order.tail_block is not None:
            self._settle_blocks(_ids(order.tail_block))
        self.settle(_ids(order.target if isinstance(order, SaveState) else order.slot))
        return self._change(order)

    def _save_below(self, order: SaveBelow) -> bool:
        """Send a state on its way, which the next step waits for; whether it is finite."""
        whole = self.change(order)
        self._move(
            StateMove(
                number=0,
                source=Tier.DEVICE,
                target=Tier.HOST,
                source_slot=order.slot,
                target_slot=order.target,
            )
        )
        self.settle(_ids(order.slot))
        return whole

    def settle(self, slots: BlockArray) -> None:
        """Wait for copies of slots, int32 of any shape, that are about to be written, or have been
        brought up."""
        if self.transfer is not None:
            self.transfer.settle(slots)

    def _move(self, order: StateMove) -> None:
        assert self.transfer is not None
        self.transfer.move(
            BlockMove(
                number=order.number,
                source=order.source,
                target=order.target,
                source_blocks=_ids(order.source_slot),
                target_blocks=_ids(order.target_slot),
                content=order.content,
            )
        )


def _spoiled(tier: Tier, slot: int) -> tuple[Tier, int]:
    log.warning("state not finite tier=%s slot=%d", tier.name.lower(), slot)
    return tier, slot


def _ids(one: int) -> BlockArray:
    return np.array([one], dtype=np.int32)
