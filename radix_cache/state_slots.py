"""The slots of recurrent states: who runs on which, and where branches end.

A sequence can be resumed only where a state was saved. The end of each turn is: the sequence's own
slot is donated. Once its branch has a new end, the old one is *replaced*: cheap to lose, unless
other branches went on from it. What is kept, and what goes for it, is ``radix_cache.kept_states``'.

Always true: every slot is free, a running sequence's or a snapshot's; nothing of another tenant is
found.
"""

from radix_cache.edge import TokenArray
from radix_cache.handle import BranchHandle, CachedSequence, Snapshot
from radix_cache.kept_states import KeptStates
from radix_cache.nodes import IDLE, Node, Owner, Tier
from radix_cache.resume_points import find
from radix_cache.slot_pool import NO_SLOT
from radix_cache.snapshots import BeginState, EndState, SaveState, SnapshotKind
from radix_cache.tree import RadixTree


class StateSlots:
    """Gives slots to sequences.

    Args:
        kept: the snapshots, and the slots on the device.
        most_running: sequences that may run at a time.
    """

    def __init__(self, tree: RadixTree, kept: KeptStates, *, most_running: int) -> None:
        self._tree = tree
        self.kept = kept
        self._pool, self._order = kept.pool, kept.order
        self._most_running = most_running

    def find(self, owner: Owner, node: Node, shared: int, tokens: TokenArray) -> Snapshot | None:
        """See ``resume_points.find``: of those that can be begun at."""
        return find(self._tree, owner, node, shared, tokens, ready=True)

    def find_anywhere(
        self, owner: Owner, node: Node, shared: int, tokens: TokenArray
    ) -> Snapshot | None:
        """The same, of those on disk as well."""
        return find(self._tree, owner, node, shared, tokens)

    # Running

    def began(
        self, sequence: CachedSequence, resume: Snapshot | None, far: Snapshot | None
    ) -> None:
        """A sequence is about to run from ``resume`` on, or, once the blocks before it are on the
        device, from ``far``."""
        sequence.resume = resume
        sequence.far = None if far is resume else far
        for each in (sequence.resume, sequence.far):
            if each is not None:
                each.pins += 1

    def restored(self, sequence: CachedSequence) -> None:
        """They are there."""
        if sequence.far is None:
            return
        if sequence.resume is not None:
            sequence.resume.pins -= 1
        sequence.resume, sequence.far = sequence.far, None

    def available(self, sequence: CachedSequence, rights: int) -> bool:
        """Whether ``admit`` would find a slot."""
        handle = sequence.handle
        assert handle is not None
        if self._pool.counts["running"] >= self._most_running:
            return False
        if self._pool.num_free or self._may_move(sequence, handle):
            return True
        return self.kept.first(handle.owner, rights) is not None

    def admit(self, sequence: CachedSequence, rights: int) -> None:
        """Give a sequence its slot; its blocks are in its table already.

        Raises:
            OutOfSlots: ``available`` would have said so.
        """
        handle, resume = sequence.handle, sequence.resume
        assert handle is not None
        moved = self._moves(sequence, handle, rights)
        source, position, tail_block = None, 0, None
        if resume is not None:
            position = resume.position
            sequence.resumed = resume.kind, Tier.DEVICE if resume.slot >= 0 else Tier.HOST
            self.kept.touch(resume)
            if len(resume.tail):
                tail_block = int(sequence.table[resume.blocks])
        if moved:
            assert resume is not None
            slot = source = resume.slot
            self.kept.take_off_device(resume)
            self._pool.turn(slot, "snapshot", "running")
        else:
            if not self._pool.num_free:
                self.kept.evict_one(handle.owner, rights)
            slot = self._pool.take("running")
            if resume is not None:
                source = self._source(resume, slot)
        self._unpin(sequence)
        if resume is not None and resume.alive:
            sequence.came_from = resume
            if handle not in resume.ends:
                resume.forks.add(handle)
                handle.forked.add(resume)
        handle.owner.account.state_slots += 1
        sequence.state_slot = slot
        self.kept.give(
            BeginState(slot=slot, source=source, position=position, tail_block=tail_block)
        )

    def _source(self, resume: Snapshot, slot: int) -> int:
        """Where a sequence on ``slot`` finds the state that it goes on from: in another slot, or,
        where that is in host memory, in its own."""
        if resume.slot >= 0:
            return resume.slot
        self.kept.raised(resume, slot)
        return slot

    def _moves(self, sequence: CachedSequence, handle: BranchHandle, rights: int) -> bool:
        """Whether a sequence takes the slot that it goes on from: none is free, and this state has
        a copy below, or somebody wants what would go first. Else that goes, since a fork may yet
        ask for this one."""
        if self._pool.num_free or not self._may_move(sequence, handle):
            return False
        assert sequence.resume is not None
        victim = self.kept.first(handle.owner, rights)
        if victim is None or not sequence.resume.only_in(Tier.DEVICE):
            return True
        if not victim.only_in(Tier.DEVICE):
            return False
        return self._order.class_of(victim) > IDLE or self._order.is_wanted(victim)

    def _may_move(self, sequence: CachedSequence, handle: BranchHandle) -> bool:
        """Whether a sequence goes on from its own branch's end, which nobody else wants."""
        resume = sequence.resume
        return (
            resume is not None
            and resume.slot >= 0
            and resume.pins == 1
            and resume.ends == {handle}
            and not resume.forks
        )

    def withdrawn(self, sequence: CachedSequence) -> None:
        """A sequence ends that never ran."""
        self._unpin(sequence)

    def _unpin(self, sequence: CachedSequence) -> None:
        for each in (sequence.resume, sequence.far):
            if each is not None:
                each.pins -= 1
        sequence.resume = sequence.far = None

    # Keeping

    def save(self, sequence: CachedSequence, tokens: TokenArray, kind: SnapshotKind) -> bool:
        """Keep the state of a running sequence behind ``tokens``, all whose KV is written, if that
        is worth more than what would have to go for it."""
        handle = sequence.handle
        assert handle is not None
        if self.kept.known(handle, tokens, kind) is not None:
            return False
        if kind is SnapshotKind.INTERVAL:
            return self._save_below(sequence, handle, tokens)
        if not self.kept.make_room(handle, tokens):
            return False
        target = self._pool.take("snapshot")
        snapshot = self.kept.add(handle, tokens, kind)
        self.kept.put_on_device(snapshot, target)
        self.kept.give(
            SaveState(
                slot=sequence.state_slot,
                target=target,
                position=len(tokens),
                tail_block=self._tail_block(sequence, snapshot),
            )
        )
        self.kept.copy_below(snapshot)
        return True

    def _save_below(
        self, sequence: CachedSequence, handle: BranchHandle, tokens: TokenArray
    ) -> bool:
        """Keep a state in host memory alone, never in the way of what somebody comes back to."""
        if len(tokens) % self._tree.block_size:
            raise ValueError(f"a state behind {len(tokens)} tokens, where no block ends")
        lower = self.kept.lower
        if lower is None or not lower.has_room(handle.owner):
            return False
        lower.save(self.kept.add(handle, tokens, SnapshotKind.INTERVAL), sequence.state_slot)
        return True

    def end(self, sequence: CachedSequence, tokens: TokenArray | None, kind: SnapshotKind) -> None:
        """A sequence that runs ends. Its slot holds the state behind ``tokens``, all whose KV is
        written, from now on; None: that of nothing, and is free."""
        handle, slot = sequence.handle, sequence.state_slot
        assert handle is not None
        sequence.state_slot = NO_SLOT
        handle.owner.account.state_slots -= 1
        known = None if tokens is None else self.kept.known(handle, tokens, kind)
        if tokens is None or known is not None or not len(tokens):
            if known is None or known.slot >= 0:
                self._pool.release(slot, "running")
                self.kept.give(EndState(slot=slot, position=None, tail_block=None))
            if known is not None:
                if known.slot < 0:
                    self._donate(sequence, known, slot)
                self.kept.touch(known)
                self._now_ends(handle, sequence, known, kind)
            return
        snapshot = self.kept.add(handle, tokens, kind)
        self._donate(sequence, snapshot, slot)
        self._now_ends(handle, sequence, snapshot, kind)
        self.kept.copy_below(snapshot)

    def _donate(self, sequence: CachedSequence, snapshot: Snapshot, slot: int) -> None:
        """The slot that a sequence ran on is a snapshot's from now on."""
        self._pool.turn(slot, "running", "snapshot")
        self.kept.put_on_device(snapshot, slot)
        self.kept.give(
            EndState(
                slot=slot,
                position=snapshot.position,
                tail_block=self._tail_block(sequence, snapshot),
            )
        )

    def _now_ends(
        self,
        handle: BranchHandle,
        sequence: CachedSequence,
        snapshot: Snapshot,
        kind: SnapshotKind,
    ) -> None:
        """A branch ends at ``snapshot``; a turn that ended well replaces what it went on from."""
        old = handle.end
        if old is not None and old is not snapshot:
            old.ends.discard(handle)
        handle.end = snapshot
        snapshot.ends.add(handle)
        snapshot.forks.discard(handle)
        handle.forked.discard(snapshot)
        snapshot.released, snapshot.successor = False, None
        before, sequence.came_from = sequence.came_from, None
        if before is snapshot:
            return
        if snapshot.before is None and before is not snapshot:
            snapshot.before = before
        if kind is not SnapshotKind.END:
            return
        while before is not None and before.position < snapshot.position:
            ours = before.alive and not before.ends and before.owner is snapshot.owner
            if ours and before.kind in (SnapshotKind.END, SnapshotKind.PAUSE):
                before.successor = snapshot
            if before.kind is not SnapshotKind.PAUSE:
                break
            before = before.before

    def _tail_block(self, sequence: CachedSequence, snapshot: Snapshot) -> int | None:
        return int(sequence.table[snapshot.blocks]) if len(snapshot.tail) else None

    def branch_left(self, handle: BranchHandle) -> None:
        """A branch is released: nobody is known to come back to its end."""
        end, handle.end = handle.end, None
        if end is not None:
            end.ends.discard(handle)
            end.released = not end.ends
        for snapshot in handle.forked:
            snapshot.forks.discard(handle)
        handle.forked.clear()

    def drop_end(self, handle: BranchHandle) -> None:
        """Take the end of a branch that loses its blocks off the device, unless somebody else wants
        it."""
        end = handle.end
        alone = end is not None and end.ends == {handle} and not end.forks and not end.pins
        if end is not None and alone and end.slot >= 0:
            self.kept.demote(end)
        self.branch_left(handle)

    # Checking

    def check(self, running: list[CachedSequence]) -> None:
        """AssertionError where slots, snapshots and the tree do not agree."""
        assert all((s.state_slot != NO_SLOT) == s.admitted for s in running), "a turn without state"
        self.kept.check(running)
