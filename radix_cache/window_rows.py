"""The rows of layers with a window: a pool of their own, of fewer blocks than transcripts have.

A layer that sees a window of tokens reads no row behind it. So a block of the tree has rows of such
layers or has none: it gets a *window block* for them when its tokens are computed, and loses it
once nobody reads them and others need the room. A sequence can begin where the blocks before it, as
many as a window takes, have theirs.

A running sequence pins its window. What it leaves behind goes first. Where it ends, and where
sequences have gone on from before, is a *resume point*: its blocks go together, those of branches
that nobody waits for before others, of the tenant that has most, the point used longest ago first.

Ids alone, no tensors. Always true: a window block is free or one block's; what is pinned stays; so
many sequences are let in that those who run never lack window blocks.
"""

from collections import OrderedDict, defaultdict
from collections.abc import Iterable

import numpy as np

from radix_cache.block_pool import BlockArray, BlockPool, OutOfBlocks
from radix_cache.handle import BranchHandle, CachedSequence
from radix_cache.nodes import IDLE, RUNNING, Owner

NONE = -1
_SLACK_BLOCKS = 2
"""Blocks that are kept behind a window: one for what a sequence computes without filling a block,
one for those who go back a little."""
_ENDS = 3
"""Blocks that a sequence's window and the tokens of a step may touch beside whole ones: at either
end, and the one that is begun ahead."""


