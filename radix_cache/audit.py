"""Recounts of the whole cache, for debugging and tests: slow, and independent of the counters.

Each function raises AssertionError with the broken rule in its message.
"""

from collections.abc import Iterable

import numpy as np

from radix_cache.block_pool import BlockArray
from radix_cache.handle import BranchHandle
from radix_cache.nodes import IDLE, RUNNING, UNIT, BlockClass, Node, Tier, class_of
from radix_cache.tree import RadixTree


def check_tree(tree: RadixTree) -> None:
    """Links, keys, classes and counts are what the nodes say."""
    by_tier = [[0] * len(BlockClass) for _ in Tier]
    by_account = {each: [[0] * len(BlockClass) for _ in Tier] for each in tree.accounts()}
    num_nodes = num_bytes = 0
    for node in tree.nodes():
        _check_links(tree, node)
        _check_holders(tree, node)
        by_tier[node.tier][node.klass] += node.size
        by_account[node.owner.account][node.tier][node.klass] += node.size
        num_nodes += 1
        num_bytes += sum(p.tokens.nbytes + p.blocks.nbytes for p in node.edge.pieces)
    assert by_tier == tree.tier_blocks, f"classes {tree.tier_blocks}, found {by_tier}"
    for account, found in by_account.items():
        assert found == account.tier_blocks, f"classes of {account.name!r}"
    assert num_nodes == tree.num_nodes, f"{tree.num_nodes} nodes, found {num_nodes}"
    assert num_bytes <= tree.num_bytes, f"{tree.num_bytes} bytes, found {num_bytes}"


def _check_links(tree: RadixTree, node: Node) -> None:
    parent = node.parent
    assert parent is not None
    assert node.size > 0, "an empty node is in the tree"
    assert node.start == parent.end, "a hole in a chain"
    assert node.tier >= parent.tier, "a block below one of a lower tier"
    assert node.owner is parent.owner or parent.owner is node.owner.published, "a foreign child"
    assert sum(p.size for p in node.edge.pieces) == node.size, "an edge of another size"
    first = node.edge.block_tokens(0)
    assert tree.child(parent, node.owner, first, 0) is node, "a child that is not found"


def _check_holders(tree: RadixTree, node: Node) -> None:
    children = list(tree.children(node))
    weight = sum(UNIT[holder.klass] for holder in node.holders)
    weight += sum(UNIT[child.klass] for child in children)
    assert weight == node.weight, f"weight {node.weight:x}, holders say {weight:x}"
    assert class_of(weight) == node.klass, "a class that its weight does not say"
    metered = [holder for holder in node.holders if holder.metered]
    inside = {holder for holder in metered if holder.length < node.end}
    assert set(node.inside or ()) == inside, "those who end inside an edge"
    takers = sum(child.takers + len(child.inside or ()) for child in children)
    takers += len(metered) - len(inside)
    assert takers == node.takers, f"{node.takers} take a node, found {takers}"
    branches = sum(child.tier == node.tier for child in children)
    assert branches == node.branches, f"{node.branches} branches, found {branches}"
    if node.klass == IDLE and not branches and not node.busy:
        assert node.offered == node.tier, "an idle leaf that nobody offered"
    for holder in node.holders:
        assert holder.node is node, "a holder of another node"
        assert node.start < holder.length <= node.end, "a holder outside its node"
        assert holder.length == node.end or holder.klass == RUNNING, "a holder inside an edge"


def check_partition(
    tree: RadixTree, tier: int, *, unheld: Iterable[BlockArray], num_blocks: int
) -> None:
    """Every block of ``tier`` is in one node, or once among the unheld: free, private to a
    sequence, or still used by an order."""
    parts = [*unheld, *(node.edge.block_ids() for node in tree.nodes() if node.tier == tier)]
    found = np.sort(np.concatenate(parts))
    assert np.array_equal(found, np.arange(num_blocks)), f"a block of tier {tier} lost or doubled"


def check_table(handle: BranchHandle) -> None:
    """A branch's block table is the path to where it stands, as far as it was filled."""
    node: Node | None = handle.node
    while node is not None:
        stop = min(node.end, handle.length)
        if not node.tier and (handle.sequence is not None or node.placed <= handle.seen):
            ids = node.edge.block_ids()[: stop - node.start]
            assert np.array_equal(handle.table[node.start : stop], ids), "a stale block table"
        node = node.parent
