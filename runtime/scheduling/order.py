"""The order in which waiting and running prefills are considered: from turns to sort keys.

What a policy may look at is gathered here: predicted work by the cost model, whether a sequence
is warm, its level, what its tenant has had. Knows no slots and no blocks.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Set

from radix_cache.cache import PrefixCache
from runtime.config import TOKEN_GAP_MS, EngineConfig
from runtime.scheduling.costs import StepCosts
from runtime.scheduling.policy import Policy, SequenceFacts, ServiceAccount, level
from runtime.scheduling.prompt_lookup import PromptLookup
from runtime.scheduling.queues import Queues
from runtime.scheduling.sequence import Sequence

Key = tuple[float, ...]


class SequenceOrder:
    """Orders the sequences of one scheduler by one policy."""

    def __init__(
        self,
        *,
        cache: PrefixCache,
        config: EngineConfig,
        costs: StepCosts,
        policy: Policy,
        prompts: PromptLookup,
        queues: Queues,
        service: ServiceAccount,
        tokens_per_step: int,
    ) -> None:
        self._cache = cache
        self._costs = costs
        self.policy = policy
        self._prompts = prompts
        self._queues = queues
        self._service = service
        self._tokens_per_step = tokens_per_step
        self._step_s = (config.token_gap_ms or TOKEN_GAP_MS) / 1000
        self._looked_at = 0
        self._roomy = False
        """Half of the pool was free at the last look: nothing has to be evicted."""

    def sort(
        self,
        now: float,
        prefills: Iterable[Sequence],
        *,
        waits: Callable[[Sequence], bool],
        last: Set[str],
    ) -> list[tuple[Key, Sequence]]:
        """Running prefills, paused and waiting sequences in the policy's order.

        Args:
            waits: says of whom the step has nothing, whatever its place.
            last: tenants that come behind all others.
        """
        stats = self._cache.stats()
        self._roomy = not self.policy.strict and 2 * stats.free >= stats.total
        if self._queues.waiting:
            self._look_again()
        candidates = (*prefills, *self._queues.waiting, *self._queues.paused)
        keyed = ((self.key(s, now), s) for s in candidates if not waits(s))
        return sorted(keyed, key=lambda pair: (pair[1].request.tenant in last, pair[0]))

    def _look_again(self) -> None:
        """Ask the cache about one waiting sequence, another one at each step: what it counted on
        may be gone, or somebody else has computed it by now."""
        waiting = self._queues.waiting
        self._looked_at = (self._looked_at + 1) % len(waiting)
        self._prompts.estimate(waiting[self._looked_at])

    def queue_positions(self, now: float) -> list[Sequence]:
        """The waiting sequences in the order in which they are considered."""
        return sorted(self._queues.waiting, key=lambda s: self.key(s, now))

    def key(self, sequence: Sequence, now: float) -> Key:
        """A sequence's key by the policy; smaller ones go first."""
        request = sequence.request
        waited = now - sequence.arrival_s
        work_s = self._work_s(sequence)
        return self.policy.key(
            SequenceFacts(
                priority=request.priority,
                arrival_s=sequence.arrival_s,
                waited_s=waited,
                work_s=work_s,
                deadline_left_s=None if request.deadline_s is None else request.deadline_s - waited,
                warm=sequence.cached is not None or self._warm(sequence),
                branch_start_s=sequence.branch_start_s,
                service_s=self._service.service_s(request.tenant),
                level=self.level(sequence, now),
            )
        )

    def level(self, sequence: Sequence, now: float) -> int:
        """How long a sequence has shown to be, by ``runtime.scheduling.policy.level``."""
        length = len(sequence.buffer)
        prompt_s = self._pending_s(sequence)
        prompt = prompt_s / self._costs.decode_s(length) * self._tokens_per_step
        return level(sequence.num_emitted, prompt, now - sequence.arrival_s)

    def _pending_s(self, sequence: Sequence) -> float:
        """Seconds to compute what is known of a sequence and not in the cache."""
        pending = sequence.num_pending
        if sequence.cached is None:
            pending = sequence.uncached_estimate
        return self._costs.prefill_s(pending, len(sequence.buffer) - pending)

    def _warm(self, sequence: Sequence) -> bool:
        """Whether a waiting sequence counts as warm in the order: what it needs is here, or takes
        less than a step to compute, or memory is plenty."""
        return self._roomy or sequence.warm or self._pending_s(sequence) <= self._step_s

    def _work_s(self, sequence: Sequence) -> float:
        """Engine seconds until the sequence's expected end."""
        output = max(sequence.expected_output - sequence.num_emitted, 0)
        decode_s = self._costs.decode_s(len(sequence.buffer))
        return self._pending_s(sequence) + output / self._tokens_per_step * decode_s

    def work_before_s(self, sequence: Sequence) -> float:
        """Seconds of prefill that go before ``sequence``, which is not queued yet: none where
        nothing else is to be done. Of each other tenant that is at most what the sequence's own
        has until then, and what its own had more. Blocks that are not free yet, and requests
        still to come, are not foreseen."""
        queues = self._queues
        own_s = self._costs.prefill_s(len(sequence.buffer) - sequence.vouched, sequence.vouched)
        tenant, work_s = sequence.request.tenant, defaultdict[str, float](float)
        for other in (*queues.running, *queues.waiting):
            if other in queues.decoders or other.finish is not None:
                continue
            cost_s, theirs = self._pending_s(other), other.request.tenant
            if self.policy.strict or theirs != tenant or cost_s <= own_s:
                work_s[theirs] += cost_s
        total_s = work_s.pop(tenant, 0.0)
        most_s = total_s + own_s
        for theirs, cost_s in work_s.items():
            ahead_s = self._service.service_s(tenant) - self._service.service_s(theirs)
            due_s = cost_s if self.policy.strict else most_s + max(ahead_s, 0.0)
            total_s += min(cost_s, due_s)
        # Beside decodes prefill has half of the time.
        return total_s * (2.0 if queues.decoders else 1.0)
