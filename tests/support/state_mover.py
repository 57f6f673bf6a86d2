"""Moves states between tiers, noting of which tokens each slot's state is.

Between device and host at once; from and to the disk when ``copy`` is called, which takes what the
source holds then: a slot that is used again too early shows as another state.
"""

from radix_cache.nodes import Tier
from radix_cache.snapshots import StateMove, StoredState

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
