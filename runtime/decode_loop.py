"""Every running decode gets its token, and those with drafts what the step has room for.

Decodes come first in a step and are never skipped. Only turns that need blocks or have a draft
are looked at one by one; all others are operations on arrays. Knows no waiting turns and no
prefill.
"""

from collections.abc import Mapping

from runtime.config import EngineConfig
from runtime.estimates import StepCosts
from runtime.growth import Growth
from runtime.messages import TokenArray
from runtime.policy import ServiceAccount
from runtime.roster import Roster
from runtime.schedule import NO_DRAFT, Chunk, Decodes, StepPlan
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
        """Blocks for the decoding turns that need some, and a chunk for each with a draft. The
        others' part is what the arrays say of them at the end."""
        decoders = self._roster.decoders
        special = dict.fromkeys(decoders.that_need_blocks())
        if drafts:
            special = dict.fromkeys(s for s in decoders.sequences if s in drafts or s in special)
        for sequence in special:
            if sequence in decoders:  # has not given way to an earlier one
                self._grow(sequence, step, drafts.get(sequence, NO_DRAFT))
        num_tails = sum(sequence not in decoders for sequence in step.chunks)
        step.decode_rows = len(decoders) - len(step.exhausted) + num_tails
        step.decode_context = decoders.num_tokens - sum(len(s.buffer) for s in step.exhausted)
        if step.decode_rows:
            self._charge(step)

    def _grow(self, sequence: Sequence, step: StepPlan, draft: TokenArray) -> None:
        if not self._growth.grow(sequence, step):
            if sequence.state is SequenceState.RUNNING:
                step.exhausted.append(sequence)
            return
        draft = draft[: self._draft_budget - step.draft_tokens]
        if len(draft) and self._growth.room_for(sequence, len(draft)):
            step.chunks[sequence] = chunk = Chunk.of(sequence, sequence.num_pending)
            chunk.draft = draft
            step.draft_tokens += len(draft)

    def resume(self, sequence: Sequence, step: StepPlan) -> None:
        """A decode that was paused has its place again and its token in this step."""
        if self._growth.grow(sequence, step):
            self._roster.decoders.add(sequence)
        elif sequence.state is SequenceState.RUNNING:
            step.exhausted.append(sequence)

    def num_tokens(self, step: StepPlan) -> int:
        """What the step computes so far."""
        decoders = self._roster.decoders
        tails = sum(c.num_tokens for s, c in step.chunks.items() if s not in decoders)
        exhausted = sum(sequence.num_pending for sequence in step.exhausted)
        return decoders.num_pending - exhausted + tails + step.draft_tokens

    def decodes(self, step: StepPlan) -> Decodes:
        """The decodes that have no chunk of their own."""
        decoders = self._roster.decoders
        apart = {s for s in (*step.chunks, *step.exhausted) if s in decoders}
        return decoders.decodes(without=apart)

    def _charge(self, step: StepPlan) -> None:
        """Put the decodes of a step on the accounts of their tenants."""
        step.decode_s = self._costs.decode_s(step.decode_context)
        share_s = step.decode_s / step.decode_rows
        for tenant, count in self._roster.decoders.by_tenant.items():
            self._service.charge(tenant, share_s * count)
