"""Blocks for the sequences that run: each takes more as it decodes; if none is left, one is
preempted.

It is the sequence that is cheapest to restore, and it is recomputed later; what is only done ahead
preempts none. Knows the queues and the cache's blocks. Knows no order of waiting sequences and
no cost model.
"""

from radix_cache.block_pool import OutOfBlocks
from radix_cache.cache import PrefixCache
from runtime.scheduling.queues import Queues
from runtime.scheduling.sequence import Sequence, SequenceState
from runtime.scheduling.step_plan import Chunk, StepPlan

_SPARE_BLOCKS = 2
"""Blocks for each running sequence; while fewer are left, all are for tokens that sequences have
already."""


class BlockAllocator:
    """Gives blocks of one cache to the running sequences of one scheduler."""

    def __init__(self, cache: PrefixCache, queues: Queues) -> None:
        self._cache = cache
        self._queues = queues
        self._last_victim: Sequence | None = None

    def grow(self, sequence: Sequence, step: StepPlan) -> bool:
        """Give ``sequence`` blocks for the tokens it has.

        False: nothing else could be preempted, or ``sequence`` itself was.
        """
        while True:
            try:
                _hold(self._cache, sequence, len(sequence.buffer))
                return True
            except OutOfBlocks:
                victim = self._victim(sequence)
                if victim is None:
                    return False
                step.leave_out(victim)
                if victim in step.admitted:
                    step.admitted.remove(victim)
                self._queues.preempt(victim)
                if victim.finish is None:
                    self._last_victim = victim
                step.preempted += 1
                if victim is sequence:
                    return False

    def allocate_draft(self, sequence: Sequence, num_draft: int) -> bool:
        """Give a sequence blocks for a draft if that takes them from nobody who runs."""
        try:
            _hold(self._cache, sequence, len(sequence.buffer) + num_draft)
        except OutOfBlocks:
            return False
        return True

    def flush(self, sequence: Sequence, step: StepPlan) -> None:
        """Plan the last chunk of a sequence that has ended; where there is no block for it, let the
        sequence go without."""
        try:
            _hold(self._cache, sequence, sequence.flush_target)
        except OutOfBlocks:
            self._queues.release(sequence, lease_s=0.0)
            return
        pending = sequence.flush_target - sequence.num_computed
        step.chunks[sequence] = Chunk(sequence, sequence.num_computed, pending, samples=False)

    def _victim(self, sequence: Sequence) -> Sequence | None:
        """Another running sequence: of each tenant's lowest class the cheapest to restore, and of
        these the cheapest, of tenants above their share of the blocks first. Or ``sequence``
        itself, where that is of a higher class of the same tenant; None when it is alone. What a
        tenant says of its priority moves nobody else."""
        by_tenant: dict[str, list[Sequence]] = {}
        for other in self._queues.running:
            if other is not sequence:
                by_tenant.setdefault(other.request.tenant, []).append(other)
        if not by_tenant:
            return None
        offered = [min(others, key=self._rank_in_tenant) for others in by_tenant.values()]
        above = {tenant for tenant in by_tenant if self._queues.above_share(tenant)}
        victim = min(
            offered,
            key=lambda s: (
                s.state is not SequenceState.FLUSHING,
                s.request.tenant not in above,
                self._rank(s),
            ),
        )
        flushing = victim.state is SequenceState.FLUSHING
        mine, theirs = sequence.request, victim.request
        if not flushing and mine.tenant == theirs.tenant and theirs.priority > mine.priority:
            return sequence
        return victim

    def _rank_in_tenant(self, sequence: Sequence) -> tuple[bool, int, bool, int]:
        stays, last, computed = self._rank(sequence)
        return stays, sequence.request.priority, last, computed

    def _rank(self, sequence: Sequence) -> tuple[bool, bool, int]:
        """Smaller is preempted sooner."""
        flushing = sequence.state is SequenceState.FLUSHING
        return not flushing, sequence is self._last_victim, sequence.num_computed


def allocate_ahead(cache: PrefixCache, sequence: Sequence, *, num_running: int) -> bool:
    """Give a sequence that runs a block for the token behind those it has, which it will want
    anyway: not one of those who run, nor while these are short of blocks.

    Args:
        num_running: sequences that run, this one included.

    Returns:
        Whether there is a block for that token now.
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
    needed = cache.blocks_for(num_tokens) - cached.num_blocks
    if needed > 0:
        cache.allocate(cached, needed)
        sequence.block_limit = cached.num_blocks * cache.block_size
