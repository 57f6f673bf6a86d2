"""The slots of recurrent states: who runs on which, what is kept where, and what goes first.

A sequence can be resumed only where a state was saved. The end of each turn is: the sequence's own
slot is donated. Once its branch has a new end, the old one is *replaced*: cheap to lose, unless
other branches went on from it. Which goes first is ``radix_cache.snapshot_order``'s to say.

Always true: the whole blocks before a snapshot are on the device; a snapshot whose branch is leased
goes only with the lease; nothing of another tenant is found.
"""

from collections.abc import Callable

import numpy as np

from radix_cache.edge import TokenArray
from radix_cache.handle import BranchHandle, CachedSequence, Snapshot
from radix_cache.idle_leaves import IdleLeaves
from radix_cache.nodes import IDLE, Kept, Node, Owner
from radix_cache.resume_points import find, has_tail, kept_in, on_path
from radix_cache.retention import Retention
from radix_cache.slot_pool import NO_SLOT, OutOfSlots, SlotPool
from radix_cache.snapshot_order import SnapshotOrder
from radix_cache.snapshots import (
    BeginState,
    EndState,
    SaveState,
    SnapshotKind,
    StateOrder,
)
from radix_cache.tree import RadixTree

_NO_TAIL: TokenArray = np.empty(0, dtype=np.int32)


