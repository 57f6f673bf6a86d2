"""The prefix cache: the only door to the radix tree and the block pool.

A session holds the cache by the hand: its handle says where its transcript ends in the
tree, so that the next turn is matched without looking at what is already there. A handle is
not a lock. While a turn runs, its sequence locks the path, on the deepest node only;
between turns ``radix_cache.retention`` says who may evict its blocks, always from the end,
and the handle is cut to what is left. Ids and counts only: no tensors, no wall clock, no
threads.

Always true: free + evictable + protected + reserved == total, and every block is free, in
one node of the tree, or private to one running sequence.
"""

from collections.abc import Callable, Iterable
from typing import Literal

from radix_cache.audit import check_partition, check_table, check_tree
from radix_cache.block_pool import BlockPool
from radix_cache.edge import TokenArray
from radix_cache.eviction import IdleLeaves
from radix_cache.handle import CachedSequence as CachedSequence  # noqa: PLC0414
from radix_cache.handle import SessionHandle
from radix_cache.known_sessions import KnownSessions
from radix_cache.leases import Leases
from radix_cache.matching import Matcher
from radix_cache.misses import MissAccount
from radix_cache.nodes import Node, Tier
from radix_cache.publishing import Publisher
from radix_cache.restoring import RestoreCost
from radix_cache.retention import Retention
from radix_cache.room import Room
from radix_cache.stats import CacheStats, Counters
from radix_cache.tiers import LowerTiers
from radix_cache.transfers import BlockMover, StoredRun
from radix_cache.tree import RadixTree, hash_tokens
from radix_cache.turns import Turns

