"""Which blocks of transcripts have rows of layers with a window, on the device and below it.

Where rows behind windows are given back, a block below has them if it had them on the device when
it went down, as long as there is room for them there. So how far a sequence can begin is a question
to all tiers: as many blocks before it as a window takes have their rows, wherever they are.

Always true: without window blocks every block has all rows, and nothing is noted.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import numpy as np

from radix_cache.block_pool import BlockArray
from radix_cache.edge import NO_BLOCKS
from radix_cache.nodes import Node, Tier, path_from
from radix_cache.transfers import BlockMask, TierBlocks
from radix_cache.window_rows import WindowRows

_SPARE: Final = 2
"""Of free rows below the device every other one may be taken for what nobody is known to read."""


class LowerBlocks:
    """The blocks of the tiers below one device.

    Args:
        host, disk: of host memory, and of the disk if there is one.
        windows: the rows of the device's blocks; None where every block has all.
    """

    def __init__(
        self, host: TierBlocks, disk: TierBlocks | None, windows: WindowRows | None
    ) -> None:
        self.host = host
        self.disk = disk
        self.windows = windows

    def of(self, tier: int) -> TierBlocks:
        """The blocks of a tier below the device, which is there."""
        if tier == Tier.HOST:
            return self.host
        assert self.disk is not None
        return self.disk

    def take(
        self, tier: Tier, source: Tier, sources: BlockArray, *, first_rows: int = 0
    ) -> BlockArray:
        """Take blocks of ``tier`` for what the blocks ``sources`` of another hold, with room for
        their rows of layers with a window where they have such. Of those that come to host memory
        the ones before ``first_rows``, and from the device such as no place is kept for, get it
        only where nobody loses rows for them; the disk has room for all."""
        below = self.of(tier)
        targets = below.take(len(sources))
        held = self.held(source, sources)
        if held is not None and self.windows is not None:
            wanted = np.arange(len(sources)) >= first_rows
            if (source, tier) == (Tier.DEVICE, Tier.HOST):
                wanted &= self.windows.keeps(sources)
            below.give_rows(targets[held & wanted])
            others = targets[held & ~wanted]
            below.give_rows(others[max(0, len(others) - below.free_rows // _SPARE) :])
        return targets

    def rows_read_from(self, end: int) -> int:
        """The first block before block ``end`` whose rows of layers with a window a sequence reads
        that begins there, or of which one keeps them."""
        return 0 if self.windows is None else max(0, end - self.windows.most_kept)

    def near(self, tier: int, blocks: BlockArray) -> BlockArray:
        """Where the rows of layers with a window are of each block, int32, a copy; -1: nowhere."""
        if tier != Tier.DEVICE:
            return self.of(tier).near[blocks]
        assert self.windows is not None
        return self.windows.place[blocks]

    def held(self, tier: int, blocks: BlockArray) -> BlockMask | None:
        """Which of these blocks have rows of layers with a window, bool [n]; None: all have all."""
        return None if self.windows is None else self.near(tier, blocks) >= 0

    def kept_rows(self, tier: int, blocks: BlockArray) -> BlockMask | None:
        """The same without rows of the device that no place is kept for, which go first there."""
        held = self.held(tier, blocks)
        if held is None or self.windows is None or tier != Tier.DEVICE:
            return held
        return held & self.windows.keeps(blocks)

    def moving(
        self, source: Tier, target: Tier, sources: BlockArray, targets: BlockArray
    ) -> tuple[BlockArray, BlockArray] | tuple[None, None]:
        """From where to where rows of layers with a window go with an order that copies
        ``sources`` to ``targets``: both int32 [n], -1 where none do."""
        if self.windows is None:
            return None, None
        here, there = self.near(source, sources), self.near(target, targets)
        assert not ((here < 0) & (there >= 0)).any(), "room for rows that nobody has"
        return np.where(there >= 0, here, there), there

    def along(self, node: Node, position: int, start: int = 0) -> BlockMask:
        """Which blocks of the path to ``position`` in ``node`` from ``start`` on have their rows,
        bool [position - start]."""
        parts = [np.empty(0, dtype=np.bool_)]
        for each in path_from(node, start):
            first, stop = max(start - each.start, 0), min(position, each.end) - each.start
            held = self.held(each.tier, each.edge.block_ids()[first:stop])
            assert held is not None
            parts.append(held)
        return np.concatenate(parts)

    def reach(self, node: Node, position: int) -> int:
        """The blocks of a prefix that ends at ``position`` in ``node`` behind which a sequence can
        begin, once all of them are on the device."""
        if self.windows is None or self.along(node, position, self.rows_read_from(position)).all():
            return position
        return self.windows.reach_of_rows(self.along(node, position))

    @contextmanager
    def kept(self, node: Node, start: int) -> Iterator[None]:
        """While this lasts, host blocks of the path to ``node`` from ``start`` on keep the rows
        that they have."""
        path = [each for each in path_from(node, start) if each.tier == Tier.HOST]
        blocks = np.concatenate([NO_BLOCKS, *(each.edge.block_ids() for each in path)])
        self.host.use(blocks)
        try:
            yield
        finally:
            self.host.used(blocks)

    def check(self) -> None:
        """AssertionError where rows below are lost, doubled or of nobody."""
        for tier in (self.host, self.disk):
            if tier is not None:
                tier.check()
