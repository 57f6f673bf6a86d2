"""Nodes of the radix tree: owners, nodes, and those who hold a path.

Whoever keeps a prefix is a ``Holder`` on the deepest node of it, with a ``BlockClass``. A
node's class is the highest of any holder in its subtree; it is kept as a weight that counts
its own holders and its children by class, so that a change travels upwards only as far as
classes change. Data only: ``radix_cache.tree`` is the one that writes to it.
"""

import enum
from typing import ClassVar, Final, Protocol

import numpy as np

from radix_cache.block_pool import BlockArray
from radix_cache.edge import Edge, PieceShop
from radix_cache.ghosts import Ghost


class BlockClass(enum.IntEnum):
    """How strongly cached blocks are held; the order is the order of protection."""

    IDLE = 0
    """Nobody waits for them: the first to go, least recently used first."""
    LEASED = 1
    """A branch's tool is running; a warm sequence may take them, a cold one may not."""
    QUEUED = 2
    """The branch's next request has arrived, or the prefix is published."""
    RUNNING = 3
    """A running sequence reads them."""


class Tier(enum.IntEnum):
    """Where blocks are. A transcript's blocks lie in this order: first those on the device."""

    DEVICE = 0
    HOST = 1
    DISK = 2


IDLE, LEASED, QUEUED, RUNNING = (int(member) for member in BlockClass)
"""The classes as plain integers, for code that runs every sequence."""
UNIT: Final = (0, 1, 1 << 20, 1 << 40)
"""Holders of each class are counted in one integer, the weight: 20 bits for leased ones, 20
for queued ones, the rest for running ones. So its size tells the highest class."""
QUEUED_UNIT: Final = 1 << 20
RUNNING_UNIT: Final = 1 << 40


_NOWHERE: Final = -1


def class_of(weight: int) -> int:
    """The highest class counted in ``weight``."""
    if weight >= RUNNING_UNIT:
        return RUNNING
    if weight >= QUEUED_UNIT:
        return QUEUED
    return LEASED if weight else IDLE


_BEHIND = "\x1f"
"""Stands in no tenant's name."""


class Account:
    """What a tenant has of the cache, or the operator, for whatever adapters."""

    __slots__ = ("class_blocks", "name", "private_blocks", "state_slots", "tier_blocks")

    def __init__(self, name: str) -> None:
        self.name = name
        """The tenant's; empty for the operator."""
        self.tier_blocks = [[0] * len(BlockClass) for _ in Tier]
        """Its blocks in the tree, by tier and class."""
        self.class_blocks = self.tier_blocks[Tier.DEVICE]
        self.private_blocks = 0
        """Blocks that its running sequences have outside the tree."""
        self.state_slots = 0
        """Slots of its running sequences and snapshots."""


class Owner:
    """The owner of a subtree: a tenant, or the operator for published prefixes, under one
    adapter. KV under another one is of other numbers, and is another owner's."""

    __slots__ = ("account", "adapter", "published", "root", "salt")

    def __init__(
        self,
        account: Account,
        adapter: str,
        salt: int,
        shop: PieceShop,
        *,
        published: "Owner | None" = None,
    ) -> None:
        """``published``: of what every tenant may find under the adapter; None: this one."""
        self.account = account
        self.adapter = adapter
        """Names what the model is computed with beside its own weights; empty for nothing."""
        self.salt = salt
        self.published = published or self
        self.root = Node(self, parent=None, start=0, edge=Edge(shop), size=0, key=0)

    @property
    def name(self) -> str:
        """The tenant's; empty for the operator."""
        return self.account.name

    @property
    def is_published(self) -> bool:
        """Whether every tenant finds what is its own."""
        return self.published is self

    @property
    def key(self) -> str:
        """Its name beyond this process: the tenant's, and the adapter's behind it."""
        return f"{self.name}{_BEHIND}{self.adapter}" if self.adapter else self.name


def split_key(key: str) -> tuple[str, str]:
    """The tenant and the adapter of ``Owner.key``."""
    tenant, _, adapter = key.partition(_BEHIND)
    return tenant, adapter


