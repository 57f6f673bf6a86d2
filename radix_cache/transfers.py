"""Orders to copy blocks between tiers, and the blocks of a lower tier."""

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from radix_cache.block_pool import BlockArray, BlockPool
from radix_cache.edge import TokenArray
from radix_cache.nodes import Tier
from radix_cache.snapshots import StateContent


@dataclass(frozen=True, slots=True, kw_only=True)
class RunContent:
    """The content of a run of blocks on disk: enough to find it again after a restart."""

    tenant: str
    """Owner of the run; empty for published prefixes."""
    position: int
    """Block position of the run in its transcript."""
    parent_key: bytes
    """Chained key of all blocks before it, 16 bytes (``radix_cache.keys.chain_keys``)."""
    tokens: TokenArray
    """int32 [blocks * block_size]."""


Content = RunContent | StateContent


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredRun:
    """A run that an earlier process has left on disk."""

    content: RunContent
    blocks: BlockArray
    """Disk blocks, int32, one for each block of the content."""


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


class BlockMover(Protocol):
    """Carries out orders; ``radix_cache.tiers`` says what it promises."""

    def move(self, move: BlockMove) -> None:
        """Take an order. The arrays are the mover's to keep."""


class TierBlocks:
    """The blocks of one lower tier: which are free, and which a pending order still uses."""

    def __init__(self, tier: Tier, num_blocks: int) -> None:
        self.tier = tier
        self.num_blocks = num_blocks
        self._pool = BlockPool(num_blocks)
        self._in_use = np.zeros(num_blocks, dtype=np.int16)
        self._given_up = np.zeros(num_blocks, dtype=np.bool_)

    @property
    def num_free(self) -> int:
        return self._pool.num_free

    def take(self, count: int) -> BlockArray:
        """``count`` free ids, the caller's; OutOfBlocks changes nothing."""
        return self._pool.take(count).copy()

    def claim(self, blocks: BlockArray) -> None:
        """Take these ids; they are free."""
        self._pool.claim(blocks)

    def use(self, blocks: BlockArray) -> None:
        """A pending order reads or writes these."""
        self._in_use[blocks] += 1

    def used(self, blocks: BlockArray) -> None:
        """The order is over; what was given up meanwhile, and no other order uses, becomes
        free."""
        self._in_use[blocks] -= 1
        given_up = blocks[self._given_up[blocks] & (self._in_use[blocks] == 0)]
        self._given_up[given_up] = False
        self._pool.release(given_up)

    def release(self, blocks: BlockArray) -> None:
        """Give blocks up: free at once, or when the order that uses them is over."""
        busy = self._in_use[blocks] > 0
        self._given_up[blocks[busy]] = True
        self._pool.release(blocks[~busy])

    def unheld_blocks(self) -> BlockArray:
        """Ids that no node has: free ones and given up ones, a copy."""
        given_up = np.flatnonzero(self._given_up).astype(np.int32)
        return np.concatenate([self._pool.free_blocks(), given_up])
