"""Putting a sequence's full blocks into the tree, where other sequences find them."""

from radix_cache.block_pool import BlockArray, BlockPool
from radix_cache.edge import TokenArray
from radix_cache.handle import BranchHandle, CachedSequence
from radix_cache.nodes import Node, Owner
from radix_cache.tiers import LowerTiers
from radix_cache.tree import RadixTree
from radix_cache.window_rows import WindowRows


class Publisher:
    """Gives private blocks to ``tree``. What is there already goes back to ``pool``."""

    def __init__(
        self,
        tree: RadixTree,
        pool: BlockPool,
        lower: LowerTiers | None,
        windows: WindowRows | None = None,
    ) -> None:
        self._tree = tree
        self._pool = pool
        self._lower = lower
        self._windows = windows

    def publish(
        self, sequence: CachedSequence, handle: BranchHandle, tokens: TokenArray, target: int
    ) -> bool:
        """Publish the sequence's blocks up to ``target`` and move ``handle`` there.

        Returns True where the sequence ends inside an edge then: others have gone further.
        """
        tree, table = self._tree, sequence.table
        shared, node = sequence.num_shared_blocks, handle.node
        if node.end == shared and tree.may_append(handle):
            size = tree.block_size
            tree.append(node, tokens[shared * size : target * size], table[shared:target])
            handle.length = target
            return False
        node, position = self._follow(sequence, handle, tokens, target)
        if self._lower is not None and position == node.end:
            node, position = self._adopt(handle.owner, node, position, tokens, table[:target])
            handle.seen = max(handle.seen, node.placed)
        if position < target:
            if position < node.end:
                node = tree.split(node, position)
            rest = tokens[position * tree.block_size : target * tree.block_size]
            node = tree.add_leaf(node, handle.owner, rest, table[position:target])
        tree.move(handle, node, target)
        return target < node.end

    def _follow(
        self, sequence: CachedSequence, handle: BranchHandle, tokens: TokenArray, target: int
    ) -> tuple[Node, int]:
        """Take over the blocks of other sequences that hold the same tokens."""
        shared, node, table = sequence.num_shared_blocks, handle.node, sequence.table
        if node.end == shared and not node.children and node.parent is not None:
            return node, shared
        own = table[shared:target].copy()
        node, position = self._tree.walk(
            handle.owner, node, shared, tokens, limit=target, table=table
        )
        if position > shared:
            if self._windows is not None:
                self._windows.replaced(sequence, shared, own[: position - shared])
            self._pool.release(own[: position - shared])
        return node, position

    def _adopt(
        self, owner: Owner, node: Node, position: int, tokens: TokenArray, table: BlockArray
    ) -> tuple[Node, int]:
        """Give own blocks to nodes of lower tiers that hold the same tokens, behind ``node``;
        returns where that ends."""
        tree = self._tree
        assert self._lower is not None
        while position < len(table):
            child = tree.child(node, owner, tokens, position)
            if child is None:
                break
            stop = min(child.end, len(table))
            end = position + child.edge.common(0, tokens, position, stop, None)
            node = child if end == child.end else tree.split(child, end)
            self._lower.adopt(node, table[position:end])
            position = end
        return node, position