class Node:
    """An edge and its end: ``size`` blocks from block position ``start`` of a transcript.

    Its blocks are ids of its ``tier``, and no node below it is in a higher one. A node of
    size 0 that is not a root has been evicted.
    """

    __slots__ = (
        "branches",
        "busy",
        "chain",
        "charge",
        "children",
        "edge",
        "ghost",
        "holders",
        "inside",
        "key",
        "klass",
        "last_use",
        "offered",
        "owner",
        "parent",
        "placed",
        "since",
        "size",
        "snapshots",
        "start",
        "takers",
        "tier",
        "twin",
        "weight",
    )

    def __init__(
        self,
        owner: Owner,
        *,
        parent: "Node | None",
        start: int,
        edge: Edge,
        size: int,
        key: int,
    ) -> None:
        self.owner = owner
        self.parent = parent
        self.start = start
        self.size = size
        self.edge = edge
        self.key = key
        self.twin: Node | None = None
        """Next child of the same parent under the same key: a hash collision."""
        self.children: dict[int, Node] = {}
        self.branches = 0
        """Children in the same tier: without any, this node is where eviction begins."""
        self.holders: set[Holder] = set()
        self.weight = 0
        self.klass = IDLE
        self.last_use = 0
        """Tick of the last request that ended here, or below before that part was evicted."""
        self.offered = _NOWHERE
        """The tier whose eviction order has an entry for this node."""
        self.tier = 0
        self.busy = False
        """An order from or to the disk is under way: the node cannot be evicted."""
        self.chain: bytes | None = None
        """Chained key of all blocks to this node's end, once it was asked for."""
        self.placed = 0
        """Tick at which blocks of this tier were last given to it in exchange for others."""
        self.ghost: Ghost | None = None
        """A record of what this node has lost behind its end."""
        self.takers = 0
        """Metered holders that hold all of its blocks: here, at its end, and below."""
        self.inside: list[Holder] | None = None
        """Metered holders that end inside it."""
        self.snapshots: list[Kept] | None = None
        """States kept at its end or before, by position."""
        self.charge = 0
        """Block-microseconds that each taker was charged for it until ``since``."""
        self.since = 0

    @property
    def end(self) -> int:
        return self.start + self.size

    @property
    def bare(self) -> int:
        """Blocks behind the last state that is kept here."""
        return self.end - self.snapshots[-1].blocks if self.snapshots else self.size


class Kept(Protocol):
    """A state that is kept at a position (``radix_cache.snapshots``), as the tree knows it."""

    node: "Node"
    blocks: int
    """Whole blocks before it; above its node's start and up to its end."""
    position: int
    number: int


class Holder:
    """Something that wants a prefix kept: position ``length`` (blocks) in ``node``.

    Only a running sequence stands inside an edge; all others stand at the end of their node.
    """

    __slots__ = ("charge", "klass", "lease_ran_out", "length", "node", "owner")
    metered: ClassVar[bool] = False
    """Its content is on its account."""

    def __init__(self, owner: Owner) -> None:
        self.owner = owner
        self.node = owner.root
        self.length = 0
        self.klass = IDLE
        self.lease_ran_out = False
        """The last lease ended before the holder came back."""
        self.charge = 0
        """Its block-microseconds, without those that are in ``charge`` of the nodes it takes."""

    def shortened(self) -> None:
        """Called after eviction has cut ``length``; tables and records follow it here."""


def path_from(far: Node, start: int) -> list[Node]:
    """The nodes on the path to ``far`` that reach beyond block position ``start``, top first."""
    path: list[Node] = []
    node: Node | None = far
    while node is not None and node.parent is not None and node.end > start:
        path.append(node)
        node = node.parent
    return path[::-1]


def path_blocks(node: Node, count: int) -> BlockArray:
    """The first ``count`` blocks of the path to ``node``, which reaches as far, int32 [count]."""
    table = np.empty(count, dtype=np.int32)
    at: Node | None = node
    while at is not None and at.parent is not None:
        if at.start < count:
            stop = min(at.end, count)
            table[at.start : stop] = at.edge.block_ids()[: stop - at.start]
        at = at.parent
    return table
