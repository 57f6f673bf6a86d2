"""The order in which waiting and running prefills are considered: from turns to sort keys.

What a policy may look at is gathered here: predicted work by the cost model, whether a turn
is warm, its level, what its tenant has had. Knows no places and no blocks.
"""

from collections.abc import Iterable

from radix_cache.cache import PrefixCache
from runtime.config import EngineConfig
from runtime.estimates import StepCosts
from runtime.policy import Policy, ServiceAccount, TurnFacts, level
from runtime.prompt_lookup import PromptLookup
from runtime.roster import Roster
from runtime.sequence import Sequence

Key = tuple[float, ...]


class TurnOrder:
    """Orders the turns of one roster by one policy."""

    def __init__(
        self,
        *,
        cache: PrefixCache,
        config: EngineConfig,
        costs: StepCosts,
        policy: Policy,
        prompts: PromptLookup,
        roster: Roster,
        service: ServiceAccount,
        tokens_per_step: int,
    ) -> None:
        self._cache = cache
        self._costs = costs
        self._policy = policy
        self._prompts = prompts
        self._roster = roster
        self._service = service
        self._tokens_per_step = tokens_per_step
        self._strict = config.policy == "fcfs"
        self._step_s = config.step_ms / 1000
        self._looked_at = 0
        self._roomy = False
        """Half of the pool was free at the last look: nothing has to make room for anything."""

    def sort(self, now: float, prefills: Iterable[Sequence]) -> list[tuple[Key, Sequence]]:
        """Running prefills, paused and waiting turns in the policy's order."""
        stats = self._cache.stats()
        self._roomy = not self._strict and 2 * stats.free >= stats.total
        if self._roster.waiting:
            self._look_again()
        candidates = (*prefills, *self._roster.waiting, *self._roster.paused)
        return sorted(((self.key(s, now), s) for s in candidates), key=lambda pair: pair[0])

    def _look_again(self) -> None:
        """Ask the cache about one waiting turn, another one at each step: what it counted on
        may be gone, or somebody else has computed it by now."""
        waiting = self._roster.waiting
        self._looked_at = (self._looked_at + 1) % len(waiting)
        self._prompts.estimate(waiting[self._looked_at])

    def queue_positions(self, now: float) -> list[Sequence]:
        """The waiting sequences in the order in which they are considered."""
        return sorted(self._roster.waiting, key=lambda s: self.key(s, now))

    def key(self, sequence: Sequence, now: float) -> Key:
        """By the policy; smaller ones go first."""
        request = sequence.request
        waited = now - sequence.arrival_s
        work_s = self._work_s(sequence)
        return self._policy(
            TurnFacts(
                priority=request.priority,
                arrival_s=sequence.arrival_s,
                waited_s=waited,
                work_s=work_s,
                deadline_left_s=None if request.deadline_s is None else request.deadline_s - waited,
                warm=sequence.cached is not None or self._warm(sequence),
                session_start_s=sequence.session_start_s,
                service_s=self._service.service_s(request.tenant),
                level=self.level(sequence, now),
            )
        )

    def level(self, sequence: Sequence, now: float) -> int:
        """How long a turn has shown to be, by ``runtime.policy.level``."""
        length = len(sequence.buffer)
        prompt_s = self._pending_s(sequence)
        prompt = prompt_s / self._costs.decode_s(length) * self._tokens_per_step
        return level(sequence.num_emitted, prompt, now - sequence.arrival_s)

    def _pending_s(self, sequence: Sequence) -> float:
        """Seconds to compute what is known of a turn and not in the cache."""
        pending = sequence.num_pending
        if sequence.cached is None:
            pending = sequence.uncached_estimate
        return self._costs.prefill_s(pending, len(sequence.buffer) - pending)

    def _warm(self, sequence: Sequence) -> bool:
        """Whether a waiting turn counts as warm in the order: what it needs is here, or takes
        less than a step to compute, or memory is plenty."""
        return self._roomy or sequence.warm or self._pending_s(sequence) <= self._step_s

    def _work_s(self, sequence: Sequence) -> float:
        """Engine seconds until the turn's expected end."""
        output = max(sequence.expected_output - sequence.num_emitted, 0)
        decode_s = self._costs.decode_s(len(sequence.buffer))
        return self._pending_s(sequence) + output / self._tokens_per_step * decode_s

    def predicted_first_token_s(self, sequence: Sequence) -> float:
        """Seconds until ``sequence``, which is not queued yet, would emit its first token: the
        prefill that goes before it and its own. Blocks that are not free yet, and turns still
        to come, are not foreseen."""
        roster = self._roster
        own = len(sequence.buffer) - sequence.vouched
        own_s = self._costs.prefill_s(own, sequence.vouched)
        total_s = own_s
        for other in (*roster.running, *roster.waiting):
            if other in roster.decoders or other.finish is not None:
                continue
            cost_s = self._pending_s(other)
            if self._strict or cost_s <= own_s:
                total_s += cost_s
        # Beside decodes prefill has half of the time.
        return total_s * (2.0 if roster.decoders else 1.0)
