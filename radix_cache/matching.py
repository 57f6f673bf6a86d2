"""How much of a prompt is cached, and which blocks that is.

A match begins where a branch's handle vouches for the tokens, without looking at them, and
goes on by comparison; without a handle it begins at the tenant's root and compares all.
"""

from dataclasses import dataclass

from radix_cache.block_pool import BlockArray
from radix_cache.edge import TokenArray
from radix_cache.handle import BranchHandle
from radix_cache.nodes import Node, Owner, Tier
from radix_cache.tree import RadixTree


@dataclass(slots=True)
class Match:
    """The end of the longest cached prefix, in blocks."""

    node: Node
    position: int
    """Found in all tiers looked at; the end lies in ``node``."""
    near: Node
    shared: int
    """Found on the device; that part ends in ``near``."""


class Matcher:
    """Finds prefixes in ``tree``, as far down as the tier ``lowest``; changes nothing in it."""

    def __init__(self, tree: RadixTree, *, lowest: Tier) -> None:
        self._tree = tree
        self.lowest = lowest

    def find(
        self,
        owner: Owner,
        tokens: TokenArray,
        *,
        base: BranchHandle | None,
        base_offset: int | None,
        table: BlockArray | None = None,
        lowest: Tier | None = None,
    ) -> Match:
        """Match whole blocks of ``tokens``, all but the last token at most.

        Args:
            base: the first ``base_offset`` tokens are this branch's own, by construction.
            table: int32; gets the device blocks of the match.
            lowest: look further down than usual.
        """
        tree, lowest = self._tree, self.lowest if lowest is None else lowest
        limit = (len(tokens) - 1) // tree.block_size
        start, trusted = tree.start(owner), 0
        if base is not None and base_offset is not None:
            trusted = min(base.length, base_offset // tree.block_size, limit)
            if trusted:
                start = base.node if trusted == base.length else tree.climb(base.node, trusted)
                while start.tier > lowest:
                    assert start.parent is not None
                    start = start.parent
                trusted = min(trusted, start.end)
        node, position = start, trusted
        if position < limit and (node.children or position < node.end):
            node, position = tree.walk(
                owner, node, position, tokens, limit=limit, lowest=lowest, table=table
            )
        near = node
        while near.tier:
            assert near.parent is not None
            near = near.parent
        shared = position if near is node else near.end
        if trusted and base is not None and table is not None:
            _copy_path(table, base, start, min(trusted, shared))
        return Match(node, position, near, shared)


def _copy_path(table: BlockArray, base: BranchHandle, node: Node, count: int) -> None:
    """Write the first ``count`` ids of the path to ``node``, which ``base`` stands on."""
    if base.table is not table:
        known = min(count, len(base.table))
        table[:known] = base.table[:known]
    while node.parent is not None and (node.tier or node.placed > base.seen):
        if not node.tier and node.start < count:
            stop = min(node.end, count)
            table[node.start : stop] = node.edge.block_ids()[: stop - node.start]
        node = node.parent
