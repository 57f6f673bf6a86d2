"""Every running decode gets its token: the loop that each step runs for each turn.

Decodes come first in a step and are never skipped; drafts are cut to the step's budget for
them. Knows no waiting turns and no prefill.
"""

from collections.abc import Mapping

from runtime.config import EngineConfig
from runtime.estimates import StepCosts
from runtime.growth import Growth
from runtime.messages import TokenArray
from runtime.policy import ServiceAccount
from runtime.roster import Roster
from runtime.schedule import NO_DRAFT, Chunk, StepPlan
from runtime.sequence import Sequence, SequenceState

Drafts = Mapping[Sequence, TokenArray]
"""int32 [k] by turn: tokens proposed behind its last known one."""


class DecodeLoop:
    """Plans the decodes of one roster."""

    def __init__(
        self,
        *,
        config: EngineConfig,
        costs: StepCosts,
        growth: Growth,
        roster: Roster,
        service: ServiceAccount,
    ) -> None:
        self._draft_budget = config.draft_tokens_per_step
        self._costs = costs
        self._growth = growth
        self._roster = roster
        self._service = service

    def plan(self, step: StepPlan, drafts: Drafts) -> None:
        """A chunk for each decoding turn, and its draft; turns that have ended meanwhile write
        their tails."""
        chunks = step.chunks
        running = SequenceState.RUNNING
        context = 0
        special: list[tuple[Sequence, Chunk]] = []
        for sequence, chunk in self._roster.decoders.items():
            length = sequence.buffer.length
            if sequence.state is not running or length > sequence.block_limit or drafts:
                special.append((sequence, chunk))
                continue
            start = sequence.num_computed
            chunk.start = start
            chunk.num_tokens = length - start
            chunk.draft = NO_DRAFT
            chunks[sequence] = chunk
            context += length
        for sequence, chunk in special:
            context += self._plan_one(sequence, chunk, step, drafts)
        step.decode_rows = len(chunks)
        step.decode_context = context
        if step.decode_rows:
            self._charge(step)

    def _plan_one(
        self,
        sequence: Sequence,
        chunk: Chunk,
        step: StepPlan,
        drafts: Mapping[Sequence, TokenArray],
    ) -> int:
        """A turn that needs blocks, has a draft or has ended; returns the context it reads."""
        if sequence.cached is None:
            return 0  # gave way to an earlier one in this loop
        if sequence.state is SequenceState.FLUSHING:
            self._roster.decoders.pop(sequence)
            self._growth.flush(sequence, step)
            return 0
        if not self._growth.grow(sequence, step):
            if sequence.state is SequenceState.RUNNING:
                step.exhausted.append(sequence)
            return 0
        draft = drafts.get(sequence, NO_DRAFT)[: self._draft_budget - step.draft_tokens]
        draft = draft if self._growth.room_for(sequence, len(draft)) else NO_DRAFT
        chunk.start = sequence.num_computed
        chunk.num_tokens = sequence.num_pending
        chunk.draft = draft
        step.chunks[sequence] = chunk
        step.draft_tokens += len(draft)
        return len(sequence.buffer)

    def resume(self, sequence: Sequence, step: StepPlan) -> None:
        """A decode that was paused has its place again and its token in this step."""
        if self._growth.grow(sequence, step):
            chunk = self._roster.decode(sequence)
            chunk.start = sequence.num_computed
            chunk.num_tokens = sequence.num_pending
            step.chunks[sequence] = chunk
        elif sequence.state is SequenceState.RUNNING:
            step.exhausted.append(sequence)

    def _charge(self, step: StepPlan) -> None:
        """Put the decodes of a step on the accounts of their tenants."""
        step.decode_s = self._costs.decode_s(step.decode_context)
        share_s = step.decode_s / step.decode_rows
        for tenant, count in self._roster.decoders_by_tenant.items():
            self._service.charge(tenant, share_s * count)
