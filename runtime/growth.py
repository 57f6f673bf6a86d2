"""Blocks for the turns that run: each grows as it speaks, and somebody gives way if none is left.

The turn that is cheapest to restore gives way and is recomputed later. Knows the roster and the
cache's blocks. Knows no order of waiting turns and no cost model.
"""

from radix_cache.block_pool import OutOfBlocks
from radix_cache.cache import PrefixCache
from runtime.roster import Roster
from runtime.schedule import NO_DRAFT, Chunk, StepPlan
from runtime.sequence import Sequence, SequenceState


class Growth:
    """Gives blocks of one cache to the running turns of one roster."""

    def __init__(self, cache: PrefixCache, roster: Roster) -> None:
        self._cache = cache
        self._roster = roster
        self._block_size = cache.block_size
        self._last_victim: Sequence | None = None

    def blocks_for(self, num_tokens: int) -> int:
        """How many blocks hold so many tokens."""
        return -(-num_tokens // self._block_size)

    def grow(self, sequence: Sequence, step: StepPlan) -> bool:
        """Give ``sequence`` blocks for the tokens it has.

        False: nothing else could give way, or ``sequence`` itself did.
        """
        while True:
            try:
                self._hold(sequence, len(sequence.buffer))
                return True
            except OutOfBlocks:
                victim = self._victim(sequence)
                if victim is None:
                    return False
                step.chunks.pop(victim, None)
                self._roster.give_way(victim)
                if victim.finish is None:
                    self._last_victim = victim
                step.preempted += 1
                if victim is sequence:
                    return False

    def room_for(self, sequence: Sequence, num_draft: int) -> bool:
        """Give a sequence blocks for a draft if that takes them from nobody who runs."""
        try:
            self._hold(sequence, len(sequence.buffer) + num_draft)
        except OutOfBlocks:
            return False
        return True

    def flush(self, sequence: Sequence, step: StepPlan) -> None:
        """Plan the last chunk of a turn that has ended; where there is no block for it, let the
        turn go without."""
        try:
            self._hold(sequence, sequence.flush_target)
        except OutOfBlocks:
            self._roster.end(sequence, lease_s=0.0)
            return
        pending = sequence.flush_target - sequence.num_computed
        step.chunks[sequence] = Chunk(sequence, sequence.num_computed, pending, False, NO_DRAFT)

    def _hold(self, sequence: Sequence, num_tokens: int) -> None:
        """Have blocks for so many tokens. Raises OutOfBlocks."""
        cached = sequence.cached
        assert cached is not None
        needed = self.blocks_for(num_tokens) - cached.num_blocks
        if needed > 0:
            self._cache.allocate(cached, needed)
            sequence.block_limit = cached.num_blocks * self._block_size

    def _victim(self, sequence: Sequence) -> Sequence | None:
        """The other running sequence that is cheapest to restore, or ``sequence`` itself when
        all others are of a higher class; None when it is alone."""
        others = [s for s in self._roster.running if s is not sequence]
        if not others:
            return None
        victim = min(
            others,
            key=lambda s: (
                s.state is not SequenceState.FLUSHING,
                s.request.priority,
                s is self._last_victim,
                s.num_computed,
            ),
        )
        flushing = victim.state is SequenceState.FLUSHING
        if not flushing and victim.request.priority > sequence.request.priority:
            return sequence
        return victim
