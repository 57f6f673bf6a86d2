"""The recount sees what is broken on purpose."""

from collections.abc import Callable

import numpy as np
import pytest

from radix_cache.audit import check_partition, check_table, check_tree
from radix_cache.handle import BranchHandle
from radix_cache.nodes import IDLE, RUNNING, Node
from radix_cache.tree import RadixTree
from tests.support.caches import make_cache

BLOCK = 2


def make_tree() -> tuple[RadixTree, Node, BranchHandle]:
    """A tree with one node of blocks 0, 1, 2 and one running session at its end."""

    def offer(node: Node) -> None:
        node.offered = node.tier

    tree = RadixTree(BLOCK, seed=0, on_idle_leaf=offer)
    owner = tree.owner("red")
    tokens = np.arange(6, dtype=np.int32)
    node = tree.add_leaf(owner.root, owner, tokens, np.arange(3, dtype=np.int32))
    handle = BranchHandle("s", owner)
    handle.table = np.arange(3, dtype=np.int32)
    tree.move(handle, node, 3)
    tree.hold(handle, RUNNING)
    return tree, node, handle


def test_a_sound_tree_passes() -> None:
    tree, _, handle = make_tree()
    check_tree(tree)
    check_table(handle)
    check_partition(tree, 0, unheld=[np.array([4, 3], dtype=np.int32)], num_blocks=5)


def lift(tree: RadixTree, node: Node, handle: BranchHandle) -> None:
    node.start = 1


def miscount(tree: RadixTree, node: Node, handle: BranchHandle) -> None:
    tree.class_blocks[IDLE] += 1


def outweigh(tree: RadixTree, node: Node, handle: BranchHandle) -> None:
    node.weight += 1


def stray(tree: RadixTree, node: Node, handle: BranchHandle) -> None:
    handle.length = 4


def rename(tree: RadixTree, node: Node, handle: BranchHandle) -> None:
    node.edge.block_tokens(0)[0] += 1


def sink(tree: RadixTree, node: Node, handle: BranchHandle) -> None:
    node.branches = 1


def leave(tree: RadixTree, node: Node, handle: BranchHandle) -> None:
    tree.hold(handle, IDLE)
    node.offered = -1


@pytest.mark.parametrize("harm", [lift, miscount, outweigh, stray, rename, sink, leave])
def test_a_broken_tree_does_not(
    harm: Callable[[RadixTree, Node, BranchHandle], None],
) -> None:
    tree, node, handle = make_tree()
    harm(tree, node, handle)
    with pytest.raises(AssertionError):
        check_tree(tree)


@pytest.mark.parametrize("unheld", [[3], [3, 4, 4], [3, 0], [3, 5]])
def test_a_lost_or_doubled_block_is_seen(unheld: list[int]) -> None:
    tree, _, _ = make_tree()
    with pytest.raises(AssertionError, match="lost or doubled"):
        check_partition(tree, 0, unheld=[np.array(unheld, dtype=np.int32)], num_blocks=5)


def test_a_stale_table_is_seen() -> None:
    _, _, handle = make_tree()
    handle.table[1] = 7
    with pytest.raises(AssertionError, match="stale"):
        check_table(handle)


def test_a_sound_cache_passes_and_a_turn_that_claims_a_foreign_block_does_not() -> None:
    cache = make_cache(16, debug=False)
    tokens = np.arange(9, dtype=np.int32)
    turn = cache.begin(branch_id="s", tenant="t", tokens=tokens)
    cache.allocate(turn, 3)
    cache.commit(turn, tokens)
    cache.check()
    turn.num_blocks -= 1
    with pytest.raises(AssertionError):
        cache.check()
    turn.num_blocks += 1
    cache.check()
