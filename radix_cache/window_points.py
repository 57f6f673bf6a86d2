"""Places where others are expected to begin, where rows behind windows are given back.

Each is kept with the blocks before it whose rows of layers with a window they read.

The blocks of a point go together: once one has lost its rows the others are of no use. Only where
its last blocks have gone below the device with their rows what is left of it here stays, as long as
the rest may come back. Of whom a point is let go is by class, then by tenant, the one that has most
first, then by when it was used last.

Always true: blocks leave the device from the ends of transcripts, so one that goes takes the end of
every point that needs it along.
"""

from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterable

import numpy as np

from radix_cache.block_pool import BlockArray
from radix_cache.handle import BranchHandle
from radix_cache.nodes import IDLE, RUNNING, Owner


class Point:
    """A place where a sequence can begin: the blocks before it that it reads."""

    __slots__ = ("blocks", "handle", "owner", "whole")

    def __init__(self, blocks: list[int], owner: Owner, handle: BranchHandle | None) -> None:
        self.blocks = blocks
        self.owner = owner
        self.handle = handle
        """The branch that ends here; None where no branch is known to come back."""
        self.whole = True
        """Its last blocks are on the device, too."""

    @property
    def klass(self) -> int:
        return IDLE if self.handle is None else self.handle.klass


class WindowPoints:
    """The points of one device.

    Args:
        num_blocks: of the device.
        on_kept, on_left: called with blocks that a point needs as of now, and with such as one
            needs no longer; others may.
    """

    def __init__(
        self,
        num_blocks: int,
        *,
        on_kept: Callable[[Iterable[int]], None],
        on_left: Callable[[Iterable[int]], None],
    ) -> None:
        self.kept: BlockArray = np.zeros(num_blocks, dtype=np.int32)
        """[num_blocks] how many points need each."""
        self._on_kept = on_kept
        self._on_left = on_left
        self._points: defaultdict[Owner, OrderedDict[Point, None]] = defaultdict(OrderedDict)
        """Of each tenant, the one used longest ago in front."""
        self._ending: dict[int, list[Point]] = {}
        """By their last block on the device."""
        self._ends: dict[BranchHandle, Point] = {}

    def add(self, blocks: BlockArray, owner: Owner, handle: BranchHandle | None) -> Point:
        """Keep a place with these blocks before it."""
        point = Point(blocks.tolist(), owner, handle)
        self._points[owner][point] = None
        self._ending.setdefault(point.blocks[-1], []).append(point)
        if handle is not None:
            self._ends[handle] = point
        self.kept[blocks] += 1
        self._on_kept(point.blocks)
        return point

    def move_end(self, handle: BranchHandle, blocks: BlockArray) -> Point:
        """Have a branch's end kept with these blocks, and no longer with those before."""
        old = self._ends.pop(handle, None)
        point = self.add(blocks, handle.owner, handle)
        if old is not None:
            self._remove(old)
        return point

    def end_left(self, handle: BranchHandle) -> None:
        """Nobody is known to come back to a branch's end."""
        point = self._ends.pop(handle, None)
        if point is not None:
            self._remove(point)

    def used(self, last: int, handle: BranchHandle) -> bool:
        """Count a point as used that ends with block ``last`` and is the branch's own, or for any
        of its tenant's; False: there is none."""
        for point in self._ending.get(last, ()):
            mine = point.owner is handle.owner and point.handle in (None, handle)
            if mine and point.whole:
                self._points[point.owner].move_to_end(point)
                return True
        return False

    def for_any(self, last: int) -> bool:
        """Whether a point ends with block ``last`` that is no branch's end."""
        return any(point.handle is None and point.whole for point in self._ending.get(last, ()))

    def first_to_go(self) -> Point | None:
        """The point that is needed least; None: there is none."""
        owners = sorted(self._points, key=lambda owner: -len(self._points[owner]))
        for klass in range(IDLE, RUNNING + 1):
            for owner in owners:
                for point in self._points[owner]:
                    if point.klass == klass:
                        return point
        return None

    def let_go(self, point: Point) -> None:
        """Keep a place no longer, whoever's it is."""
        if point.handle is not None:
            self._ends.pop(point.handle, None)
        self._remove(point)

    def freed(self, blocks: BlockArray) -> None:
        """Let go of points whose blocks have lost their rows."""
        for block in blocks[self.kept[blocks] > 0].tolist():
            for point in list(self._ending.get(block, ())):
                self.let_go(point)

    def went_down(self, blocks: BlockArray) -> None:
        """Blocks have gone below the device with their rows: keep the rest of points with such."""
        going = set(blocks.tolist())
        for block in blocks[self.kept[blocks] > 0].tolist():
            for point in list(self._ending.get(block, ())):
                rest = [each for each in point.blocks if each not in going]
                if rest:
                    self._shorten(point, rest)
                else:
                    self.let_go(point)

    def _shorten(self, point: Point, rest: list[int]) -> None:
        self._unlist(point)
        gone = point.blocks[len(rest) :]
        self.kept[gone] -= 1
        self._on_left(gone)
        point.blocks, point.whole = rest, False
        self._ending.setdefault(rest[-1], []).append(point)

    def _remove(self, point: Point) -> None:
        del self._points[point.owner][point]
        if not self._points[point.owner]:
            del self._points[point.owner]
        self._unlist(point)
        self.kept[point.blocks] -= 1
        self._on_left(point.blocks)

    def _unlist(self, point: Point) -> None:
        others = self._ending[point.blocks[-1]]
        others.remove(point)
        if not others:
            del self._ending[point.blocks[-1]]

    def check(self) -> None:
        """AssertionError where blocks and points do not agree."""
        kept = np.zeros_like(self.kept)
        for points in self._points.values():
            for point in points:
                np.add.at(kept, point.blocks, 1)
                assert point in self._ending[point.blocks[-1]], "a resume point without an end"
                if point.handle is not None:
                    assert self._ends[point.handle] is point, "two ends of a branch"
        assert (kept == self.kept).all(), "blocks kept for no resume point"
