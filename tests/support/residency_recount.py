"""Whose KV was on the device for how long, by looking at every block at every moment.

Time passes only here, between two operations, and in steps that any number of holders up to sixteen
divides: so what the cache charges has to be equal, not nearly so.
"""

from collections import Counter
from fractions import Fraction

from radix_cache.cache import PrefixCache
from radix_cache.handle import BranchHandle
from radix_cache.nodes import Node
from radix_cache.residency import MICROSECONDS

STEP_US = 720_720
"""Every number from 1 to 16 divides it."""


class Recount:
    def __init__(self, cache: PrefixCache) -> None:
        self._cache = cache
        self._meter = cache.tree.meter
        self._now_us = int(self._meter.clock() * MICROSECONDS)
        self._meter.clock = lambda: (self._now_us + 0.5) / MICROSECONDS
        self.expected = {each: Fraction(self._meter.charged(each)) for each in self.handles()}
        self.total = int(sum(self.expected.values()))
        """Block-microseconds for which somebody held a block."""
        self.told: Counter[str] = Counter()
        for row in cache.take_residency():
            if not row.gone:
                self.told[row.branch_id] += row.block_us
        self.shared = 0
        """Moments at which a block had several holders."""

    def handles(self) -> list[BranchHandle]:
        branches = self._cache.branches
        running = [sequence.handle for sequence in branches.running]
        return list(dict.fromkeys([*branches.handles, *filter(None, running)]))

    def pass_time(self, steps: int, unit_us: int = STEP_US) -> None:
        """Charge every holder of every block for so long."""
        holders: dict[int, list[BranchHandle]] = {}
        for handle in self.handles():
            self.expected.setdefault(handle, Fraction(0))
            for block in _blocks(handle):
                holders.setdefault(block, []).append(handle)
        span = steps * unit_us
        self._now_us += span
        for several in holders.values():
            self.total += span
            self.shared += len(several) > 1
            for handle in several:
                self.expected[handle] += Fraction(span, len(several))

    def compare(self) -> None:
        """Exactly so much was charged, to each and in all."""
        charged = {handle: self._meter.charged(handle) for handle in self.expected}
        assert charged == self.expected, "residency"
        assert sum(charged.values()) == self.total
        assert self._meter.undivided == 0

    def take(self) -> None:
        """Note what is told."""
        for row in self._cache.take_residency():
            self.told[row.branch_id] += row.block_us


def _blocks(handle: BranchHandle) -> list[int]:
    """Ids of the device blocks that a branch holds, its running sequence's own included."""
    blocks: list[int] = []
    node: Node | None = handle.node
    while node is not None:
        if not node.tier:
            blocks += node.edge.block_ids()[: min(node.end, handle.length) - node.start].tolist()
        node = node.parent
    sequence = handle.sequence
    if sequence is not None:
        blocks += sequence.block_table[sequence.num_shared_blocks :].tolist()
    return blocks
