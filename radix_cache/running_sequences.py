"""The sequences that run: what each has locked, the blocks of its own, and what it publishes.

A running sequence locks its path on the deepest node only. Its first blocks are in the tree and
may be shared; those behind are private to it until they are full and published.

Always true: a running sequence's handle ends where its shared blocks end, on the device.
"""

from collections import Counter

import numpy as np

from radix_cache.audit import check_table
from radix_cache.block_pool import BlockPool
from radix_cache.edge import TokenArray
from radix_cache.evictor import Evictor
from radix_cache.handle import BranchHandle, CachedSequence
from radix_cache.known_branches import KnownBranches
from radix_cache.matching import Match, Matcher
from radix_cache.misses import MissAccount
from radix_cache.nodes import IDLE, RUNNING, Account, Holder, path_blocks
from radix_cache.publishing import Publisher
from radix_cache.retention import Retention
from radix_cache.slot_pool import OutOfSlots
from radix_cache.snapshots import SnapshotKind
from radix_cache.tiers import LowerTiers
from radix_cache.tree import RadixTree


class RunningSequences:
    """Opens sequences, hands blocks to them, takes what they publish, and ends them.

    What may go wrong, and how, is written at the methods of the same names of ``PrefixCache``.
    """

    def __init__(
        self,
        *,
        tree: RadixTree,
        pool: BlockPool,
        lower: LowerTiers | None,
        branches: KnownBranches,
        matcher: Matcher,
        evictor: Evictor,
        retention: Retention,
        misses: MissAccount,
    ) -> None:
        self._tree = tree
        self._pool = pool
        self._lower = lower
        self._branches = branches
        self._matcher = matcher
        self._evictor = evictor
        self._retention = retention
        self._misses = misses
        self._slots = branches.slots
        self._windows = branches.windows
        self._publisher = Publisher(tree, pool, lower, branches.windows)
        self.num_private = 0
        """Blocks of running sequences outside the tree."""

    def begin(
        self,
        handle: BranchHandle,
        tokens: TokenArray,
        base: BranchHandle | None,
        base_offset: int | None,
    ) -> CachedSequence:
        """Match ``tokens`` and lock what is there."""
        tree, size = self._tree, self._tree.block_size
        self._retention.shares.used(handle.owner.account)
        limit = (len(tokens) - 1) // size
        table = handle.table
        if len(table) <= limit:
            table = np.empty(limit + limit // 4 + 8, dtype=np.int32)
        match = self._matcher.find(
            handle.owner, tokens, base=base, base_offset=base_offset, table=table
        )
        near, shared, cached = match.near, match.shared, match.shared * size
        resume, far, restorable = None, None, match.position
        if self._slots is not None:
            resume = self._slots.find(handle.owner, near, shared, tokens)
            far = self._slots.find(handle.owner, match.node, match.position, tokens)
            cached = 0 if resume is None else resume.position
            shared = cached // size
            near = tree.climb(near, shared)
            restorable = 0 if far is None or far is resume else far.blocks
        if self._windows is not None:
            restorable = shared = self.reach(match)
            if restorable > match.shared:
                shared = self._windows.reach_of(table[: match.shared])
            cached, near = shared * size, tree.climb(near, shared)
        sequence = CachedSequence(
            handle, table, num_shared=shared, num_prompt=len(tokens), block_size=size
        )
        sequence.num_cached_tokens = cached
        self._misses.explain(sequence, handle, tokens, match, base=base, base_offset=base_offset)
        if self._slots is not None:
            found, position = match.position * size, 0 if far is None else far.position
            self._misses.resumed(sequence, found, position=position, known=handle.known)
            sequence.junction = found if found > position else None
            self._slots.began(sequence, resume, far)
        if self._windows is not None and restorable < match.position:
            self._lacks_rows(sequence, handle, match.position, restorable)
        sequence.at_end = handle.length == restorable
        handle.sequence = sequence
        handle.table, handle.seen = table, tree.tick
        if restorable > match.shared:
            sequence.num_device_blocks = match.shared
            sequence.beyond = Holder(handle.owner)
            tree.move(sequence.beyond, tree.climb(match.node, restorable), restorable)
            tree.hold(sequence.beyond, RUNNING)
        tree.move(handle, near, shared)
        tree.hold(handle, RUNNING)
        self._branches.begun(sequence)
        if shared < near.end:
            self._branches.stopped_inside(sequence)
        return sequence

    def _lacks_rows(
        self, sequence: CachedSequence, handle: BranchHandle, found: int, reach: int
    ) -> None:
        """Note that of ``found`` blocks only ``reach`` are of use, since the window at their end is
        not there: it is kept when it has been computed again."""
        size = self._tree.block_size
        self._misses.resumed(sequence, found * size, position=reach * size, known=handle.known)
        sequence.rows_points = [found]

    def reach(self, match: Match) -> int:
        """Blocks of a match behind which a sequence can begin, once they are on the device."""
        if self._windows is None:
            return match.position
        if self._lower is not None:
            return self._lower.below.reach(match.node, match.position)
        return self._windows.reach_of(path_blocks(match.node, match.position))

    # Blocks

    def allocate(self, sequence: CachedSequence, num_blocks: int) -> None:
        """Append private blocks to the table; the first call admits the sequence."""
        handle = opened(sequence)
        if num_blocks < 0:
            raise ValueError(f"allocate {num_blocks} blocks")
        self._retention.shares.used(handle.owner.account)
        if self._slots is not None and not sequence.admitted:
            self._check_slot(sequence, num_blocks)
        if self._windows is not None and not sequence.admitted:
            self._windows.check_admission(sequence)
        self._evictor.make_room(sequence, num_blocks)
        start = sequence.num_blocks
        end = start + num_blocks
        if end > len(sequence.table):
            table = np.empty(end + end // 4 + 8, dtype=np.int32)
            table[:start] = sequence.table[:start]
            sequence.table = handle.table = table
        sequence.table[start:end] = self._pool.take(num_blocks)
        sequence.num_blocks = end
        self._count_private(handle, num_blocks)
        if not sequence.admitted:
            self._admit(sequence, handle)

    def _check_slot(self, sequence: CachedSequence, num_blocks: int) -> None:
        assert self._slots is not None
        if sequence.num_cached_tokens % self._tree.block_size and not num_blocks:
            raise ValueError("a sequence that begins inside a block needs one at once")
        if not self._slots.available(sequence, self._evictor.rights(sequence)):
            self._retention.counters.slot_waits += 1
            raise OutOfSlots(
                "all state slots are taken by sequences that run or may not be evicted"
            )

    def _admit(self, sequence: CachedSequence, handle: BranchHandle) -> None:
        self._misses.admitted(sequence)
        if self._slots is not None:
            self._slots.admit(sequence, self._evictor.rights(sequence))
        if self._windows is not None:
            self._windows.admit(sequence)
        sequence.admitted = True
        if sequence.beyond is not None:
            self._let_go(sequence, sequence.beyond)
        self._retention.sequence_admitted(handle)

    def _let_go(self, sequence: CachedSequence, beyond: Holder) -> None:
        """Release what was found in host memory and is not wanted, or is here by now."""
        self._tree.hold(beyond, IDLE)
        self._tree.drop(beyond)
        sequence.beyond = None

    def restore(self, sequence: CachedSequence) -> None:
        """Bring what ``begin`` found in host memory to the device."""
        handle, beyond = opened(sequence), sequence.beyond
        if sequence.admitted:
            raise ValueError("a turn that runs already restores nothing")
        if beyond is None or self._lower is None:
            return
        tree = self._tree
        start, end = sequence.num_device_blocks, beyond.length
        more = sequence.num_restorable_tokens
        with self._lower.below.kept(beyond.node, self._lower.below.rows_read_from(end)):
            self._bring_up(sequence, beyond, self._lower)
        tree.move(handle, beyond.node, end)
        handle.seen = tree.tick
        sequence.num_cached_tokens += more
        self._let_go(sequence, beyond)
        sequence.num_shared_blocks = sequence.num_blocks = end
        if self._slots is not None:
            self._slots.restored(sequence)
        self._misses.restored(end - start)

    def _bring_up(self, sequence: CachedSequence, beyond: Holder, lower: LowerTiers) -> None:
        """Order what is below the device up to where ``beyond`` ends."""
        start, end = sequence.num_device_blocks, beyond.length
        if self._windows is not None:
            self._windows.check_restore(lower.below.along(beyond.node, end))
        self._evictor.make_room(sequence, end - start)
        if end < beyond.node.end:
            self._tree.split(beyond.node, end)
        sequence.table[start:end] = self._pool.take(end - start)
        if self._windows is not None:
            held = lower.below.along(beyond.node, end)
            self._windows.restore(sequence, end, held, at_end=sequence.at_end)
        lower.promote(beyond.node, start, sequence.table[start:end].copy())

    def trim(self, sequence: CachedSequence, num_tokens: int) -> None:
        """Give private blocks back that ``num_tokens`` tokens do not reach."""
        handle = opened(sequence)
        reached = -(-num_tokens // self._tree.block_size)
        self._release_private(sequence, handle, max(reached, sequence.num_shared_blocks))

    def _count_private(self, handle: BranchHandle, blocks: int) -> None:
        self._tree.meter.private(handle, blocks)
        self.num_private += blocks
        handle.owner.account.private_blocks += blocks

    def _release_private(self, sequence: CachedSequence, handle: BranchHandle, keep: int) -> None:
        count = sequence.num_blocks - keep
        if count > 0:
            self._pool.release(sequence.table[keep : sequence.num_blocks])
            self._count_private(handle, -count)
            sequence.num_blocks = keep

    # Publishing and the end

    def commit(self, sequence: CachedSequence, tokens: TokenArray) -> None:
        """Publish the blocks that ``tokens`` fill."""
        handle = opened(sequence)
        size = self._tree.block_size
        target = len(tokens) // size
        shared = sequence.num_shared_blocks
        if len(tokens) > sequence.num_blocks * size:
            raise ValueError(
                f"{len(tokens)} tokens, {sequence.num_blocks} blocks of {size} are allocated"
            )
        if target <= shared:
            return
        if self._publisher.publish(sequence, handle, tokens, target):
            self._branches.stopped_inside(sequence)
        sequence.num_shared_blocks = target
        self._count_private(handle, shared - target)
        if self._windows is not None:
            self._windows.committed(sequence, len(tokens))

    def save(self, sequence: CachedSequence, tokens: TokenArray, kind: SnapshotKind) -> bool:
        """Keep the state of a sequence that runs, if there is a slot that is worth less."""
        opened(sequence)
        if self._slots is None or not sequence.admitted:
            raise ValueError("a state of a sequence that has none")
        return self._slots.save(sequence, tokens, kind)

    def finish(
        self,
        sequence: CachedSequence,
        lease_s: float | None,
        *,
        answered: bool,
        state_of: TokenArray | None = None,
        kind: SnapshotKind = SnapshotKind.END,
    ) -> None:
        """Free what is private, unlock the rest, and lease it or let it go."""
        handle = opened(sequence)
        self._retention.shares.used(handle.owner.account)
        if self._slots is not None and sequence.admitted:
            self._slots.end(sequence, state_of, kind)
        elif self._slots is not None:
            self._slots.withdrawn(sequence)
        if self._windows is not None:
            self._windows.ended(sequence)
        self._release_private(sequence, handle, sequence.num_shared_blocks)
        self._branches.ended(sequence)
        sequence.handle = None
        handle.sequence = None
        tree, admitted = self._tree, sequence.admitted
        if sequence.beyond is not None:
            tree.move(handle, sequence.beyond.node, sequence.beyond.length)
            self._let_go(sequence, sequence.beyond)
        keep = (admitted or not sequence.is_new) and self._branches.knows(handle)
        if handle.length < handle.node.end and (admitted or keep):
            tree.split(handle.node, handle.length)
        if admitted:
            handle.known = max(handle.known, handle.length)
            handle.node.last_use = tree.next_tick()
        if keep:
            self._retention.sequence_ended(handle, lease_s if admitted else 0.0, answered=answered)
        else:
            self._branches.forget(handle)

    def check(self) -> None:
        """AssertionError where a running sequence and its handle do not agree."""
        private: Counter[Account] = Counter()
        for sequence in self._branches.running:
            handle = opened(sequence)
            assert handle.length == sequence.num_shared_blocks, "a handle behind its sequence"
            private_blocks = sequence.num_blocks - sequence.num_shared_blocks
            assert handle.private == private_blocks, "private blocks on nobody's account"
            private[handle.owner.account] += private_blocks
            assert not handle.node.tier, "a turn on blocks that are not on the device"
            check_table(handle)
        if self._slots is not None:
            self._slots.check(list(self._branches.running))
        for account in self._tree.accounts():
            blocks = account.private_blocks
            assert blocks == private[account], f"private blocks of {account.name!r}"


def opened(sequence: CachedSequence) -> BranchHandle:
    """The handle of a sequence that is open.

    Raises:
        ValueError: it is finished.
    """
    handle = sequence.handle
    if handle is None:
        raise ValueError("the sequence is finished")
    return handle
