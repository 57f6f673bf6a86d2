"""Which snapshot goes first when a slot is wanted, and what each is worth.

What a tenant has above its share of the slots goes before all else; then, by the class of the
branches that end there, ends of branches that were released; then what costs least to compute anew,
times those who would have to, aged as in GreedyDual (Young 1994). An end whose branch has a newer
one costs the way to that one only.
"""

from collections.abc import Callable, Iterable

from radix_cache.edge import TokenArray
from radix_cache.handle import Snapshot
from radix_cache.nodes import IDLE, LEASED, Node, Owner
from radix_cache.resume_points import below, find
from radix_cache.tenant_shares import TenantShares
from radix_cache.tree import RadixTree


class SnapshotOrder:
    """Over the snapshots of one tree.

    Args:
        restore_cost: tokens of a transcript -> seconds to compute it again.
    """

    def __init__(
        self,
        tree: RadixTree,
        shares: TenantShares,
        *,
        num_slots: int,
        restore_cost: Callable[[int], float],
    ) -> None:
        self._tree = tree
        self._shares = shares
        self._num_slots = num_slots
        self._restore_cost = restore_cost
        self.inflation = 0.0
        """The worth of the last state that went though it was wanted: where ages begin."""

    def victim(self, snapshots: Iterable[Snapshot], owner: Owner, rights: int) -> Snapshot | None:
        """The one that goes first for ``owner``, who may take classes up to ``rights``."""
        active = self._shares.active()
        share = self._num_slots // len(active) if len(active) > 1 else self._num_slots
        above: dict[Owner, int] = {}
        first: tuple[int, int, bool] | None = None
        found: list[Snapshot] = []
        for snapshot in snapshots:
            of, klass = snapshot.owner, self.class_of(snapshot)
            if of not in above:
                held = of.state_slots + (of is owner) - share
                above[of] = max(0, held) if of.name else 0
            may_go = klass <= rights or (len(active) > 1 and klass == LEASED and above[of] > 0)
            if snapshot.pins or not may_go:
                continue
            rank = -above[of], klass, self.is_wanted(snapshot)
            if first is None or rank < first:
                first, found = rank, [snapshot]
            elif rank == first:
                found.append(snapshot)
        return self._cheapest(found)

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
        the branch has not ended twice since, who forks or tries again goes back by one turn."""
        if snapshot.ends:
            return True
        known = not snapshot.released or len(snapshot.forks) > 1
        return known and not self._is_behind(snapshot)

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
        seconds = cost(snapshot.position) - cost(below(self._tree, snapshot))
        users = max(1, len(snapshot.ends) + len(snapshot.forks))
        return snapshot.age + seconds * users

    def seconds(self, owner: Owner, node: Node, tokens: TokenArray) -> float:
        """The time to compute ``tokens`` anew from the deepest snapshot before."""
        blocks = len(tokens) // self._tree.block_size
        found = find(self._tree, owner, node, blocks, tokens)
        start = 0 if found is None else found.position
        return self._restore_cost(len(tokens)) - self._restore_cost(start)
