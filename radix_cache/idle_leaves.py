"""The order in which idle leaves of the radix tree are evicted: least recently used first.

A lazy heap. A node has at most one entry, made when it first becomes an idle leaf; a sequence
that uses it later changes nothing here. When the entry comes to the top it is looked at
again: dropped if the node is held or has children by then, put back if it was used since.
So a branch that comes and goes costs no heap operation at all. Each tier has a heap of its own.
"""

import heapq

from radix_cache.nodes import IDLE, Node, Tier


class IdleLeaves:
    """Evictable leaves by tier: IDLE nodes without branches."""

    def __init__(self) -> None:
        self._heaps: list[list[tuple[int, int, Node]]] = [[] for _ in Tier]
        self._offers = 0

    def offer(self, node: Node) -> None:
        """Note that ``node`` may be evicted from its tier from now on."""
        tier = node.tier
        if node.offered != tier:
            node.offered = tier
            self._offers += 1
            heapq.heappush(self._heaps[tier], (node.last_use, self._offers, node))

    def oldest(self, tier: int) -> Node | None:
        """The idle leaf of ``tier`` that was used longest ago, or None if there is none.

        It stays first until it is gone or used again.
        """
        heap = self._heaps[tier]
        while heap:
            last_use, order, node = heap[0]
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
            elif node.last_use != last_use:
                heapq.heapreplace(heap, (node.last_use, order, node))
            else:
                return node
        return None