Policy = Literal["lease", "lru"]


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
        restore_cost: tokens of a transcript -> seconds to compute it again. None: a turn is
            leased on the caller's word only.
        reload_cost: likewise, to bring it up from host memory.
        residency_blocks: how many blocks leases may hold per tenant; None: any number.
        rescue_share: a turn that is alone waits for leases that end within this share of
            the time that computing its prompt takes, before it breaks any.
        ghost_records: evicted runs remembered for the account of misses.
        mover: copies blocks between tiers; without it what is evicted is forgotten.
        host_blocks: blocks of host memory below the device; 0 for none.
        disk_blocks: blocks of disk below that; needs host blocks.
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
        kappa: float = 20.0,
        restore_cost: Callable[[int], float] | None = None,
        reload_cost: Callable[[int], float] | None = None,
        residency_blocks: int | None = None,
        rescue_share: float = 0.0,
        ghost_records: int = 16384,
        mover: BlockMover | None = None,
        host_blocks: int = 0,
        disk_blocks: int = 0,
        seed: int = 0,
        hash_block: Callable[[TokenArray, int], int] = hash_tokens,
        debug: bool = False,
    ) -> None:
        if not 0 <= reserve_blocks < num_blocks:
            raise ValueError(f"a reserve of {reserve_blocks} of {num_blocks} blocks")
        if policy not in ("lease", "lru"):
            raise ValueError(f"cache policy {policy!r}: 'lease' or 'lru'")
        if mover is None and (host_blocks or disk_blocks):
            raise ValueError(f"{host_blocks} host and {disk_blocks} disk blocks, but no mover")
        if not host_blocks and not disk_blocks:
            mover = None
        self.block_size = block_size
        self.num_blocks = num_blocks
        self._reserve = reserve_blocks
        self._debug = debug
        self._running: set[CachedSequence] = set()
        self._counters = Counters()
        if mover is not None and restore_cost is not None and reload_cost is not None:
            restore_cost = RestoreCost(restore_cost, reload_cost, self._counters).seconds
        self._pool = BlockPool(num_blocks)
        self._idle = IdleLeaves(Tier.DEVICE)
        self._tree = RadixTree(
            block_size,
            seed=seed,
            on_idle_leaf=self._idle.offer if mover is None else self._offer,
            hash_block=hash_block,
        )
        self._retention = Retention(
            self._tree,
            Leases(
                cap_s=lease_cap_s,
                kappa=kappa,
                restore_cost=restore_cost,
                track_returns=mover is not None,
            ),
            self._counters,
            clock=clock,
            leasing=policy == "lease",
            residency_blocks=residency_blocks,
            rescue_share=rescue_share,
        )
        self._known = KnownSessions(self._tree, self._retention)
        self._misses = MissAccount(self._tree, capacity=ghost_records)
        self._room = Room(
            tree=self._tree,
            pool=self._pool,
            idle=self._idle,
            retention=self._retention,
            misses=self._misses,
            counters=self._counters,
            running=self._running,
            sessions=self._known.by_id,
            clock=clock,
        )
        self._lower: LowerTiers | None = None
        if mover is not None:
            self._lower = self._room.lower = LowerTiers(
                self._tree,
                mover,
                host_blocks=host_blocks,
                disk_blocks=disk_blocks,
                dropping=self._room.forgetting,
            )
        lowest = Tier.DEVICE if mover is None else Tier.HOST
        self._matcher = Matcher(self._tree, lowest=lowest)
        self._turns = Turns(
            tree=self._tree,
            pool=self._pool,
            matcher=self._matcher,
            publisher=Publisher(self._tree, self._pool, self._lower),
            room=self._room,
            retention=self._retention,
            misses=self._misses,
            counters=self._counters,
            lower=self._lower,
            running=self._running,
            sessions=self._known.by_id,
            reserve=reserve_blocks,
        )

    @property
    def usable_blocks(self) -> int:
        """Blocks a turn can have when it is alone: one that needs more never fits."""
        return self.num_blocks - self._reserve

    def _offer(self, node: Node) -> None:
        if node.tier == Tier.DEVICE:
            self._idle.offer(node)
        elif self._lower is not None:
            self._lower.offer(node)

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
        """Tokens that ``begin`` with the same arguments would find, on the device and in host
        memory. Changes nothing.

        Raises:
            ValueError: as for ``begin``.
        """
        owner, _, base = self._known.resolve(session_id, tenant, tokens, base_session_id)
        match = self._matcher.find(owner, tokens, base=base, base_offset=base_offset)
        return match.position * self.block_size

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
        owner, handle, base = self._known.resolve(session_id, tenant, tokens, base_session_id)
        if handle is not None and handle.sequence is not None:
            raise ValueError(f"session {session_id!r} has an open turn")
        self._retention.end_leases()
        is_new = handle is None
        if handle is None:
            handle = self._known.by_id[session_id] = SessionHandle(session_id, owner)
        sequence = self._turns.begin(handle, tokens, base, base_offset, is_new)
        if self._debug:
            self.check()
        return sequence

    # Blocks

    def available_blocks(self, sequence: CachedSequence | None = None) -> int:
        """How many blocks ``allocate`` would hand out now: free ones and those that may be
        evicted for this sequence; None asks for a cold turn that has not begun."""
        self._retention.end_leases()
        blocks = self._room.available(sequence)
        if sequence is None or not sequence.admitted:
            blocks -= self._reserve
        return max(0, blocks)

    def allocate(self, sequence: CachedSequence, num_blocks: int) -> None:
        """Append ``num_blocks`` private blocks to the sequence's table, evicting if needed.

        The first call admits the turn: from then on it may use the reserve.

        Raises:
            OutOfBlocks: fewer are available; nothing has been allocated or evicted.
            ValueError: a negative number, a finished sequence.
        """
        self._turns.allocate(sequence, num_blocks)
        if self._debug:
            self.check()

    def restore(self, sequence: CachedSequence) -> None:
        """Bring what ``begin`` found in host memory to the device: ``num_cached_tokens`` and
        the table grow by it, and the copy is ordered. To be called before ``allocate``.

        Raises:
            OutOfBlocks: there is no room on the device; nothing has changed.
            ValueError: the turn has blocks of its own already, or is finished.
        """
        self._turns.restore(sequence)
        if self._debug:
            self.check()

    def trim(self, sequence: CachedSequence, num_tokens: int) -> None:
        """Give private blocks back that ``num_tokens`` tokens do not reach. Blocks in the
        tree stay.

        Raises:
            ValueError: a finished sequence.
        """
        self._turns.trim(sequence, num_tokens)
        if self._debug:
            self.check()

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
        self._turns.commit(sequence, tokens)
        if self._debug:
            self.check()

    # Between turns

    def finish(
        self,
        sequence: CachedSequence,
        *,
        lease_s: float | None = None,
        answered: bool = False,
        keep_handle: bool = True,
    ) -> None:
        """End the turn: its private blocks are freed, its published ones stay in the tree.

        A turn that never allocated leaves its session as ``begin`` found it, lease included.

        Args:
            lease_s: how long to protect what it leaves, at most the cap; 0: not at all; None:
                as long as the restore cost suggests.
            answered: the turn ended in an answer, not in a call: the estimate is shorter.
            keep_handle: False forgets the session.

        Raises:
            ValueError: a finished sequence.
        """
        self._turns.finish(sequence, lease_s, keep_handle, answered)
        if self._debug:
            self.check()

    def release_session(self, session_id: str) -> None:
        """Forget a session's handle; its blocks stay in the tree, idle. While its turn is
        open the turn goes on, and nothing is kept when it ends. Unknown ids are ignored."""
        self._known.release(session_id)

    def set_queued(self, session_id: str, queued: bool) -> None:
        """Say whether the session's next turn has arrived and waits; until it is admitted no
        other turn evicts the session, unless that one is alone. Unknown ids are ignored."""
        self._known.set_queued(session_id, queued)
        if self._debug:
            self.check()

    # Lower tiers

    def prefetch(
        self,
        *,
        session_id: str,
        tenant: str | None,
        tokens: TokenArray,
        base_session_id: str | None = None,
        base_offset: int | None = None,
    ) -> int:
        """Order what is on disk of a prompt into host memory, so that a later ``begin`` finds
        it; returns how many of its blocks are on their way now. For turns that wait in the
        queue, and see ``is_reading``.

        Raises:
            ValueError: as for ``begin``.
        """
        if self._lower is None:
            return 0
        owner, _, base = self._known.resolve(session_id, tenant, tokens, base_session_id)
        match = self._matcher.find(
            owner, tokens, base=base, base_offset=base_offset, lowest=Tier.DISK
        )
        return self._lower.read(match.node, match.position)

    @property
    def last_order(self) -> int:
        """Number of the last order given to the mover."""
        return self._lower.last_order if self._lower is not None else 0

    def is_reading(self, last: int) -> bool:
        """Whether orders from the disk are under way that were given up to number ``last``."""
        return self._lower is not None and self._lower.is_reading(last)

    @property
    def num_pending_orders(self) -> int:
        """Orders from and to the disk that are under way."""
        return self._lower.num_pending if self._lower is not None else 0

    @property
    def wants_tending(self) -> bool:
        """Whether ``tend`` and ``moved`` have something to do though no turn runs."""
        expecting = self._lower is not None and self._retention.expects_returns
        return expecting or self.num_pending_orders > 0

    def copy_down(self) -> None:
        """Order copies of what sessions have above the disk to the disk, those used last first:
        for the end of the process, so that ``load`` finds it in the next one."""
        if self._lower is not None:
            ends = {handle.node for handle in self._known.by_id.values() if handle.length}
            self._lower.copy_down(sorted(ends, key=lambda node: -node.last_use))

    def tend(self) -> None:
        """Do what the clock asks for: end leases, bring sessions back whose lease is nearly
        over, write idle host memory to the disk. To be called between steps."""
        self._retention.end_leases()
        if self._lower is None:
            return
        for handle in self._retention.take_due():
            self._room.bring_back(handle, self._tree.next_tick(), self._reserve)
        self._lower.write_behind()
        if self._debug:
            self.check()

    def moved(self, number: int, *, ok: bool) -> None:
        """An order from or to the disk is over; see ``BlockMover``.

        Raises:
            KeyError: no such order is pending.
        """
        if self._lower is None:
            raise KeyError(number)
        self._lower.moved(number, ok=ok)
        if self._debug:
            self.check()

    def load(self, runs: Iterable[StoredRun]) -> int:
        """Know again what an earlier process left on disk; returns the blocks that found their
        place, the others are free. To be called before the first turn.

        Raises:
            ValueError: there is no disk, or something is cached already.
        """
        if self._lower is None or self._lower.disk is None or self._tree.num_nodes:
            raise ValueError("stored runs are loaded into an empty cache that has a disk")
        return self._lower.load(runs)

    # Reporting

    def stats(self) -> CacheStats:
        """Counts of this moment; costs microseconds."""
        idle, leased, queued, running = self._tree.class_blocks
        num_free = self._pool.num_free
        free = max(0, num_free - self._reserve)
        return self._counters.snapshot(
            self._lower,
            total=self.num_blocks,
            free=free,
            reserved=num_free - free,
            evictable=idle + leased,
            protected=queued + running + self._turns.num_private,
            idle=idle,
            leased=leased,
            queued=queued,
            running=running,
            private=self._turns.num_private,
            sessions=len(self._known.by_id),
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
        check_partition(
            self._tree,
            Tier.DEVICE,
            unheld=[self._pool.free_blocks(), *private],
            num_blocks=self.num_blocks,
        )
        if self._lower is not None:
            self._lower.check()
        for handle in self._known.by_id.values():
            check_table(handle)
        self._turns.check()
