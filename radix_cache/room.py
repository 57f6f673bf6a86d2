"""Making room on the device: how many blocks a turn could have, and who gives way for it."""

from collections.abc import Callable

from radix_cache.block_pool import BlockPool, OutOfBlocks
from radix_cache.eviction import IdleLeaves
from radix_cache.handle import CachedSequence, SessionHandle
from radix_cache.misses import MissAccount
from radix_cache.nodes import IDLE, RUNNING, Node, Tier
from radix_cache.retention import Retention
from radix_cache.stats import Counters
from radix_cache.tiers import RUN_BLOCKS, LowerTiers
from radix_cache.tree import RadixTree


class Room:
    """Evicts from the device, block by block from the ends of transcripts.

    ``running`` are the sequences that run, ``sessions`` all sessions; both belong to the cache.
    """

    def __init__(
        self,
        *,
        tree: RadixTree,
        pool: BlockPool,
        idle: IdleLeaves,
        retention: Retention,
        misses: MissAccount,
        counters: Counters,
        running: set[CachedSequence],
        sessions: dict[str, SessionHandle],
        clock: Callable[[], float],
    ) -> None:
        self._tree = tree
        self._pool = pool
        self._retention = retention
        self._misses = misses
        self._counters = counters
        self._running = running
        self._sessions = sessions
        self._clock = clock
        self._idle = idle
        self.inside: set[CachedSequence] = set()
        """Running sequences that may end inside an edge, which is locked whole."""
        self.lower: LowerTiers | None = None

    def available(self, sequence: CachedSequence | None) -> int:
        """Free blocks and those that may be evicted for ``sequence``, None for a cold turn."""
        rights = self._rights(sequence)
        blocks = self._pool.num_free + sum(self._tree.class_blocks[: rights + 1])
        return blocks + self._locked_too_much(rights) if self.inside else blocks

    def _rights(self, sequence: CachedSequence | None) -> int:
        alone = len(self._running) <= (sequence is not None)
        return self._retention.rights(sequence, alone=alone)

    def _locked_too_much(self, rights: int) -> int:
        """Blocks behind the position where running sequences end inside an edge."""
        ends: dict[Node, int] = {}
        for sequence in list(self.inside):
            handle = sequence.handle
            if handle is None or handle.length == handle.node.end:
                self.inside.discard(sequence)
            else:
                ends[handle.node] = max(handle.length, ends.get(handle.node, 0))
        return sum(
            node.end - end
            for node, end in ends.items()
            if self._tree.class_beyond(node, end) <= rights
        )

    def make(self, sequence: CachedSequence, missing: int, wanted: int, reserve: int) -> None:
        """Free ``missing`` blocks for a sequence that wants ``wanted``.

        Raises:
            OutOfBlocks: they cannot be had; nothing has changed.
        """
        if missing > self._tree.class_blocks[IDLE]:
            available = max(0, self.available(sequence) - reserve)
            if wanted > available:
                raise OutOfBlocks(f"asked for {wanted} blocks, {available} are available")
        self._unlock_tails()
        while missing > 0:
            leaf = self._idle.oldest()
            if leaf is None:
                rights = self._rights(sequence)
                self._retention.break_claim(rights, self._sessions.values())
                continue
            missing -= self._evict_tail(leaf, missing)
        self._retention.keep_rest()

    def bring_back(self, handle: SessionHandle, tick: int, reserve: int) -> None:
        """Order a session's blocks one tier up, as far as free blocks but ``reserve`` and idle
        ones reach. They count as used at ``tick``."""
        assert self.lower is not None
        klass = handle.klass
        self._tree.hold(handle, RUNNING)  # so that it does not make room for itself
        self.lower.read(handle.node, handle.length)
        far = handle.node
        while far.tier == Tier.DISK and far.parent is not None:
            far = far.parent
        near = far
        while near.tier and near.parent is not None:
            near = near.parent
        start = near.end
        missing = far.end - start - (self._pool.num_free - reserve)
        if missing > 0:
            missing -= self._make_from_idle(missing)
        end = far.end - max(0, missing)
        if end > start:
            far = self._tree.climb(far, end)
            if end < far.end:
                far = self._tree.split(far, end)
            self.lower.promote(far, start, self._pool.take(end - start).copy())
            far.last_use = handle.node.last_use = tick
        self._tree.hold(handle, klass)

    def _make_from_idle(self, missing: int) -> int:
        """Free up to ``missing`` blocks of idle sessions; returns how many."""
        self._unlock_tails()
        freed = 0
        while freed < missing:
            leaf = self._idle.oldest()
            if leaf is None:
                break
            freed += self._evict_tail(leaf, missing - freed)
        return freed

    def _unlock_tails(self) -> None:
        """Cut edges where running sequences end inside: what follows may be the oldest."""
        for sequence in self.inside:
            handle = sequence.handle
            if handle is not None and handle.length < handle.node.end:
                self._tree.split(handle.node, handle.length)
        self.inside.clear()

    def _evict_tail(self, leaf: Node, missing: int) -> int:
        cut = min(missing, leaf.size)
        if self.lower is not None:
            cut = min(leaf.size, max(cut, RUN_BLOCKS))
            self._pool.release(self.lower.demote(leaf, cut))
        else:
            self.forgetting(leaf, leaf.size - cut)
            self._pool.release(self._tree.trim(leaf, leaf.size - cut))
        return cut

    def forgetting(self, node: Node, keep: int) -> None:
        """Account for all but the first ``keep`` blocks of ``node``, which leave the cache."""
        cause = self._misses.evicting(node, keep, self._clock())
        self._counters.evicted_tokens[cause] += (node.size - keep) * self._tree.block_size
