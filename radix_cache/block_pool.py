"""Physical KV blocks: which ids are free.

A block keeps the keys and values of ``block_size`` consecutive tokens for every layer.
This module handles block *ids* only; the tensors are elsewhere. Blocks move in runs, as
int32 arrays: a run that was released together is handed out together and in the same
order, so that neighbouring tokens tend to lie in neighbouring blocks. A block in use has
exactly one keeper, a radix tree node or a running sequence; sharers are counted per node.

Always true: an id is in the free list or with one keeper, never both.
"""

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

BlockArray = npt.NDArray[np.int32]


class OutOfBlocks(Exception):
    """Fewer blocks can be had than asked for. The caller waits, or preempts another
    sequence, and asks again; nothing has changed."""


class BlockPool:
    """Hands out block ids ``0 .. num_blocks - 1``.

    Not thread-safe: only the engine loop touches it.
    """

    def __init__(self, num_blocks: int) -> None:
        if num_blocks < 1:
            raise ValueError(f"a pool of {num_blocks} blocks, at least 1 is needed")
        self.num_blocks = num_blocks
        self.num_free = num_blocks
        self.on_release: Callable[[BlockArray], None] | None = None
        """Is told of ids that are taken back, before they are."""
        # A stack that grows downwards: the free ids are _ids[num_used:], next one first, so
        # that a fresh pool hands out 0, 1, 2, ... and a run keeps its order.
        self._ids: BlockArray = np.arange(num_blocks, dtype=np.int32)

    def take(self, count: int) -> BlockArray:
        """Return ``count`` free ids, int32 [count]; the caller keeps them from now on.

        The array is a view that holds until the next call on the pool: copy what stays.
        All or nothing: on OutOfBlocks the pool is unchanged.
        """
        free = self.num_free
        if count > free:
            raise OutOfBlocks(f"asked for {count} blocks, {free} are free")
        used = self.num_blocks - free
        self.num_free = free - count
        return self._ids[used : used + count]

    def claim(self, blocks: BlockArray) -> None:
        """Take the free ids ``blocks``, int32 [n].

        Raises:
            ValueError: one of them is in use; the pool is unchanged.
        """
        used = self.num_blocks - self.num_free
        free = self._ids[used:]
        wanted = np.isin(free, blocks)
        if int(wanted.sum()) != len(blocks):
            raise ValueError(f"{len(blocks)} blocks claimed, {int(wanted.sum())} of them are free")
        self._ids[used:] = np.concatenate([free[wanted], free[~wanted]])
        self.num_free -= len(blocks)

    def release(self, blocks: BlockArray) -> None:
        """Take ids back, int32 [n]. They are the next to be handed out, in this order: their
        memory is still warm, and reading a block after its release shows at once.

        Raises:
            ValueError: more ids than are in use; the pool is unchanged.
        """
        used = self.num_blocks - self.num_free
        count = len(blocks)
        if count > used:
            raise ValueError(f"{count} blocks released, {used} are in use")
        if self.on_release is not None:
            self.on_release(blocks)
        self._ids[used - count : used] = blocks
        self.num_free += count

    def free_blocks(self) -> BlockArray:
        """A copy of the free ids, in the order in which they would be handed out."""
        return self._ids[self.num_blocks - self.num_free :].copy()
