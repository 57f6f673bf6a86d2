"""Copies of states in host memory and on disk: which snapshots have one, and what goes for it.

A snapshot is copied to host memory at once, where that is worth more than what would have to go:
who comes back finds it there when its slot on the device was wanted. To the disk it goes with the
keys and values before it. Only slots are decided here; the bytes are moved by who takes the
cache's orders.

Always true: the whole blocks before a snapshot are in its tier or a higher one, but for what is
brought up from the disk; a slot of a tier is free, one snapshot's, or still used by an order.
"""

from collections.abc import Callable, Iterable
from typing import Final

import numpy as np

from radix_cache.handle import Snapshot
from radix_cache.keys import root_key
from radix_cache.nodes import IDLE, Node, Owner, Tier
from radix_cache.resume_points import kept_in
from radix_cache.snapshot_order import SnapshotOrder
from radix_cache.snapshots import SaveBelow, StateContent, StateMove, StateOrder, StoredState
from radix_cache.tiers import LowerTiers
from radix_cache.transfers import TierBlocks

_NO_NUMBER: Final = 0


class LowerStates:
    """The slots for states below the device.

    Args:
        lower: the blocks of these tiers.
        order: which snapshot goes first.
        give: takes an order.
        lost: is told of a snapshot that has no copy left.
        host_slots: at least 1.
        disk_slots: 0 means that no state goes to the disk.
    """

    def __init__(
        self,
        lower: LowerTiers,
        order: SnapshotOrder,
        *,
        give: Callable[[StateOrder], None],
        lost: Callable[[Snapshot], None],
        host_slots: int,
        disk_slots: int,
    ) -> None:
        self._lower = lower
        self._order = order
        self._give = give
        self._lost = lost
        self.slots = {Tier.HOST: TierBlocks(Tier.HOST, host_slots)}
        if disk_slots:
            self.slots[Tier.DISK] = TierBlocks(Tier.DISK, disk_slots)
        self.kept: dict[Tier, dict[int, Snapshot]] = {tier: {} for tier in self.slots}
        """Snapshots by slot, those that are on their way there included."""
        self._pending: dict[int, tuple[StateMove, Snapshot]] = {}
        self.moved_states = {(a, b): 0 for a in Tier for b in Tier if a != b}
        """States ordered to move so far, by (source, target)."""
        self.failed_states = 0
        """Those that could not be written to the disk or read from it unharmed."""
        lower.on_write = self.store_in

    # Device and host

    def copy(self, snapshot: Snapshot) -> bool:
        """Have a copy of a snapshot on the device in host memory, if there is room or something is
        worth less; whether there is one below the device now."""
        wanted = snapshot.host < 0 and self._order.is_wanted(snapshot)
        if wanted and self._make_room(Tier.HOST, snapshot):
            self._order_move(snapshot, Tier.DEVICE, Tier.HOST, number=_NO_NUMBER)
        return not snapshot.only_in(Tier.DEVICE)

    def has_room(self, owner: Owner) -> bool:
        """Whether host memory has a slot for a state of ``owner`` that nobody is known to come back
        to: what else is like that goes for it."""
        slots = self.slots[Tier.HOST]
        while not slots.num_free:
            kept = self.kept[Tier.HOST].values()
            victim = self._order.victim(kept, owner, IDLE, tier=Tier.HOST)
            if victim is None or self._order.is_wanted(victim):
                return False
            self.drop(victim, Tier.HOST)
        return True

    def save(self, snapshot: Snapshot, slot: int) -> None:
        """Have the state of a running ``slot`` of the device copied to host memory, where
        ``has_room`` said that there is a slot: ``snapshot`` is there from now on."""
        target = int(self.slots[Tier.HOST].take(1)[0])
        snapshot.put(Tier.HOST, target)
        self.kept[Tier.HOST][target] = snapshot
        self.moved_states[Tier.DEVICE, Tier.HOST] += 1
        self._give(SaveBelow(slot=slot, target=target, position=snapshot.position))

    def raised(self, snapshot: Snapshot, slot: int) -> None:
        """Copy a snapshot's state from host memory to a slot of the device, which a sequence is
        about to run on."""
        assert snapshot.host >= 0
        self.moved_states[Tier.HOST, Tier.DEVICE] += 1
        self._give(
            StateMove(
                number=_NO_NUMBER,
                source=Tier.HOST,
                target=Tier.DEVICE,
                source_slot=snapshot.host,
                target_slot=slot,
            )
        )

    def placed(self, snapshot: Snapshot, tier: int) -> None:
        """The blocks before a snapshot, which is not on the device, have gone to ``tier``: copies
        above it are of no use any more."""
        if tier == Tier.DISK and snapshot.host >= 0:
            self.drop(snapshot, Tier.HOST)

    def drop(self, snapshot: Snapshot, tier: Tier) -> None:
        """Take a snapshot's copy in a tier below the device."""
        self._let_go(snapshot, tier)
        if not snapshot.alive:
            self._lost(snapshot)

    def _let_go(self, snapshot: Snapshot, tier: Tier) -> None:
        slot = snapshot.at(tier)
        snapshot.put(tier, -1)
        del self.kept[tier][slot]
        self.slots[tier].release(_one(slot))

    def forget(self, snapshot: Snapshot) -> None:
        """A snapshot is gone, with all its copies."""
        for tier in self.slots:
            if snapshot.at(tier) >= 0:
                self._let_go(snapshot, tier)

    def _make_room(self, tier: Tier, snapshot: Snapshot) -> bool:
        """See to it that a slot is free for a copy of ``snapshot``, unless that is worth less than
        what would have to go."""
        order, slots = self._order, self.slots[tier]
        while not slots.num_free:
            victim = order.victim(self.kept[tier].values(), snapshot.owner, IDLE, tier=tier)
            if victim is None:
                return False
            if order.would_miss(victim, tier):
                if order.worth(victim) > order.worth(snapshot):
                    return False
                order.inflation = max(order.inflation, order.worth(victim))
            self.drop(victim, tier)
        return True

    # Host and disk

    def store_in(self, node: Node) -> None:
        """Order what is kept before the end of ``node``, whose blocks go to the disk, there as
        well."""
        for snapshot in list(kept_in(node)):
            self.store(snapshot)

    def store(self, snapshot: Snapshot) -> None:
        """Order a snapshot to the disk if it is wanted, is not there and there is room."""
        disk = self.slots.get(Tier.DISK)
        if disk is None or not self._lower.writing or not self._order.is_wanted(snapshot):
            return
        if snapshot.disk >= 0 or snapshot.pending is not None or not snapshot.ready:
            return
        if not self._make_room(Tier.DISK, snapshot):
            return
        source = Tier.HOST if snapshot.host >= 0 else Tier.DEVICE
        self._order_move(snapshot, source, Tier.DISK, number=self._lower.next_number())

    def fetch(self, snapshot: Snapshot) -> bool:
        """Order a snapshot's state from the disk to host memory, if it is nowhere above; whether it
        is on its way now."""
        if snapshot.ready or snapshot.pending is not None:
            return snapshot.pending is Tier.HOST
        if not self._make_room(Tier.HOST, snapshot):
            return False
        self._order_move(snapshot, Tier.DISK, Tier.HOST, number=self._lower.next_number())
        return True

    def _order_move(self, snapshot: Snapshot, source: Tier, target: Tier, *, number: int) -> None:
        slot = int(self.slots[target].take(1)[0])
        snapshot.put(target, slot)
        self.kept[target][slot] = snapshot
        move = StateMove(
            number=number,
            source=source,
            target=target,
            source_slot=snapshot.at(source),
            target_slot=slot,
            content=self._content(snapshot) if target == Tier.DISK else None,
        )
        if number:
            snapshot.pending = target
            self._pending[number] = move, snapshot
            for tier, used in ((source, move.source_slot), (target, slot)):
                if tier in self.slots:
                    self.slots[tier].use(_one(used))
        self.moved_states[source, target] += 1
        self._give(move)

    def _content(self, snapshot: Snapshot) -> StateContent:
        return StateContent(
            tenant=snapshot.owner.key,
            kind=snapshot.kind,
            blocks=snapshot.blocks,
            key=self._key(snapshot),
            tail=snapshot.tail,
        )

    def _key(self, snapshot: Snapshot) -> bytes:
        if not snapshot.blocks:
            return root_key(snapshot.owner)
        return self._lower.key_at(snapshot.node, snapshot.blocks)

    def moved(self, number: int, *, ok: bool) -> bool:
        """An order from or to the disk is over; False if it is none of states. What did not arrive
        is not there; what could not be read is on the disk no more."""
        entry = self._pending.pop(number, None)
        if entry is None:
            return False
        move, snapshot = entry
        for tier, slot in ((move.source, move.source_slot), (move.target, move.target_slot)):
            if tier in self.slots:
                self.slots[tier].used(_one(slot))
        snapshot.pending = None
        if ok:
            return True
        self.failed_states += 1
        if move.target == Tier.DISK:
            self._lower.writing = False
        for tier in (Tier.HOST, Tier.DISK) if move.source == Tier.DISK else (Tier.DISK,):
            slot = move.target_slot if tier == move.target else move.source_slot
            if snapshot.at(tier) == slot:
                self.drop(snapshot, tier)
        return True

    def is_reading(self, last: int) -> bool:
        """Whether an order from the disk up to number ``last`` is under way."""
        return any(
            number <= last and move.source == Tier.DISK
            for number, (move, _) in self._pending.items()
        )

    @property
    def num_pending(self) -> int:
        """Orders from and to the disk that are under way."""
        return len(self._pending)

    def claim(self, snapshot: Snapshot, stored: StoredState) -> None:
        """An earlier process has left this snapshot on the disk."""
        self.slots[Tier.DISK].claim(_one(stored.slot))
        snapshot.disk = stored.slot
        self.kept[Tier.DISK][stored.slot] = snapshot

    # Checking

    def check(self, alive: Iterable[Snapshot]) -> None:
        """AssertionError where slots and snapshots do not agree."""
        known = list(alive)
        for tier, slots in self.slots.items():
            held = {each.at(tier): each for each in known if each.at(tier) >= 0}
            assert held == self.kept[tier], f"states in the {tier.name.lower()} tier"
            together = np.concatenate([slots.unheld_blocks(), list(held)]).astype(np.int32)
            assert sorted(together.tolist()) == list(range(slots.num_blocks)), (
                f"a slot of the {tier.name.lower()} tier lost or doubled"
            )
        for snapshot in known:
            lowest = max(tier for tier in Tier if snapshot.at(tier) >= 0)
            assert snapshot.node.tier <= lowest, "a snapshot above its blocks"
            pending = [move for move, each in self._pending.values() if each is snapshot]
            assert (snapshot.pending is not None) == bool(pending), "an order nobody knows of"


def _one(slot: int) -> np.ndarray[tuple[int], np.dtype[np.int32]]:
    return np.array([slot], dtype=np.int32)
