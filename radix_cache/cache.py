"""The prefix cache: the only door to the radix tree and the block pool.

A session holds the cache by the hand: its handle says where its transcript ends in the
tree, so that the next turn is matched without looking at what is already there. A handle is
not a lock. While a turn runs, its sequence locks the path, on the deepest node only;
between turns ``radix_cache.retention`` says who may evict its blocks, always from the end,
and the handle is cut to what is left. Ids and counts only: no
tensors, no wall clock, no threads.

Always true: free + evictable + protected + reserved == total, and every block is free, in
one node of the tree, or private to one running sequence.
"""

from collections.abc import Callable
from typing import Final, Literal

import numpy as np

from radix_cache.audit import check_partition, check_table, check_tree
from radix_cache.block_pool import BlockPool, OutOfBlocks
from radix_cache.edge import TokenArray
from radix_cache.eviction import IdleLeaves
from radix_cache.handle import CachedSequence as CachedSequence  # noqa: PLC0414
from radix_cache.handle import SessionHandle
from radix_cache.leases import Leases
from radix_cache.misses import MissAccount
from radix_cache.nodes import IDLE, RUNNING, Node, Owner
from radix_cache.retention import Retention
from radix_cache.stats import CacheStats, Counters
from radix_cache.tree import RadixTree, hash_tokens

Policy = Literal["lease", "lru"]

_WARM_SHARE: Final = 0.8


