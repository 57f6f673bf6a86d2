"""Which sequences compute how many tokens in the next step.

There is no prefill mode and no decode mode: every sequence has pending tokens, and a step
gives each running one a share. Running decodes come first, and none is skipped unless its tenant
had more than its share and would make others' steps much longer; what the step's token budget
leaves goes to prefills in the policy's order and to newly admitted sequences. Admission needs free
or evictable blocks; a sequence that does not fit does not block those behind it, but for tenants
that have more than their share of the blocks where it is within its tenant's.

Ties together the parts that each know one thing: the queues, the decode loop, the order,
slots, admission, block allocation. Ids and counts only: no tensors, no wall clock.
"""

from collections.abc import Callable, Set
from types import MappingProxyType

from radix_cache.block_pool import BlockArray
from radix_cache.cache import PrefixCache
from runtime.config import EngineConfig
from runtime.messages import TokenArray
from runtime.scheduling.admission import NO_CAPACITY, Admission
from runtime.scheduling.block_allocation import BlockAllocator
from runtime.scheduling.costs import StepCosts
from runtime.scheduling.decode_loop import DecodeLoop, Drafts
from runtime.scheduling.order import Key, SequenceOrder
from runtime.scheduling.policy import POLICIES, Policy, ServiceAccount
from runtime.scheduling.prefill_budget import PrefillBudget
from runtime.scheduling.prompt_lookup import PromptLookup
from runtime.scheduling.queues import Queues
from runtime.scheduling.sequence import Sequence, SequenceState
from runtime.scheduling.slots import Slots
from runtime.scheduling.step_plan import Chunk, Decodes, Schedule, StepPlan
from runtime.scheduling.tenant_share import TenantShare

_NO_DRAFTS: Drafts = MappingProxyType({})
_BLOCKED_ATTEMPTS_PER_STEP = 16


