"""Moves states between tiers, noting of which tokens each slot's state is.

Between device and host at once; from and to the disk when ``copy`` is called, which takes what the
source holds then: a slot that is used again too early shows as another state.
"""

from radix_cache.nodes import Tier
from radix_cache.snapshots import (
    BeginState,
    SaveBelow,
    SaveState,
    StateMove,
    StateOrder,
    StoredState,
)

Tokens = tuple[int, ...]


class StateMover:
    def __init__(self) -> None:
        self.states: dict[Tier, dict[int, Tokens]] = {tier: {} for tier in Tier}
        self.tails: dict[Tier, dict[int, Tokens]] = {tier: {} for tier in Tier}
        """Of which tokens the last keys and values are that lie with a state."""
        self.pending: list[StateMove] = []
        self.leaving: dict[int, tuple[Tokens, Tokens]] = {}
        """What slots of the device held when they were ordered to the disk."""
        self.stored: dict[int, StoredState] = {}
        """What a restart would find, by slot."""

    def carry_out(self, order: StateOrder, blocks: dict[int, Tokens]) -> str | None:
        """Do what the cache has ordered, and see that a state is the one that it takes it for.

        Args:
            blocks: of which tokens the device's keys and values are, by block.

        Returns:
            Which way the order goes from one tier to another, if it does.
        """
        if isinstance(order, StateMove):
            self.move(order)
            return f"{order.source.name.lower()} to {order.target.name.lower()}"
        states, tails = self.states[Tier.DEVICE], self.tails[Tier.DEVICE]
        if isinstance(order, SaveBelow):
            assert len(states[order.slot]) >= order.position, "a state that was not reached"
            self.states[Tier.HOST][order.target] = states[order.slot][: order.position]
            return "running to host"
        if isinstance(order, BeginState):
            state = () if order.source is None else states[order.source]
            assert len(state) == order.position, "a state of another position"
            states[order.slot] = state
            if order.tail_block is not None:
                assert order.source is not None
                blocks[order.tail_block] = tails[order.source]
            return None
        target = order.target if isinstance(order, SaveState) else order.slot
        if order.position is None:
            states.pop(target, None)
            return None
        states[target] = states[order.slot][: order.position]
        assert len(states[target]) == order.position, "a state that was not reached"
        if order.tail_block is not None:
            tails[target] = blocks[order.tail_block][: order.position]
        return None

    def move(self, move: StateMove) -> None:
        if Tier.DISK not in (move.source, move.target):
            self.copy(move)
            return
        self.pending.append(move)
        if move.source == Tier.DEVICE:
            self.leaving[move.number] = self._held(move)

    def _held(self, move: StateMove) -> tuple[Tokens, Tokens]:
        slot = move.source_slot
        return self.states[move.source][slot], self.tails[move.source].get(slot, ())

    def copy(self, move: StateMove) -> None:
        state, tail = self.leaving.pop(move.number, None) or self._held(move)
        self.states[move.target][move.target_slot] = state
        self.tails[move.target][move.target_slot] = tail
        if move.content is not None:
            self.stored[move.target_slot] = StoredState(content=move.content, slot=move.target_slot)

    def restart(self) -> None:
        """What is not on the disk is gone."""
        for tier in (Tier.DEVICE, Tier.HOST):
            self.states[tier], self.tails[tier] = {}, {}
        self.pending, self.leaving = [], {}
