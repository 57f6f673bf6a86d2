"""Eviction from the device: how many blocks a sequence could have, and whose are freed for it.

Knows who may take whose blocks only from ``radix_cache.retention``, and which tenant holds too
much from ``radix_cache.tenant_shares``. What tenants have above their share goes first, idle
blocks before leased ones; then idle blocks of the others, then what the sequence has a right to.
Always true: what ``available`` says can be had, and no more.
"""

from collections import Counter
from collections.abc import Mapping
from typing import Final

import numpy as np

from radix_cache.block_pool import BlockArray, BlockPool, OutOfBlocks
from radix_cache.handle import BranchHandle, CachedSequence
from radix_cache.idle_leaves import IdleLeaves
from radix_cache.known_branches import KnownBranches
from radix_cache.misses import MissAccount
from radix_cache.nodes import IDLE, LEASED, RUNNING, UNIT, Account, Node, Tier, path_blocks
from radix_cache.retention import Retention
from radix_cache.tenant_shares import Demand
from radix_cache.tiers import RUN_BLOCKS, LowerTiers
from radix_cache.tree import RadixTree

_DEVICE: Final = int(Tier.DEVICE)
"""A plain integer: it is looked up and compared for every node that is evicted."""
_NOTHING: Final[Mapping[tuple[Account, int], int]] = {}


