"""Who may begin to run: whether there are blocks for a sequence, and whether it should wait for
more.

A sequence is admitted if its prompt fits beside what the running ones are expected to emit. A
branch that has not begun waits while the transcripts of those that have are too long together.
Knows no order and no slots: it is asked about one sequence at a time.
"""

import numpy as np

from radix_cache.block_pool import OutOfBlocks
from radix_cache.cache import PrefixCache
from runtime.config import EngineConfig
from runtime.scheduling.policy import Policy
from runtime.scheduling.prompt_lookup import PromptLookup
from runtime.scheduling.queues import Queues
from runtime.scheduling.sequence import Sequence, SequenceState

_ALLOCATE_AHEAD_TOKENS = 32
Capacity = tuple[int, int]
"""Blocks that a cold and a warm sequence could have now, at best."""
NO_CAPACITY: Capacity = (0, 0)


class Admission:
    """Admits the waiting sequences of one scheduler."""

    def __init__(
        self,
        *,
        cache: PrefixCache,
        config: EngineConfig,
        policy: Policy,
        prompts: PromptLookup,
        queues: Queues,
    ) -> None:
        self._cache = cache
        self._policy = policy
        self._prompts = prompts
        self._queues = queues
        self._session_context_percent = config.session_context_percent
        self._output_reserve_percent = config.output_reserve_percent

    def capacity(self) -> Capacity:
        """To be asked again when a sequence has been admitted."""
        stats = self._cache.stats()
        return stats.free + stats.idle, stats.free + stats.evictable

    def too_large(self, sequence: Sequence) -> bool:
        """Whether the empty pool would not hold the sequence's prompt and a token."""
        return self._cache.blocks_for(len(sequence.buffer) + 1) > self._cache.usable_blocks

    def may_fit(self, sequence: Sequence, capacity: Capacity) -> bool:
        """A cheap look whether ``try_admit`` has a chance, and whether a branch that has not
        begun may begin."""
        if not self._queues.running:
            return True
        length = len(sequence.buffer)
        begun = sequence.request.base_branch_id is not None or sequence.preemptions
        if not self._policy.strict and not begun:
            most = self._cache.usable_blocks + self._cache.stats().host_total
            if self._live_blocks(length) > self._session_context_percent * most // 100:
                return False
        matched = (length - sequence.uncached_estimate) // self._cache.block_size
        missing = self._cache.blocks_for(length + 1) - matched
        return missing <= capacity[1 if sequence.warm else 0]

    def _live_blocks(self, more_tokens: int) -> int:
        """Blocks of the transcripts that run, are leased, or wait for their next request."""
        tokens = more_tokens + self._queues.decoders.num_tokens
        tokens += sum(len(s.buffer) for s in self._queues.running if s.row is None)
        tokens += sum(
            len(s.buffer)
            for s in self._queues.waiting
            if s.request.base_branch_id is not None or s.preemptions
        )
        return self._cache.blocks_for(tokens) + self._cache.stats().leased

    def must_wait(self, sequence: Sequence) -> bool:
        """Whether a running sequence is about to write KV that this one will reuse, or a part of
        the prompt is on its way."""
        return self._prompts.is_read(sequence) or self._must_wait_for_another(sequence)

    def _must_wait_for_another(self, sequence: Sequence) -> bool:
        """True while a running sequence is about to write KV that this one will reuse: the
        tail of the same branch's last request, or a prefix both have and neither has yet."""
        request = sequence.request
        mine = sequence.buffer.view()
        known = len(mine) - sequence.uncached_estimate
        for other in self._queues.running:
            if other.request.tenant != request.tenant:
                continue
            if other.state is SequenceState.FLUSHING:
                if other.request.branch_id == request.base_branch_id:
                    return True
                continue
            end = other.num_computed + self._cache.block_size
            theirs = other.buffer.view()
            if other.decoding or known > other.num_computed or end >= min(len(mine), len(theirs)):
                continue
            if np.array_equal(theirs[:end], mine[:end]):
                return True
        return False

    def try_admit(self, sequence: Sequence) -> bool:
        """Match, lock and allocate; on False nothing has changed."""
        blocks_for = self._cache.blocks_for
        cached = self._prompts.begin(sequence)
        available = self._cache.available_blocks(cached)
        length = len(sequence.buffer)
        least = blocks_for(length + 1) - cached.num_blocks
        if least + self._headroom(sequence) > available:
            self._cache.finish(cached, lease_s=0.0)
            sequence.uncached_estimate = length - cached.num_cached_tokens
            return False
        ahead = min(sequence.request.max_new_tokens, _ALLOCATE_AHEAD_TOKENS)
        wanted = blocks_for(length + ahead) - cached.num_blocks
        roomy = wanted + 4 * (len(self._queues.running) + 1) <= available
        try:
            came_back = cached.num_restorable_blocks
            self._cache.restore(cached)
            self._cache.allocate(cached, (wanted if roomy else least) - came_back)
        except OutOfBlocks:
            self._cache.finish(cached, lease_s=0.0)
            return False
        self._queues.admit(sequence, cached)
        return True

    def _headroom(self, newcomer: Sequence) -> int:
        """Blocks to leave for what the running sequences and ``newcomer`` are expected to emit, so
        that admitting it preempts nobody. None is needed for a sequence that is alone."""
        if not self._queues.running:
            return 0
        blocks_for = self._cache.blocks_for
        blocks = 0
        share = self._output_reserve_percent
        for sequence in (*self._queues.running, newcomer):
            if sequence.finish is not None:
                continue
            expected = sequence.expected_output
            more = max(expected - sequence.num_emitted, expected // 4)
            more = min(more * share // 100 + 1, sequence.remaining)
            held = 0 if sequence.cached is None else sequence.cached.num_blocks
            length = len(sequence.buffer)
            blocks += max(0, blocks_for(length + more) - max(held, blocks_for(length)))
        return blocks