class StateSlots:
    """Gives slots to sequences and keeps snapshots in ``tree``.

    Args:
        num_slots: how many there are.
        most_running: sequences that may run at a time.
        restore_cost: tokens of a transcript -> seconds to compute it again. None: its length.
    """

    def __init__(
        self,
        tree: RadixTree,
        idle: IdleLeaves,
        retention: Retention,
        *,
        num_slots: int,
        most_running: int,
        restore_cost: Callable[[int], float] | None,
    ) -> None:
        self._tree = tree
        self._idle = idle
        self._retention = retention
        self._counters = retention.counters
        self._most_running = most_running
        self.order = SnapshotOrder(
            tree, retention.shares, num_slots=num_slots, restore_cost=restore_cost or float
        )
        self.pool = SlotPool(num_slots)
        self.snapshots: dict[int, Snapshot] = {}
        """By slot."""
        self._orders: list[StateOrder] = []
        self._numbers = 0
        tree.on_cut = self._cut

    def take_orders(self) -> list[StateOrder]:
        """Orders for slots before the next step, in this order."""
        orders, self._orders = self._orders, []
        return orders

    def find(self, owner: Owner, node: Node, shared: int, tokens: TokenArray) -> Snapshot | None:
        """See ``resume_points.find``."""
        return find(self._tree, owner, node, shared, tokens)

    def _first(self, owner: Owner, rights: int) -> Snapshot | None:
        return self.order.victim(self.snapshots.values(), owner, rights)

    # Running

    def began(
        self, sequence: CachedSequence, handle: BranchHandle, resume: Snapshot | None
    ) -> None:
        """A sequence is about to run from ``resume`` on."""
        sequence.resume = resume
        if resume is not None:
            resume.pins += 1

    def available(self, sequence: CachedSequence, rights: int) -> bool:
        """Whether ``admit`` would find a slot."""
        handle = sequence.handle
        assert handle is not None
        if self.pool.counts["running"] >= self._most_running:
            return False
        if self.pool.num_free or self._may_move(sequence, handle):
            return True
        return self._first(handle.owner, rights) is not None

    def admit(self, sequence: CachedSequence, rights: int) -> None:
        """Give a sequence its slot; its blocks are in its table already.

        Raises:
            OutOfSlots: ``available`` would have said so.
        """
        handle, resume = sequence.handle, sequence.resume
        assert handle is not None
        moved = self._moves(sequence, handle, rights)
        source, position, tail_block = None, 0, None
        if resume is not None:
            source, position = resume.slot, resume.position
            self._touch(resume)
            if len(resume.tail):
                tail_block = int(sequence.table[resume.blocks])
        if moved:
            assert resume is not None
            slot = resume.slot
            self._forget(resume)
            self.pool.turn(slot, "snapshot", "running")
        else:
            if not self.pool.num_free:
                self._evict_one(handle.owner, rights)
            slot = self.pool.take("running")
        self._unpin(sequence)
        if resume is not None and resume.alive:
            sequence.came_from = resume
            if handle not in resume.ends:
                resume.forks.add(handle)
        handle.owner.state_slots += 1
        sequence.state_slot = slot
        self._orders.append(
            BeginState(slot=slot, source=source, position=position, tail_block=tail_block)
        )

    def _moves(self, sequence: CachedSequence, handle: BranchHandle, rights: int) -> bool:
        """Whether a sequence takes the slot that it goes on from: none is free, and somebody wants
        what would go first. Else that goes, since a fork may yet ask for this one."""
        if self.pool.num_free or not self._may_move(sequence, handle):
            return False
        victim = self._first(handle.owner, rights)
        if victim is None or self.order.class_of(victim) > IDLE:
            return True
        return self.order.is_wanted(victim)

    def _may_move(self, sequence: CachedSequence, handle: BranchHandle) -> bool:
        """Whether a sequence goes on from its own branch's end, which nobody else wants."""
        resume = sequence.resume
        return (
            resume is not None and resume.pins == 1 and resume.ends == {handle} and not resume.forks
        )

    def withdrawn(self, sequence: CachedSequence) -> None:
        """A sequence ends that never ran."""
        self._unpin(sequence)

    def _unpin(self, sequence: CachedSequence) -> None:
        if sequence.resume is not None:
            sequence.resume.pins -= 1
            sequence.resume = None

    # Keeping

    def save(self, sequence: CachedSequence, tokens: TokenArray, kind: SnapshotKind) -> bool:
        """Keep the state of a running sequence behind ``tokens``, all whose KV is written, if that
        is worth more than what would have to go for it."""
        handle = sequence.handle
        assert handle is not None
        if self._same(handle, tokens) is not None:
            return False
        node = self._tree.climb(handle.node, len(tokens) // self._tree.block_size)
        if not self.pool.num_free:
            victim = self._first(handle.owner, IDLE)
            worth = self.order.inflation + self.order.seconds(handle.owner, node, tokens)
            if victim is None or (
                self.order.is_wanted(victim) and self.order.worth(victim) > worth
            ):
                return False
            self._evict_one(handle.owner, IDLE)
        target = self.pool.take("snapshot")
        snapshot = self._keep(handle, tokens, kind, target)
        self._orders.append(
            SaveState(
                slot=sequence.state_slot,
                target=target,
                position=len(tokens),
                tail_block=self._tail_block(sequence, snapshot),
            )
        )
        return True

    def end(self, sequence: CachedSequence, tokens: TokenArray | None, kind: SnapshotKind) -> None:
        """A sequence that runs ends. Its slot holds the state behind ``tokens``, all whose KV is
        written, from now on; None: that of nothing, and is free."""
        handle, slot = sequence.handle, sequence.state_slot
        assert handle is not None
        sequence.state_slot = NO_SLOT
        handle.owner.state_slots -= 1
        known = None if tokens is None else self._same(handle, tokens)
        if tokens is None or known is not None or not len(tokens):
            self.pool.release(slot, "running")
            self._orders.append(EndState(slot=slot, position=None, tail_block=None))
            if known is not None:
                self._touch(known)
                self._now_ends(handle, sequence, known, kind)
            return
        self.pool.turn(slot, "running", "snapshot")
        snapshot = self._keep(handle, tokens, kind, slot)
        self._orders.append(
            EndState(
                slot=slot, position=len(tokens), tail_block=self._tail_block(sequence, snapshot)
            )
        )
        self._now_ends(handle, sequence, snapshot, kind)

    def _now_ends(
        self,
        handle: BranchHandle,
        sequence: CachedSequence,
        snapshot: Snapshot,
        kind: SnapshotKind,
    ) -> None:
        """A branch ends at ``snapshot``; a turn that ended well replaces what it went on from."""
        old = handle.end
        if old is not None and old is not snapshot:
            old.ends.discard(handle)
        handle.end = snapshot
        snapshot.ends.add(handle)
        snapshot.forks.discard(handle)
        snapshot.released, snapshot.successor = False, None
        before, sequence.came_from = sequence.came_from, None
        if before is snapshot:
            return
        if snapshot.before is None and before is not snapshot:
            snapshot.before = before
        if kind is not SnapshotKind.END:
            return
        while before is not None and before.position < snapshot.position:
            ours = before.alive and not before.ends and before.owner is snapshot.owner
            if ours and before.kind in (SnapshotKind.END, SnapshotKind.PAUSE):
                before.successor = snapshot
            if before.kind is not SnapshotKind.PAUSE:
                break
            before = before.before

    def _tail_block(self, sequence: CachedSequence, snapshot: Snapshot) -> int | None:
        return int(sequence.table[snapshot.blocks]) if len(snapshot.tail) else None

    def _same(self, handle: BranchHandle, tokens: TokenArray) -> Snapshot | None:
        """The snapshot that is there already behind ``tokens``."""
        blocks = len(tokens) // self._tree.block_size
        for snapshot in on_path(self._tree, handle.owner, handle.node, blocks):
            if snapshot.position < blocks * self._tree.block_size:
                return None
            if snapshot.position == len(tokens) and has_tail(
                snapshot, tokens, self._tree.block_size
            ):
                return snapshot
        return None

    def _keep(
        self, handle: BranchHandle, tokens: TokenArray, kind: SnapshotKind, slot: int
    ) -> Snapshot:
        size = self._tree.block_size
        blocks = len(tokens) // size
        if blocks > handle.length:
            raise ValueError(f"a state behind {blocks} blocks, {handle.length} are published")
        node = self._tree.climb(handle.node, blocks) if blocks else handle.owner.root
        tail = tokens[blocks * size :].copy() if len(tokens) % size else _NO_TAIL
        self._numbers += 1
        snapshot = Snapshot(
            handle.owner,
            kind,
            node=node,
            blocks=blocks,
            tail=tail,
            position=len(tokens),
            slot=slot,
            number=self._numbers,
        )
        self._tree.add_snapshot(node, snapshot)
        self.snapshots[slot] = snapshot
        handle.owner.state_slots += 1
        self._counters.snapshots_taken[kind] = self._counters.snapshots_taken.get(kind, 0) + 1
        self._touch(snapshot)
        return snapshot

    def _touch(self, snapshot: Snapshot) -> None:
        snapshot.age = self.order.inflation

    # Losing

    def branch_left(self, handle: BranchHandle) -> None:
        """A branch is released: nobody is known to come back to its end."""
        end, handle.end = handle.end, None
        if end is not None:
            end.ends.discard(handle)
            end.released = not end.ends
        for snapshot in self.snapshots.values():
            snapshot.forks.discard(handle)

    def drop_end(self, handle: BranchHandle) -> None:
        """Take the end of a branch that loses its blocks, unless somebody else wants it."""
        end = handle.end
        self.branch_left(handle)
        if end is not None and end.alive and not end.ends and not end.forks and not end.pins:
            self._lose(end)

    def spoiled(self, slot: int) -> None:
        """The state that was to be kept in a slot is not finite."""
        snapshot = self.snapshots.get(slot)
        if snapshot is not None and not snapshot.pins:
            self._lose(snapshot)

    def _cut(self, kept: Kept) -> None:
        """The tree has lost blocks before a snapshot, and the snapshot with them."""
        assert isinstance(kept, Snapshot)
        self._lose(kept, in_tree=False)

    def _lose(self, snapshot: Snapshot, *, in_tree: bool = True) -> None:
        slot = snapshot.slot
        self._forget(snapshot, in_tree=in_tree)
        self.pool.release(slot, "snapshot")
        kind = snapshot.kind
        self._counters.snapshots_lost[kind] = self._counters.snapshots_lost.get(kind, 0) + 1

    def _forget(self, snapshot: Snapshot, *, in_tree: bool = True) -> None:
        del self.snapshots[snapshot.slot]
        snapshot.owner.state_slots -= 1
        snapshot.slot = NO_SLOT
        snapshot.before = snapshot.successor = None
        for handle in snapshot.ends:
            handle.end = None
        if in_tree:
            node = snapshot.node
            self._tree.remove_snapshot(node, snapshot)
            if node.klass == IDLE and not node.branches and node.parent is not None:
                self._idle.offer_again(node)

    def _evict_one(self, owner: Owner, rights: int) -> None:
        victim = self._first(owner, rights)
        if victim is None:
            raise OutOfSlots(f"all of {self.pool.num_slots} state slots are in use")
        if self.order.is_wanted(victim):
            self.order.inflation = max(self.order.inflation, self.order.worth(victim))
        ends = list(victim.ends)
        self._lose(victim)
        for handle in ends:
            if handle.sequence is None and handle.klass > IDLE:
                self._retention.break_one(handle)

    # Checking

    def check(self, running: list[CachedSequence]) -> None:
        """AssertionError where slots, snapshots and the tree do not agree."""
        slots = [s.state_slot for s in running if s.state_slot != NO_SLOT]
        assert all((s.state_slot != NO_SLOT) == s.admitted for s in running), "a turn without state"
        self.pool.check(running=slots, snapshots=list(self.snapshots))
        size, found = self._tree.block_size, 0
        roots = [owner.root for owner in self._tree.owners()]
        for node in (*roots, *self._tree.nodes()):
            for snapshot in kept_in(node):
                found += 1
                assert self.snapshots.get(snapshot.slot) is snapshot, "a snapshot that is gone"
                assert snapshot.node is node, "a snapshot of another node"
                inside = node.start < snapshot.blocks <= node.end
                assert inside or (node.parent is None and not snapshot.blocks), "outside its node"
                assert not node.tier, "a snapshot without its blocks"
                assert snapshot.position == snapshot.blocks * size + len(snapshot.tail)
                assert len(snapshot.tail) < size, "a tail of a whole block"
                assert snapshot.pins == sum(s.resume is snapshot for s in running), "pins"
                assert all(handle.end is snapshot for handle in snapshot.ends), "not its end"
            positions = [(s.blocks, s.position, s.number) for s in kept_in(node)]
            assert positions == sorted(positions), "snapshots out of order"
        assert found == len(self.snapshots), f"{len(self.snapshots)} snapshots, found {found}"
        for owner in self._tree.owners():
            mine = sum(s.owner is owner for s in self.snapshots.values())
            mine += sum(
                s.admitted and s.handle is not None and s.handle.owner is owner for s in running
            )
            assert owner.state_slots == mine, f"slots of {owner.name!r}"
