"""Blocks for the turns that run: each grows as it speaks, and somebody gives way if none is left.

The turn that is cheapest to restore gives way and is recomputed later; for what is only done
ahead nobody does. Knows the roster and the cache's blocks. Knows no order of waiting turns and no
cost model.
"""

from radix_cache.block_pool import OutOfBlocks
from radix_cache.cache import PrefixCache
from runtime.roster import Roster
from runtime.schedule import NO_DRAFT, Chunk, StepPlan
from runtime.sequence import Sequence, SequenceState

_SPARE_BLOCKS = 2
"""For each running turn; while fewer are left, all are for what turns have said already."""


class Growth:
    """Gives blocks of one cache to the running turns of one roster."""

    def __init__(self, cache: PrefixCache, roster: Roster) -> None:
        self._cache = cache
        self._roster = roster
        self._last_victim: Sequence | None = None

    def blocks_for(self, num_tokens: int) -> int:
        """How many blocks hold so many tokens."""
        return _blocks_for(self._cache, num_tokens)

    def grow(self, sequence: Sequence, step: StepPlan) -> bool:
        """Give ``sequence`` blocks for the tokens it has.

        False: nothing else could give way, or ``sequence`` itself did.
        """
        while True:
            try:
                _hold(self._cache, sequence, len(sequence.buffer))
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
            _hold(self._cache, sequence, len(sequence.buffer) + num_draft)
        except OutOfBlocks:
            return False
        return True

    def flush(self, sequence: Sequence, step: StepPlan) -> None:
        """Plan the last chunk of a turn that has ended; where there is no block for it, let the
        turn go without."""
        try:
            _hold(self._cache, sequence, sequence.flush_target)
        except OutOfBlocks:
            self._roster.end(sequence, lease_s=0.0)
            return
        pending = sequence.flush_target - sequence.num_computed
        step.chunks[sequence] = Chunk(sequence, sequence.num_computed, pending, False, NO_DRAFT)

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


def room_ahead(cache: PrefixCache, sequence: Sequence, *, num_running: int) -> bool:
    """Give a turn that runs a block for the token behind those it has, which it will want
    anyway: not one of those who run, nor while these are short of blocks.

    Args:
        num_running: turns that run, this one included.

    Returns:
        Whether there is room for that token now.
    """
    length = len(sequence.buffer)
    if sequence.block_limit > length:
        return True
    stats = cache.stats()
    if stats.free + stats.idle < _SPARE_BLOCKS * num_running:
        return False
    try:
        _hold(cache, sequence, length + 1)
    except OutOfBlocks:
        return False
    return True


def _hold(cache: PrefixCache, sequence: Sequence, num_tokens: int) -> None:
    """Have blocks for so many tokens. Raises OutOfBlocks."""
    cached = sequence.cached
    assert cached is not None
    needed = _blocks_for(cache, num_tokens) - cached.num_blocks
    if needed > 0:
        cache.allocate(cached, needed)
        sequence.block_limit = cached.num_blocks * cache.block_size


def _blocks_for(cache: PrefixCache, num_tokens: int) -> int:
    return -(-num_tokens // cache.block_size)
