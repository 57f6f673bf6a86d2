"""A mover that keeps content where rows of layers with a window have places of their own.

A slot of a block is a number that says which tokens were computed, of all layers and of those with
a window alike. Orders from and to the disk copy when they are completed, not when they are given.
"""

from dataclasses import replace

import numpy as np
import numpy.typing as npt

from radix_cache.keys import chain_keys
from radix_cache.nodes import Tier
from radix_cache.transfers import BlockMove, RunContent, StoredRun

Slots = npt.NDArray[np.int64]
"""[blocks, block_size]"""
NOBODY = -1
"""What a slot holds that means nothing."""


class RowsMover:
    """Copies between device and host at once, from and to the disk when ``complete`` says.

    Args:
        main, near: the device's slots of all layers, and of those with a window.
        host, host_near, disk: how many there are below.
    """

    def __init__(self, main: Slots, near: Slots, *, host: int, host_near: int, disk: int) -> None:
        self.size = main.shape[1]
        self.main = {
            Tier.DEVICE: main,
            Tier.HOST: self._slots(host),
            Tier.DISK: self._slots(disk),
        }
        self.near = {
            Tier.DEVICE: near,
            Tier.HOST: self._slots(host_near),
            Tier.DISK: self._slots(disk),
        }
        self.pending: list[BlockMove] = []
        self._leaving: dict[int, tuple[Slots, Slots]] = {}
        """What blocks of the device held when they were ordered to the disk."""
        self.stored: dict[int, StoredRun] = {}
        """What a restart would find, by disk block."""
        self.near_moved = {(source, target): 0 for source in Tier for target in Tier}
        """Blocks whose rows of layers with a window went along."""

    def _slots(self, count: int) -> Slots:
        return np.full((count, self.size), NOBODY, dtype=np.int64)

    def move(self, move: BlockMove) -> None:
        if Tier.DISK not in (move.source, move.target):
            self.copy(move)
            return
        self.pending.append(move)
        if move.source == Tier.DEVICE:
            self._leaving[move.number] = self._read(move)

    def _read(self, move: BlockMove) -> tuple[Slots, Slots]:
        places = self._near_places(move.source, move.source_blocks, move.source_near)
        return self.main[move.source][move.source_blocks], self.near[move.source][places]

    def _near_places(
        self, tier: Tier, blocks: npt.NDArray[np.int32], near: npt.NDArray[np.int32] | None
    ) -> npt.NDArray[np.int32]:
        """Of blocks whose rows go along."""
        assert near is not None
        return (blocks if tier == Tier.DISK else near)[near >= 0]

    def copy(self, move: BlockMove) -> None:
        assert move.source_near is not None
        assert move.target_near is not None
        along = move.source_near >= 0
        assert (along == (move.target_near >= 0)).all(), "rows from or to nowhere"
        main, near = self._leaving.pop(move.number, None) or self._read(move)
        assert (near != NOBODY).all(), "rows of layers with a window that nobody computed"
        self.main[move.target][move.target_blocks] = main
        if move.target == Tier.DISK:
            self.near[Tier.DISK][move.target_blocks] = NOBODY
        places = self._near_places(move.target, move.target_blocks, move.target_near)
        self.near[move.target][places] = near
        self.near_moved[move.source, move.target] += int(along.sum())
        if move.content is not None:
            assert isinstance(move.content, RunContent)
            self._note_stored(move.content, move)

    def restart(self) -> None:
        """What is not on the disk is gone."""
        for slots in (self.main, self.near):
            slots[Tier.DEVICE][:] = slots[Tier.HOST][:] = NOBODY
        self.pending, self._leaving = [], {}

    def _note_stored(self, content: RunContent, move: BlockMove) -> None:
        """Each block on its own: one that is written over later takes no other with it."""
        assert move.target_near is not None
        keys = [content.parent_key, *chain_keys(content.parent_key, content.tokens, self.size)]
        for index, block in enumerate(move.target_blocks.tolist()):
            part = replace(
                content,
                position=content.position + index,
                parent_key=keys[index],
                tokens=content.tokens[index * self.size : (index + 1) * self.size],
            )
            here = slice(index, index + 1)
            self.stored[block] = StoredRun(
                content=part, blocks=move.target_blocks[here], near=move.target_near[here] >= 0
            )
