"""The prefix cache: the only door to the radix tree and the block pool.

A session holds the cache by the hand: its handle says where its transcript ends in the
tree, so that the next turn is matched without looking at what is already there. Handles are
not locks. Between turns a session's blocks may be evicted from the end, and its handle is
cut to what is left; a sequence (one turn) locks them while it runs, on the deepest node
only. Ids and counts only: no tensors, no wall clock, no threads.

Always true: free + evictable + protected + reserved == total, and every block is free, in
one node of the tree, or private to one running sequence.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np

from radix_cache.block_pool import BlockArray, BlockPool, OutOfBlocks
from radix_cache.eviction import IdleLeaves
from radix_cache.tree import BlockClass, Holder, Node, Owner, RadixTree, TokenArray

Policy = Literal["lease", "lru"]

_IDLE = int(BlockClass.IDLE)
_LEASED = int(BlockClass.LEASED)
_QUEUED = int(BlockClass.QUEUED)
_RUNNING = int(BlockClass.RUNNING)
_WARM_SHARE: Final = 0.8
_NO_TABLE: Final = np.empty(0, dtype=np.int32)


class SessionHandle(Holder):
    """Where a session's transcript ends in the tree. The cache's own; not for callers."""

    __slots__ = ("known", "owner", "sequence", "session_id", "table")

    def __init__(self, session_id: str, owner: Owner) -> None:
        super().__init__(owner.root)
        self.session_id = session_id
        self.owner = owner
        self.table: BlockArray = _NO_TABLE
        """Block ids; the first ``length`` are those of the path in the tree."""
        self.known = 0
        """Blocks the session had in the tree when its last turn ended."""
        self.sequence: CachedSequence | None = None

    def shortened(self) -> None:
        if not self.length:
            self.table = _NO_TABLE


class CachedSequence:
    """A turn's claim on the cache, from ``begin`` to ``finish``.

    Its first blocks are in the tree and may be shared; the rest are private to it, and only
    these may be written.
    """

    __slots__ = (
        "_handle",
        "_is_new",
        "_resumed_class",
        "_table",
        "num_blocks",
        "num_cached_tokens",
        "num_prompt_tokens",
        "num_shared_blocks",
        "warm",
    )

    def __init__(
        self, handle: SessionHandle, table: BlockArray, length: int, prompt: int, cached: int
    ) -> None:
        self._handle: SessionHandle | None = handle
        self._table = table
        self._is_new = False
        self._resumed_class = _IDLE
        self.num_blocks = length
        """Blocks of the table, shared and private."""
        self.num_shared_blocks = length
        """Leading blocks that are in the tree: never write to them."""
        self.num_prompt_tokens = prompt
        self.num_cached_tokens = cached
        """Prompt tokens whose KV was found; a multiple of the block size."""
        self.warm = False
        """At least 80 % of what the session had was still there: it may evict leased blocks."""

    @property
    def miss_causes(self) -> dict[str, int]:
        """Prompt tokens that were not cached, by cause."""
        missed = self.num_prompt_tokens - self.num_cached_tokens
        return {"first_sight": missed} if missed else {}

    @property
    def block_table(self) -> BlockArray:
        """Physical blocks in order, int32 [num_blocks]: a view that holds until the next
        call that names this sequence."""
        return self._table[: self.num_blocks]


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheStats:
    """Blocks by state. free + evictable + protected + reserved == total."""

    total: int
    free: int
    """Free blocks that a new turn may take at once."""
    reserved: int
    """Free blocks kept for turns that already run."""
    evictable: int
    """Blocks in the tree that a new turn could take: idle ones, and leased ones if warm."""
    protected: int
    """Blocks that running or queued turns hold, shared and private."""
    idle: int
    leased: int
    queued: int
    running: int
    private: int
    """Blocks of running sequences outside the tree."""
    sessions: int
    nodes: int
    tree_bytes: int


class PrefixCache:
    """Finds, locks, hands out and publishes KV blocks for the turns of sessions.

    Args:
        num_blocks: size of the pool.
        block_size: tokens per block.
        clock: seconds, any origin, never decreasing.
        policy: ``lease`` or ``lru``.
        reserve_blocks: free blocks that only running turns may take.
        seed: mixed into the hashes that find children.
        debug: check every invariant after every call.

    Raises:
        ValueError: sizes that leave no usable block.
    """

    def __init__(
        self,
        num_blocks: int,
        block_size: int = 16,
        *,
        clock: Callable[[], float],
        policy: Policy = "lease",
        reserve_blocks: int = 0,
        seed: int = 0,
        debug: bool = False,
    ) -> None:
        if not 0 <= reserve_blocks < num_blocks:
            raise ValueError(f"a reserve of {reserve_blocks} of {num_blocks} blocks")
        self.block_size = block_size
        self.num_blocks = num_blocks
        self._clock = clock
        self._policy = policy
        self._reserve = reserve_blocks
        self._debug = debug
        self._pool = BlockPool(num_blocks)
        self._idle = IdleLeaves()
        self._tree = RadixTree(block_size, seed=seed, on_idle_leaf=self._idle.offer)
        self._sessions: dict[str, SessionHandle] = {}
        self._running: set[CachedSequence] = set()
        self._inside: set[CachedSequence] = set()
        """Running sequences whose match may end inside an edge, which is locked whole."""
        self._num_private = 0
        self._tick = 0

    @property
    def usable_blocks(self) -> int:
        """Blocks a turn can have when nothing else runs: one that needs more never fits."""
        return self.num_blocks - self._reserve

    # Matching

    def match_length(
        self,
        *,
        session_id: str,
        tenant: str,
        tokens: TokenArray,
        base_session_id: str | None = None,
        base_offset: int | None = None,
    ) -> int:
        """Tokens that ``begin`` with the same arguments would find. Changes nothing."""
        self._check_tokens(tokens)
        owner = self._tree.owner(tenant)
        limit = (len(tokens) - 1) // self.block_size
        base = self._base(session_id, owner, base_session_id)
        _, position = self._locate(owner, base, base_offset, tokens, limit, None)
        return position * self.block_size

    def begin(
        self,
        *,
        session_id: str,
        tenant: str,
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
            tenant: who owns it; nothing of another tenant is ever found.
            tokens: int32 [n], n >= 1, the whole prompt.
            base_session_id: the session whose transcript this one continues (the same id)
                or forks.
            base_offset: how many leading tokens are the base's own, by construction; they
                are not compared again. None: everything is compared.

        Raises:
            ValueError: not int32, empty, a session that is busy or another tenant's. Nothing
                has changed.
        """
        self._check_tokens(tokens)
        owner = self._tree.owner(tenant)
        handle = self._sessions.get(session_id)
        if handle is not None and handle.sequence is not None:
            raise ValueError(f"session {session_id!r} has an open turn")
        base = self._base(session_id, owner, base_session_id)
        count = len(tokens)
        limit = (count - 1) // self.block_size
        is_new = handle is None
        if handle is None:
            handle = SessionHandle(session_id, owner)
        table = handle.table
        if len(table) <= limit:
            table = np.empty(limit + limit // 4 + 8, dtype=np.int32)
        if base is not None and base_offset is not None and base.table is not table:
            keep = min(base.length, base_offset // self.block_size, limit)
            table[:keep] = base.table[:keep]
        node, position = self._locate(owner, base, base_offset, tokens, limit, table)
        sequence = CachedSequence(handle, table, position, count, position * self.block_size)
        if base is not None:
            known = base.known
            if base_offset is not None:
                known = min(known, base_offset // self.block_size)
            known = min(known, limit)
            sequence.warm = known > 0 and position >= _WARM_SHARE * known
        if is_new:
            self._sessions[session_id] = handle
            sequence._is_new = True
        sequence._resumed_class = handle.klass
        handle.sequence = sequence
        handle.table = table
        self._tree.move(handle, node, position)
        self._tree.hold(handle, _RUNNING)
        self._running.add(sequence)
        if position < node.end:
            self._inside.add(sequence)
        if self._debug:
            self.check()
        return sequence

    def _check_tokens(self, tokens: TokenArray) -> None:
        if tokens.dtype != np.int32 or tokens.ndim != 1 or not tokens.flags.c_contiguous:
            raise ValueError(
                f"tokens are {tokens.dtype} {list(tokens.shape)}, contiguous int32 [n] is needed"
            )
        if not len(tokens):
            raise ValueError("an empty prompt")

    def _base(
        self, session_id: str, owner: Owner, base_session_id: str | None
    ) -> SessionHandle | None:
        handle = self._sessions.get(session_id)
        if handle is not None and handle.owner is not owner:
            raise ValueError(f"session {session_id!r} belongs to another tenant")
        if base_session_id is None:
            return None
        base = self._sessions.get(base_session_id)
        return base if base is not None and base.owner is owner else None

    def _locate(
        self,
        owner: Owner,
        base: SessionHandle | None,
        base_offset: int | None,
        tokens: TokenArray,
        limit: int,
        table: BlockArray | None,
    ) -> tuple[Node, int]:
        """The end of the longest match; ids beyond what ``base`` vouches for go to ``table``."""
        tree = self._tree
        if base is None or base_offset is None:
            return tree.walk(owner, tree.start(owner), 0, tokens, limit, table)
        position = min(base.length, base_offset // self.block_size, limit)
        if not position:
            return tree.walk(owner, tree.start(owner), 0, tokens, limit, table)
        node = base.node
        if position < base.length:
            node = tree.climb(node, position)
        if position < limit and (node.children or position < node.end):
            return tree.walk(owner, node, position, tokens, limit, table)
        return node, position

    # Blocks

    def available_blocks(self, sequence: CachedSequence | None = None) -> int:
        """How many blocks ``allocate`` would hand out now: free ones and those that may be
        evicted for this sequence; None asks for a turn that has not begun."""
        blocks = self._pool.num_free + self._evictable(sequence)
        if sequence is None or sequence.num_blocks == sequence.num_shared_blocks:
            blocks -= self._reserve
        return max(0, blocks)

    def _evictable(self, sequence: CachedSequence | None) -> int:
        blocks = self._tree.class_blocks[_IDLE]
        if self._inside:
            blocks += self._unlocked_tails()
        return blocks

    def _unlocked_tails(self) -> int:
        """Blocks behind the position where running sequences end inside an edge, as far as
        nothing else holds them."""
        ends: dict[Node, int] = {}
        for sequence in list(self._inside):
            handle = sequence._handle
            if handle is None or handle.length == handle.node.end:
                self._inside.discard(sequence)
            else:
                ends[handle.node] = max(handle.length, ends.get(handle.node, 0))
        return sum(
            node.end - end
            for node, end in ends.items()
            if self._tree.class_beyond(node, end) == _IDLE
        )

    def allocate(self, sequence: CachedSequence, num_blocks: int) -> None:
        """Append ``num_blocks`` private blocks to the sequence's table, evicting if needed.

        Raises:
            OutOfBlocks: fewer are available; nothing has been allocated or evicted.
        """
        if num_blocks < 0:
            raise ValueError(f"allocate {num_blocks} blocks")
        handle = self._open(sequence)
        pool = self._pool
        usable = pool.num_free
        if sequence.num_blocks == sequence.num_shared_blocks:
            usable -= self._reserve
        if num_blocks > usable:
            available = self.available_blocks(sequence)
            if num_blocks > available:
                raise OutOfBlocks(f"asked for {num_blocks} blocks, {available} are available")
            self._evict(num_blocks - usable)
        start = sequence.num_blocks
        end = start + num_blocks
        if end > len(sequence._table):
            table = np.empty(end + end // 4 + 8, dtype=np.int32)
            table[:start] = sequence._table[:start]
            sequence._table = handle.table = table
        sequence._table[start:end] = pool.take(num_blocks)
        sequence.num_blocks = end
        self._num_private += num_blocks
        if self._debug:
            self.check()

    def _open(self, sequence: CachedSequence) -> SessionHandle:
        handle = sequence._handle
        if handle is None:
            raise ValueError("the sequence is finished")
        return handle

    def _evict(self, count: int) -> None:
        """Free ``count`` blocks; the caller has made sure that they can be had."""
        if self._inside:
            self._release_tails()
        tree, pool, idle = self._tree, self._pool, self._idle
        while count > 0:
            leaf = idle.oldest()
            assert leaf is not None, "fewer idle blocks than counted"
            size = leaf.size
            cut = min(count, size)
            pool.release(tree.trim(leaf, size - cut))
            count -= cut

    def _release_tails(self) -> None:
        for sequence in self._inside:
            handle = sequence._handle
            if handle is not None and handle.length < handle.node.end:
                self._tree.split(handle.node, handle.length)
        self._inside.clear()

    def trim(self, sequence: CachedSequence, num_tokens: int) -> None:
        """Give private blocks back that ``num_tokens`` tokens do not reach. Shared blocks
        stay."""
        self._open(sequence)
        keep = max(-(-num_tokens // self.block_size), sequence.num_shared_blocks)
        self._release_private(sequence, keep)
        if self._debug:
            self.check()

    def _release_private(self, sequence: CachedSequence, keep: int) -> None:
        count = sequence.num_blocks - keep
        if count > 0:
            self._pool.release(sequence._table[keep : sequence.num_blocks])
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
            ValueError: more tokens than the table's blocks hold; nothing has changed.
        """
        handle = self._open(sequence)
        size = self.block_size
        target = len(tokens) // size
        shared = sequence.num_shared_blocks
        if target > sequence.num_blocks:
            raise ValueError(f"{len(tokens)} tokens, {sequence.num_blocks} blocks are allocated")
        if target <= shared:
            return
        tree = self._tree
        node = handle.node
        if node.end == shared and tree.may_append(node, handle.owner):
            tree.append(node, tokens[shared * size : target * size], sequence._table[shared:target])
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
        tree, table, size = self._tree, sequence._table, self.block_size
        shared = sequence.num_shared_blocks
        own = table[shared:target].copy()
        node, position = tree.walk(handle.owner, handle.node, shared, tokens, target, table)
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

    # Ending

    def finish(
        self,
        sequence: CachedSequence,
        *,
        lease_s: float | None = None,
        keep_handle: bool = True,
    ) -> None:
        """End the turn: its private blocks are freed, its published ones stay in the tree.

        A turn that allocated nothing leaves its session as ``begin`` found it.
        """
        handle = self._open(sequence)
        self._release_private(sequence, sequence.num_shared_blocks)
        self._running.discard(sequence)
        self._inside.discard(sequence)
        sequence._handle = None
        handle.sequence = None
        handle.known = handle.length
        self._tick += 1
        handle.node.last_use = self._tick
        self._tree.hold(handle, _IDLE)
        if not keep_handle or self._sessions.get(handle.session_id) is not handle:
            self._sessions.pop(handle.session_id, None)
            self._tree.drop(handle)
        if self._debug:
            self.check()

    def release_session(self, session_id: str) -> None:
        """Forget a session's handle; its blocks stay in the tree, idle. While its turn is
        open the turn goes on, and nothing is kept when it ends. Unknown ids are ignored."""
        handle = self._sessions.pop(session_id, None)
        if handle is not None and handle.sequence is None:
            self._tree.hold(handle, _IDLE)
            self._tree.drop(handle)

    def set_queued(self, session_id: str, queued: bool) -> None:
        """Say whether the session's next turn has arrived and waits."""

    # Reporting

    def stats(self) -> CacheStats:
        tree, pool = self._tree, self._pool
        idle, leased, queued, running = tree.class_blocks
        free = max(0, pool.num_free - self._reserve)
        return CacheStats(
            total=self.num_blocks,
            free=free,
            reserved=pool.num_free - free,
            evictable=idle + leased,
            protected=queued + running + self._num_private,
            idle=idle,
            leased=leased,
            queued=queued,
            running=running,
            private=self._num_private,
            sessions=len(self._sessions),
            nodes=tree.num_nodes,
            tree_bytes=tree.num_bytes,
        )

    def check(self) -> None:
        """Recount every block.

        Raises:
            AssertionError: an invariant is broken; the message says which.
        """
        self._tree.check()
        stats = self.stats()
        counted = stats.free + stats.evictable + stats.protected + stats.reserved
        assert counted == stats.total, f"{counted} blocks accounted for, {stats.total} exist"
        parts = [self._pool.free_blocks()]
        parts += [node.blocks[: node.size] for node in self._tree.nodes()]
        for sequence in self._running:
            parts.append(sequence.block_table[sequence.num_shared_blocks :])
            handle = self._open(sequence)
            assert handle.length == sequence.num_shared_blocks, "a handle behind its sequence"
        everything = np.sort(np.concatenate(parts))
        assert np.array_equal(everything, np.arange(self.num_blocks)), "a block lost or doubled"
        handles = list(self._sessions.values())
        handles += [self._open(s) for s in self._running]
        for handle in handles:
            path = self._tree.path_blocks(handle.node)[: handle.length]
            assert np.array_equal(handle.table[: handle.length], path), "a stale block table"
