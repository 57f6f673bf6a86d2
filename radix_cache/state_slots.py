"""The slots of recurrent states: who runs on which, what is kept where, and what goes first.

A sequence can be resumed only where a state was saved. The end of each turn is: the sequence's own
slot is donated. Once its branch has a new end, the old one is *replaced*: cheap to lose, unless
other branches went on from it. Which goes first is ``radix_cache.snapshot_order``'s to say; copies
below the device are ``radix_cache.lower_states``'.

Always true: the whole blocks before a snapshot on the device are there as well; a snapshot whose
branch is leased goes only with the lease; nothing of another tenant is found.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np

from radix_cache.edge import TokenArray
from radix_cache.handle import BranchHandle, CachedSequence, Snapshot
from radix_cache.idle_leaves import IdleLeaves
from radix_cache.lower_states import LowerStates
from radix_cache.nodes import IDLE, Kept, Node, Owner, Tier
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
    StoredState,
)
from radix_cache.tiers import LowerTiers, Places
from radix_cache.tree import RadixTree

_NO_TAIL: TokenArray = np.empty(0, dtype=np.int32)


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotCounts:
    """How many slots there are, by tier, and sequences that may run at a time."""

    device: int
    most_running: int
    host: int = 0
    disk: int = 0


class StateSlots:
    """Gives slots to sequences and keeps snapshots in ``tree``.

    Args:
        counts: of slots.
        lower: the tiers below the device; None: none.
        restore_cost: tokens of a transcript -> seconds to compute it again. None: its length.
    """

    def __init__(
        self,
        tree: RadixTree,
        idle: IdleLeaves,
        retention: Retention,
        *,
        counts: SlotCounts,
        restore_cost: Callable[[int], float] | None,
        lower: LowerTiers | None = None,
    ) -> None:
        self._tree = tree
        self._idle = idle
        self._retention = retention
        self._counters = retention.counters
        self._most_running = counts.most_running
        self.order = SnapshotOrder(
            tree,
            retention.shares,
            num_slots=(counts.device, counts.host, counts.disk),
            restore_cost=restore_cost or float,
        )
        self.pool = SlotPool(counts.device)
        self.snapshots: dict[int, Snapshot] = {}
        """Those on the device, by slot."""
        self._orders: list[StateOrder] = []
        self._numbers = self._uses = 0
        self.lower: LowerStates | None = None
        if lower is not None and counts.host:
            self.lower = LowerStates(
                lower,
                self.order,
                give=self._orders_take,
                lost=self._lost_below,
                host_slots=counts.host,
                disk_slots=counts.disk,
            )
        tree.on_cut = self._cut
        tree.on_place = self._placed

    def take_orders(self) -> list[StateOrder]:
        """Orders for slots before the next step, in this order."""
        orders, self._orders = self._orders, []
        return orders

    def _orders_take(self, order: StateOrder) -> None:
        self._orders.append(order)

    def find(self, owner: Owner, node: Node, shared: int, tokens: TokenArray) -> Snapshot | None:
        """See ``resume_points.find``: of those that can be begun at."""
        return find(self._tree, owner, node, shared, tokens, ready=True)

    def find_anywhere(
        self, owner: Owner, node: Node, shared: int, tokens: TokenArray
    ) -> Snapshot | None:
        """The same, of those on disk as well."""
        return find(self._tree, owner, node, shared, tokens)

    def _first(self, owner: Owner, rights: int) -> Snapshot | None:
        return self.order.victim(self.snapshots.values(), owner, rights)

    # Running

    def began(
        self, sequence: CachedSequence, resume: Snapshot | None, far: Snapshot | None
    ) -> None:
        """A sequence is about to run from ``resume`` on, or, once the blocks before it are on the
        device, from ``far``."""
        sequence.resume = resume
        sequence.far = None if far is resume else far
        for each in (sequence.resume, sequence.far):
            if each is not None:
                each.pins += 1

    def restored(self, sequence: CachedSequence) -> None:
        """They are there."""
        if sequence.far is None:
            return
        if sequence.resume is not None:
            sequence.resume.pins -= 1
        sequence.resume, sequence.far = sequence.far, None

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
            position = resume.position
            sequence.resumed = resume.kind, Tier.DEVICE if resume.slot >= 0 else Tier.HOST
            self._touch(resume)
            if len(resume.tail):
                tail_block = int(sequence.table[resume.blocks])
        if moved:
            assert resume is not None
            slot = source = resume.slot
            self._off_device(resume)
            self.pool.turn(slot, "snapshot", "running")
        else:
            if not self.pool.num_free:
                self._evict_one(handle.owner, rights)
            slot = self.pool.take("running")
            if resume is not None:
                source = self._source(resume, slot)
        self._unpin(sequence)
        if resume is not None and resume.alive:
            sequence.came_from = resume
            if handle not in resume.ends:
                resume.forks.add(handle)
                handle.forked.add(resume)
        handle.owner.state_slots += 1
        sequence.state_slot = slot
        self._orders.append(
            BeginState(slot=slot, source=source, position=position, tail_block=tail_block)
        )

    def _source(self, resume: Snapshot, slot: int) -> int:
        """Where a sequence on ``slot`` finds the state that it goes on from: in another slot, or,
        where that is in host memory, in its own."""
        if resume.slot >= 0:
            return resume.slot
        assert self.lower is not None
        self.lower.raised(resume, slot)
        self._counters.snapshots_raised += 1
        return slot

    def _moves(self, sequence: CachedSequence, handle: BranchHandle, rights: int) -> bool:
        """Whether a sequence takes the slot that it goes on from: none is free, and this state has
        a copy below, or somebody wants what would go first. Else that goes, since a fork may yet
        ask for this one."""
        if self.pool.num_free or not self._may_move(sequence, handle):
            return False
        assert sequence.resume is not None
        victim = self._first(handle.owner, rights)
        if victim is None or not sequence.resume.only_in(Tier.DEVICE):
            return True
        if not victim.only_in(Tier.DEVICE):
            return False
        return self.order.class_of(victim) > IDLE or self.order.is_wanted(victim)

    def _may_move(self, sequence: CachedSequence, handle: BranchHandle) -> bool:
        """Whether a sequence goes on from its own branch's end, which nobody else wants."""
        resume = sequence.resume
        return (
            resume is not None
            and resume.slot >= 0
            and resume.pins == 1
            and resume.ends == {handle}
            and not resume.forks
        )

    def withdrawn(self, sequence: CachedSequence) -> None:
        """A sequence ends that never ran."""
        self._unpin(sequence)

    def _unpin(self, sequence: CachedSequence) -> None:
        for each in (sequence.resume, sequence.far):
            if each is not None:
                each.pins -= 1
        sequence.resume = sequence.far = None

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
                self.order.would_miss(victim, Tier.DEVICE) and self.order.worth(victim) > worth
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
        self._copy_below(snapshot)
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
            if known is None or known.slot >= 0:
                self.pool.release(slot, "running")
                self._orders.append(EndState(slot=slot, position=None, tail_block=None))
            if known is not None:
                if known.slot < 0:
                    self._donate(sequence, known, slot)
                self._touch(known)
                self._now_ends(handle, sequence, known, kind)
            return
        snapshot = self._keep(handle, tokens, kind, NO_SLOT)
        self._donate(sequence, snapshot, slot)
        self._now_ends(handle, sequence, snapshot, kind)
        self._copy_below(snapshot)

    def _donate(self, sequence: CachedSequence, snapshot: Snapshot, slot: int) -> None:
        """The slot that a sequence ran on is a snapshot's from now on."""
        self.pool.turn(slot, "running", "snapshot")
        self._on_device(snapshot, slot)
        self._orders.append(
            EndState(
                slot=slot,
                position=snapshot.position,
                tail_block=self._tail_block(sequence, snapshot),
            )
        )

    def _on_device(self, snapshot: Snapshot, slot: int) -> None:
        snapshot.slot = slot
        self.snapshots[slot] = snapshot
        snapshot.owner.state_slots += 1

    def _off_device(self, snapshot: Snapshot) -> None:
        """Take a snapshot's slot on the device; it is forgotten where it has no copy."""
        del self.snapshots[snapshot.slot]
        snapshot.owner.state_slots -= 1
        snapshot.slot = NO_SLOT
        if not snapshot.alive:
            self._forget(snapshot)

    def _copy_below(self, snapshot: Snapshot) -> bool:
        """Whether a snapshot on the device has a copy below."""
        return self.lower is not None and self.lower.copy(snapshot)

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
        handle.forked.discard(snapshot)
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
            slot=NO_SLOT,
            number=self._numbers,
        )
        self._tree.add_snapshot(node, snapshot)
        if slot != NO_SLOT:
            self._on_device(snapshot, slot)
        self._counters.snapshots_taken[kind] = self._counters.snapshots_taken.get(kind, 0) + 1
        self._touch(snapshot)
        return snapshot

    def _touch(self, snapshot: Snapshot) -> None:
        snapshot.age = self.order.inflation
        self._uses += 1
        snapshot.used = self._uses

    def load(self, stored: Iterable[StoredState], places: Places) -> int:
        """Know the states again that an earlier process has left on the disk, where the blocks
        before them are there; returns how many these are. ``places``: of blocks."""
        assert self.lower is not None
        known: set[tuple[str, bytes, bytes]] = set()
        for each in stored:
            content = each.content
            owner = self._tree.owner(content.tenant) if content.tenant else self._tree.published
            name = content.tenant, content.key, content.tail.tobytes()
            place: tuple[Node, int] | None = (owner.root, 0)
            if content.blocks:
                place = places.get((content.tenant, content.key)) or places.get(("", content.key))
            if place is None or place[1] != content.blocks or name in known:
                continue
            known.add(name)
            node = self._tree.climb(*place)
            self._numbers += 1
            snapshot = Snapshot(
                owner,
                content.kind,
                node=node,
                blocks=content.blocks,
                tail=content.tail,
                position=content.blocks * self._tree.block_size + len(content.tail),
                slot=NO_SLOT,
                number=self._numbers,
            )
            self._tree.add_snapshot(node, snapshot)
            self.lower.claim(snapshot, each)
        return len(known)

    # Losing

    def branch_left(self, handle: BranchHandle) -> None:
        """A branch is released: nobody is known to come back to its end."""
        end, handle.end = handle.end, None
        if end is not None:
            end.ends.discard(handle)
            end.released = not end.ends
        for snapshot in handle.forked:
            snapshot.forks.discard(handle)
        handle.forked.clear()

    def drop_end(self, handle: BranchHandle) -> None:
        """Take the end of a branch that loses its blocks off the device, unless somebody else wants
        it."""
        end = handle.end
        alone = end is not None and end.ends == {handle} and not end.forks and not end.pins
        if end is not None and alone and end.slot >= 0:
            self._demote(end)
        self.branch_left(handle)

    def spoiled(self, slot: int) -> None:
        """The state that was to be kept in a slot is not finite."""
        snapshot = self.snapshots.get(slot)
        if snapshot is not None and not snapshot.pins:
            self._lose(snapshot)

    def _cut(self, kept: Kept) -> None:
        """The tree has lost blocks before a snapshot, and the snapshot with them."""
        assert isinstance(kept, Snapshot)
        self._lose(kept, in_tree=False)

    def _placed(self, node: Node) -> None:
        """The blocks of a node are in another tier: what is kept before its end cannot stay above
        them."""
        for snapshot in list(kept_in(node)):
            if node.tier and snapshot.slot >= 0:
                self._demote(snapshot)
            if snapshot.alive and self.lower is not None:
                self.lower.placed(snapshot, node.tier)

    def _demote(self, snapshot: Snapshot) -> None:
        """Take a snapshot's slot on the device, which keeps no more than what is copied below."""
        slot = snapshot.slot
        self._copy_below(snapshot)
        self._off_device(snapshot)
        self.pool.release(slot, "snapshot")
        if not snapshot.alive:
            self._count_lost(snapshot)

    def _lost_below(self, snapshot: Snapshot) -> None:
        """The last copy of a snapshot is gone, and was not on the device."""
        ends = list(snapshot.ends)
        self._forget(snapshot)
        self._count_lost(snapshot)
        self._break_leases(ends)

    def _lose(self, snapshot: Snapshot, *, in_tree: bool = True) -> None:
        slot = snapshot.slot
        if slot >= 0:
            del self.snapshots[slot]
            snapshot.owner.state_slots -= 1
            snapshot.slot = NO_SLOT
            self.pool.release(slot, "snapshot")
        if self.lower is not None:
            self.lower.forget(snapshot)
        self._forget(snapshot, in_tree=in_tree)
        self._count_lost(snapshot)

    def _count_lost(self, snapshot: Snapshot) -> None:
        kind = snapshot.kind
        self._counters.snapshots_lost[kind] = self._counters.snapshots_lost.get(kind, 0) + 1

    def _forget(self, snapshot: Snapshot, *, in_tree: bool = True) -> None:
        """A snapshot has no copy any more."""
        snapshot.before = snapshot.successor = None
        for handle in snapshot.ends:
            handle.end = None
        for handle in snapshot.forks:
            handle.forked.discard(snapshot)
        if in_tree:
            node = snapshot.node
            self._tree.remove_snapshot(node, snapshot)
            if node.klass == IDLE and not node.branches and node.parent is not None:
                self._idle.offer_again(node)

    def _evict_one(self, owner: Owner, rights: int) -> None:
        victim = self._first(owner, rights)
        if victim is None:
            raise OutOfSlots(f"all of {self.pool.num_slots} state slots are in use")
        wanted, worth = self.order.is_wanted(victim), self.order.worth(victim)
        ends = list(victim.ends)
        self._demote(victim)
        if victim.alive:
            return
        if wanted:
            self.order.inflation = max(self.order.inflation, worth)
        self._break_leases(ends)

    def _break_leases(self, ends: Iterable[BranchHandle]) -> None:
        for handle in ends:
            if handle.sequence is None and handle.klass > IDLE:
                self._retention.break_one(handle)

    # Checking

    def check(self, running: list[CachedSequence]) -> None:
        """AssertionError where slots, snapshots and the tree do not agree."""
        slots = [s.state_slot for s in running if s.state_slot != NO_SLOT]
        assert all((s.state_slot != NO_SLOT) == s.admitted for s in running), "a turn without state"
        self.pool.check(running=slots, snapshots=list(self.snapshots))
        size = self._tree.block_size
        found: list[Snapshot] = []
        roots = [owner.root for owner in self._tree.owners()]
        for node in (*roots, *self._tree.nodes()):
            for snapshot in kept_in(node):
                found.append(snapshot)
                assert snapshot.alive, "a snapshot that is gone"
                assert snapshot.node is node, "a snapshot of another node"
                inside = node.start < snapshot.blocks <= node.end
                assert inside or (node.parent is None and not snapshot.blocks), "outside its node"
                assert not node.tier or snapshot.slot < 0, "a snapshot without its blocks"
                assert snapshot.position == snapshot.blocks * size + len(snapshot.tail)
                assert len(snapshot.tail) < size, "a tail of a whole block"
                pins = sum((s.resume is snapshot) + (s.far is snapshot) for s in running)
                assert snapshot.pins == pins, "pins"
                assert all(handle.end is snapshot for handle in snapshot.ends), "not its end"
            positions = [(s.blocks, s.position, s.number) for s in kept_in(node)]
            assert positions == sorted(positions), "snapshots out of order"
        here = {snapshot.slot: snapshot for snapshot in found if snapshot.slot >= 0}
        assert here == self.snapshots, f"{len(self.snapshots)} snapshots, found {len(here)}"
        if self.lower is not None:
            self.lower.check(found)
        for owner in self._tree.owners():
            mine = sum(s.owner is owner for s in self.snapshots.values())
            mine += sum(
                s.admitted and s.handle is not None and s.handle.owner is owner for s in running
            )
            assert owner.state_slots == mine, f"slots of {owner.name!r}"
