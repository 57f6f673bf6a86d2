"""The upper part of the tree, for people: what is shared, how hot it is, who holds it where.

Looks and changes nothing. The look is bounded: of a node with many children the newest
``MAX_LOOKED_AT`` are considered and the best held, most recently used ``MAX_CHILDREN`` of them
shown, level by level, until ``max_nodes`` are.

Always true: asked for one tenant, nothing of another one is in the picture: no node, no
branch, no use of a published prefix.
"""

import heapq
import itertools
from collections import deque
from dataclasses import dataclass
from typing import Final

from radix_cache.handle import BranchHandle
from radix_cache.nodes import IDLE, QUEUED, Node, Owner
from radix_cache.tree import RadixTree

MAX_CHILDREN: Final = 24
MAX_LOOKED_AT: Final = 1024
MAX_BRANCHES: Final = 16
"""Named at one node."""
HEAD_TOKENS: Final = 24


@dataclass(frozen=True, slots=True, kw_only=True)
class PicturedNode:
    """A run of tokens that has its place in the tree."""

    parent: int | None
    """Its place in the picture; None below the root."""
    owner: str
    """The tenant; empty: published for all."""
    start: int
    """Tokens before it."""
    tokens: int
    tier: int
    klass: int
    """See ``BlockClass``."""
    age: int
    """Uses of the cache since it was last used."""
    children: int
    """All it has that may be seen, shown or not."""
    holders: int
    """Branches that end here."""
    branches: tuple[str, ...]
    """The first of them."""
    lease_s: float
    """Until the last of their leases ends; 0: none is leased."""
    head: tuple[int, ...]
    """Its first tokens."""


def upper_part(
    tree: RadixTree, *, tenant: str | None, max_nodes: int, now: float
) -> list[PicturedNode]:
    """The first levels of the tree, parents before their children.

    Args:
        tenant: whose eyes it is for; None: the operator's.
        now: on the clock of the leases.
    """
    owners = [o for o in tree.owners() if tenant is None or o.name in {"", tenant}]
    seen = frozenset(owners)
    picture: list[PicturedNode] = []
    level: deque[tuple[int | None, Node]] = deque()
    for owner in owners:
        level += [(None, child) for child in _best(_children(owner.root, seen))]
    while level and len(picture) < max_nodes:
        parent, node = level.popleft()
        children = _children(node, seen)
        place = len(picture)
        picture.append(_pictured(tree, node, parent, len(children), tenant=tenant, now=now))
        level += [(place, child) for child in _best(children)]
    return picture


def _children(node: Node, owners: frozenset[Owner]) -> list[Node]:
    """Those that may be seen, the newest first."""
    newest = itertools.islice(reversed(node.children.values()), MAX_LOOKED_AT)
    return [child for child in newest if child.owner in owners and child.size]


def _best(children: list[Node]) -> list[Node]:
    """Those held most strongly, of these the most recently used."""
    return heapq.nlargest(MAX_CHILDREN, children, key=lambda each: (each.klass, each.last_use))


def _head(node: Node, block_size: int) -> tuple[int, ...]:
    blocks = range(min(node.size, -(-HEAD_TOKENS // block_size)))
    tokens = [token for block in blocks for token in node.edge.block_tokens(block).tolist()]
    return tuple(tokens[:HEAD_TOKENS])


def _pictured(
    tree: RadixTree,
    node: Node,
    parent: int | None,
    num_children: int,
    *,
    tenant: str | None,
    now: float,
) -> PicturedNode:
    holders = [h for h in node.holders if tenant is None or h.owner.name == tenant]
    handles = [h for h in holders if isinstance(h, BranchHandle)]
    hidden = tenant is not None and node.owner.is_published
    leases = [h.leased_until - now for h in handles if h.leased_until > now]
    return PicturedNode(
        parent=parent,
        owner=node.owner.name,
        start=node.start * tree.block_size,
        tokens=node.size * tree.block_size,
        tier=node.tier,
        klass=min(node.klass, QUEUED) if hidden else node.klass,
        age=0 if hidden else max(tree.tick - node.last_use, 0),
        children=num_children,
        holders=len(holders),
        branches=tuple(h.branch_id for h in itertools.islice(handles, MAX_BRANCHES)),
        lease_s=round(max(leases, default=0.0), 1) if node.klass > IDLE else 0.0,
        head=_head(node, tree.block_size),
    )
