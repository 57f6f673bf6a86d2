"""Radix tree over token ids: which transcript prefixes have their KV in which blocks.

An edge holds whole blocks and is of any length. A child is found by the xxh3 hash of its
first block, seeded by its owner's salt, and always confirmed by comparing tokens: a hash
never decides. Each tenant has a root of its own; nodes of the published owner are the only
ones that several tenants see, and a tenant's nodes may hang below them.

Holders lock the deepest node of a path only; block counts by class are exact at any time.
The tree stores and counts; which node goes first is ``radix_cache.idle_leaves``, and whose
turn it is ``radix_cache.cache``. Always true: a node has at least one block, a holder's
position lies in its node, a node of class IDLE has no descendant of a higher class.
"""

from bisect import insort
from collections.abc import Callable, Iterator

import xxhash

from radix_cache.block_pool import BlockArray
from radix_cache.edge import Edge, PieceShop, TokenArray
from radix_cache.nodes import (
    IDLE,
    UNIT,
    Account,
    BlockClass,
    Holder,
    Kept,
    Node,
    Owner,
    Tier,
    class_of,
    split_key,
)
from radix_cache.residency import ResidencyMeter


def hash_tokens(tokens: TokenArray, seed: int) -> int:
    """xxh3 of 64 bits, https://xxhash.com/doc/v0.8.3; not for telling apart, only to find."""
    return xxhash.xxh3_64_intdigest(tokens.data, seed)


