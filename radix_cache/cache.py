"""The prefix cache: the only door to the radix tree and the block pool.

A branch holds the cache by the hand: its handle says where its transcript ends in the
tree, so that the next request is matched without looking at what is already there. A handle is
not a lock. A sequence that runs locks the path, on the deepest node only;
between sequences ``radix_cache.retention`` says who may evict its blocks, always from the end,
and the handle is cut to what is left. Ids and counts only: no tensors, no wall clock, no
threads.

Always true: free + evictable + protected + reserved == total, and every block is free, in
one node of the tree, or private to one running sequence. With recurrent layers a sequence begins
where a state was kept; their slots are ``radix_cache.state_slots``' to give.
"""

import heapq
from collections.abc import Callable, Iterable

from radix_cache.assembly import assemble
from radix_cache.audit import check_partition, check_table, check_tree
from radix_cache.config import CacheConfig
from radix_cache.edge import TokenArray
from radix_cache.handle import CachedSequence as CachedSequence  # noqa: PLC0414
from radix_cache.nodes import IDLE, LEASED, Tier
from radix_cache.picture import PicturedNode, upper_part
from radix_cache.residency import Residency
from radix_cache.snapshots import SnapshotKind, StateOrder, StoredState
from radix_cache.stats import CacheStats, snapshot
from radix_cache.transfers import BlockMover, StoredRun
from radix_cache.tree import hash_tokens


