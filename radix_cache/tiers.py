"""Host memory and disk below the device: what moves there, and what comes back.

Only ids are decided here. A ``BlockMover`` copies the bytes; it gets one order after the
other and has two duties:

- Between device and host an order counts as done when it is given: whatever later orders,
  and the engine's next step, do to the blocks it names must wait for it (stream order). So
  device blocks are free for the next request at once, and nobody waits for a copy.
- An order from or to the disk takes as long as it takes, and ends with ``moved``. Until
  then neither its sources nor its targets are used for anything else.

A transcript's blocks lie on the device first, then in host memory, then on disk; what is
evicted from the end of one part is put before the next. The tree keeps the tokens of all
of them, so what comes back has been compared token by token like anything else.
"""

from collections.abc import Callable, Iterable
from typing import Final

import numpy as np

from radix_cache.audit import check_partition
from radix_cache.block_pool import BlockArray
from radix_cache.disk_copies import DiskCopies
from radix_cache.edge import NO_BLOCKS
from radix_cache.idle_leaves import IdleLeaves
from radix_cache.keys import chain_keys, root_key
from radix_cache.lower_blocks import LowerBlocks
from radix_cache.misses import MissAccount
from radix_cache.nodes import IDLE, RUNNING, Holder, Node, Tier, path_from
from radix_cache.transfers import BlockMove, BlockMover, RunContent, StoredRun, TierBlocks
from radix_cache.tree import RadixTree
from radix_cache.window_rows import WindowRows

RUN_BLOCKS: Final = 64
"""Blocks leave the device and host memory in runs of at least so many, where there are."""
Places = dict[tuple[str, bytes], tuple[Node, int]]
"""By tenant, empty for what is published, and chained key: a node, and the position in it."""
_FREE_SHARE: Final = 8
_COPY_SHARE: Final = 4
"""A quarter of the disk may be copies, while it runs: of what is above blocks on the disk."""