class PrefixCache:
    """Finds, locks, hands out and publishes KV blocks for the turns of sessions.

    Not thread-safe: only the engine loop touches it.

    Args:
        num_blocks: size of the pool.
        block_size: tokens per block.
        clock: seconds, any origin, never decreasing.
        policy: ``lease``, or ``lru``: leases and queued sessions protect nothing.
        reserve_blocks: free blocks that only turns may take which have some already.
        lease_cap_s: no lease is longer.
        kappa: seconds of lease per second that restoring the transcript would cost.
        restore_cost: tokens of a transcript -> seconds to bring it back. None: a turn is
            leased on the caller's word only.
        residency_blocks: how many blocks leases may hold per tenant; None: any number.
        rescue_wait_s: a turn that is alone waits for leases that end within this time
            before it breaks any.
        ghost_records: evicted runs remembered for the account of misses.
        seed: mixed into the hashes that find children.
        hash_block: hash of (tokens of a block, seed), to find children by.
        debug: check every invariant after every call.

    Raises:
        ValueError: a size or time that makes no sense.
    """

    def __init__(
        self,
        num_blocks: int,
        block_size: int = 16,
        *,
        clock: Callable[[], float],
        policy: Policy = "lease",
        reserve_blocks: int = 0,
        lease_cap_s: float = 120.0,
        kappa: float = 10.0,
        restore_cost: Callable[[int], float] | None = None,
        residency_blocks: int | None = None,
        rescue_wait_s: float = 0.0,
        ghost_records: int = 16384,
        seed: int = 0,
        hash_block: Callable[[TokenArray, int], int] = hash_tokens,
        debug: bool = False,
    ) -> None:
        if not 0 <= reserve_blocks < num_blocks:
            raise ValueError(f"a reserve of {reserve_blocks} of {num_blocks} blocks")
        if policy not in ("lease", "lru"):
            raise ValueError(f"cache policy {policy!r}: 'lease' or 'lru'")
        self.block_size = block_size
        self.num_blocks = num_blocks
        self._clock = clock
        self._reserve = reserve_blocks
        self._debug = debug
        self._pool = BlockPool(num_blocks)
        self._idle = IdleLeaves()
        self._tree = RadixTree(
            block_size, seed=seed, on_idle_leaf=self._idle.offer, hash_block=hash_block
        )
        self._counters = Counters()
        self._retention = Retention(
            self._tree,
            Leases(cap_s=lease_cap_s, kappa=kappa, restore_cost=restore_cost),
            self._counters,
            clock=clock,
            leasing=policy == "lease",
            residency_blocks=residency_blocks,
            rescue_wait_s=rescue_wait_s,
        )
        self._misses = MissAccount(self._tree, capacity=ghost_records)
        self._sessions: dict[str, SessionHandle] = {}
        self._running: set[CachedSequence] = set()
        self._inside: set[CachedSequence] = set()
        """Running sequences that may end inside an edge, which is locked whole."""
        self._num_private = 0
        self._tick = 0

    @property
    def usable_blocks(self) -> int:
        """Blocks a turn can have when it is alone: one that needs more never fits."""
        return self.num_blocks - self._reserve

    # Matching

    def match_length(
        self,
        *,
        session_id: str,
        tenant: str | None,
        tokens: TokenArray,
        base_session_id: str | None = None,
        base_offset: int | None = None,
    ) -> int:
        """Tokens that ``begin`` with the same arguments would find. Changes nothing.

        Raises:
            ValueError: as for ``begin``.
        """
        owner = self._owner(tenant)
        self._check(tokens, session_id, owner)
        limit = (len(tokens) - 1) // self.block_size
        base = self._base(base_session_id, owner)
        trusted = _trusted_blocks(base, base_offset, limit, self.block_size)
        node, position = self._start(owner, base, trusted)
        _, position = self._tree.walk(owner, node, position, tokens, limit=limit)
        return position * self.block_size

    def begin(
        self,
        *,
        session_id: str,
        tenant: str | None,
        tokens: TokenArray,
        base_session_id: str | None = None,
        base_offset: int | None = None,
    ) -> CachedSequence:
        """Find the longest cached prefix of ``tokens``, lock it, and open a turn.

        Whole blocks only, and at most ``len(tokens) - 1`` tokens, so that the turn has
        something to compute. Nothing is allocated. The handle of ``session_id`` is made, or
        moved to the match, and is busy until ``finish``.

        Args:
            session_id: the branch this turn writes to.
            tenant: who owns it; nothing of another tenant is ever found. None: the operator,
                whose prefixes every tenant finds and which stay until their session is
                released.
            tokens: int32 [n], n >= 1, the whole prompt.
            base_session_id: the session whose transcript this one continues (the same id)
                or forks.
            base_offset: how many leading tokens are the base's own, by construction; they
                are not compared again. None: everything is compared.

        Raises:
            ValueError: not int32, empty, a session that is busy or another tenant's. Nothing
                has changed.
        """
        owner = self._owner(tenant)
        handle = self._check(tokens, session_id, owner)
        if handle is not None and handle.sequence is not None:
            raise ValueError(f"session {session_id!r} has an open turn")
        self._retention.end_leases()
        base = self._base(base_session_id, owner)
        is_new = handle is None
        if handle is None:
            handle = self._sessions[session_id] = SessionHandle(session_id, owner)
        num_tokens = len(tokens)
        limit = (num_tokens - 1) // self.block_size
        table = handle.table
        if len(table) <= limit:
            table = np.empty(limit + limit // 4 + 8, dtype=np.int32)
        trusted = _trusted_blocks(base, base_offset, limit, self.block_size)
        if trusted and base is not None and base.table is not table:
            table[:trusted] = base.table[:trusted]
        node, position = self._start(owner, base, trusted)
        if position < limit and (node.children or position < node.end):
            node, position = self._tree.walk(
                owner, node, position, tokens, limit=limit, table=table
            )
        sequence = CachedSequence(handle, table, num_shared=position, num_prompt=num_tokens)
        sequence.num_cached_tokens = position * self.block_size
        sequence.is_new = is_new
        self._misses.explain(sequence, handle, tokens, node, base=base, base_offset=base_offset)
        self._note_reusable(sequence, handle, base, base_offset, limit)
        handle.sequence = sequence
        handle.table = table
        self._tree.move(handle, node, position)
        self._tree.hold(handle, RUNNING)
        self._running.add(sequence)
        if position < node.end:
            self._inside.add(sequence)
        if self._debug:
            self.check()
        return sequence

    def _owner(self, tenant: str | None) -> Owner:
        return self._tree.published if tenant is None else self._tree.owner(tenant)

    def _check(self, tokens: TokenArray, session_id: str, owner: Owner) -> SessionHandle | None:
        if tokens.dtype != np.int32 or tokens.ndim != 1 or not tokens.flags.c_contiguous:
            raise ValueError(
                f"tokens are {tokens.dtype} {list(tokens.shape)}, contiguous int32 [n] is needed"
            )
        if not len(tokens):
            raise ValueError("an empty prompt")
        handle = self._sessions.get(session_id)
        if handle is not None and handle.owner is not owner:
            raise ValueError(f"session {session_id!r} belongs to another tenant")
        return handle

    def _base(self, base_session_id: str | None, owner: Owner) -> SessionHandle | None:
        if base_session_id is None:
            return None
        base = self._sessions.get(base_session_id)
        return base if base is not None and base.owner is owner else None

    def _start(self, owner: Owner, base: SessionHandle | None, trusted: int) -> tuple[Node, int]:
        """Where a match begins: where ``base`` vouches for, else at the top."""
        if not trusted or base is None:
            return self._tree.start(owner), 0
        node = base.node
        return (node if trusted == base.length else self._tree.climb(node, trusted)), trusted

    def _note_reusable(
        self,
        sequence: CachedSequence,
        handle: SessionHandle,
        base: SessionHandle | None,
        base_offset: int | None,
        limit: int,
    ) -> None:
        """Note what an endless cache would still hold, and whether enough of it is here."""
        known = 0
        if base is not None:
            known = base.known
            if base_offset is not None:
                known = min(known, base_offset // self.block_size)
        handle.known = known
        known = min(known, limit)
        sequence.warm = known > 0 and sequence.num_shared_blocks >= _WARM_SHARE * known

    # Blocks

    def available_blocks(self, sequence: CachedSequence | None = None) -> int:
        """How many blocks ``allocate`` would hand out now: free ones and those that may be
        evicted for this sequence; None asks for a cold turn that has not begun."""
        self._retention.end_leases()
        blocks = self._pool.num_free + self._evictable(self._rights(sequence))
        if sequence is None or not sequence.admitted:
            blocks -= self._reserve
        return max(0, blocks)

    def _rights(self, sequence: CachedSequence | None) -> int:
        alone = len(self._running) <= (sequence is not None)
        return self._retention.rights(sequence, alone=alone)

    def _evictable(self, rights: int) -> int:
        blocks = sum(self._tree.class_blocks[: rights + 1])
        if not self._inside:
            return blocks
        # Edges that running sequences lock whole, but end inside of.
        ends: dict[Node, int] = {}
        for sequence in list(self._inside):
            handle = sequence.handle
            if handle is None or handle.length == handle.node.end:
                self._inside.discard(sequence)
            else:
                ends[handle.node] = max(handle.length, ends.get(handle.node, 0))
        for node, end in ends.items():
            if self._tree.class_beyond(node, end) <= rights:
                blocks += node.end - end
        return blocks

    def allocate(self, sequence: CachedSequence, num_blocks: int) -> None:
        """Append ``num_blocks`` private blocks to the sequence's table, evicting if needed.

        The first call admits the turn: from then on it may use the reserve.

        Raises:
            OutOfBlocks: fewer are available; nothing has been allocated or evicted.
            ValueError: a negative number, a finished sequence.
        """
        handle = self._open(sequence)
        if num_blocks < 0:
            raise ValueError(f"allocate {num_blocks} blocks")
        usable = self._pool.num_free
        if not sequence.admitted:
            usable -= self._reserve
        if num_blocks > max(0, usable):
            self._make_room(sequence, num_blocks, num_blocks - usable)
        start = sequence.num_blocks
        end = start + num_blocks
        if end > len(sequence.table):
            table = np.empty(end + end // 4 + 8, dtype=np.int32)
            table[:start] = sequence.table[:start]
            sequence.table = handle.table = table
        sequence.table[start:end] = self._pool.take(num_blocks)
        sequence.num_blocks = end
        self._num_private += num_blocks
        if not sequence.admitted:
            sequence.admitted = True
            self._retention.turn_admitted(handle)
            self._counters.admitted(sequence)
        if self._debug:
            self.check()

    def _open(self, sequence: CachedSequence) -> SessionHandle:
        handle = sequence.handle
        if handle is None:
            raise ValueError("the sequence is finished")
        return handle

    def _make_room(self, sequence: CachedSequence, wanted: int, missing: int) -> None:
        """Evict ``missing`` blocks, or raise OutOfBlocks and change nothing."""
        tree = self._tree
        if missing > tree.class_blocks[IDLE]:
            available = self.available_blocks(sequence)
            if wanted > available:
                raise OutOfBlocks(f"asked for {wanted} blocks, {available} are available")
        for other in self._inside:  # what they lock too much may be the oldest
            handle = self._open(other)
            if handle.length < handle.node.end:
                tree.split(handle.node, handle.length)
        self._inside.clear()
        now = self._clock()
        while missing > 0:
            leaf = self._idle.oldest()
            if leaf is None:
                rights = self._rights(sequence)
                self._retention.break_claim(rights, self._sessions.values())
                continue
            cut = min(missing, leaf.size)
            self._evict_tail(leaf, cut, now)
            missing -= cut

    def _evict_tail(self, leaf: Node, cut: int, now: float) -> None:
        cause = self._misses.evicting(leaf, leaf.size - cut, now)
        self._pool.release(self._tree.trim(leaf, leaf.size - cut))
        self._counters.evicted_tokens[cause] += cut * self.block_size

    def trim(self, sequence: CachedSequence, num_tokens: int) -> None:
        """Give private blocks back that ``num_tokens`` tokens do not reach. Blocks in the
        tree stay.

        Raises:
            ValueError: a finished sequence.
        """
        self._open(sequence)
        keep = max(-(-num_tokens // self.block_size), sequence.num_shared_blocks)
        self._release_private(sequence, keep)
        if self._debug:
            self.check()

    def _release_private(self, sequence: CachedSequence, keep: int) -> None:
        count = sequence.num_blocks - keep
        if count > 0:
            self._pool.release(sequence.table[keep : sequence.num_blocks])
            self._num_private -= count
            sequence.num_blocks = keep

    # Publishing

    def commit(self, sequence: CachedSequence, tokens: TokenArray) -> None:
        """Publish the blocks that are full: the tree keeps them from now on.

        Where an equal block is there already (another turn was faster), the table gets its
        id and the own block goes back to the pool.

        Args:
            tokens: int32 [n], all tokens from the first on whose KV is written. Those of an
                earlier commit are not looked at again.

        Raises:
            ValueError: more tokens than the table's blocks hold, a finished sequence; nothing
                has changed.
        """
        handle = self._open(sequence)
        size = self.block_size
        target = len(tokens) // size
        shared = sequence.num_shared_blocks
        if len(tokens) > sequence.num_blocks * size:
            raise ValueError(
                f"{len(tokens)} tokens, {sequence.num_blocks} blocks of {size} are allocated"
            )
        if target <= shared:
            return
        tree = self._tree
        node = handle.node
        if node.end == shared and tree.may_append(handle):
            tree.append(node, tokens[shared * size : target * size], sequence.table[shared:target])
            handle.length = target
        else:
            self._graft(sequence, handle, tokens, target)
        sequence.num_shared_blocks = target
        self._num_private -= target - shared
        if self._debug:
            self.check()

    def _graft(
        self, sequence: CachedSequence, handle: SessionHandle, tokens: TokenArray, target: int
    ) -> None:
        """Publish where the tree branches, or already has some of it."""
        tree, table, size = self._tree, sequence.table, self.block_size
        shared = sequence.num_shared_blocks
        own = table[shared:target].copy()
        node, position = tree.walk(
            handle.owner, handle.node, shared, tokens, limit=target, table=table
        )
        if position > shared:
            self._pool.release(own[: position - shared])
        if position < target:
            if position < node.end:
                node = tree.split(node, position)
            rest = tokens[position * size : target * size]
            node = tree.add_leaf(node, handle.owner, rest, table[position:target])
        elif position < node.end:
            self._inside.add(sequence)
        tree.move(handle, node, target)

    # Between turns

    def finish(
        self,
        sequence: CachedSequence,
        *,
        lease_s: float | None = None,
        keep_handle: bool = True,
    ) -> None:
        """End the turn: its private blocks are freed, its published ones stay in the tree.

        A turn that never allocated leaves its session as ``begin`` found it, lease included.

        Args:
            lease_s: how long to protect what it leaves, at most the cap; 0: not at all; None:
                as long as the restore cost suggests.
            keep_handle: False forgets the session.

        Raises:
            ValueError: a finished sequence.
        """
        handle = self._open(sequence)
        self._release_private(sequence, sequence.num_shared_blocks)
        self._running.discard(sequence)
        self._inside.discard(sequence)
        sequence.handle = None
        handle.sequence = None
        admitted = sequence.admitted
        current = self._sessions.get(handle.session_id) is handle
        keep = current and keep_handle and (admitted or not sequence.is_new)
        if handle.length < handle.node.end and (admitted or keep):
            self._tree.split(handle.node, handle.length)
        if admitted:
            handle.known = max(handle.known, handle.length)
            self._tick += 1
            handle.node.last_use = self._tick
        if keep:
            self._retention.turn_ended(handle, lease_s if admitted else 0.0)
        else:
            if current:
                del self._sessions[handle.session_id]
            self._retention.forget(handle)
        if self._debug:
            self.check()

    def release_session(self, session_id: str) -> None:
        """Forget a session's handle; its blocks stay in the tree, idle. While its turn is
        open the turn goes on, and nothing is kept when it ends. Unknown ids are ignored."""
        handle = self._sessions.pop(session_id, None)
        if handle is not None and handle.sequence is None:
            self._retention.forget(handle)

    def set_queued(self, session_id: str, queued: bool) -> None:
        """Say whether the session's next turn has arrived and waits; until it is admitted no
        other turn evicts the session, unless that one is alone. Unknown ids are ignored."""
        handle = self._sessions.get(session_id)
        if handle is None or handle.queued == queued:
            return
        handle.queued = queued
        if handle.sequence is None:
            self._retention.settle(handle)
        if self._debug:
            self.check()

    # Reporting

    def stats(self) -> CacheStats:
        """Counts of this moment; costs microseconds."""
        idle, leased, queued, running = self._tree.class_blocks
        num_free = self._pool.num_free
        free = max(0, num_free - self._reserve)
        return self._counters.snapshot(
            total=self.num_blocks,
            free=free,
            reserved=num_free - free,
            evictable=idle + leased,
            protected=queued + running + self._num_private,
            idle=idle,
            leased=leased,
            queued=queued,
            running=running,
            private=self._num_private,
            sessions=len(self._sessions),
            nodes=self._tree.num_nodes,
            tree_bytes=self._tree.num_bytes,
            ghosts=self._misses.num_ghosts,
        )

    def check(self) -> None:
        """Recount every block and every class. Takes as long as the cache is large.

        Raises:
            AssertionError: an invariant is broken; the message says which.
        """
        stats = self.stats()
        counted = stats.free + stats.evictable + stats.protected + stats.reserved
        assert counted == stats.total, f"{counted} blocks accounted for, {stats.total} exist"
        check_tree(self._tree)
        private = [s.block_table[s.num_shared_blocks :] for s in self._running]
        check_partition(self._tree, self._pool.free_blocks(), private, self.num_blocks)
        for handle in self._sessions.values():
            check_table(self._tree, handle)
        for sequence in self._running:
            handle = self._open(sequence)
            assert handle.length == sequence.num_shared_blocks, "a handle behind its sequence"
            check_table(self._tree, handle)


def _trusted_blocks(
    base: SessionHandle | None, base_offset: int | None, limit: int, block_size: int
) -> int:
    """Leading blocks that are the base's own and still in the tree."""
    if base is None or base_offset is None:
        return 0
    return min(base.length, base_offset // block_size, limit)
