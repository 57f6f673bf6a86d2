"""Blocks on disk that repeat what is cached above it, so that a restart finds whole transcripts.

A block on disk is found again only by way of all blocks before it. But transcripts leave the
device from their ends, prefixes that many branches share never do, and at an orderly end
everything is still above the disk. Copies fill these gaps. They are not in the tree, nothing
is matched by them, and they go first where nothing idle on the disk is left that could.
"""

from collections import OrderedDict
from collections.abc import Callable
from typing import Protocol

from radix_cache.block_pool import BlockArray
from radix_cache.edge import NO_BLOCKS
from radix_cache.keys import chain_keys
from radix_cache.lower_blocks import LowerBlocks
from radix_cache.nodes import Node, Tier, path_from
from radix_cache.transfers import BlockMask, BlockMove, RunContent, TierBlocks
from radix_cache.tree import RadixTree


class Order(Protocol):
    """Gives an order to the mover."""

    def __call__(
        self,
        source: Tier,
        target: Tier,
        sources: BlockArray,
        targets: BlockArray,
        content: RunContent | None,
    ) -> BlockMove: ...


class DiskCopies:
    """Copies of runs of blocks, by the chained key of their last block.

    Args:
        tree: whose nodes are copied.
        below: the blocks of the lower tiers; there is a disk.
        run_blocks: a longer run is copied in parts.
        order: gives an order to the mover.
        make_room: frees blocks of the disk; returns how many of those wanted are free.
        key_before: the chained key of all blocks before a node.
        on_write: called with each node that is copied.
    """

    def __init__(
        self,
        tree: RadixTree,
        below: LowerBlocks,
        *,
        run_blocks: int,
        order: Order,
        make_room: Callable[[TierBlocks, int], int],
        key_before: Callable[[Node], bytes],
        on_write: Callable[[Node], None] = lambda node: None,
    ) -> None:
        self._tree = tree
        self._below = below
        self._host = below.host
        self._disk = below.of(Tier.DISK)
        self._run_blocks = run_blocks
        self._order = order
        self._make_room = make_room
        self._key_before = key_before
        self._on_write = on_write
        self._runs: OrderedDict[bytes, BlockArray] = OrderedDict()
        self._pending: dict[int, tuple[BlockMove, bytes]] = {}
        self._on_their_way: dict[bytes, BlockArray] = {}
        """The targets of the last order for each key."""
        self._num_blocks = 0

    def copy(self, far: Node, *, most_blocks: int) -> bool:
        """Order copies of what the path to ``far`` has above the disk and has no copy of; those
        wanted longest ago go where there would be more than ``most_blocks``. False: there is no
        room."""
        size = self._tree.block_size
        for node in path_from(far, 0):
            if node.tier == Tier.DISK:
                break
            self._on_write(node)
            if node.busy:
                continue
            key, tokens = self._key_before(node), node.edge.token_ids()
            blocks: BlockArray | None = None
            rows: BlockMask | None = None
            if self._below.windows is not None:
                blocks = node.edge.block_ids()
                rows = self._below.kept_rows(node.tier, blocks)
            keys = chain_keys(key, tokens, size)
            node.chain = keys[-1]
            for first in range(0, node.size, self._run_blocks):
                end = min(first + self._run_blocks, node.size)
                if self._known(keys[end - 1], None if rows is None else rows[first:end]):
                    continue
                if not self._find_room(end - first, most_blocks):
                    return False
                blocks = node.edge.block_ids() if blocks is None else blocks
                content = RunContent(
                    tenant=node.owner.key,
                    position=node.start + first,
                    parent_key=keys[first - 1] if first else key,
                    tokens=tokens[first * size : end * size],
                )
                self._give(Tier(node.tier), blocks[first:end].copy(), content, keys[end - 1])
        return True

    def _known(self, key: bytes, rows: BlockMask | None) -> bool:
        """Whether there is such a copy, or will be, with the rows of layers with a window that
        these blocks have, bool [n]; it counts as wanted now."""
        if key in self._runs:
            self._runs.move_to_end(key)
        copies = [each[key] for each in (self._runs, self._on_their_way) if key in each]
        if rows is None:
            return bool(copies)
        return any(self._has_rows(copy, rows) for copy in copies)

    def _has_rows(self, copy: BlockArray, rows: BlockMask) -> bool:
        """Whether a copy has these rows, as far as both reach back from the same end."""
        count = min(len(copy), len(rows))
        lacks = self._disk.near[copy[len(copy) - count :]] < 0
        return not bool((lacks & rows[len(rows) - count :]).any())

    def _find_room(self, count: int, most_blocks: int) -> bool:
        while self._runs and self._num_blocks + count > most_blocks:
            self._forget_oldest()
        if self._num_blocks + count > most_blocks:
            return False
        return self._make_room(self._disk, count) == count

    def _forget_oldest(self) -> None:
        _, blocks = self._runs.popitem(last=False)
        self._num_blocks -= len(blocks)
        self._disk.release(blocks)

    def give_room(self, wanted: int) -> None:
        """Forget copies until ``wanted`` blocks of the disk are free, or none is left."""
        while self._runs and self._disk.num_free < wanted:
            self._forget_oldest()

    def _give(self, tier: Tier, sources: BlockArray, content: RunContent, key: bytes) -> None:
        targets = self._below.take(Tier.DISK, tier, sources)
        if tier == Tier.HOST:
            self._host.use(sources)
        self._num_blocks += len(targets)
        self._on_their_way[key] = targets
        move = self._order(tier, Tier.DISK, sources, targets, content)
        self._pending[move.number] = (move, key)

    def moved(self, number: int, *, ok: bool) -> bool:
        """The order is over; False if it is none of these."""
        entry = self._pending.pop(number, None)
        if entry is None:
            return False
        move, key = entry
        if move.source == Tier.HOST:
            self._host.used(move.source_blocks)
        if self._on_their_way.get(key) is move.target_blocks:
            del self._on_their_way[key]
        unwanted = self._runs.get(key) if ok else move.target_blocks
        if ok:
            self._runs[key] = move.target_blocks
        if unwanted is not None:
            self._num_blocks -= len(unwanted)
            self._disk.release(unwanted)
        return True

    @property
    def num_pending(self) -> int:
        return len(self._pending)

    def blocks(self) -> list[BlockArray]:
        """Ids of all copies, finished or not."""
        pending = (move.target_blocks for move, _ in self._pending.values())
        return [NO_BLOCKS, *self._runs.values(), *pending]
