"""Carries out the cache's orders on the memory of states, and of the tails that go with them.

Knows slots, blocks and tensors. Knows no sequences. Always true: orders are carried out as they
were given, one after the other, before the next step.
"""

import logging
from collections.abc import Iterable

from radix_cache.snapshots import BeginState, SaveState, StateOrder
from runtime.model.kv_pool import KVPool
from runtime.model.state_pool import StatePool

log = logging.getLogger(__name__)


class StateMemory:
    """The states of one runner.

    Args:
        states: in slots.
        tails: a block for each slot.
        pool: the blocks that steps read and write.
    """

    def __init__(self, states: StatePool, tails: KVPool, pool: KVPool) -> None:
        self._states = states
        self._tails = tails
        self._pool = pool

    def carry_out(self, orders: Iterable[StateOrder]) -> list[int]:
        """Returns the slots whose states were to be kept and are not finite."""
        spoiled = []
        for order in orders:
            if isinstance(order, BeginState):
                self._begin(order)
                continue
            if isinstance(order, SaveState):
                slot = order.target
                whole = self._states.save(order.slot, target=slot, position=order.position)
            else:
                slot = order.slot
                whole = self._states.end(slot, position=order.position)
            if order.tail_block is not None:
                self._tails.copy_block(self._pool, order.tail_block, slot)
            if not whole:
                log.warning("state not finite slot=%d", slot)
                spoiled.append(slot)
        return spoiled

    def _begin(self, order: BeginState) -> None:
        self._states.begin(order.slot, source=order.source, position=order.position)
        if order.tail_block is not None:
            assert order.source is not None
            self._pool.copy_block(self._tails, order.source, order.tail_block)
