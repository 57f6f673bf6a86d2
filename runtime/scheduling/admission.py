"""Admission of sequences: whether there are blocks for a sequence, and whether it should wait for
more.

A sequence is admitted if its prompt fits beside what the running ones are expected to emit. A
branch that has not begun waits while the transcripts of those that have are too long together,
those of its own tenant for the tenant's share. What a tenant is owed is kept from those that have
more than their share. Knows no order and no slots: it is asked about one sequence at a time.
"""

from collections import Counter

import numpy as np

from radix_cache.block_pool import OutOfBlocks
from radix_cache.cache import PrefixCache
from radix_cache.slot_pool import OutOfSlots
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
        self._live_tokens: Counter[str] | None = None

    def capacity(self) -> Capacity:
        """To be asked again when a sequence has been admitted."""
        self._live_tokens = None
        stats = self._cache.stats()
        return self._cache.available_blocks(), stats.free + stats.evictable

    def too_large(self, sequence: Sequence) -> bool:
        """Whether the empty pool would not hold the sequence's prompt and a token."""
        return self._cache.blocks_for(len(sequence.buffer) + 1) > self._cache.usable_blocks

    def may_begin(self, sequence: Sequence) -> bool:
        """Whether a branch has begun, or may: with its own the transcripts of all that have are
        not too long, or those of its tenant are within the tenant's share of that."""
        if not self._queues.running or self._policy.strict or _has_begun(sequence):
            return True
        cache, tenant = self._cache, sequence.request.tenant
        stats = cache.stats()
        most = self._session_context_percent * (cache.usable_blocks + stats.host_total) // 100
        live, length = self._live(), len(sequence.buffer)
        if cache.blocks_for(live.total() + length) + stats.leased <= most:
            return True
        mine = cache.blocks_for(live[tenant] + length) + cache.leased_blocks(tenant)
        return mine <= most // self._queues.num_tenants

    def _live(self) -> Counter[str]:
        """Tokens of the transcripts that run or wait for their next request, by tenant."""
        if self._live_tokens is None:
            self._live_tokens = Counter()
            for sequence in self._queues.running:
                self._live_tokens[sequence.request.tenant] += len(sequence.buffer)
            for sequence in self._queues.waiting:
                if _has_begun(sequence):
                    self._live_tokens[sequence.request.tenant] += len(sequence.buffer)
        return self._live_tokens

    def may_fit(self, sequence: Sequence, capacity: Capacity) -> bool:
        """A cheap look whether ``try_admit`` has a chance."""
        if not self._queues.running or self._missing(sequence) <= capacity[sequence.warm]:
            return True
        self._cache.waits_for_blocks()
        return False

    def is_owed(self, sequence: Sequence) -> bool:
        """Whether the blocks that a sequence lacks are within its tenant's share: who has more
        than that is not admitted before it."""
        if self._policy.strict or self._queues.num_tenants == 1:
            return False
        return not self._queues.above_share(sequence.request.tenant, self._missing(sequence))

    def _missing(self, sequence: Sequence) -> int:
        length = len(sequence.buffer)
        matched = (length - sequence.uncached_estimate) // self._cache.block_size
        return self._cache.blocks_for(length + 1) - matched

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
        least = blocks_for(length + 1) - cached.num_device_blocks
        if least + self._headroom(sequence) > available:
            self._cache.finish(cached, lease_s=0.0)
            self._cache.waits_for_blocks()
            sequence.uncached_estimate = length - cached.num_cached_tokens
            return False
        ahead = min(sequence.request.max_new_tokens, _ALLOCATE_AHEAD_TOKENS)
        wanted = blocks_for(length + ahead) - cached.num_device_blocks
        roomy = wanted + 4 * (len(self._queues.running) + 1) <= available
        try:
            self._cache.restore(cached)
            reach = blocks_for(length + (ahead if roomy else 1))
            self._cache.allocate(cached, reach - cached.num_blocks)
        except (OutOfBlocks, OutOfSlots) as error:
            self._cache.finish(cached, lease_s=0.0)
            if isinstance(error, OutOfBlocks):
                self._cache.waits_for_blocks()
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


def _has_begun(sequence: Sequence) -> bool:
    return sequence.request.base_branch_id is not None or sequence.preemptions > 0
