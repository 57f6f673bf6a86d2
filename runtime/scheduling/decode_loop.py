"""Every running decode gets its token, and those with drafts what the step has room for.

Decodes come first in a step; none is skipped but those of a tenant that rests. Only sequences that
need blocks or have a draft are looked at one by one; all others are operations on arrays. Knows no
waiting sequences and no prefill.
"""

from collections import Counter
from collections.abc import Mapping, Set

from runtime.scheduling.block_allocation import BlockAllocator
from runtime.scheduling.costs import StepCosts
from runtime.scheduling.draft import EMPTY_DRAFT, Draft
from runtime.scheduling.queues import Queues
from runtime.scheduling.sequence import Sequence, SequenceState
from runtime.scheduling.shared_context import without_shared
from runtime.scheduling.step_plan import Chunk, Decodes, StepPlan

Drafts = Mapping[Sequence, Draft]
"""Tokens proposed behind each sequence's last known one. All together they are within the step's
budget."""


class DecodeLoop:
    """Plans the decodes of one scheduler."""

    def __init__(
        self,
        *,
        costs: StepCosts,
        allocator: BlockAllocator,
        queues: Queues,
    ) -> None:
        self._costs = costs
        self._allocator = allocator
        self._queues = queues

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
        self.count(step)

    def rest(self, step: StepPlan, tenants: Set[str]) -> None:
        """Leave the decodes of ``tenants`` out of the step."""
        step.resting = {s for s in self._queues.decoders.sequences if s.request.tenant in tenants}
        step.resting.difference_update(step.exhausted)
        for sequence in step.resting:
            step.leave_out(sequence)
        self.count(step)

    def by_tenant(self, step: StepPlan) -> Mapping[str, int]:
        """How many decodes of each tenant are part of the step as it stands."""
        by_tenant = self._queues.decoders.by_tenant
        left_out = self._left_out(step)
        if not left_out:
            return by_tenant
        without = Counter(by_tenant)
        without.subtract(sequence.request.tenant for sequence in left_out)
        return +without

    def _left_out(self, step: StepPlan) -> list[Sequence]:
        """The decoders that are no part of the step."""
        decoders = self._queues.decoders
        return [s for s in (*step.exhausted, *step.resting) if s in decoders]

    def count(self, step: StepPlan) -> None:
        """Note what the step as it stands computes of sequences that decode, and how long that
        takes."""
        step.decode_rows = self.num_tokens(step) - step.prefill_tokens
        decoders, left_out = self._queues.decoders, self._left_out(step)
        context = decoders.num_tokens - sum(len(s.buffer) for s in left_out)
        rows = len(decoders) - len(left_out)
        step.decode_context = without_shared(context, rows, decoders.shared_tokens)
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
        """Tokens that the step computes so far."""
        decoders = self._queues.decoders
        tails = sum(c.num_tokens for s, c in step.chunks.items() if s not in decoders)
        left_out = sum(s.num_pending for s in self._left_out(step))
        return decoders.num_pending - left_out + tails + step.draft_tokens

    def decodes(self, step: StepPlan) -> Decodes:
        """The decodes that have no chunk of their own."""
        decoders = self._queues.decoders
        apart = {s for s in (*step.chunks, *step.exhausted, *step.resting) if s in decoders}
        return decoders.decodes(without=apart)
