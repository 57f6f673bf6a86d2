"""Orders of the cache's on slots for states, and on the blocks that come with them, carried out.

The same on every rank of a model: each has its part of the states, and of keys and values. Waits
for no copies; who gives orders sees to these (``runtime.engine.state_memory``).
"""

from radix_cache.snapshots import BeginState, SaveBelow, SaveState, SlotOrder
from runtime.model.kv_pool import KVPool
from runtime.model.state_pool import StatePool


class StateChanges:
    """The slots of one runner.

    Args:
        states: in slots.
        tails: a block for each slot.
        pool: the blocks that steps read and write.
    """

    def __init__(self, states: StatePool, tails: KVPool, pool: KVPool) -> None:
        self._states = states
        self._tails = tails
        self._pool = pool

    def carry_out(self, order: SlotOrder | SaveBelow) -> bool:
        """False where a state that is to be kept is not finite. A state that is to be copied below
        is brought to its position, and copied by whoever copies to the tiers.

        Raises:
            ValueError: no ring is free for a sequence that begins, or a state cannot be brought to
                the position that is named.
        """
        states = self._states
        if isinstance(order, SaveBelow):
            return states.bring(order.slot, position=order.position)
        tail = order.tail_block
        if isinstance(order, BeginState):
            states.begin(order.slot, source=order.source, position=order.position)
            if tail is not None:
                assert order.source is not None
                self._pool.copy_block(self._tails, order.source, tail)
            return True
        if isinstance(order, SaveState):
            kept = order.target
            whole = states.save(order.slot, target=kept, position=order.position)
        else:
            kept = order.slot
            whole = states.end(kept, position=order.position)
        if tail is not None:
            self._tails.copy_block(self._pool, tail, kept)
        return whole


def keeps_state(order: SlotOrder | SaveBelow) -> bool:
    """Whether a state is kept behind it, which has to be finite on every rank."""
    return not isinstance(order, BeginState) and order.position is not None
