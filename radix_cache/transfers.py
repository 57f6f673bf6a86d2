"""Orders to copy blocks between tiers, and the blocks of a lower tier."""

import itertools
from dataclasses import dataclass
from typing import Final, Protocol

import numpy as np
import numpy.typing as npt

from radix_cache.block_pool import BlockArray, BlockPool
from radix_cache.edge import TokenArray
from radix_cache.nodes import Tier
from radix_cache.snapshots import StateContent

NO_ROWS: Final = -1
"""The place of rows of layers with a window where a block has none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunContent:
    """The content of a run of blocks on disk: enough to find it again after a restart."""

    tenant: str
    """The key of its owner (``Owner.key``); empty for what is published under no adapter."""
    position: int
    """Block position of the run in its transcript."""
    parent_key: bytes
    """Chained key of all blocks before it, 16 bytes (``radix_cache.keys.chain_keys``)."""
    tokens: TokenArray
    """int32 [blocks * block_size]."""


Content = RunContent | StateContent
BlockMask = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredRun:
    """A run that an earlier process has left on disk."""

    content: RunContent
    blocks: BlockArray
    """Disk blocks, int32, one for each block of the content."""
    near: BlockMask | None = None
    """bool: which of them have rows of layers with a window; None: all have all rows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockMove:
    """An order to copy blocks; ``target_blocks[i]`` gets the bytes of ``source_blocks[i]``."""

    number: int
    source: Tier
    target: Tier
    source_blocks: BlockArray
    target_blocks: BlockArray
    content: Content | None
    """For orders to the disk."""
    source_near: BlockArray | None = None
    """Where rows behind windows are given back: int32, of each block the place of its rows of
    layers with a window, which go along; -1: none do. On the device a window block, in host memory
    a row for such rows; blocks on disk have theirs beside them, and any number says so. None:
    blocks have all rows."""
    target_near: BlockArray | None = None
    """The same of the places that they go to."""


class BlockMover(Protocol):
    """Carries out orders; ``radix_cache.tiers`` says what it promises."""

    def move(self, move: BlockMove) -> None:
        """Take an order. The arrays are the mover's to keep."""


class TierBlocks:
    """The blocks of one lower tier: which are free, which a pending order still uses, and which
    have rows of layers with a window.

    Args:
        near_rows: so many have room for such rows; 0: blocks have all rows, or there are none such.
    """

    def __init__(self, tier: Tier, num_blocks: int, *, near_rows: int = 0) -> None:
        self.tier = tier
        self.num_blocks = num_blocks
        self._pool = BlockPool(num_blocks)
        self._in_use = np.zeros(num_blocks, dtype=np.int16)
        self._given_up = np.zeros(num_blocks, dtype=np.bool_)
        self.near: BlockArray = np.full(num_blocks, NO_ROWS, dtype=np.int32)
        """[num_blocks] where the rows of each are that layers with a window have, -1: nowhere."""
        self._rows = BlockPool(near_rows) if near_rows else None
        self._with_rows: dict[int, None] = {}
        """Blocks that have such rows, those that got them first in front."""

    @property
    def num_free(self) -> int:
        return self._pool.num_free

    @property
    def free_rows(self) -> int:
        """Room for rows of layers with a window that no block has."""
        return 0 if self._rows is None else self._rows.num_free

    def take(self, count: int) -> BlockArray:
        """``count`` free ids, the caller's; OutOfBlocks changes nothing."""
        return self._pool.take(count).copy()

    def claim(self, blocks: BlockArray) -> None:
        """Take these ids; they are free."""
        self._pool.claim(blocks)

    def give_rows(self, blocks: BlockArray) -> None:
        """Give blocks that were just taken room for rows of layers with a window, taken from those
        that have had it longest and that no order uses; where that is too little, the last of
        ``blocks`` get it."""
        if not len(blocks):
            return
        assert self._rows is not None
        short = len(blocks) - self._rows.num_free
        if short > 0:
            old = itertools.islice((b for b in self._with_rows if not self._in_use[b]), short)
            self._take_rows(np.fromiter(old, dtype=np.int32))
        count = min(len(blocks), self._rows.num_free)
        given = blocks[len(blocks) - count :]
        self.near[given] = self._rows.take(count)
        self._with_rows.update(dict.fromkeys(given.tolist()))

    def _take_rows(self, blocks: BlockArray) -> None:
        held = blocks[self.near[blocks] >= 0]
        if self._rows is None or not len(held):
            return
        self._rows.release(self.near[held])
        self.near[held] = NO_ROWS
        for block in held.tolist():
            del self._with_rows[block]

    def use(self, blocks: BlockArray) -> None:
        """A pending order reads or writes these."""
        self._in_use[blocks] += 1

    def used(self, blocks: BlockArray) -> None:
        """The order is over; what was given up meanwhile, and no other order uses, becomes
        free."""
        self._in_use[blocks] -= 1
        given_up = blocks[self._given_up[blocks] & (self._in_use[blocks] == 0)]
        self._given_up[given_up] = False
        self._free(given_up)

    def release(self, blocks: BlockArray) -> None:
        """Give blocks up: free at once, or when the order that uses them is over."""
        busy = self._in_use[blocks] > 0
        self._given_up[blocks[busy]] = True
        self._free(blocks[~busy])

    def _free(self, blocks: BlockArray) -> None:
        self._take_rows(blocks)
        self._pool.release(blocks)

    def unheld_blocks(self) -> BlockArray:
        """Ids that no node has: free ones and given up ones, a copy."""
        given_up = np.flatnonzero(self._given_up).astype(np.int32)
        return np.concatenate([self._pool.free_blocks(), given_up])

    def check(self) -> None:
        """AssertionError where rows of layers with a window are lost, doubled or of free blocks."""
        held = np.flatnonzero(self.near >= 0)
        assert held.tolist() == sorted(self._with_rows), "rows of a tier that nobody may take"
        assert (self.near[self._pool.free_blocks()] < 0).all(), "rows of a free block below"
        if self._rows is not None:
            places = np.concatenate([self.near[held], self._rows.free_blocks()])
            assert np.array_equal(np.sort(places), np.arange(self._rows.num_blocks)), (
                f"rows of tier {self.tier} lost or doubled"
            )
