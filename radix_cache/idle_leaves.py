"""The order in which idle leaves of the radix tree are evicted: those of the tenant furthest above
its share of the tier, of these the least recently used first.

A lazy heap per tier and owner. A node has at most one entry, made when it first becomes an idle
leaf; a sequence that uses it later changes nothing here. When the entry comes to the top it is
looked at again: dropped if the node is held or has children by then, put back if it was used
since. So a branch that comes and goes costs no heap operation at all. Finding one costs
O(log leaves) and a look at each tenant that has some.
"""

import heapq

from radix_cache.nodes import IDLE, Account, Node, Tier
from radix_cache.tenant_shares import Demand, TenantShares

_Heap = list[tuple[int, int, int, Node]]


class IdleLeaves:
    """Evictable leaves by tier and tenant: IDLE nodes without branches."""

    def __init__(self, shares: TenantShares, *, stateful: bool = False) -> None:
        """``stateful``: blocks behind the last state that is kept of a path save no work, and go
        before all others."""
        self.shares = shares
        self._stateful = stateful
        self._heaps: list[dict[Account, _Heap]] = [{} for _ in Tier]
        self._offers = 0

    def offer(self, node: Node) -> None:
        """Note that ``node`` may be evicted from its tier from now on."""
        tier = node.tier
        if node.offered != tier:
            self.offer_again(node)

    def offer_again(self, node: Node) -> None:
        """The same though it may be noted: it goes sooner than was thought."""
        node.offered = node.tier
        self._offers += 1
        heap = self._heaps[node.tier].setdefault(node.owner.account, [])
        heapq.heappush(heap, (self._useful(node), node.last_use, self._offers, node))

    def _useful(self, node: Node) -> int:
        return int(not self._stateful or node.bare <= 0)

    def contested(self, tier: int) -> bool:
        """Whether more than one tenant may have idle leaves in ``tier``."""
        return len(self._heaps[tier]) > 1

    def first(self, tier: int, demand: Demand | None = None) -> Node | None:
        """The idle leaf of ``tier`` that goes first, or None if there is none.

        It stays first until it is gone or used again, or its tenant is not the one furthest above
        its share any more.

        Args:
            demand: what the blocks are wanted for.
        """
        shares, heaps = self.shares, self._heaps[tier]
        found, highest = None, 0
        for account in list(heaps):
            leaf = self._oldest(tier, account)
            if leaf is None:
                continue
            if len(heaps) == 1:
                return leaf
            level = shares.level(shares.excess(account, tier, demand), tier)
            if (
                found is None
                or level > highest
                or (
                    level == highest
                    and (self._useful(leaf), leaf.last_use) < (self._useful(found), found.last_use)
                )
            ):
                found, highest = leaf, level
        return found

    def _oldest(self, tier: int, account: Account) -> Node | None:
        """The idle leaf of a tenant in ``tier`` that was used longest ago."""
        heap = self._heaps[tier][account]
        while heap:
            useful, last_use, order, node = heap[0]
            if (
                node.klass != IDLE
                or node.branches
                or node.busy
                or not node.size
                or node.tier != tier
            ):
                heapq.heappop(heap)
                if node.offered == tier:
                    node.offered = -1
            elif (self._useful(node), node.last_use) != (useful, last_use):
                heapq.heapreplace(heap, (self._useful(node), node.last_use, order, node))
            else:
                return node
        del self._heaps[tier][account]
        return None