class Evictor:
    """Evicts from the device, block by block from the ends of transcripts.

    Args:
        tree, pool: what is evicted, and where its blocks go.
        idle: says which leaf goes first, and how far each tenant is above its share.
        branches: who runs, and who else may lose blocks.
        retention: who may evict whom.
        misses: is told what is forgotten.
        lower: gets what is evicted; without it that is forgotten.
        reserve: free blocks for sequences that have some already.
    """

    def __init__(
        self,
        *,
        tree: RadixTree,
        pool: BlockPool,
        idle: IdleLeaves,
        branches: KnownBranches,
        retention: Retention,
        misses: MissAccount,
        lower: LowerTiers | None,
        reserve: int,
    ) -> None:
        self._tree = tree
        self._pool = pool
        self._idle = idle
        self._shares = idle.shares
        self._branches = branches
        self._retention = retention
        self._misses = misses
        self._lower = lower
        self._reserve = reserve
        self._slots = branches.slots

    def available(self, sequence: CachedSequence | None) -> int:
        """Free blocks and those that may be evicted for ``sequence``, None for a cold sequence;
        without the reserve for one that has not begun to run."""
        rights = self.rights(sequence)
        blocks = self._pool.num_free + sum(self._tree.class_blocks[: rights + 1])
        inside = self._branches.ending_inside()
        unlocked = self._locked_too_much(inside) if inside else _NOTHING
        blocks += sum(count for (_, klass), count in unlocked.items() if klass <= rights)
        if rights < LEASED:
            blocks += self._retention.leased_above_shares(unlocked)
        if sequence is None or not sequence.admitted:
            windows = self._branches.windows
            if windows is not None and not windows.may_admit(sequence):
                return 0
            blocks -= self._reserve
        return max(0, blocks)

    def rights(self, sequence: CachedSequence | None) -> int:
        """The highest class of blocks and states that may go for ``sequence``."""
        return self._retention.rights(sequence, alone=self._branches.is_alone(sequence))

    def _locked_too_much(self, inside: list[BranchHandle]) -> Counter[tuple[Account, int]]:
        """Blocks behind the positions where running sequences end ``inside`` edges, by owner and
        by the class that they have on their own."""
        ends: dict[Node, int] = {}
        for handle in inside:
            ends[handle.node] = max(handle.length, ends.get(handle.node, 0))
        found: Counter[tuple[Account, int]] = Counter()
        for node, end in ends.items():
            found[node.owner.account, self._tree.class_beyond(node, end)] += node.end - end
        return found

    def make_room(self, sequence: CachedSequence, wanted: int) -> None:
        """See to it that ``wanted`` blocks are free for ``sequence``.

        Raises:
            OutOfBlocks: they cannot be had; nothing has changed.
        """
        missing = wanted - self._pool.num_free
        if not sequence.admitted:
            missing += self._reserve
        if missing > 0 and wanted:
            self._free(sequence, missing, wanted)

    def _free(self, sequence: CachedSequence, missing: int, wanted: int) -> None:
        if missing > self._tree.class_blocks[IDLE]:
            available = self.available(sequence)
            if wanted > available:
                raise OutOfBlocks(f"asked for {wanted} blocks, {available} are available")
        self._unlock_tails()
        assert sequence.handle is not None
        demand = Demand(account=sequence.handle.owner.account, blocks=wanted)
        while missing > 0:
            leaf = self._idle.first(_DEVICE, demand)
            excess = self._excess(leaf, demand) if leaf is not None else 0
            if excess <= 0 and self._retention.break_lease_above_share(demand):
                continue
            if leaf is None:
                rights = self.rights(sequence)
                self._retention.break_claim(rights, self._branches.handles, demand)
                continue
            missing -= self._evict_tail(leaf, missing, excess)
        self._retention.keep_rest()

    def bring_back(self, handle: BranchHandle) -> None:
        """Order a branch's blocks one tier up, as far as free blocks but the reserve and idle
        ones reach, unless no sequence could begin at its end. They count as used now."""
        assert self._lower is not None
        below = self._lower.below
        if below.reach(handle.node, handle.length) < handle.length:
            return
        tick, klass = self._tree.next_tick(), handle.klass
        self._tree.hold(handle, RUNNING)  # so that it is not evicted for itself
        self._lower.read(handle.node, handle.length)
        if (
            handle.end is not None
            and self._slots is not None
            and self._slots.kept.lower is not None
        ):
            self._slots.kept.lower.fetch(handle.end)
        with below.kept(handle.node, below.rows_read_from(handle.length)):
            self._bring_up(handle, tick)
        self._tree.hold(handle, klass)

    def _bring_up(self, handle: BranchHandle, tick: int) -> None:
        """Bring what a branch has in host memory to the device, as far as there is room."""
        assert self._lower is not None
        far = handle.node
        while far.tier == Tier.DISK and far.parent is not None:
            far = far.parent
        near = far
        while near.tier and near.parent is not None:
            near = near.parent
        start = near.end
        missing = far.end - start - (self._pool.num_free - self._reserve)
        if missing > 0:
            demand = Demand(account=handle.owner.account, blocks=missing)
            missing -= self._make_from_idle(missing, demand)
        end = far.end - max(0, missing)
        if end > start:
            far = self._tree.climb(far, end)
            if end < far.end:
                far = self._tree.split(far, end)
            targets = self._pool.take(end - start).copy()
            if self._has_window_blocks(handle, start, targets):
                self._lower.promote(far, start, targets)
                far.last_use = handle.node.last_use = tick
            else:
                self._pool.release(targets)

    def take_down(self, handle: BranchHandle, blocks: list[int]) -> bool:
        """Move the last device blocks of a branch below the device, since the rows that its next
        sequence reads are about to go: there they stay. It is leased no longer then.

        Args:
            blocks: those with such rows; as many go as are in one node.

        Returns:
            False: the branch runs or is about to, others hold these blocks, or there is no room.
        """
        lower, node = self._lower, handle.node
        if lower is None or handle.sequence is not None or handle.klass > LEASED:
            return False
        while node.tier and node.parent is not None:
            node = node.parent
        alone = node.weight in (0, UNIT[handle.klass])
        if node.parent is None or node.branches or node.busy or not alone:
            return False
        cut = min(len(blocks), node.size)
        last = node.edge.block_ids()[-cut:]
        if not np.array_equal(last, blocks[-cut:]) or not lower.has_room(cut):
            return False
        if handle.klass:
            self._retention.break_one(handle)
        self._pool.release(lower.demote(node, cut))
        return True

    def _has_window_blocks(self, handle: BranchHandle, start: int, targets: BlockArray) -> bool:
        """Whether those of ``targets``, for a branch's blocks from block ``start`` on, have window
        blocks now that the branch's next sequence reads."""
        windows = self._branches.windows
        if windows is None:
            return True
        assert self._lower is not None
        length, end = handle.length, start + len(targets)
        first = windows.kept_from(self._lower.below.along(handle.node, length))
        if first >= end:
            return True
        near = self._tree.climb(handle.node, start)
        table = np.concatenate([path_blocks(near, start), targets])
        return windows.bring_back(handle, table[first:], whole=end == length)

    def drop(self, handle: BranchHandle) -> None:
        """Take a branch that does not run off the tree, and off the device what nobody else
        holds and nothing hangs below."""
        node = handle.node
        self._unlock_tails()
        if self._slots is not None:
            self._slots.drop_end(handle)
        self._retention.drop(handle)
        while node.tier and node.parent is not None:
            node = node.parent
        while node.parent is not None and node.klass == IDLE:
            if node.takers or node.branches or node.busy:
                return
            parent = node.parent
            if self._lower is not None:
                self._pool.release(self._lower.demote(node, node.size))
            else:
                self._misses.forgetting(node, 0)
                self._pool.release(self._tree.trim(node, 0))
            node = parent

    def _make_from_idle(self, missing: int, demand: Demand) -> int:
        """Free up to ``missing`` blocks of idle branches, but not of tenants within their share
        for one that is above it; returns how many."""
        self._unlock_tails()
        freed = 0
        while freed < missing:
            leaf = self._idle.first(_DEVICE, demand)
            if leaf is None:
                break
            excess = self._excess(leaf, demand)
            if excess <= 0 < self._shares.excess(demand.account, _DEVICE, demand):
                break
            freed += self._evict_tail(leaf, missing - freed, excess)
        return freed

    def _excess(self, leaf: Node, demand: Demand) -> int:
        """Blocks that the tenant of ``leaf`` has above its share."""
        return self._shares.excess(leaf.owner.account, _DEVICE, demand)

    def _unlock_tails(self) -> None:
        """Cut edges where running sequences end inside: what follows may be the oldest."""
        for handle in self._branches.take_ending_inside():
            if handle.length < handle.node.end:  # the cut for another may have been its own
                self._tree.split(handle.node, handle.length)

    def _evict_tail(self, leaf: Node, missing: int, excess: int) -> int:
        """Evict from the end of ``leaf``, no more than may go before another tenant's turn."""
        most = leaf.size
        if self._idle.contested(_DEVICE) or len(self._shares.active()) > 1:
            most = min(most, self._shares.to_next_level(excess, _DEVICE))
        if self._slots is not None and leaf.bare > 0:
            most = min(most, leaf.bare)
        cut = min(missing, most)
        if self._lower is not None:
            cut = min(most, max(cut, RUN_BLOCKS))
            self._pool.release(self._lower.demote(leaf, cut))
        else:
            self._misses.forgetting(leaf, leaf.size - cut)
            self._pool.release(self._tree.trim(leaf, leaf.size - cut))
        return cut
