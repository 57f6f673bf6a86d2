"""The rows of layers with a window: a pool of their own, of fewer blocks than transcripts have.

A layer that sees a window of tokens reads no row behind it. So a block of the tree has rows of such
layers or has none: it gets a *window block* for them when its tokens are computed, and loses it
once nobody reads them and others need the room. A sequence can begin where the blocks before it, as
many as a window takes, have theirs.

A running sequence pins its window. What it leaves behind goes first. Where it ends, and where
sequences have gone on from before, is a *resume point*: its blocks go together, those of branches
that nobody waits for before others, of the tenant that has most, the point used longest ago first.

Where there are tiers below the device, rows go down with their blocks (``lower_blocks``), and what
of a point is still here stays for as long as the rest may come back.

Ids alone, no tensors. Always true: a window block is free or one block's; what is pinned stays; so
many sequences are let in that those who run never lack window blocks.
"""

from collections.abc import Callable, Iterable

import numpy as np
import numpy.typing as npt

from radix_cache.block_pool import BlockArray, BlockPool, OutOfBlocks
from radix_cache.handle import BranchHandle, CachedSequence
from radix_cache.nodes import IDLE
from radix_cache.window_points import WindowPoints

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


def kept_for(window: int, block_size: int) -> int:
    """Blocks before a place whose rows are kept for those who begin there."""
    return blocks_of_window(window, block_size) + _SLACK_BLOCKS