class Scheduler:
    """Owns the waiting and running sequences and their use of the prefix cache."""

    def __init__(
        self,
        cache: PrefixCache,
        config: EngineConfig,
        costs: StepCosts,
        *,
        policy: Policy | None = None,
        arrived: Callable[[BlockArray], bool] | None = None,
        tokens_per_step: int = 1,
    ) -> None:
        """``arrived`` tells whether blocks that came back from host memory are there yet;
        ``tokens_per_step`` is what a decode step of ``costs`` yields per sequence."""
        self._cache = cache
        self._arrived = arrived or _always
        self._config = config
        self.costs = costs
        self._policy = policy or POLICIES[config.policy]
        self._block_size = cache.block_size
        self.service = ServiceAccount()
        """The seconds that each tenant has been served."""
        prompts = PromptLookup(cache)
        self.queues = queues = Queues(cache, prompts, self.service)
        self.allocator = BlockAllocator(cache, queues)
        self.order = SequenceOrder(
            cache=cache,
            config=config,
            costs=costs,
            policy=self._policy,
            prompts=prompts,
            queues=queues,
            service=self.service,
            tokens_per_step=tokens_per_step,
        )
        self.prefill_budget = PrefillBudget(config, costs, self._policy)
        self.tenant_share = TenantShare(costs)
        self._slots = Slots(config, self.order, queues)
        self._decodes = DecodeLoop(
            costs=costs,
            allocator=self.allocator,
            queues=queues,
        )
        self._admission = Admission(
            cache=cache,
            config=config,
            policy=self._policy,
            prompts=prompts,
            queues=queues,
        )

    def wants_flush(self, sequence: Sequence) -> bool:
        """Whether writing the pending tail would complete another whole block."""
        size = self._block_size
        return sequence.flush_target // size > sequence.num_computed // size

    def advance(self, chunk: Chunk, accepted: int = 0) -> None:
        """Note that the KV of the chunk and of ``accepted`` draft tokens is written, and
        publish the blocks they filled. What was rejected is overwritten later."""
        sequence = chunk.sequence
        before = sequence.num_computed
        sequence.num_computed = computed = before + chunk.num_tokens + accepted
        if computed // self._block_size > before // self._block_size:
            self._publish(sequence, computed)
        if sequence.cuts and (kind := sequence.cuts.pop(computed, None)) is not None:
            assert sequence.cached is not None
            self._cache.keep_state(sequence.cached, sequence.buffer.view()[:computed], kind)

    def decoded(self, decodes: Decodes, tokens: TokenArray) -> None:
        """Note that the KV of all ``decodes`` is written and that each sequence has emitted one of
        ``tokens``, int32 [n], and goes on."""
        for sequence in self.queues.decoders.decoded(decodes, tokens):
            self._publish(sequence, sequence.num_computed)

    def _publish(self, sequence: Sequence, computed: int) -> None:
        assert sequence.cached is not None
        self._cache.commit(sequence.cached, sequence.buffer.view()[:computed])

    def schedule(self, now: float, drafts: Drafts = _NO_DRAFTS) -> Schedule:
        """Plan the next step.

        Args:
            now: seconds, any origin.
            drafts: tokens proposed for decoding sequences; they are cut to what the step's
                draft budget and the free blocks allow, and never preempt another
                sequence.
        """
        step = StepPlan()
        self._slots.changed()
        prefills = self._sort_out(step)
        self._decodes.plan(step, drafts)
        prefills = [s for s in prefills if s.state is SequenceState.RUNNING]
        queues = self.queues
        resting = self._who_rests(now, step)
        if resting:
            self._decodes.rest(step, resting)
        if prefills or queues.waiting or queues.paused:
            self._share_out(now, prefills, step)
            self._decodes.count(step)
        self._charge(step)
        return Schedule(
            decodes=self._decodes.decodes(step),
            others=tuple(step.chunks.values()),
            admitted=tuple(step.admitted),
            exhausted=tuple(step.exhausted),
            too_large=tuple(step.too_large),
            preempted=step.preempted,
            paused=tuple(s for s in step.paused if s in queues.paused),
        )

    def _sort_out(self, step: StepPlan) -> list[Sequence]:
        """The running sequences whose prompt is not computed yet. Those that have come to its end
        decode from now on; those that have ended write their tails."""
        queues = self.queues
        queues.decoders.tidy()
        if len(queues.decoders) + len(queues.paused) >= len(queues.running):
            return []
        prefills: list[Sequence] = []
        for sequence in list(queues.running):
            if sequence.state is SequenceState.FLUSHING:
                self.allocator.flush(sequence, step)
            elif sequence in queues.decoders or sequence in queues.paused:
                continue
            elif sequence.decoding:
                queues.decoders.add(sequence)
            else:
                prefills.append(sequence)
        return prefills

    def _who_rests(self, now: float, step: StepPlan) -> Set[str]:
        """The tenants whose decodes are left out of a step."""
        decoders, tenants = self.queues.decoders.by_tenant, self.service.num_tenants
        resting = self.tenant_share.start_step(now, step, decoders=decoders, tenants=tenants)
        return frozenset() if self._policy.strict else resting

    def _share_out(self, now: float, prefills: list[Sequence], step: StepPlan) -> None:
        """Give the step's prefill budget to running prefills and to waiting sequences, in one
        order, so that a short sequence passes a long prefill that has begun."""
        queues = self.queues
        rows = self._decodes.num_tokens(step)
        budget = self.prefill_budget
        budget.start_step(
            step,
            used=rows,
            num_decodes=len(queues.decoders),
            num_candidates=len(prefills) + len(queues.waiting),
            num_tenants=self.service.num_tenants,
        )
        late = frozenset() if self._policy.strict else self.tenant_share.late
        order = self.order.sort(now, prefills, waits=self._has_to_wait, last=late)
        capacity = self._admission.capacity() if queues.waiting else NO_CAPACITY
        blocked = 0
        owed: set[str] = set()
        for key, sequence in order:
            if self._has_to_wait(sequence):
                continue
            if sequence in queues.paused and not self._resume(sequence, key, now, step):
                continue
            if budget.is_spent:
                if not queues.paused:
                    break
                continue
            if sequence.state is SequenceState.WAITING:
                if self._admission.too_large(sequence):
                    queues.withdraw(sequence)
                    step.too_large.append(sequence)
                    continue
                found, longer = self._slots.find(sequence, key, now)
                if not found or blocked >= _BLOCKED_ATTEMPTS_PER_STEP:
                    continue
                if not budget.share(sequence, sequence.uncached_estimate, step):
                    continue  # the next step is soon enough
                if self._admission.must_wait(sequence):
                    continue
                if not self._admission.may_begin(sequence):
                    continue
                tenant = sequence.request.tenant
                if owed - {tenant} and queues.above_share(tenant):
                    continue
                fits = self._admission.may_fit(sequence, capacity)
                if not fits or not self._admission.try_admit(sequence):
                    blocked += _BLOCKED_ATTEMPTS_PER_STEP if self._policy.strict else fits
                    if self._admission.is_owed(sequence):
                        owed.add(tenant)
                    continue
                capacity = self._admission.capacity()
                sequence.admitted_s = now
                step.admitted.append(sequence)
                if longer is not None:
                    self._slots.pause(longer, step)
                self._slots.changed()
            if sequence.cached is None or not self._arrived(sequence.cached.block_table):
                continue
            take, cost_s = budget.grant(sequence, step, used=rows)
            if take:
                rows += take
                step.chunks[sequence] = Chunk.of(sequence, take)
                step.prefill_s[sequence] = cost_s
                self.service.charge(sequence.request.tenant, cost_s)
                self.tenant_share.takes_part(sequence.request.tenant)

    def _charge(self, step: StepPlan) -> None:
        """Put the time of the step on the accounts, where that of prompts is already for the order
        of slots. A sequence that lost its slot on the way costs nothing, and one that has it again
        its token."""
        by_tenant = self._decodes.by_tenant(step)
        self.tenant_share.decode(step, by_tenant)
        share_s = step.decode_s / max(1, sum(by_tenant.values()))
        for tenant, count in by_tenant.items():
            self.service.charge(tenant, share_s * count)
        for sequence, cost_s in step.given_back:
            self.service.charge(sequence.request.tenant, -cost_s)
        for sequence, cost_s in step.prefill_s.items():
            self.tenant_share.charge(sequence.request.tenant, cost_s)

    def _has_to_wait(self, sequence: Sequence) -> bool:
        """Whether a prompt is of a tenant that had more than its share beside others' work."""
        if self._policy.strict or sequence.decoding:
            return False
        return self.tenant_share.has_to_wait(sequence.request.tenant)

    def _resume(self, sequence: Sequence, key: Key, now: float, step: StepPlan) -> bool:
        """Give a paused sequence a slot if there is one for it; a decode gets its token. True if
        it is a prefill that goes on."""
        if not self._slots.resume(sequence, key, now, step):
            return False
        if sequence.decoding:
            self._decodes.resume(sequence, step)
            return False
        return True


def _always(blocks: BlockArray) -> bool:
    """Without tiers below the device every block is where it should be."""
    return True
