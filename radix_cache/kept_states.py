"""The states that are kept for who comes back: where each is, what goes for another, what is lost.

Which goes first is ``radix_cache.snapshot_order``'s to say; copies below the device are
``radix_cache.lower_states``'. Who runs on which slot, and where branches end, is
``radix_cache.state_slots``'.

Always true: the whole blocks before a snapshot on the device are there as well; a snapshot whose
branch is leased goes only with the lease.
"""

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np

from radix_cache.edge import TokenArray
from radix_cache.handle import BranchHandle, CachedSequence, Snapshot
from radix_cache.idle_leaves import IdleLeaves
from radix_cache.lower_states import LowerStates
from radix_cache.nodes import IDLE, Kept, Node, Owner, Tier
from radix_cache.resume_points import has_tail, kept_in, on_path
from radix_cache.retention import Retention
from radix_cache.slot_pool import NO_SLOT, OutOfSlots, SlotPool
from radix_cache.snapshot_order import SnapshotOrder
from radix_cache.snapshots import SnapshotKind, StateOrder, StoredState
from radix_cache.tiers import LowerTiers, Places
from radix_cache.tree import RadixTree

_NO_TAIL: TokenArray = np.empty(0, dtype=np.int32)


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotCounts:
    """How many slots there are, by tier."""

    device: int
    host: int = 0
    disk: int = 0


