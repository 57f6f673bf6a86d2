"""Who may begin to run: whether there are blocks for a turn, and whether it should wait for more.

A turn is admitted if its prompt fits beside what the running ones are expected to say. A session
that has not begun waits while the transcripts of those that have are too long together. Knows no
order and no places: it is asked about one turn at a time.
"""

import numpy as np

from radix_cache.block_pool import OutOfBlocks
from radix_cache.cache import PrefixCache
from runtime.config import EngineConfig
from runtime.growth import Growth
from runtime.prompt_lookup import PromptLookup
from runtime.roster import Roster
from runtime.sequence import Sequence, SequenceState

_ALLOCATE_AHEAD_TOKENS = 32
Room = tuple[int, int]
"""Blocks that a cold and a warm turn could have now, at best."""
NO_ROOM: Room = (0, 0)


class Admission:
    """Admits the waiting turns of one roster."""

    def __init__(
        self,
        *,
        cache: PrefixCache,
        config: EngineConfig,
        growth: Growth,
        prompts: PromptLookup,
        roster: Roster,
    ) -> None:
        self._cache = cache
        self._growth = growth
        self._prompts = prompts
        self._roster = roster
        self._strict = config.policy == "fcfs"
        """Sessions that have not begun are admitted like others."""
        self._session_context_percent = config.session_context_percent
        self._output_reserve_percent = config.output_reserve_percent

    def room(self) -> Room:
        """To be asked again when a turn has been admitted."""
        stats = self._cache.stats()
        return stats.free + stats.idle, stats.free + stats.evictable

    def too_large(self, sequence: Sequence) -> bool:
        """Whether the empty pool would not hold the turn's prompt and a token."""
        return self._growth.blocks_for(len(sequence.buffer) + 1) > self._cache.usable_blocks

    def may_fit(self, sequence: Sequence, room: Room) -> bool:
        """A cheap look whether ``try_admit`` has a chance, and whether a session that has not
        begun may begin."""
        if not self._roster.running:
            return True
        length = len(sequence.buffer)
        begun = sequence.request.base_session_id is not None or sequence.preemptions
        if not self._strict and not begun:
            capacity = self._cache.usable_blocks + self._cache.stats().host_total
            if self._live_blocks(length) > self._session_context_percent * capacity // 100:
                return False
        matched = (length - sequence.uncached_estimate) // self._cache.block_size
        missing = self._growth.blocks_for(length + 1) - matched
        return missing <= room[1 if sequence.warm else 0]

    def _live_blocks(self, more_tokens: int) -> int:
        """Blocks of the transcripts that run, are leased, or wait for their next turn."""
        tokens = more_tokens + self._roster.decoders.num_tokens
        tokens += sum(len(s.buffer) for s in self._roster.running if s.row is None)
        tokens += sum(
            len(s.buffer)
            for s in self._roster.waiting
            if s.request.base_session_id is not None or s.preemptions
        )
        return self._growth.blocks_for(tokens) + self._cache.stats().leased

    def must_wait(self, sequence: Sequence) -> bool:
        """Whether a running turn is about to write KV that this one will reuse, or a part of
        the prompt is on its way."""
        return self._prompts.is_read(sequence) or self._must_wait_for_another(sequence)

    def _must_wait_for_another(self, sequence: Sequence) -> bool:
        """True while a running sequence is about to write KV that this one will reuse: the
        tail of the same session's last turn, or a prefix both have and neither has yet."""
        request = sequence.request
        mine = sequence.buffer.view()
        known = len(mine) - sequence.uncached_estimate
        for other in self._roster.running:
            if other.request.tenant != request.tenant:
                continue
            if other.state is SequenceState.FLUSHING:
                if other.request.session_id == request.base_session_id:
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
        blocks_for = self._growth.blocks_for
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
        roomy = wanted + 4 * (len(self._roster.running) + 1) <= available
        try:
            came_back = cached.num_restorable_blocks
            self._cache.restore(cached)
            self._cache.allocate(cached, (wanted if roomy else least) - came_back)
        except OutOfBlocks:
            self._cache.finish(cached, lease_s=0.0)
            return False
        self._roster.admit(sequence, cached)
        return True

    def _headroom(self, newcomer: Sequence) -> int:
        """Blocks to leave for what the running turns and ``newcomer`` are expected to emit, so
        that admitting it makes nobody give way. None is needed for a turn that is alone."""
        if not self._roster.running:
            return 0
        blocks_for = self._growth.blocks_for
        blocks = 0
        share = self._output_reserve_percent
        for sequence in (*self._roster.running, newcomer):
            if sequence.finish is not None:
                continue
            expected = sequence.expected_output
            more = max(expected - sequence.num_emitted, expected // 4)
            more = min(more * share // 100 + 1, sequence.remaining)
            held = 0 if sequence.cached is None else sequence.cached.num_blocks
            length = len(sequence.buffer)
            blocks += max(0, blocks_for(length + more) - max(held, blocks_for(length)))
        return blocks