class RadixTree:
    """Nodes of all owners, and how many blocks each class has.

    Args:
        block_size: tokens per block.
        seed: mixed into every owner's salt, so that keys differ between processes.
        on_idle_leaf: called when a node without branches becomes IDLE, or an IDLE node loses
            its last branch: from now on it may be evicted from its tier.
        hash_block: hash of (tokens of one block, salt). Tests pass a bad one.
        meter: is told of what holders hold. None: time stands still for it.
    """

    def __init__(
        self,
        block_size: int,
        *,
        seed: int,
        on_idle_leaf: Callable[[Node], None],
        hash_block: Callable[[TokenArray, int], int] = hash_tokens,
        meter: ResidencyMeter | None = None,
    ) -> None:
        if block_size < 1:
            raise ValueError(f"a block of {block_size} tokens, at least 1 is needed")
        self.block_size = block_size
        self.tier_blocks = [[0] * len(BlockClass) for _ in Tier]
        """Blocks in the tree by tier and class, over all owners."""
        self.class_blocks = self.tier_blocks[Tier.DEVICE]
        self.num_nodes = 0
        self.tick = 0
        """Counts uses and moves of blocks, so that any two of them have an order."""
        self._shop = PieceShop(block_size)
        self._seed = seed
        self._on_idle_leaf = on_idle_leaf
        self.hash_block = hash_block
        self.meter = meter or ResidencyMeter(lambda: 0.0)
        self.on_cut: Callable[[Kept], None] = lambda kept: None
        """Called with each kept state that blocks before it take along."""
        self.on_place: Callable[[Node], None] = lambda node: None
        """Called with each node before whose end states are kept, once it is in another tier."""
        self._owners: dict[tuple[str, str], Owner] = {}
        self._accounts = {"": Account("")}
        self.publisher("")

    @property
    def num_bytes(self) -> int:
        """Host memory of token and block ids, spare room included."""
        return self._shop.num_bytes

    def next_tick(self) -> int:
        """A number larger than all before."""
        self.tick += 1
        return self.tick

    def account(self, name: str) -> Account:
        """The account of the tenant of this name, made when first asked for.

        Raises:
            ValueError: the name is empty; that one is the operator's.
        """
        if not name:
            raise ValueError("a tenant's name is empty")
        found = self._accounts.get(name)
        if found is None:
            found = self._accounts[name] = Account(name)
        return found

    def accounts(self) -> Iterator[Account]:
        """Those of all tenants, and the operator's first."""
        yield from self._accounts.values()

    def owner(self, name: str, adapter: str = "") -> Owner:
        """The tenant of this name under an adapter, made when first asked for.

        Raises:
            ValueError: the name is empty; that one belongs to the published owner.
        """
        account = self.account(name)
        found = self._owners.get((name, adapter))
        if found is None:
            published = self.publisher(adapter)
            found = self._owners[name, adapter] = Owner(
                account, adapter, self._salt(name, adapter), self._shop, published=published
            )
        return found

    def publisher(self, adapter: str = "") -> Owner:
        """The owner of the prefixes that every tenant may find under an adapter."""
        found = self._owners.get(("", adapter))
        if found is None:
            account, salt = self._accounts[""], self._salt("", adapter)
            found = self._owners["", adapter] = Owner(account, adapter, salt, self._shop)
        return found

    def of_key(self, key: str) -> Owner:
        """The owner of that ``Owner.key``."""
        tenant, adapter = split_key(key)
        return self.owner(tenant, adapter) if tenant else self.publisher(adapter)

    def owners(self) -> Iterator[Owner]:
        yield from self._owners.values()

    def _salt(self, name: str, adapter: str) -> int:
        return xxhash.xxh3_64_intdigest(f"{adapter}\n{name}".encode(), self._seed)

    # Reading

    def start(self, owner: Owner) -> Node:
        """Where a walk for ``owner`` begins: published prefixes come before its own root."""
        root = owner.published.root
        return root if root.children else owner.root

    def walk(
        self,
        owner: Owner,
        node: Node,
        position: int,
        tokens: TokenArray,
        *,
        limit: int,
        table: BlockArray | None = None,
        lowest: int = Tier.DEVICE,
    ) -> tuple[Node, int]:
        """Follow ``tokens`` from block ``position`` in ``node``, at most to block ``limit`` and
        to tier ``lowest``.

        Returns the node and position where the longest match ends, possibly inside an edge;
        ids of device blocks on the way are written to the same positions of ``table``, if
        given, which has room for ``limit`` ids. The tree is unchanged.
        """
        while True:
            stop = min(node.start + node.size, limit)
            if position < stop:
                first = position - node.start
                into = None if node.tier else table
                position += node.edge.common(first, tokens, position, stop, into)
                if position < stop:
                    return node, position
            if position >= limit:
                return node, position
            child = self.child(node, owner, tokens, position)
            if child is None:
                if node is not owner.published.root or owner.is_published:
                    return node, position
                child = owner.root
            if child.tier > lowest:
                return node, position
            node = child

    def child(self, node: Node, owner: Owner, tokens: TokenArray, position: int) -> Node | None:
        """The child of ``node`` that starts with the block of ``tokens`` at ``position`` and
        that ``owner`` may see: a published one first, else its own."""
        if not node.children:
            return None
        block = tokens[position * self.block_size : (position + 1) * self.block_size]
        if node.owner is owner.published and not owner.is_published:
            found = self._child(node, owner.published, block)
            if found is not None:
                return found
        return self._child(node, owner, block)

    def _child(self, node: Node, owner: Owner, block: TokenArray) -> Node | None:
        child = node.children.get(self.hash_block(block, owner.salt))
        if child is None:
            return None
        wanted = block.tobytes()
        while child is not None:
            if child.owner is owner and child.edge.starts_with(wanted):
                return child
            child = child.twin
        return None

    def climb(self, node: Node, position: int) -> Node:
        """The node on the path to ``node`` in which block ``position`` is the end or inside."""
        while node.parent is not None and position <= node.start:
            node = node.parent
        return node

    def class_beyond(self, node: Node, position: int) -> int:
        """The class that the part of ``node`` behind ``position`` would have on its own."""
        classes = [holder.klass for holder in node.holders if holder.length > position]
        classes += [child.klass for child in self.children(node)]
        return max(classes, default=IDLE)

    def nodes(self) -> Iterator[Node]:
        """All nodes but the roots, parents before children."""
        waiting = [owner.root for owner in self.owners()]
        while waiting:
            node = waiting.pop()
            if node.parent is not None:
                yield node
            waiting.extend(self.children(node))

    # Holding

    def last_use_below(self, node: Node) -> int:
        """Tick of the last request that went to ``node`` or through it."""
        last_use, found = 0, [node]
        while found:
            node = found.pop()
            last_use = max(last_use, node.last_use)
            found += self.children(node)
        return last_use

    def hold(self, holder: Holder, klass: int) -> None:
        """Change the class in which ``holder`` keeps its path."""
        delta = UNIT[klass] - UNIT[holder.klass]
        holder.klass = klass
        if delta:
            self._add_weight(holder.node, delta)

    def move(self, holder: Holder, node: Node, length: int) -> None:
        """Put ``holder`` at block position ``length`` of ``node``, keeping its class."""
        if holder.metered:
            self.meter.moves(holder, node, length)
        old = holder.node
        holder.length = length
        if old is node:
            return
        holder.node = node
        unit = UNIT[holder.klass]
        if node.parent is not None:
            node.holders.add(holder)
            if unit:
                self._add_weight(node, unit)
        if old.parent is not None:
            old.holders.discard(holder)
            if unit:
                self._add_weight(old, -unit)

    def drop(self, holder: Holder) -> None:
        """Remove ``holder``; its blocks stay in the tree, held by nobody on its account."""
        self.move(holder, holder.owner.root, 0)

    def _add_weight(self, node: Node, delta: int) -> None:
        while node.parent is not None:
            weight = node.weight = node.weight + delta
            klass = class_of(weight)
            old = node.klass
            if klass == old:
                return
            self._reclass(node, klass)
            if klass == IDLE and not node.branches:
                self._on_idle_leaf(node)
            delta = UNIT[klass] - UNIT[old]
            node = node.parent

    def _reclass(self, node: Node, klass: int) -> None:
        """Put ``node`` and its blocks into another class."""
        old, node.klass, size = node.klass, klass, node.size
        account = node.owner.account
        for counts in (self.tier_blocks[node.tier], account.tier_blocks[node.tier]):
            counts[old] -= size
            counts[klass] += size

    def _count(self, node: Node, klass: int, blocks: int) -> None:
        self.tier_blocks[node.tier][klass] += blocks
        node.owner.account.tier_blocks[node.tier][klass] += blocks

    # Growing

    def may_append(self, holder: Holder) -> bool:
        """Whether the node at whose end ``holder`` stands may be lengthened in place: nobody
        else stands there, nothing branches off, and it is the holder's own."""
        node = holder.node
        return len(node.holders) == 1 and not node.children and node.owner is holder.owner

    def append(self, node: Node, tokens: TokenArray, blocks: BlockArray) -> None:
        """Copy whole blocks to the end of ``node``, which ``may_append`` has allowed."""
        self.meter.changes(node)
        node.edge.append(tokens, blocks)
        node.size += len(blocks)
        node.ghost = node.chain = None
        self._count(node, node.klass, len(blocks))

    def add_leaf(
        self,
        parent: Node,
        owner: Owner,
        tokens: TokenArray,
        blocks: BlockArray,
        *,
        tier: int = Tier.DEVICE,
    ) -> Node:
        """Copy whole blocks into a new child of ``parent``. No child starts with the same."""
        key = self.hash_block(tokens[: self.block_size], owner.salt)
        edge = Edge(self._shop)
        edge.append(tokens, blocks)
        leaf = Node(owner, parent=parent, start=parent.end, edge=edge, size=len(blocks), key=key)
        leaf.twin = parent.children.get(key)
        parent.children[key] = leaf
        leaf.tier = tier
        parent.branches += parent.tier == tier
        self.num_nodes += 1
        self._count(leaf, IDLE, leaf.size)
        return leaf

    def split(self, node: Node, position: int) -> Node:
        """Cut ``node`` at a block position inside it and return the new upper part.

        The lower part stays the same object, so that holders deeper down need no change;
        holders that end at or above the cut move to the upper part.
        """
        cut = position - node.start
        parent = node.parent
        assert parent is not None
        assert 0 < cut < node.size
        edge = node.edge.cut(cut)
        self.num_nodes += 1
        upper = Node(node.owner, parent=parent, start=node.start, edge=edge, size=cut, key=node.key)
        self._replace(parent, node, upper)
        self.meter.splits(node, upper, position)
        node.start, node.size, node.parent = position, node.size - cut, upper
        node.key = self.hash_block(node.edge.block_tokens(0), node.owner.salt)
        upper.children[node.key] = node
        upper.tier, upper.placed, upper.branches = node.tier, node.placed, 1
        upper.busy = node.busy
        if node.snapshots:
            self._share_snapshots(node, upper)
        self._share_holders(node, upper)
        return upper

    def _share_snapshots(self, lower: Node, upper: Node) -> None:
        kept = lower.snapshots or []
        upper.snapshots = [each for each in kept if each.blocks <= upper.end] or None
        lower.snapshots = [each for each in kept if each.blocks > upper.end] or None
        for each in upper.snapshots or ():
            each.node = upper

    def _share_holders(self, lower: Node, upper: Node) -> None:
        old = lower.klass
        moved = 0
        for holder in [h for h in lower.holders if h.length <= upper.end]:
            lower.holders.discard(holder)
            upper.holders.add(holder)
            holder.node = upper
            moved += UNIT[holder.klass]
        lower.weight -= moved
        klass = class_of(lower.weight)
        upper.weight = moved + UNIT[klass]
        upper.klass = old
        upper.last_use = lower.last_use
        if klass != old:
            self._reclass(lower, klass)
            if klass == IDLE and not lower.branches:
                self._on_idle_leaf(lower)

    # Moving between tiers

    def place(self, node: Node, tier: int, blocks: BlockArray, tick: int) -> BlockArray:
        """Give ``node`` other blocks, of ``tier``, and return those it had, int32, a copy.

        The caller sees to it that tiers never rise along a path.
        """
        parent = node.parent
        assert parent is not None
        self.meter.changes(node)
        old = node.edge.exchange(blocks)
        self._count(node, node.klass, -node.size)
        if parent.tier == node.tier:
            parent.branches -= 1
        node.tier, node.placed, node.busy = tier, tick, False
        node.branches = sum(child.tier == tier for child in self.children(node))
        if parent.tier == tier:
            parent.branches += 1
        self._count(node, node.klass, node.size)
        for idle in (node, parent):
            if idle.klass == IDLE and not idle.branches and idle.parent is not None:
                self._on_idle_leaf(idle)
        if node.snapshots:
            self.on_place(node)
        return old

    def join(self, node: Node) -> None:
        """Make one edge of ``node`` and its parent, if nothing begins or ends between them."""
        upper = node.parent
        assert upper is not None
        if (
            upper.parent is None
            or upper.holders
            or len(upper.children) > 1
            or node.twin is not None
            or upper.busy
            or node.busy
            or (upper.tier, upper.owner) != (node.tier, node.owner)
            or upper.last_use > node.last_use
        ):
            return
        self.meter.joins(node, upper)
        node.edge.prepend(upper.edge)
        node.start, node.key, node.parent = upper.start, upper.key, upper.parent
        node.size += upper.size
        if upper.snapshots:
            for each in upper.snapshots:
                each.node = node
            node.snapshots = upper.snapshots + (node.snapshots or [])
        self._replace(upper.parent, upper, node)
        self.num_nodes -= 1
        upper.size = 0

    # Shrinking

    def trim(self, leaf: Node, keep: int) -> BlockArray:
        """Cut an IDLE ``leaf`` to its first ``keep`` blocks and return the ids of the rest,
        int32, for the caller to keep or to free. With ``keep`` 0 the leaf is gone.

        Holders beyond the cut fall back to it and are told by ``shortened``.
        """
        assert leaf.klass == IDLE
        assert not leaf.children
        count = leaf.size - keep
        self._count(leaf, IDLE, -count)
        self.meter.changes(leaf)
        freed = leaf.edge.trim(count)
        leaf.size = keep
        leaf.chain = None
        if leaf.snapshots:
            self._cut_snapshots(leaf)
        if keep:
            end = leaf.start + keep
            for holder in leaf.holders:
                if holder.length > end:
                    holder.length = end
                    holder.shortened()
        else:
            self._remove(leaf)
        return freed

    def _cut_snapshots(self, leaf: Node) -> None:
        lost = [each for each in leaf.snapshots or () if each.blocks > leaf.end]
        leaf.snapshots = [each for each in leaf.snapshots or () if each.blocks <= leaf.end] or None
        for each in lost:
            self.on_cut(each)

    def add_snapshot(self, node: Node, kept: Kept) -> None:
        """Note a state that is kept at a position in ``node``, or at a root before any block."""
        if node.snapshots is None:
            node.snapshots = []
        insort(node.snapshots, kept, key=lambda each: (each.blocks, each.position, each.number))

    def remove_snapshot(self, node: Node, kept: Kept) -> None:
        """Forget it."""
        assert node.snapshots is not None
        node.snapshots.remove(kept)
        node.snapshots = node.snapshots or None

    def _remove(self, leaf: Node) -> None:
        parent = leaf.parent
        assert parent is not None
        self.num_nodes -= 1
        self._replace(parent, leaf, None)
        if parent.tier == leaf.tier:
            parent.branches -= 1
        self.meter.removes(leaf)
        for holder in leaf.holders:
            holder.node = parent
            holder.length = leaf.start
            if parent.parent is not None:
                parent.holders.add(holder)
            holder.shortened()
        leaf.holders.clear()
        if parent.parent is None:
            return
        parent.last_use = max(parent.last_use, leaf.last_use)
        if parent.klass == IDLE and not parent.branches:
            self._on_idle_leaf(parent)

    def _replace(self, parent: Node, child: Node, other: Node | None) -> None:
        """Put ``other`` (same key), or nothing, in the place of ``child``."""
        follow = child.twin
        child.twin = None
        if other is not None:
            other.twin = follow
        before = parent.children[child.key]
        if before is not child:
            while before.twin is not child:
                assert before.twin is not None
                before = before.twin
            before.twin = other if other is not None else follow
            return
        replacement = other if other is not None else follow
        if replacement is None:
            del parent.children[child.key]
        else:
            parent.children[child.key] = replacement

    def children(self, node: Node) -> Iterator[Node]:
        for child in node.children.values():
            twin: Node | None = child
            while twin is not None:
                yield twin
                twin = twin.twin
