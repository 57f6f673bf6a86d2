"""Every running decode gets its token, and those with drafts what the step has room for.

Decodes come first in a step; none is skipped but those of a tenant that rests. Only sequences that
need blocks or have a draft are looked at one by one; all others are operations on arrays. Knows no
waiting sequences and no prefill.
"""

from collections.abc import Mapping, Set

from runtime.scheduling.block_allocation import BlockAllocator
from runtime.scheduling.costs import StepCosts
from runtime.scheduling.draft import EMPTY_DRAFT, Draft
from runtime.scheduling.policy import ServiceAccount
from runtime.scheduling.queues import Queues
from runtime.scheduling.sequence import Sequence, SequenceState
from runtime.scheduling.step_plan import Chunk, Decodes, StepPlan

Drafts = Mapping[Sequence, Draft]
"""By sequence: tokens proposed behind its last known one. All together they are within the step's
budget."""


class DecodeLoop:
    """Plans the decodes of one scheduler."""

    def __init__(
        self,
        *,
        costs: StepCosts,
        allocator: BlockAllocator,
        queues: Queues,
        service: ServiceAccount,
    ) -> None:
        self._costs = costs
        self._allocator = allocator
        self._queues = queues
        self._service = service

    def plan(self, step: StepPlan, drafts: Drafts) -> None:
        """Blocks for the decoding sequences that need some, and a chunk for each with a draft. The
        others' part is what the rows hold of them at the end."""
        decoders = self._queues.decoders
        special = dict.fromkeys(decoders.that_need_blocks())
        if drafts:
            special = dict.fromkeys(s for s in decoders.sequences if s in drafts or s in special)
        for sequence in special:
            if sequence in decoders:  # was not preempted for an earlier one
                self._grow(sequence, step, drafts.get(sequence, EMPTY_DRAFT))
        self._count(step)

    def rest(self, step: StepPlan, tenants: Set[str]) -> Mapping[str, int]:
        """Leave the decodes of ``tenants`` out of the step, and charge for all others. Returns how
        many there are of each tenant."""
        decoders = self._queues.decoders
        if not tenants:
            by_tenant = decoders.by_tenant
        else:
            by_tenant = {t: n for t, n in decoders.by_tenant.items() if t not in tenants}
            step.resting = {s for s in decoders.sequences if s.request.tenant in tenants}
            step.resting.difference_update(step.exhausted)
            for sequence in step.resting:
                left_out = step.chunks.pop(sequence, None)
                step.draft_tokens -= 0 if left_out is None else left_out.num_drafted
            self._count(step)
        share_s = step.decode_s / max(1, sum(by_tenant.values()))
        for tenant, count in by_tenant.items():
            self._service.charge(tenant, share_s * count)
        return by_tenant

    def _count(self, step: StepPlan) -> None:
        """What the step computes of sequences that decode, and how long it takes."""
        left_out = sum(len(s.buffer) for s in (*step.exhausted, *step.resting))
        step.decode_rows = self.num_tokens(step)
        step.decode_context = self._queues.decoders.num_tokens - left_out
        step.decode_s = 0.0
        if step.decode_rows:
            step.decode_s = self._costs.decode_s(step.decode_context, step.decode_rows)

    def _grow(self, sequence: Sequence, step: StepPlan, draft: Draft) -> None:
        if not self._allocator.grow(sequence, step):
            if sequence.state is SequenceState.RUNNING:
                step.exhausted.append(sequence)
            return
        num_drafted = len(draft.tokens)
        if num_drafted and self._allocator.allocate_draft(sequence, num_drafted):
            step.chunks[sequence] = Chunk.of(sequence, sequence.num_pending, draft)
            step.draft_tokens += num_drafted

    def resume(self, sequence: Sequence, step: StepPlan) -> None:
        """A decode that was paused has its slot again and its token in this step."""
        if self._allocator.grow(sequence, step):
            self._queues.decoders.add(sequence)
        elif sequence.state is SequenceState.RUNNING:
            step.exhausted.append(sequence)

    def num_tokens(self, step: StepPlan) -> int:
        """What the step computes so far."""
        decoders = self._queues.decoders
        tails = sum(c.num_tokens for s, c in step.chunks.items() if s not in decoders)
        left_out = sum(s.num_pending for s in (*step.exhausted, *step.resting))
        return decoders.num_pending - left_out + tails + step.draft_tokens

    def decodes(self, step: StepPlan) -> Decodes:
        """The decodes that have no chunk of their own."""
        decoders = self._queues.decoders
        apart = {s for s in (*step.chunks, *step.exhausted, *step.resting) if s in decoders}
        return decoders.decodes(without=apart)