def blocks_of_window(window: int, block_size: int) -> int:
    """Blocks before a block's first token of which that token sees something; one at least."""
    return max(1, -(-(window - 1) // block_size))


def claim_of(window: int, block_size: int) -> int:
    """Window blocks that a running sequence holds at most, but for those of a step's tokens."""
    return blocks_of_window(window, block_size) + _SLACK_BLOCKS + _ENDS


class _Point:
    """A place where a sequence can begin: the blocks before it that it reads."""

    __slots__ = ("blocks", "handle", "owner")

    def __init__(self, blocks: list[int], owner: Owner, handle: BranchHandle | None) -> None:
        self.blocks = blocks
        self.owner = owner
        self.handle = handle
        """The branch that ends here; None where no branch is known to come back."""

    @property
    def klass(self) -> int:
        return IDLE if self.handle is None else self.handle.klass


class WindowRows:
    """Says which window block each block has.

    Args:
        num_blocks: blocks of the pool.
        num_window_blocks: those for rows of layers with a window.
        block_size: tokens of a block.
        window: tokens that such a layer sees, the query's own included; of several the most.
        step_tokens: tokens that one step computes at most.

    Raises:
        ValueError: one sequence and one step would not find room.
    """

    def __init__(
        self,
        *,
        num_blocks: int,
        num_window_blocks: int,
        block_size: int,
        window: int,
        step_tokens: int,
    ) -> None:
        self._block_size = block_size
        self._needed = blocks_of_window(window, block_size)
        self._keep_tokens = self._needed * block_size + _SLACK_BLOCKS * block_size
        self._claim = claim_of(window, block_size)
        self._for_a_step = -(-step_tokens // block_size)
        if num_window_blocks < self._claim + self._for_a_step:
            raise ValueError(
                f"{num_window_blocks} window blocks, a sequence and a step of {step_tokens} "
                f"tokens take {self._claim + self._for_a_step}"
            )
        self._pool = BlockPool(num_window_blocks)
        self.place: BlockArray = np.full(num_blocks, NONE, dtype=np.int32)
        """[num_blocks] the window block of each block, -1 where it has none."""
        self._pins = np.zeros(num_blocks, dtype=np.int32)
        self._kept = np.zeros(num_blocks, dtype=np.int32)
        """Resume points that need each block."""
        self._left: dict[int, None] = {}
        """Blocks with rows that nobody reads or keeps, those left first in front."""
        self._points: defaultdict[Owner, OrderedDict[_Point, None]] = defaultdict(OrderedDict)
        """Of each tenant, the one used longest ago in front."""
        self._ending: dict[int, list[_Point]] = {}
        """Points by their last block."""
        self._ends: dict[BranchHandle, _Point] = {}
        self._running = 0
        self.evicted = 0
        """Blocks that have lost their rows to others."""

    @property
    def total(self) -> int:
        """Window blocks that there are."""
        return self._pool.num_blocks

    @property
    def free(self) -> int:
        return self._pool.num_free

    @property
    def left(self) -> int:
        """Window blocks whose rows nobody reads or is thought to come back to."""
        return len(self._left)

    # Where to begin

    def reach_of(self, table: BlockArray) -> int:
        """The blocks of a matched prefix, int32 [n], behind which a sequence can begin: the most
        of which as many as a window takes have rows."""
        count = len(table)
        held = self.place[table[max(0, count - self._needed) :]] >= 0
        if held.all():
            return count
        missing = np.flatnonzero(self.place[table] < 0)
        edges = np.concatenate(([-1], missing, [count]))
        enough = np.diff(edges) - 1 >= self._needed
        enough[0] = True  # from the first token on there is no window before it
        return int(edges[int(np.flatnonzero(enough)[-1]) + 1])

    # Running

    def may_admit(self) -> bool:
        """Whether one more sequence could run without ever lacking window blocks."""
        claims = (self._running + 1) * self._claim
        return claims + self._for_a_step <= self._pool.num_blocks

    def check_admission(self, sequence: CachedSequence) -> None:
        """Raise OutOfBlocks where as many sequences run as there is room for, or rows have gone
        since they were found."""
        if not self.may_admit():
            raise OutOfBlocks(
                f"all {self._pool.num_blocks} window blocks may be needed by {self._running} "
                "sequences that run"
            )
        end = sequence.num_shared_blocks
        if self.reach_of(sequence.table[:end]) < end:
            raise OutOfBlocks("rows of the window have been evicted since they were found")

    def admit(self, sequence: CachedSequence) -> None:
        """Pin the window of a sequence that begins to run; its admission was checked."""
        end = sequence.num_shared_blocks
        table = sequence.table[:end]
        self._running += 1
        begin = end - len(self._held_before(table))
        sequence.rows_from, sequence.rows_to = begin, end
        self._pin(table[begin:])
        if end:
            self._resumed_at(sequence)

    def _held_before(self, table: BlockArray) -> BlockArray:
        """The last blocks of a table that have rows, as many as are kept behind a sequence."""
        most = table[max(0, len(table) - self._needed - _SLACK_BLOCKS) :]
        bare = np.flatnonzero(self.place[most] < 0)
        return most[int(bare[-1]) + 1 :] if len(bare) else most

    def _resumed_at(self, sequence: CachedSequence) -> None:
        """Remember that a sequence has begun here: others may, too, if it is another branch's or
        was before."""
        handle = sequence.handle
        assert handle is not None
        last = int(sequence.table[sequence.rows_to - 1])
        for point in self._ending.get(last, ()):
            if point.owner is handle.owner and point.handle in (None, handle):
                self._points[point.owner].move_to_end(point)
                return
        self._add(sequence.table[sequence.rows_from : sequence.rows_to], handle.owner, None)

    def reach(self, sequence: CachedSequence, end: int) -> None:
        """Have window blocks for the tokens of a running sequence before position ``end``."""
        reached = -(-end // self._block_size)
        new = sequence.table[sequence.rows_to : reached]
        if not len(new):
            return
        bare = new[self.place[new] < 0]
        while self._pool.num_free < len(bare):
            self._evict()
        if len(bare):
            self.place[bare] = self._pool.take(len(bare))
        self._pin(new)
        sequence.rows_to = reached

    def window_of(self, sequence: CachedSequence, start: int, end: int) -> tuple[int, BlockArray]:
        """The rows that the tokens of a running sequence from ``start`` to before ``end`` read and
        write: the number of the first block among the sequence's, and window blocks from there on,
        int32. They were reached."""
        size = self._block_size
        first = max(sequence.rows_from, max(0, start - self._keep_tokens) // size)
        return first, self.place[sequence.table[first : -(-end // size)]]

    def committed(self, sequence: CachedSequence, num_tokens: int) -> None:
        """Let go of what a running sequence is beyond with its first ``num_tokens`` computed."""
        size = self._block_size
        points = sequence.rows_points
        while points and points[-1] * size <= num_tokens:
            self._passed(sequence, points.pop())
        first = max(0, num_tokens - self._keep_tokens) // size
        if first > sequence.rows_from:
            self._unpin(sequence.table[sequence.rows_from : first])
            sequence.rows_from = first

    def keep_at(self, sequence: CachedSequence, positions: Iterable[int]) -> None:
        """Keep the window before each of these tokens of a running sequence, once it is there:
        others are expected to go on from them."""
        size, begun = self._block_size, sequence.num_shared_blocks
        blocks = {position // size for position in positions} | {*sequence.rows_points}
        sequence.rows_points = sorted((each for each in blocks if each > begun), reverse=True)

    def _passed(self, sequence: CachedSequence, end: int) -> None:
        """Keep the window before block ``end`` of a sequence for others, where it has it."""
        handle = sequence.handle
        assert handle is not None
        last = int(sequence.table[end - 1])
        begin = max(sequence.rows_from, end - self._needed - _SLACK_BLOCKS)
        known = any(point.handle is None for point in self._ending.get(last, ()))
        if end - begin >= min(end, self._needed) and not known:
            self._add(sequence.table[begin:end], handle.owner, None)

    def ended(self, sequence: CachedSequence) -> None:
        """A sequence that ran ends: its branch may come back to where its shared blocks end."""
        handle = sequence.handle
        assert handle is not None
        self._running -= 1
        end = sequence.num_shared_blocks
        begin = max(sequence.rows_from, end - self._needed - _SLACK_BLOCKS)
        old = self._ends.pop(handle, None)
        if end - begin >= min(end, self._needed) and end:
            self._add(sequence.table[begin:end], handle.owner, handle)
        if old is not None:
            self._remove(old)
        self._unpin(sequence.table[sequence.rows_from : sequence.rows_to])
        sequence.rows_from = sequence.rows_to = 0

    def branch_left(self, handle: BranchHandle) -> None:
        """A branch is released: nobody is known to come back to its end."""
        point = self._ends.pop(handle, None)
        if point is not None:
            self._remove(point)

    # Blocks

    def replaced(self, sequence: CachedSequence, start: int, own: BlockArray) -> None:
        """A sequence's blocks ``own`` from block ``start`` on, int32, are about to be freed, since
        the tree has others with the same tokens, which are in the sequence's table now: these get
        rows that they have not."""
        for at, mine in enumerate(own.tolist(), start):
            theirs = int(sequence.table[at])
            if self.place[mine] >= 0 and self.place[theirs] < 0:
                self.place[theirs], self.place[mine] = self.place[mine], NONE
                self._left.pop(mine, None)
                self._left[theirs] = None
            if sequence.rows_from <= at < sequence.rows_to:
                self._pin(sequence.table[at : at + 1])
                self._pins[mine] -= 1

    def freed(self, blocks: BlockArray) -> None:
        """Blocks have left the tree, or the sequence that had them: so have their rows."""
        for block in blocks[self._kept[blocks] > 0].tolist():
            for point in list(self._ending.get(block, ())):
                if point.handle is not None:
                    self._ends.pop(point.handle, None)
                self._remove(point)
        held = blocks[self.place[blocks] >= 0]
        if len(held):
            for block in held.tolist():
                self._left.pop(block, None)
            self._pool.release(self.place[held])
            self.place[held] = NONE

    def _pin(self, blocks: BlockArray) -> None:
        self._pins[blocks] += 1
        for block in blocks.tolist():
            self._left.pop(block, None)

    def _unpin(self, blocks: BlockArray) -> None:
        self._pins[blocks] -= 1
        self._leave(blocks.tolist())

    def _leave(self, blocks: Iterable[int]) -> None:
        for block in blocks:
            if not self._pins[block] and not self._kept[block] and self.place[block] >= 0:
                self._left[block] = None

    # Resume points

    def _add(self, blocks: BlockArray, owner: Owner, handle: BranchHandle | None) -> None:
        point = _Point(blocks.tolist(), owner, handle)
        self._points[owner][point] = None
        self._ending.setdefault(point.blocks[-1], []).append(point)
        if handle is not None:
            self._ends[handle] = point
        self._kept[blocks] += 1
        for block in point.blocks:
            self._left.pop(block, None)

    def _remove(self, point: _Point) -> None:
        del self._points[point.owner][point]
        if not self._points[point.owner]:
            del self._points[point.owner]
        others = self._ending[point.blocks[-1]]
        others.remove(point)
        if not others:
            del self._ending[point.blocks[-1]]
        self._kept[point.blocks] -= 1
        self._leave(point.blocks)

    def _evict(self) -> None:
        """Take the rows of a block that needs them least, or let go of a resume point."""
        if self._left:
            block = next(iter(self._left))
            del self._left[block]
            self._pool.release(self.place[block : block + 1])
            self.place[block] = NONE
            self.evicted += 1
            return
        point = self._first_to_go()
        if point.handle is not None:
            self._ends.pop(point.handle, None)
        self._remove(point)

    def _first_to_go(self) -> _Point:
        owners = sorted(self._points, key=lambda owner: -len(self._points[owner]))
        for klass in range(IDLE, RUNNING + 1):
            for owner in owners:
                for point in self._points[owner]:
                    if point.klass == klass:
                        return point
        raise AssertionError("running sequences hold more window blocks than they claim")

    # Checking

    def check(self, running: Iterable[CachedSequence], unheld: BlockArray) -> None:
        """AssertionError where window blocks, pins and points do not agree.

        Args:
            unheld: blocks that nobody has: they have no rows.
        """
        used = self.place[self.place >= 0]
        assert len(np.unique(used)) == len(used), "a window block of two blocks"
        free = self._pool.free_blocks()
        assert len(used) + len(free) == self._pool.num_blocks, "window blocks of nobody"
        assert not np.isin(free, used).any(), "a free window block with rows"
        assert (self.place[unheld] < 0).all(), "rows of a free block"
        pins = np.zeros_like(self._pins)
        admitted = [sequence for sequence in running if sequence.admitted]
        assert self._running == len(admitted), "sequences that run uncounted"
        for sequence in admitted:
            np.add.at(pins, sequence.table[sequence.rows_from : sequence.rows_to], 1)
        assert (pins == self._pins).all(), "pins of nobody"
        assert (self.place[self._pins > 0] >= 0).all(), "a window without rows"
        kept = np.zeros_like(self._kept)
        for points in self._points.values():
            for point in points:
                np.add.at(kept, point.blocks, 1)
        assert (kept == self._kept).all(), "blocks kept for no resume point"
        assert (self.place[self._kept > 0] >= 0).all(), "a resume point without rows"
        left = np.zeros(len(self.place), dtype=np.bool_)
        left[list(self._left)] = True
        idle = (self.place >= 0) & (self._pins == 0) & (self._kept == 0)
        assert (left == idle).all(), "rows that nobody reads and nobody may evict"
