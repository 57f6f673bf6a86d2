"""Where a transcript can be resumed: the snapshots on its path through the tree.

Always true: nothing of another tenant is found, but for what is published.
"""

from collections.abc import Callable, Iterator
from typing import cast

import numpy as np

from radix_cache.edge import TokenArray
from radix_cache.handle import Snapshot
from radix_cache.nodes import Node, Owner
from radix_cache.tree import RadixTree


def kept_in(node: Node) -> list[Snapshot]:
    """The snapshots in a node, by position."""
    return cast(list[Snapshot], node.snapshots or [])


def on_path(tree: RadixTree, owner: Owner, node: Node, shared: int) -> Iterator[Snapshot]:
    """Those that ``owner`` may see before block ``shared`` of the path to ``node``, deepest first.
    Whether a transcript has their tails is not looked at."""
    published = owner.published
    while node.parent is not None:
        for snapshot in reversed(kept_in(node)):
            if snapshot.blocks <= shared and snapshot.owner in (owner, published):
                yield snapshot
        node = node.parent
    roots = {owner.root, published.root}
    short = [snapshot for root in roots for snapshot in kept_in(root)]
    yield from sorted(short, key=lambda each: (-each.position, -each.number))


def has_tail(snapshot: Snapshot, tokens: TokenArray, block_size: int) -> bool:
    """Whether ``tokens``, whose whole blocks are on the snapshot's path, go through it."""
    start = snapshot.blocks * block_size
    return np.array_equal(tokens[start : snapshot.position], snapshot.tail)


def find(
    tree: RadixTree,
    owner: Owner,
    node: Node,
    shared: int,
    tokens: TokenArray,
    *,
    ready: bool = False,
) -> Snapshot | None:
    """The deepest snapshot of a prompt whose first ``shared`` blocks end in ``node``, before its
    last token. ``ready``: of those that a sequence can begin at now."""
    for snapshot in on_path(tree, owner, node, shared):
        if ready and not snapshot.ready:
            continue
        if snapshot.position < len(tokens) and has_tail(snapshot, tokens, tree.block_size):
            return snapshot
    return None


def below(tree: RadixTree, snapshot: Snapshot, counts: Callable[[Snapshot], bool]) -> int:
    """The position of the next snapshot on the path to another, of those that count; 0 where there
    is none."""
    for other in on_path(tree, snapshot.owner, snapshot.node, snapshot.blocks):
        if not counts(other):
            continue
        if other.position < snapshot.position and _is_before(tree, other, snapshot):
            return other.position
    return 0


def _is_before(tree: RadixTree, other: Snapshot, snapshot: Snapshot) -> bool:
    tail = other.tail
    if other.blocks == snapshot.blocks:
        return np.array_equal(tail, snapshot.tail[: len(tail)])
    if not len(tail):
        return True
    node = tree.climb(snapshot.node, other.blocks + 1)
    block = node.edge.block_tokens(other.blocks - node.start)
    return np.array_equal(block[: len(tail)], tail)