def claim_of(window: int, block_size: int) -> int:
    """Window blocks that a running sequence holds at most, but for those of a step's tokens."""
    return kept_for(window, block_size) + _ENDS


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
        self.most_kept = kept_for(window, block_size)
        """Blocks before a place whose rows are kept for those who begin there."""
        self._keep_tokens = self.most_kept * block_size
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
        self._left: dict[int, None] = {}
        """Blocks with rows that nobody reads or keeps, those left first in front."""
        self._points = WindowPoints(num_blocks, on_kept=self._stay, on_left=self._leave)
        self._running = 0
        self._restored: set[CachedSequence] = set()
        """Of those that count as running, the ones whose path has come up for them to begin."""
        self.on_evict: Callable[[BranchHandle, list[int]], bool] = lambda handle, blocks: False
        """Asked before the place where a branch has ended is let go, with those of its blocks that
        are on the device: whether the last of them have gone below it instead, with their rows."""
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
        return count if held.all() else self.reach_of_rows(self.place[table] >= 0)

    def reach_of_rows(self, held: npt.NDArray[np.bool_]) -> int:
        """The same of blocks of which these have rows, bool [n], wherever they are."""
        count = len(held)
        missing = np.flatnonzero(~held)
        edges = np.concatenate(([-1], missing, [count]))
        enough = np.diff(edges) - 1 >= self._needed
        enough[0] = True  # from the first token on there is no window before it
        return int(edges[int(np.flatnonzero(enough)[-1]) + 1])

    # Running

    def may_admit(self, sequence: CachedSequence | None = None) -> bool:
        """Whether one more sequence could run without ever lacking window blocks; ``sequence``, if
        it does not count already."""
        if sequence is not None and sequence in self._restored:
            return True
        claims = (self._running + 1) * self._claim
        return claims + self._for_a_step <= self._pool.num_blocks

    def check_admission(self, sequence: CachedSequence) -> None:
        """Raise OutOfBlocks where as many sequences run as there is room for, or rows have gone
        since they were found."""
        if sequence not in self._restored:
            end = sequence.num_shared_blocks
            self._check_room(found=self.reach_of(sequence.table[:end]) == end)

    def _check_room(self, *, found: bool) -> None:
        if not self.may_admit():
            raise OutOfBlocks(
                f"all {self._pool.num_blocks} window blocks may be needed by {self._running} "
                "sequences that run"
            )
        if not found:
            raise OutOfBlocks("rows of the window have been evicted since they were found")

    def check_restore(self, held: npt.NDArray[np.bool_]) -> None:
        """The same before a path comes up of whose blocks these have rows, bool [n]."""
        self._check_room(found=self.reach_of_rows(held) == len(held))

    def restore(
        self, sequence: CachedSequence, end: int, held: npt.NDArray[np.bool_], *, at_end: bool
    ) -> None:
        """Give window blocks to those of the last blocks before block ``end`` of a sequence that
        are about to come up with their rows, and pin its window; this was checked. It counts as
        running from now on.

        Args:
            held: bool [end], which blocks have rows, on the device or below.
            at_end: that is where its branch has ended.
        """
        begin = self.kept_from(held)
        blocks, handle = sequence.table[begin:end], sequence.handle
        assert handle is not None
        self._pin(blocks)
        self._furnish(blocks)
        self._running += 1
        self._restored.add(sequence)
        sequence.rows_from, sequence.rows_to = begin, end
        if at_end:
            self._points.move_end(handle, blocks)

    def kept_from(self, held: npt.NDArray[np.bool_]) -> int:
        """The first of those blocks at the end, of which ``held`` have rows, that are kept for who
        begins behind them."""
        begin = max(0, len(held) - self.most_kept)
        bare = np.flatnonzero(~held[begin:])
        return begin + int(bare[-1]) + 1 if len(bare) else begin

    def bring_back(self, handle: BranchHandle, blocks: BlockArray, *, whole: bool) -> bool:
        """Give window blocks to those of ``blocks``, int32, that are about to come up with their
        rows for a branch that is expected back, at the cost of branches that nobody waits for.
        False: there are not so many.

        Args:
            blocks: the last ones that the branch needs, as far as they will be on the device.
            whole: they end where the branch does.
        """
        if not len(blocks):
            return True
        self._pin(blocks)
        while self._pool.num_free < int((self.place[blocks] < 0).sum()):
            point = self._points.first_to_go()
            if not self._left and (point is None or point.klass > IDLE):
                break
            self._evict()
        enough = self._pool.num_free >= int((self.place[blocks] < 0).sum())
        if enough:
            self._furnish(blocks)
            self._points.move_end(handle, blocks).whole = whole
        self._unpin(blocks)
        return enough

    def admit(self, sequence: CachedSequence) -> None:
        """Pin the window of a sequence that begins to run; its admission was checked."""
        end = sequence.num_shared_blocks
        if sequence in self._restored:
            self._restored.discard(sequence)
        else:
            table = sequence.table[:end]
            self._running += 1
            begin = end - len(self._held_before(table))
            sequence.rows_from, sequence.rows_to = begin, end
            self._pin(table[begin:])
        if end:
            self._resumed_at(sequence)

    def _held_before(self, table: BlockArray) -> BlockArray:
        """The last blocks of a table that have rows, as many as are kept behind a sequence."""
        most = table[max(0, len(table) - self.most_kept) :]
        bare = np.flatnonzero(self.place[most] < 0)
        return most[int(bare[-1]) + 1 :] if len(bare) else most

    def _resumed_at(self, sequence: CachedSequence) -> None:
        """Remember that a sequence has begun here: others may, too, if it is another branch's or
        was before."""
        handle = sequence.handle
        assert handle is not None
        if not self._points.used(int(sequence.table[sequence.rows_to - 1]), handle):
            blocks = sequence.table[sequence.rows_from : sequence.rows_to]
            self._points.add(blocks, handle.owner, None)

    def reach(self, sequence: CachedSequence, end: int) -> None:
        """Have window blocks for the tokens of a running sequence before position ``end``."""
        reached = -(-end // self._block_size)
        new = sequence.table[sequence.rows_to : reached]
        if not len(new):
            return
        self._furnish(new)
        self._pin(new)
        sequence.rows_to = reached

    def _furnish(self, blocks: BlockArray) -> None:
        """Give window blocks to those that have none."""
        bare = blocks[self.place[blocks] < 0]
        while self._pool.num_free < len(bare):
            self._evict()
        if len(bare):
            self.place[bare] = self._pool.take(len(bare))

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
        begin = max(sequence.rows_from, end - self.most_kept)
        if end - begin >= min(end, self._needed) and not self._points.for_any(last):
            self._points.add(sequence.table[begin:end], handle.owner, None)

    def ended(self, sequence: CachedSequence) -> None:
        """A sequence ends: if it ran or its path came up for it, its branch may come back to where
        its shared blocks end."""
        if not sequence.admitted and sequence not in self._restored:
            return
        self._restored.discard(sequence)
        handle = sequence.handle
        assert handle is not None
        self._running -= 1
        end = sequence.num_shared_blocks
        begin = max(sequence.rows_from, end - self.most_kept)
        found = end - begin >= min(end, self._needed) and end
        if found and (sequence.admitted or not sequence.is_new):
            self._points.move_end(handle, sequence.table[begin:end])
        elif found:
            self._points.add(sequence.table[begin:end], handle.owner, None)
        else:
            self.branch_left(handle)
        self._unpin(sequence.table[sequence.rows_from : sequence.rows_to])
        sequence.rows_from = sequence.rows_to = 0

    def branch_left(self, handle: BranchHandle) -> None:
        """A branch is released: nobody is known to come back to its end."""
        self._points.end_left(handle)

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

    def keeps(self, blocks: BlockArray) -> npt.NDArray[np.bool_]:
        """Of which of these the rows are kept for somebody who may begin behind them, bool [n]."""
        return self._points.kept[blocks] > 0

    def went_down(self, blocks: BlockArray) -> None:
        """Blocks, int32, are about to be freed, the last ones on the device, and their rows are
        below it: what is left here of the places that need them stays."""
        self._points.went_down(blocks)

    def freed(self, blocks: BlockArray) -> None:
        """Blocks have left the tree, or the sequence that had them: so have their rows."""
        self._points.freed(blocks)
        held = blocks[self.place[blocks] >= 0]
        if len(held):
            for block in held.tolist():
                self._left.pop(block, None)
            self._pool.release(self.place[held])
            self.place[held] = NONE

    def _pin(self, blocks: BlockArray) -> None:
        self._pins[blocks] += 1
        self._stay(blocks.tolist())

    def _unpin(self, blocks: BlockArray) -> None:
        self._pins[blocks] -= 1
        self._leave(blocks.tolist())

    def _stay(self, blocks: Iterable[int]) -> None:
        for block in blocks:
            self._left.pop(block, None)

    def _leave(self, blocks: Iterable[int]) -> None:
        kept = self._points.kept
        for block in blocks:
            if not self._pins[block] and not kept[block] and self.place[block] >= 0:
                self._left[block] = None

    def _evict(self) -> None:
        """Take the rows of a block that needs them least, or let go of a resume point."""
        if self._left:
            block = next(iter(self._left))
            del self._left[block]
            self._pool.release(self.place[block : block + 1])
            self.place[block] = NONE
            self.evicted += 1
            return
        point = self._points.first_to_go()
        assert point is not None, "running sequences hold more window blocks than they claim"
        if point.handle is None or not self.on_evict(point.handle, point.blocks):
            self._points.let_go(point)

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
        counted = [each for each in running if each.admitted or each in self._restored]
        assert self._running == len(counted), "sequences that run uncounted"
        assert self._restored <= {each for each in counted if not each.admitted}, "restored twice"
        for sequence in counted:
            np.add.at(pins, sequence.table[sequence.rows_from : sequence.rows_to], 1)
        assert (pins == self._pins).all(), "pins of nobody"
        assert (self.place[self._pins > 0] >= 0).all(), "a window without rows"
        self._points.check()
        kept = self._points.kept
        assert (self.place[kept > 0] >= 0).all(), "a resume point without rows"
        left = np.zeros(len(self.place), dtype=np.bool_)
        left[list(self._left)] = True
        idle = (self.place >= 0) & (self._pins == 0) & (kept == 0)
        assert (left == idle).all(), "rows that nobody reads and nobody may evict"