class PrefixCache:
    """Finds, locks, hands out and publishes KV blocks for the sequences of branches.

    Not thread-safe: only the engine loop touches it.

    Args:
        config: sizes, times and shares.
        clock: seconds, any origin, never decreasing.
        restore_cost: tokens of a transcript -> seconds to compute it again. None: a sequence is
            leased on the caller's word only.
        reload_cost: likewise, to bring it up from host memory.
        mover: copies blocks between tiers; without it what is evicted is forgotten.
        hash_block: hash of (tokens of a block, seed), to find children by.

    Raises:
        ValueError: there are to be lower tiers, but no mover.
    """

    def __init__(
        self,
        config: CacheConfig,
        *,
        clock: Callable[[], float],
        restore_cost: Callable[[int], float] | None = None,
        reload_cost: Callable[[int], float] | None = None,
        mover: BlockMover | None = None,
        hash_block: Callable[[TokenArray, int], int] = hash_tokens,
    ) -> None:
        self.block_size = config.block_size
        self.num_blocks = config.num_blocks
        self._reserve = config.reserve_blocks
        self._debug, self._clock = config.debug, clock
        parts = assemble(
            config,
            clock=clock,
            restore_cost=restore_cost,
            reload_cost=reload_cost,
            mover=mover,
            hash_block=hash_block,
        )
        self._counters, self._pool, self.tree = parts.counters, parts.pool, parts.tree
        self._misses, self._tiers, self.retention = parts.misses, parts.tiers, parts.retention
        self.branches, self._evictor = parts.branches, parts.evictor
        self._matcher, self._sequences = parts.matcher, parts.sequences
        self.slots = parts.slots
        """Of states; None for a model without recurrent layers."""
        self.windows = parts.windows
        """The rows of layers with a window; None where every block has them."""

    @property
    def usable_blocks(self) -> int:
        """Blocks a sequence can have when it is alone: one that needs more never fits."""
        return self.num_blocks - self._reserve

    def blocks_for(self, num_tokens: int) -> int:
        """How many blocks hold so many tokens."""
        return -(-num_tokens // self.block_size)

    # Matching

    def match_length(
        self,
        *,
        branch_id: str,
        tenant: str | None,
        tokens: TokenArray,
        base_branch_id: str | None = None,
        base_offset: int | None = None,
        adapter: str = "",
    ) -> int:
        """Tokens that ``begin`` with the same arguments would find, on the device and in host
        memory. Changes nothing.

        Raises:
            ValueError: as for ``begin``.
        """
        owner, _, base = self.branches.resolve(branch_id, tenant, tokens, base_branch_id, adapter)
        match = self._matcher.find(owner, tokens, base=base, base_offset=base_offset)
        if self.slots is not None:
            resume = self.slots.find(owner, match.node, match.position, tokens)
            return 0 if resume is None else resume.position
        return self._sequences.reach(match) * self.block_size

    def begin(
        self,
        *,
        branch_id: str,
        tenant: str | None,
        tokens: TokenArray,
        base_branch_id: str | None = None,
        base_offset: int | None = None,
        adapter: str = "",
    ) -> CachedSequence:
        """Find the longest cached prefix of ``tokens``, lock it, and open a sequence.

        Whole blocks only, and at most ``len(tokens) - 1`` tokens, so that the sequence has
        something to compute. Nothing is allocated. The handle of ``branch_id`` is made, or
        moved to the match, and is busy until ``finish``.

        Args:
            branch_id: the branch this sequence writes to.
            tenant: who owns it; nothing of another tenant is ever found. None: the operator,
                whose prefixes every tenant finds and which stay until their branch is
                released.
            tokens: int32 [n], n >= 1, the whole prompt.
            base_branch_id: the branch whose transcript this one continues (the same id)
                or forks.
            base_offset: how many leading tokens are the base's own, by construction; they
                are not compared again. None: everything is compared.
            adapter: names what the KV is computed with beside the model's own weights; nothing
                that was computed with another is ever found.

        Raises:
            ValueError: not int32, empty, a branch that is busy, another tenant's or another
                adapter's. Nothing has changed.
        """
        owner, handle, base = self.branches.resolve(
            branch_id, tenant, tokens, base_branch_id, adapter
        )
        if handle is not None and handle.sequence is not None:
            raise ValueError(f"session {branch_id!r} has an open turn")
        self.retention.end_leases()
        is_new = handle is None
        if handle is None:
            handle = self.branches.add(branch_id, owner)
        sequence = self._sequences.begin(handle, tokens, base, base_offset)
        sequence.is_new = is_new
        if self._debug:
            self.check()
        return sequence

    # Blocks

    def available_blocks(self, sequence: CachedSequence | None = None) -> int:
        """How many blocks ``allocate`` would hand out now: free ones and those that may be
        evicted for this sequence; None asks for a cold sequence that has not begun. Whoever
        waits for blocks uses the cache: its tenant has a share from now on."""
        self.retention.end_leases()
        if sequence is not None and sequence.handle is not None:
            self.retention.shares.used(sequence.handle.owner.account)
        return self._evictor.available(sequence)

    def allocate(self, sequence: CachedSequence, num_blocks: int) -> None:
        """Append ``num_blocks`` private blocks to the sequence's table, evicting if needed.

        The first call admits the sequence: from then on it may use the reserve.

        Raises:
            OutOfBlocks: fewer are available; nothing has been allocated or evicted.
            OutOfSlots: likewise, of state slots, of which the first call takes one.
            ValueError: a negative number, a finished sequence.
        """
        self._sequences.allocate(sequence, num_blocks)
        if self._debug:
            self.check()

    def restore(self, sequence: CachedSequence) -> None:
        """Bring what ``begin`` found in host memory to the device: ``num_cached_tokens`` and
        the table grow by it, and the copy is ordered. To be called before ``allocate``.

        Raises:
            OutOfBlocks: there is no room on the device; nothing has changed.
            ValueError: the sequence has blocks of its own already, or is finished.
        """
        self._sequences.restore(sequence)
        if self._debug:
            self.check()

    def trim(self, sequence: CachedSequence, num_tokens: int) -> None:
        """Give private blocks back that ``num_tokens`` tokens do not reach. Blocks in the
        tree stay.

        Raises:
            ValueError: a finished sequence.
        """
        self._sequences.trim(sequence, num_tokens)
        if self._debug:
            self.check()

    # Publishing

    def commit(self, sequence: CachedSequence, tokens: TokenArray) -> None:
        """Publish the blocks that are full: the tree keeps them from now on.

        Where an equal block is there already (another sequence was faster), the table gets its
        id and the own block goes back to the pool.

        Args:
            tokens: int32 [n], all tokens from the first on whose KV is written. Those of an
                earlier commit are not looked at again.

        Raises:
            ValueError: more tokens than the table's blocks hold, a finished sequence; nothing
                has changed.
        """
        self._sequences.commit(sequence, tokens)
        if self._debug:
            self.check()

    # States of recurrent layers, rows of layers with a window

    def keep_state(self, sequence: CachedSequence, tokens: TokenArray, kind: SnapshotKind) -> bool:
        """Keep the state of a running sequence behind ``tokens``, so that others resume there:
        unless it is there already, or all slots hold what is worth more. False for that.

        Args:
            tokens: int32 [n], the first n of the sequence, as many as have their KV written; full
                blocks of them were committed.

        Raises:
            ValueError: the sequence does not run, blocks were not committed, or that of an interval
                is not where a block ends.
        """
        kept = self._sequences.save(sequence, tokens, kind)
        if self._debug:
            self.check()
        return kept

    def keep_rows(self, sequence: CachedSequence, positions: Iterable[int]) -> None:
        """Have rows of layers with a window kept before each of these tokens of a running sequence,
        where not every block has them: others are expected to go on from there."""
        if self.windows is not None:
            self.windows.keep_at(sequence, positions)

    def take_state_orders(self) -> list[StateOrder]:
        """Orders for the memory of state slots before the next step, in order."""
        return [] if self.slots is None else self.slots.kept.take_orders()

    @property
    def keeps_intervals(self) -> bool:
        """Whether states may be kept every so many tokens of a long prompt."""
        return self._tiers.states is not None

    def state_spoiled(self, tier: Tier, slot: int) -> None:
        """The state that was to be kept in ``slot`` is not finite: nobody resumes there."""
        if self.slots is not None:
            self.slots.kept.spoiled(tier, slot)

    # Between sequences

    def finish(
        self,
        sequence: CachedSequence,
        *,
        lease_s: float | None = None,
        answered: bool = False,
        state_of: TokenArray | None = None,
        kind: SnapshotKind = SnapshotKind.END,
    ) -> None:
        """End the sequence: its private blocks are freed, its published ones stay in the tree.

        A sequence that never allocated leaves its branch as ``begin`` found it, lease included.

        Args:
            lease_s: how long to protect what it leaves, at most the cap; 0: not at all; None:
                as long as the restore cost suggests.
            answered: the sequence ended in an answer, not in a call: the estimate is shorter.
            state_of: int32 [n], the tokens whose KV is written, where the state of recurrent layers
                behind them is to be kept; full blocks of them were committed.
            kind: why: an end takes the place of the one before.

        Raises:
            ValueError: a finished sequence.
        """
        self._sequences.finish(sequence, lease_s, answered=answered, state_of=state_of, kind=kind)
        if self._debug:
            self.check()

    def release_branch(self, branch_id: str) -> None:
        """Forget a branch's handle; its blocks stay in the tree, idle. While its sequence is
        open the sequence goes on, and nothing is kept when it ends. ``take_residency`` tells that
        it is gone, also of an unknown id."""
        self.branches.release(branch_id)

    def drop_branch(self, branch_id: str) -> None:
        """Break a branch's lease and evict from the device what it alone holds, as far as nothing
        hangs below; its name stays, and it is not charged any more. Unknown ids, and branches
        whose sequence is open, are ignored."""
        handle = self.branches.at_rest(branch_id)
        if handle is not None:
            self._evictor.drop(handle)
            if self._debug:
                self.check()

    def set_queued(self, branch_id: str, queued: bool) -> None:
        """Say whether the branch's next request has arrived and waits; until it is admitted no
        other sequence evicts the branch, unless that one is alone. Unknown ids are ignored."""
        self.branches.set_queued(branch_id, queued)
        if self._debug:
            self.check()

    def tenant_waits(self, tenant: str) -> None:
        """Note that a tenant's sequence waits for blocks: the tenant has a share of them from now
        on, also if it had none."""
        self.retention.shares.used(self.tree.account(tenant))

    def waits_for_blocks(self) -> None:
        """Count that a sequence was looked at and could not begin for want of blocks."""
        self._counters.block_waits += 1

    # Lower tiers

    def prefetch(
        self,
        *,
        branch_id: str,
        tenant: str | None,
        tokens: TokenArray,
        base_branch_id: str | None = None,
        base_offset: int | None = None,
        adapter: str = "",
    ) -> int:
        """Order what is on disk of a prompt into host memory, so that a later ``begin`` finds
        it; returns how many of its blocks are on their way now. For sequences that wait in the
        queue, and see ``is_reading``.

        Raises:
            ValueError: as for ``begin``.
        """
        if self._tiers.lower is None:
            return 0
        owner, _, base = self.branches.resolve(branch_id, tenant, tokens, base_branch_id, adapter)
        match = self._matcher.find(
            owner, tokens, base=base, base_offset=base_offset, lowest=Tier.DISK
        )
        return self._tiers.read(owner, match, tokens)

    @property
    def last_order(self) -> int:
        """Number of the last order given to the mover."""
        return self._tiers.last_order

    def is_reading(self, last: int) -> bool:
        """Whether orders from the disk are under way that were given up to number ``last``."""
        return self._tiers.is_reading(last)

    @property
    def num_pending_orders(self) -> int:
        """Orders from and to the disk that are under way."""
        return self._tiers.num_pending_orders

    @property
    def wants_tending(self) -> bool:
        """Whether ``tend`` and ``moved`` have something to do though no sequence runs."""
        return self._tiers.wants_tending

    def copy_down(self) -> None:
        """Order copies of what branches have above the disk to the disk, those used last first:
        for the end of the process, so that ``load`` finds it in the next one."""
        self._tiers.copy_down()

    def tend(self) -> None:
        """Do what the clock asks for: end leases, bring branches back whose lease is nearly
        over, write idle host memory to the disk. To be called between steps."""
        self._tiers.tend()
        if self._debug:
            self.check()

    def moved(self, number: int, *, ok: bool) -> None:
        """An order from or to the disk is over; see ``BlockMover``.

        Raises:
            KeyError: no such order is pending.
        """
        self._tiers.moved(number, ok=ok)
        if self._debug:
            self.check()

    def load(
        self, runs: Iterable[StoredRun], states: Iterable[StoredState] = ()
    ) -> tuple[int, int]:
        """Know again what an earlier process left on disk; returns the blocks and the states that
        found their place, the others are free: a state does where the blocks before it have. To be
        called before the first request.

        Raises:
            ValueError: there is no disk, or something is cached already.
        """
        return self._tiers.load(runs, states)

    # Reporting

    @property
    def tells_residency(self) -> bool:
        """Whether ``take_residency`` may have something to tell though no sequence runs."""
        return self.tree.meter.watches

    def take_residency(self) -> list[Residency]:
        """Block-time that branches have had of the device since they were told of last: at once
        where a branch was forgotten or ``tell_residency`` named it, of the others about once a
        second. See ``radix_cache.residency``."""
        return self.tree.meter.take()

    def tell_residency(self, branch_id: str) -> None:
        """Have a branch told of with the next ``take_residency``. Unknown ids are ignored."""
        self.branches.tell_residency(branch_id)

    def picture(self, tenant: str | None, max_nodes: int) -> list[PicturedNode]:
        """The upper part of the tree as ``tenant`` may see it (None: all of it), at most so
        many nodes, parents first."""
        return upper_part(self.tree, tenant=tenant, max_nodes=max_nodes, now=self._clock())

    def tenant_blocks(self, most: int) -> dict[str, int]:
        """Device blocks of each tenant, in the tree and of its running sequences; of so many
        tenants, those that have most. Published prefixes are nobody's."""
        held = {
            account.name: sum(account.class_blocks) + account.private_blocks
            for account in self.tree.accounts()
            if account.name
        }
        return dict(heapq.nlargest(most, held.items(), key=lambda each: each[1]))

    def leased_blocks(self, tenant: str) -> int:
        """Device blocks of a tenant that are leased and no more than that."""
        return self.tree.account(tenant).class_blocks[LEASED]

    def claimed_blocks(self, tenant: str) -> int:
        """Device blocks of a tenant that are not idle: leased, queued, or of its running
        sequences."""
        account = self.tree.account(tenant)
        return sum(account.class_blocks) - account.class_blocks[IDLE] + account.private_blocks

    def stats(self) -> CacheStats:
        """Counts of this moment; costs microseconds."""
        idle, leased, queued, running = self.tree.class_blocks
        num_free = self._pool.num_free
        free = max(0, num_free - self._reserve)
        return snapshot(
            self._counters,
            self._tiers.lower,
            total=self.num_blocks,
            free=free,
            reserved=num_free - free,
            evictable=idle + leased,
            protected=queued + running + self._sequences.num_private,
            idle=idle,
            leased=leased,
            queued=queued,
            running=running,
            private=self._sequences.num_private,
            branches=len(self.branches.handles),
            nodes=self.tree.num_nodes,
            tree_bytes=self.tree.num_bytes,
            ghosts=self._misses.num_ghosts,
            slots=0 if self.slots is None else self.slots.kept.pool.num_slots,
            free_slots=0 if self.slots is None else self.slots.kept.pool.num_free,
            snapshots=0 if self.slots is None else len(self.slots.kept.snapshots),
            window_blocks=0 if self.windows is None else self.windows.total,
            free_window_blocks=0 if self.windows is None else self.windows.free,
            left_window_blocks=0 if self.windows is None else self.windows.left,
            evicted_window_blocks=0 if self.windows is None else self.windows.evicted,
            **self._state_counts(),
        )

    def _state_counts(self) -> dict[str, int]:
        """Slots for states below the device: how many there are, and are free."""
        states, counts = self._tiers.states, {}
        for tier, name in ((Tier.HOST, "host"), (Tier.DISK, "disk")):
            slots = None if states is None else states.slots.get(tier)
            counts[f"{name}_slots"] = 0 if slots is None else slots.num_blocks
            counts[f"{name}_free_slots"] = 0 if slots is None else slots.num_free
        return counts

    def check(self) -> None:
        """Recount every block and every class. Takes as long as the cache is large.

        Raises:
            AssertionError: an invariant is broken; the message says which.
        """
        stats = self.stats()
        counted = stats.free + stats.evictable + stats.protected + stats.reserved
        assert counted == stats.total, f"{counted} blocks accounted for, {stats.total} exist"
        check_tree(self.tree)
        private = [s.block_table[s.num_shared_blocks :] for s in self.branches.running]
        check_partition(
            self.tree,
            Tier.DEVICE,
            unheld=[self._pool.free_blocks(), *private],
            num_blocks=self.num_blocks,
        )
        if self._tiers.lower is not None:
            self._tiers.lower.check()
        for handle in self.branches.handles:
            check_table(handle)
        self._sequences.check()
        if self.windows is not None:
            self.windows.check(self.branches.running, self._pool.free_blocks())