class KeptStates:
    """The snapshots in ``tree``.

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
                give=self.give,
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

    def give(self, order: StateOrder) -> None:
        """Take an order for them."""
        self._orders.append(order)

    def first(self, owner: Owner, rights: int) -> Snapshot | None:
        """The one on the device that goes first; see ``SnapshotOrder.victim``."""
        return self.order.victim(self.snapshots.values(), owner, rights)

    # Adding

    def same(self, handle: BranchHandle, tokens: TokenArray) -> Snapshot | None:
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

    def add(self, handle: BranchHandle, tokens: TokenArray, kind: SnapshotKind) -> Snapshot:
        """A snapshot behind ``tokens`` of a branch, in no tier yet.

        Raises:
            ValueError: blocks before it were not published.
        """
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
        self._counters.snapshots_taken[kind] = self._counters.snapshots_taken.get(kind, 0) + 1
        self.touch(snapshot)
        return snapshot

    def known(
        self, handle: BranchHandle, tokens: TokenArray, kind: SnapshotKind
    ) -> Snapshot | None:
        """The snapshot that is there already behind ``tokens``; one that was kept for its distance
        alone is of this kind from now on."""
        snapshot = self.same(handle, tokens)
        if snapshot is not None and snapshot.kind is SnapshotKind.INTERVAL:
            snapshot.kind = kind
        return snapshot

    def touch(self, snapshot: Snapshot) -> None:
        """Somebody uses it: it is as young as can be."""
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
            owner = self._tree.of_key(content.tenant)
            name = content.tenant, content.key, content.tail.tobytes()
            place: tuple[Node, int] | None = (owner.root, 0)
            if content.blocks:
                own, published = content.tenant, owner.published.key
                place = places.get((own, content.key)) or places.get((published, content.key))
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

    # Moving

    def raised(self, snapshot: Snapshot, slot: int) -> None:
        """Copy a snapshot's state from host memory to ``slot`` of the device, on which a sequence
        goes on from it."""
        assert self.lower is not None
        self.lower.raised(snapshot, slot)
        self._counters.snapshots_raised += 1

    def put_on_device(self, snapshot: Snapshot, slot: int) -> None:
        """A slot of the device, taken already, is a snapshot's."""
        snapshot.slot = slot
        self.snapshots[slot] = snapshot
        snapshot.owner.account.state_slots += 1

    def take_off_device(self, snapshot: Snapshot) -> None:
        """Take a snapshot's slot on the device; it is forgotten where it has no copy."""
        del self.snapshots[snapshot.slot]
        snapshot.owner.account.state_slots -= 1
        snapshot.slot = NO_SLOT
        if not snapshot.alive:
            self._forget(snapshot)

    def copy_below(self, snapshot: Snapshot) -> bool:
        """Whether a snapshot on the device has a copy below."""
        return self.lower is not None and self.lower.copy(snapshot)

    def demote(self, snapshot: Snapshot) -> None:
        """Take a snapshot's slot on the device, which keeps no more than what is copied below."""
        slot = snapshot.slot
        self.copy_below(snapshot)
        self.take_off_device(snapshot)
        self.pool.release(slot, "snapshot")
        if not snapshot.alive:
            self._count_lost(snapshot)

    def _placed(self, node: Node) -> None:
        """The blocks of a node are in another tier: what is kept before its end cannot stay above
        them."""
        for snapshot in list(kept_in(node)):
            if node.tier and snapshot.slot >= 0:
                self.demote(snapshot)
            if snapshot.alive and self.lower is not None:
                self.lower.placed(snapshot, node.tier)

    # Losing

    def make_room(self, handle: BranchHandle, tokens: TokenArray) -> bool:
        """Whether a slot of the device is free for a state of a branch behind ``tokens``: what is
        worth less goes."""
        if self.pool.num_free:
            return True
        node = self._tree.climb(handle.node, len(tokens) // self._tree.block_size)
        order, victim = self.order, self.first(handle.owner, IDLE)
        worth = order.inflation + order.seconds(handle.owner, node, tokens)
        if victim is None or (
            order.would_miss(victim, Tier.DEVICE) and order.worth(victim) > worth
        ):
            return False
        self.evict_one(handle.owner, IDLE)
        return True

    def evict_one(self, owner: Owner, rights: int) -> None:
        """Free a slot of the device.

        Raises:
            OutOfSlots: none of its snapshots may go.
        """
        victim = self.first(owner, rights)
        if victim is None:
            raise OutOfSlots(f"all of {self.pool.num_slots} state slots are in use")
        wanted, worth = self.order.is_wanted(victim), self.order.worth(victim)
        ends = list(victim.ends)
        self.demote(victim)
        if victim.alive:
            return
        if wanted:
            self.order.inflation = max(self.order.inflation, worth)
        self._break_leases(ends)

    def _break_leases(self, ends: Iterable[BranchHandle]) -> None:
        for handle in ends:
            if handle.sequence is None and handle.klass > IDLE:
                self._retention.break_one(handle)

    def spoiled(self, tier: Tier, slot: int) -> None:
        """The state that was to be kept in a slot is not finite."""
        kept = self.snapshots
        if tier != Tier.DEVICE:
            assert self.lower is not None
            kept = self.lower.kept[tier]
        snapshot = kept.get(slot)
        if snapshot is not None and not snapshot.pins:
            self._lose(snapshot)

    def _cut(self, kept: Kept) -> None:
        """The tree has lost blocks before a snapshot, and the snapshot with them."""
        assert isinstance(kept, Snapshot)
        self._lose(kept, in_tree=False)

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
            snapshot.owner.account.state_slots -= 1
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

    # Checking

    def check(self, running: list[CachedSequence]) -> None:
        """AssertionError where snapshots, their slots and the tree do not agree."""
        slots = [s.state_slot for s in running if s.state_slot != NO_SLOT]
        self.pool.check(running=slots, snapshots=list(self.snapshots))
        found: list[Snapshot] = []
        roots = [owner.root for owner in self._tree.owners()]
        for node in (*roots, *self._tree.nodes()):
            for snapshot in kept_in(node):
                found.append(snapshot)
                self._check_one(snapshot, node)
                pins = sum((s.resume is snapshot) + (s.far is snapshot) for s in running)
                assert snapshot.pins == pins, "pins"
            positions = [(s.blocks, s.position, s.number) for s in kept_in(node)]
            assert positions == sorted(positions), "snapshots out of order"
        here = {snapshot.slot: snapshot for snapshot in found if snapshot.slot >= 0}
        assert here == self.snapshots, f"{len(self.snapshots)} snapshots, found {len(here)}"
        if self.lower is not None:
            self.lower.check(found)
        mine = Counter(snapshot.owner.account for snapshot in self.snapshots.values())
        mine.update(s.handle.owner.account for s in running if s.admitted and s.handle is not None)
        for account in self._tree.accounts():
            assert account.state_slots == mine[account], f"slots of {account.name!r}"

    def _check_one(self, snapshot: Snapshot, node: Node) -> None:
        size = self._tree.block_size
        assert snapshot.alive, "a snapshot that is gone"
        assert snapshot.node is node, "a snapshot of another node"
        inside = node.start < snapshot.blocks <= node.end
        assert inside or (node.parent is None and not snapshot.blocks), "outside its node"
        assert not node.tier or snapshot.slot < 0, "a snapshot without its blocks"
        assert snapshot.position == snapshot.blocks * size + len(snapshot.tail)
        assert len(snapshot.tail) < size, "a tail of a whole block"
        assert all(handle.end is snapshot for handle in snapshot.ends), "not its end"
