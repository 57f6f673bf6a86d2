"""Which snapshot goes first when a slot is wanted, and what each is worth.

What a tenant has above its share of the slots goes before all else; then ends of branches that were
released; then what has a copy in another tier, the longest unused first; then, by the class of the
branches that end there, what costs least to compute anew, times those who would have to, aged as in
GreedyDual (Young 1994). An end whose branch has a newer one costs the way to that one only.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Final

from radix_cache.edge import TokenArray
from radix_cache.handle import Snapshot
from radix_cache.nodes import IDLE, LEASED, Account, Node, Owner, Tier
from radix_cache.resume_points import below, find
from radix_cache.snapshots import SnapshotKind
from radix_cache.tenant_shares import TenantShares
from radix_cache.tree import RadixTree

_COPIED: Final = 1
"""The stage of those that are wanted and have a copy in another tier."""


def _stays(snapshot: Snapshot) -> bool:
    """Whether others are worth less for it: what goes before all of them does not count."""
    return snapshot.kind is not SnapshotKind.INTERVAL or bool(snapshot.ends or snapshot.forks)


class SnapshotOrder:
    """Over the snapshots of one tree.

    Args:
        num_slots: by tier.
        restore_cost: tokens of a transcript -> seconds to compute it again.
    """

    def __init__(
        self,
        tree: RadixTree,
        shares: TenantShares,
        *,
        num_slots: Sequence[int],
        restore_cost: Callable[[int], float],
    ) -> None:
        self._tree = tree
        self._shares = shares
        self._num_slots = num_slots
        self._restore_cost = restore_cost
        self.inflation = 0.0
        """The worth of the last state that went though it was wanted: where ages begin."""

    def victim(
        self, snapshots: Collection[Snapshot], owner: Owner, rights: int, *, tier: int = Tier.DEVICE
    ) -> Snapshot | None:
        """The one of those in ``tier`` that goes first for ``owner``, who may take classes up to
        ``rights``, and whatever has a copy elsewhere."""
        above = self._above_shares(snapshots, owner, tier)
        several = len(self._shares.active()) > 1
        first: tuple[int, int, int] | None = None
        found: list[Snapshot] = []
        for snapshot in snapshots:
            of, copied = snapshot.owner.account, not snapshot.only_in(tier)
            klass = self.class_of(snapshot)
            may_go = klass <= rights or (several and klass == LEASED and above[of] > 0) or copied
            if snapshot.pins or snapshot.pending is not None or not may_go:
                continue
            stage = self.is_wanted(snapshot) * (1 if copied else 2)
            rank = -above[of], IDLE if copied else klass, stage
            if first is None or rank < first:
                first, found = rank, [snapshot]
            elif rank == first:
                found.append(snapshot)
        if first is not None and first[2] == _COPIED:
            return min(found, key=lambda snapshot: snapshot.used)
        return self._cheapest(found)

    def _above_shares(
        self, snapshots: Collection[Snapshot], owner: Owner, tier: int
    ) -> dict[Account, int]:
        """Slots of ``tier`` that each of their owners has above its share, were ``owner`` to take
        one more; on the device those of running sequences are counted."""
        held = Counter(snapshot.owner.account for snapshot in snapshots)
        active, size = len(self._shares.active()), self._num_slots[tier]
        share = size // active if active > 1 else size
        above = {}
        for of, count in held.items():
            slots = of.state_slots if tier == Tier.DEVICE else count
            above[of] = max(0, slots + (of is owner.account) - share) if of.name else 0
        return above

    def _cheapest(self, snapshots: Iterable[Snapshot]) -> Snapshot | None:
        """None is worth less than its age, so that most need not be looked at."""
        cheapest: tuple[float, int, Snapshot] | None = None
        for snapshot in snapshots:
            if cheapest is None or snapshot.age <= cheapest[0]:
                offered = self.worth(snapshot), snapshot.number, snapshot
                cheapest = offered if cheapest is None or offered[:2] < cheapest[:2] else cheapest
        return None if cheapest is None else cheapest[2]

    def class_of(self, snapshot: Snapshot) -> int:
        """The highest of the branches that end there and are not running."""
        classes = [handle.klass for handle in snapshot.ends if handle.sequence is None]
        return max(classes, default=IDLE)

    def is_wanted(self, snapshot: Snapshot) -> bool:
        """Whether somebody may come back: its branch lives, or more than one went on from it; and
        the branch has not ended twice since, who forks or tries again goes back by one turn. To one
        that was kept for its distance alone, nobody is known to."""
        if snapshot.ends:
            return True
        if snapshot.kind is SnapshotKind.INTERVAL:
            return _stays(snapshot)
        known = not snapshot.released or len(snapshot.forks) > 1
        return known and not self._is_behind(snapshot)

    def would_miss(self, snapshot: Snapshot, tier: int) -> bool:
        """Whether its copy in ``tier`` is all that is there of a snapshot that is wanted."""
        return snapshot.only_in(tier) and self.is_wanted(snapshot)

    def _is_behind(self, snapshot: Snapshot) -> bool:
        successor = snapshot.successor
        return self.is_replaced(snapshot) and successor is not None and self.is_replaced(successor)

    def is_replaced(self, snapshot: Snapshot) -> bool:
        """Whether its branch has a newer end, and nobody else went on from it."""
        successor = snapshot.successor
        return successor is not None and successor.alive and not snapshot.forks

    def worth(self, snapshot: Snapshot) -> float:
        """Seconds that losing it would cost, from when it was used last."""
        successor = snapshot.successor
        if successor is not None and self.is_replaced(snapshot):
            seconds = self._restore_cost(successor.position) - self._restore_cost(snapshot.position)
            return snapshot.age + seconds
        cost = self._restore_cost
        seconds = cost(snapshot.position) - cost(below(self._tree, snapshot, _stays))
        users = max(1, len(snapshot.ends) + len(snapshot.forks))
        return snapshot.age + seconds * users

    def seconds(self, owner: Owner, node: Node, tokens: TokenArray) -> float:
        """The time to compute ``tokens`` anew from the deepest snapshot before."""
        blocks = len(tokens) // self._tree.block_size
        found = find(self._tree, owner, node, blocks, tokens)
        start = 0 if found is None else found.position
        return self._restore_cost(len(tokens)) - self._restore_cost(start)