class LowerTiers:
    """Host memory and disk.

    Args:
        tree: whose nodes are placed.
        mover: copies the bytes.
        idle: says which nodes of a tier go first.
        misses: is told what is forgotten.
        host_blocks: at least 1, since the disk is reached through host memory.
        disk_blocks: 0 means that there is no disk.
        windows: the device's rows of layers with a window; None where every block has all rows.
        host_window_blocks: so many host blocks have room for such rows.
    """

    def __init__(
        self,
        tree: RadixTree,
        mover: BlockMover,
        idle: IdleLeaves,
        misses: MissAccount,
        *,
        host_blocks: int,
        disk_blocks: int,
        windows: WindowRows | None = None,
        host_window_blocks: int = 0,
    ) -> None:
        self._tree = tree
        self._mover = mover
        self._idle = idle
        self._misses = misses
        self._num_orders = 0
        self._pending: dict[int, tuple[BlockMove, Node, int]] = {}
        self._being_written = 0
        self.on_write: Callable[[Node], None] = lambda node: None
        """Called with each node whose blocks are about to be ordered to the disk."""
        self.host = TierBlocks(Tier.HOST, host_blocks, near_rows=host_window_blocks)
        self.disk: TierBlocks | None = None
        if disk_blocks:
            near_rows = disk_blocks if windows is not None else 0
            self.disk = TierBlocks(Tier.DISK, disk_blocks, near_rows=near_rows)
        self.below = LowerBlocks(self.host, self.disk, windows)
        self._windows = windows
        self._copies: DiskCopies | None = None
        if self.disk is not None:
            self._copies = DiskCopies(
                tree,
                self.below,
                run_blocks=RUN_BLOCKS,
                order=self._order,
                make_room=self._make_room,
                key_before=self._key_before,
                on_write=self._wrote,
            )
        self.writing = True
        """Whether host blocks go to the disk; a failed write turns it off."""
        self.moved_blocks = {(a, b): 0 for a in Tier for b in Tier if _is_way(a, b)}
        """Blocks ordered to move so far, by (source, target)."""
        self.failed_blocks = 0
        """Blocks of orders from or to the disk that failed."""

    # Device and host

    def has_room(self, count: int) -> bool:
        """Whether so many blocks find room in host memory; what is idle there goes for them."""
        return self._make_room(self.host, count) == count

    def demote(self, leaf: Node, cut: int) -> BlockArray:
        """Move the last ``cut`` blocks of a device leaf to host memory, as many of the upper
        ones as find room; the rest is forgotten. Returns the device blocks, now free."""
        tree = self._tree
        room = self._make_room(self.host, cut)
        freed = NO_BLOCKS
        if room < cut:
            self.forget_below(leaf)
            keep = leaf.size - (cut - room)
            self._misses.forgetting(leaf, keep)
            freed = tree.trim(leaf, keep)
            if self._windows is not None:
                self._windows.freed(freed)
        if room:
            if room < leaf.size:
                tree.split(leaf, leaf.end - room)
            targets = self.below.take(Tier.HOST, Tier.DEVICE, leaf.edge.block_ids())
            sources = tree.place(leaf, Tier.HOST, targets, self._tree.next_tick())
            self._order(Tier.DEVICE, Tier.HOST, sources, targets, None)
            if self._windows is not None:
                self._windows.went_down(sources[self.host.near[targets] >= 0])
            freed = np.concatenate([sources, freed])
            for child in list(tree.children(leaf)):
                tree.join(child)
        return freed

    def promote(self, far: Node, start: int, targets: BlockArray) -> None:
        """Copy the host blocks from position ``start`` to the end of ``far`` to the device
        blocks ``targets``, which the tree keeps from now on; rows of layers with a window go along
        where these have window blocks."""
        tree = self._tree
        tick = tree.next_tick()
        sources: list[BlockArray] = []
        for node in path_from(far, start):
            first = node.start - start
            blocks = targets[first : first + node.size]
            sources.append(tree.place(node, Tier.DEVICE, blocks, tick))
            tree.join(node)
        host_blocks = np.concatenate(sources)
        self._order(Tier.HOST, Tier.DEVICE, host_blocks, targets, None)
        self.host.release(host_blocks)

    def adopt(self, node: Node, targets: BlockArray) -> None:
        """Let ``node`` have the device blocks of a sequence that has computed it again."""
        tier = self.below.of(node.tier)
        tier.release(self._tree.place(node, Tier.DEVICE, targets, self._tree.next_tick()))

    # Host and disk

    def write_behind(self) -> None:
        """Order idle host blocks to the disk, the longest unused first, while less than an
        eighth of the host's are free or about to be."""
        disk, host = self.disk, self.host
        if disk is None or not self.writing:
            return
        while (host.num_free + self._being_written) * _FREE_SHARE < host.num_blocks:
            node = self._idle.first(Tier.HOST)
            if node is None:
                return
            if node.size > RUN_BLOCKS:
                self._tree.split(node, node.end - RUN_BLOCKS)
            if self._make_room(disk, node.size) < node.size:
                return
            content = RunContent(
                tenant=node.owner.key,
                position=node.start,
                parent_key=self._key_before(node),
                tokens=node.edge.token_ids(),
            )
            self.on_write(node)
            self._being_written += node.size
            self._order_slowly(node, Tier.HOST, Tier.DISK, content)
            self._copy_above(node)

    def _copy_above(self, node: Node) -> None:
        """See to it that what is above ``node`` is on the disk as well: it may never go there by
        itself, and after a crash nothing below it is found without it."""
        assert self.disk is not None
        assert self._copies is not None
        above = node.parent
        if above is not None and above.parent is not None:
            self._copies.copy(above, most_blocks=self.disk.num_blocks // _COPY_SHARE)

    def _wrote(self, node: Node) -> None:
        self.on_write(node)

    def copy_down(self, paths: Iterable[Node]) -> None:
        """Order copies of what these paths have above the disk, the first one first, as far as
        there is room: for the end of the process."""
        if self.disk is None or self._copies is None or not self.writing:
            return
        for node in paths:
            if not self._copies.copy(node, most_blocks=self.disk.num_blocks):
                return

    def next_number(self) -> int:
        """A number for an order that somebody else gives: all have one order."""
        self._num_orders += 1
        return self._num_orders

    @property
    def last_order(self) -> int:
        """Number of the order given last."""
        return self._num_orders

    def is_reading(self, last: int) -> bool:
        """Whether an order from the disk up to number ``last`` is under way."""
        return any(
            number <= last and move.source == Tier.DISK
            for number, (move, _, _) in self._pending.items()
        )

    @property
    def num_pending(self) -> int:
        """Orders from and to the disk that are under way."""
        return len(self._pending) + (self._copies.num_pending if self._copies is not None else 0)

    def read(self, far: Node, end: int) -> int:
        """Order what of the path to block position ``end`` in ``far`` is on disk into host
        memory, from its upper end and as far as there is room; returns how many of its blocks
        are on their way now. Rows of layers with a window come as far as a sequence reads them
        that begins there, and others where there is room to spare."""
        if far.tier != Tier.DISK:
            return 0
        if end < far.end:
            far = self._tree.split(far, end)
        keeper = Holder(far.owner)
        self._tree.move(keeper, far, far.end)
        self._tree.hold(keeper, RUNNING)  # the path shall not make room for itself
        ordered, rows_from = 0, self.below.rows_read_from(far.end)
        with self.below.kept(far, rows_from):
            for node in path_from(far, 0):
                if node.tier != Tier.DISK:
                    continue
                if node.busy:
                    ordered += node.size
                    continue
                if self._make_room(self.host, node.size) < node.size:
                    break
                self._order_slowly(node, Tier.DISK, Tier.HOST, None, rows_from=rows_from)
                ordered += node.size
        self._tree.hold(keeper, IDLE)
        self._tree.drop(keeper)
        return ordered

    def moved(self, number: int, *, ok: bool) -> None:
        """An order from or to the disk is over; ``ok`` False: the bytes did not arrive, or not
        unharmed. What cannot be read is forgotten; what cannot be written stays where it is,
        and writing stops until ``writing`` is set again.

        Raises:
            KeyError: no such order is pending.
        """
        if self._copies is not None and self._copies.moved(number, ok=ok):
            self.writing = self.writing and ok
            return
        move, last, start = self._pending.pop(number)
        reading = move.source == Tier.DISK
        source, target = self.below.of(move.source), self.below.of(move.target)
        source.used(move.source_blocks)
        target.used(move.target_blocks)
        if not reading:
            self._being_written -= len(move.source_blocks)
        if not ok:
            self.failed_blocks += len(move.source_blocks)
            self.writing = self.writing and reading
        unused = np.ones(len(move.target_blocks), dtype=np.bool_)
        end = start + len(unused)
        parts = path_from(last, start) if last.size else []
        parts = [part for part in parts if start <= part.start and part.end <= end]
        for part in parts if reading else parts[::-1]:
            part.busy = False
            parent = part.parent
            assert parent is not None
            fits = parent.tier < Tier.DISK if reading else not part.branches
            if ok and fits and part.tier == move.source:
                here = slice(part.start - start, part.end - start)
                unused[here] = False
                blocks = move.target_blocks[here]
                source.release(self._tree.place(part, move.target, blocks, self._tree.next_tick()))
            elif part.tier != Tier.DEVICE and part.klass == IDLE and not part.branches:
                self._idle.offer(part)
        target.release(move.target_blocks[unused])
        if reading and not ok:
            self._lose([part for part in parts if part.tier == Tier.DISK])

    def _lose(self, parts: list[Node]) -> None:
        """Forget nodes on disk that cannot be read, and all below them, whoever holds them."""
        if not parts:
            return
        top = parts[0]
        assert top.parent is not None
        below = [top]
        for node in below:
            for holder in list(node.holders):
                self._tree.move(holder, top.parent, top.start)
            below.extend(self._tree.children(node))
        self._forget(top)

    def load(self, runs: Iterable[StoredRun], places: Places | None = None) -> int:
        """Make the runs of an earlier process known again and return how many blocks found
        their place; the others are free. Nothing else has been cached yet.

        Args:
            places: gets the places in the tree where blocks end.
        """
        tree, disk = self._tree, self.disk
        assert disk is not None
        places = {} if places is None else places
        kept = [NO_BLOCKS]
        with_rows = [NO_BLOCKS]
        for run in sorted(runs, key=lambda r: (r.content.position, _lacking(r))):
            content = run.content
            owner = tree.of_key(content.tenant)
            place: tuple[Node, int] | None = (owner.root, 0)
            if content.position:
                place = places.get((content.tenant, content.parent_key))
                place = place or places.get((owner.published.key, content.parent_key))
            if place is None:
                continue
            node, position = tree.climb(*place), place[1]
            if position < node.end:
                node = tree.split(node, position)
            if tree.child(node, owner, content.tokens, 0) is not None:
                continue
            if node.tier == Tier.DISK and node.owner is owner and not node.children:
                tree.append(node, content.tokens, run.blocks)
            else:
                node = tree.add_leaf(node, owner, content.tokens, run.blocks, tier=Tier.DISK)
                self._idle.offer(node)
            for key in chain_keys(content.parent_key, content.tokens, tree.block_size):
                position += 1
                places[content.tenant, key] = node, position
            kept.append(run.blocks)
            if self._windows is not None:
                with_rows.append(run.blocks if run.near is None else run.blocks[run.near])
        claimed = np.concatenate(kept)
        disk.claim(claimed)
        disk.give_rows(np.concatenate(with_rows))
        return len(claimed)

    # Evictor and orders

    def _make_room(self, tier: TierBlocks, wanted: int) -> int:
        """Forget idle ends of ``tier``, the longest unused first, until ``wanted`` blocks are
        free there; returns how many of them are."""
        while tier.num_free < wanted:
            node = self._idle.first(tier.tier)
            if node is None:
                if tier is self.disk and self._copies is not None:
                    self._copies.give_room(wanted)
                break
            self.forget_below(node)
            keep = max(0, node.size - (wanted - tier.num_free))
            self._misses.forgetting(node, keep)
            tier.release(self._tree.trim(node, keep))
        return min(wanted, tier.num_free)

    def forget_below(self, node: Node) -> None:
        """Forget all that hangs below an idle ``node``."""
        for child in list(self._tree.children(node)):
            self._forget(child)

    def _forget(self, node: Node) -> None:
        below = [node]
        for each in below:
            below.extend(self._tree.children(each))
        for each in reversed(below):
            self._misses.forgetting(each, 0)
            self.below.of(each.tier).release(self._tree.trim(each, 0))

    def _order_slowly(
        self,
        node: Node,
        source: Tier,
        target: Tier,
        content: RunContent | None,
        *,
        rows_from: int = 0,
    ) -> None:
        sources = node.edge.block_ids()
        first = max(0, rows_from - node.start)
        targets = self.below.take(target, source, sources, first_rows=first)
        self.below.of(source).use(sources)
        self.below.of(target).use(targets)
        node.busy = True
        move = self._order(source, target, sources, targets, content)
        self._pending[move.number] = (move, node, node.start)

    def _order(
        self,
        source: Tier,
        target: Tier,
        sources: BlockArray,
        targets: BlockArray,
        content: RunContent | None,
    ) -> BlockMove:
        self.moved_blocks[source, target] += len(sources)
        source_near, target_near = self.below.moving(source, target, sources, targets)
        move = BlockMove(
            number=self.next_number(),
            source=source,
            target=target,
            source_blocks=sources,
            target_blocks=targets,
            content=content,
            source_near=source_near,
            target_near=target_near,
        )
        self._mover.move(move)
        return move

    def check(self) -> None:
        """Recount the blocks of both tiers; AssertionError if one is lost or doubled."""
        self.below.check()
        for tier in (self.host, self.disk):
            if tier is not None:
                moves = [move for move, _, _ in self._pending.values() if move.target == tier.tier]
                unheld = [tier.unheld_blocks(), *(move.target_blocks for move in moves)]
                if tier is self.disk and self._copies is not None:
                    unheld += self._copies.blocks()
                check_partition(
                    self._tree,
                    tier.tier,
                    unheld=unheld,
                    num_blocks=tier.num_blocks,
                )

    def key_at(self, node: Node, position: int) -> bytes:
        """The chained key of all blocks before ``position``, which is inside ``node`` or its
        end."""
        size = self._tree.block_size
        tokens = node.edge.token_ids()[: (position - node.start) * size]
        return chain_keys(self._key_before(node), tokens, size)[-1]

    def _key_before(self, node: Node) -> bytes:
        """The chained key of all blocks before ``node``."""
        path: list[Node] = []
        above = node.parent
        while above is not None and above.parent is not None and above.chain is None:
            path.append(above)
            above = above.parent
        assert above is not None
        key = root_key(above.owner) if above.chain is None else above.chain
        for each in reversed(path):
            key = chain_keys(key, each.edge.token_ids(), self._tree.block_size)[-1]
            each.chain = key
        return key


def _lacking(run: StoredRun) -> int:
    """Blocks of a run without rows of layers with a window."""
    return 0 if run.near is None else int((~run.near).sum())


def _is_way(source: Tier, target: Tier) -> bool:
    """Whether blocks go from one to the other; copies of device blocks go to the disk at once."""
    return abs(source - target) == 1 or (source, target) == (Tier.DEVICE, Tier.DISK)
