"""Which sequences compute how many tokens in the next step.

There is no prefill mode and no decode mode: every sequence has pending tokens, and a step
gives each running one a share. Running decodes come first and are never skipped; what the
step's token budget leaves goes to prefills in the policy's order and to newly admitted
turns. Admission needs free or evictable blocks; a turn that does not fit does not block
those behind it.

Ties together the parts that each know one thing: the roster, the decode loop, the order,
places, admission, growth. Ids and counts only: no tensors, no wall clock.
"""

from collections.abc import Callable, Iterable
from collections.abc import Sequence as Many
from types import MappingProxyType

from radix_cache.block_pool import BlockArray
from radix_cache.cache import PrefixCache
from runtime.admission import NO_ROOM, Admission
from runtime.config import EngineConfig
from runtime.decode_loop import DecodeLoop, Drafts
from runtime.estimates import StepCosts
from runtime.growth import Growth
from runtime.messages import TokenArray
from runtime.places import Places
from runtime.policy import POLICIES, Policy, ServiceAccount
from runtime.prompt_lookup import PromptLookup
from runtime.roster import Roster
from runtime.schedule import Chunk, Decodes, Schedule, StepPlan
from runtime.sequence import Sequence, SequenceState
from runtime.turn_order import Key, TurnOrder

_NO_DRAFTS: Drafts = MappingProxyType({})
_BLOCKED_ATTEMPTS_PER_STEP = 16
_LEAST_CHUNK_TOKENS = 4
_ROW_STEP = 16
"""Steps are filled to a multiple of so many tokens: products of few rows are compiled for 16,
and libraries prepare others anew for each number of rows."""
_MIXED_STEPS = 32
"""Of steps that decode and could prefill, one in so many only decodes: the bound of the others
is what decodes take by themselves, which only such a step tells."""
_LONE_SHARE = 0.7
"""Prefill beside decodes takes at most as long as these by themselves; a prompt behind which nobody
waits only so much of it, since no prediction is exact and then the gaps between tokens, of which
there are many, stay below twice those without prefill."""
_NO_BOUND_S = 3600.0


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
        ``tokens_per_step`` is what a decode step of ``costs`` yields per turn."""
        self._cache = cache
        self._arrived = arrived or _always
        self._config = config
        self._costs = costs
        self._block_size = cache.block_size
        self._service = ServiceAccount()
        self._strict = config.policy == "fcfs"
        """Nobody passes a turn that has to wait, and prefill is bounded in tokens alone."""
        self._step_s = config.step_ms / 1000
        self._mixed_steps = 0
        prompts = PromptLookup(cache)
        self._roster = roster = Roster(cache, prompts, self._service)
        self._growth = Growth(cache, roster)
        self._order = TurnOrder(
            cache=cache,
            config=config,
            costs=costs,
            policy=policy or POLICIES[config.policy],
            prompts=prompts,
            roster=roster,
            service=self._service,
            tokens_per_step=tokens_per_step,
        )
        self._places = Places(config, self._order, roster)
        self._decodes = DecodeLoop(
            config=config, costs=costs, growth=self._growth, roster=roster, service=self._service
        )
        self._admission = Admission(
            cache=cache, config=config, growth=self._growth, prompts=prompts, roster=roster
        )

    @property
    def waiting(self) -> Many[Sequence]:
        """In no particular order."""
        return self._roster.waiting

    @property
    def running(self) -> Many[Sequence]:
        """Admitted sequences, flushing ones included, oldest admission first."""
        return self._roster.running

    @property
    def paused(self) -> Iterable[Sequence]:
        """Those of ``running`` that have no place at the moment."""
        return self._roster.paused.keys()

    @property
    def has_work(self) -> bool:
        return bool(self._roster.waiting or self._roster.running)

    def add(self, sequence: Sequence) -> None:
        """Queue ``sequence``; from here the scheduler decides when it runs."""
        self._roster.add(sequence)

    def drop_waiting(self, sequence: Sequence) -> None:
        """Forget a sequence that was never admitted or is waiting again."""
        self._roster.drop_waiting(sequence)

    def flush(self, sequence: Sequence) -> None:
        """A running sequence has ended for the client: the next step writes its tail, and then
        it is to be ended."""
        self._roster.flush(sequence)

    def end(self, sequence: Sequence, *, lease_s: float | None, answered: bool = False) -> None:
        """Let a running sequence go: its blocks stay in the tree, evictable or leased.

        Whole blocks with KV are published first; the partial last block returns to the pool.
        """
        self._roster.end(sequence, lease_s=lease_s, answered=answered)

    def predicted_first_token_s(self, sequence: Sequence) -> float:
        """Seconds until ``sequence``, which is not queued yet, would emit its first token."""
        return self._order.predicted_first_token_s(sequence)

    def queue_positions(self, now: float) -> list[Sequence]:
        """The waiting sequences in the order in which they are considered."""
        return self._order.queue_positions(now)

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

    def said(self, decodes: Decodes, tokens: TokenArray) -> None:
        """Note that the KV of all ``decodes`` is written and that each turn has said one of
        ``tokens``, int32 [n], and goes on."""
        for sequence in self._roster.decoders.said(decodes, tokens):
            self._publish(sequence, sequence.num_computed)

    def _publish(self, sequence: Sequence, computed: int) -> None:
        assert sequence.cached is not None
        self._cache.commit(sequence.cached, sequence.buffer.view()[:computed])

    def schedule(self, now: float, drafts: Drafts = _NO_DRAFTS) -> Schedule:
        """Plan the next step.

        Args:
            now: seconds, any origin.
            drafts: tokens proposed for decoding sequences; they are cut to what the step's
                draft budget and the free blocks allow, and never make another turn give way.
        """
        step = StepPlan()
        self._places.changed()
        prefills = self._sort_out(step)
        self._decodes.plan(step, drafts)
        prefills = [s for s in prefills if s.state is SequenceState.RUNNING]
        roster = self._roster
        if prefills or roster.waiting or roster.paused:
            self._share_out(now, prefills, step)
        return Schedule(
            decodes=self._decodes.decodes(step),
            others=tuple(step.chunks.values()),
            admitted=tuple(step.admitted),
            exhausted=tuple(step.exhausted),
            too_large=tuple(step.too_large),
            preempted=step.preempted,
            paused=tuple(s for s in step.paused if s in roster.paused),
        )

    def _sort_out(self, step: StepPlan) -> list[Sequence]:
        """The running turns whose prompt is not computed yet. Those that have come to its end
        decode from now on; those that have ended write their tails."""
        roster = self._roster
        roster.decoders.tidy()
        if len(roster.decoders) + len(roster.paused) >= len(roster.running):
            return []
        prefills: list[Sequence] = []
        for sequence in list(roster.running):
            if sequence.state is SequenceState.FLUSHING:
                self._growth.flush(sequence, step)
            elif sequence in roster.decoders or sequence in roster.paused:
                continue
            elif sequence.decoding:
                roster.decoders.add(sequence)
            else:
                prefills.append(sequence)
        return prefills

    def _share_out(self, now: float, prefills: list[Sequence], step: StepPlan) -> None:
        """Give the step's prefill budget to running prefills and to waiting turns, in one
        order, so that a short turn passes a long prefill that has begun."""
        roster = self._roster
        rows = self._decodes.num_tokens(step)
        tokens, seconds = self._prefill_budget(step, rows, len(prefills) + len(roster.waiting))
        order = self._order.sort(now, prefills)
        room = self._admission.room() if roster.waiting else NO_ROOM
        blocked = 0
        for key, sequence in order:
            if sequence in roster.paused and not self._resume(sequence, key, now, step):
                continue
            if tokens <= 0 or seconds <= 0.0:
                if not roster.paused:
                    break
                continue
            if sequence.state is SequenceState.WAITING:
                if self._admission.too_large(sequence):
                    roster.drop_waiting(sequence)
                    step.too_large.append(sequence)
                    continue
                placed, longer = self._places.find(sequence, key, now)
                if not placed or blocked >= _BLOCKED_ATTEMPTS_PER_STEP:
                    continue
                if self._admission.must_wait(sequence):
                    continue
                fits = self._admission.may_fit(sequence, room)
                if not fits or not self._admission.try_admit(sequence):
                    blocked += _BLOCKED_ATTEMPTS_PER_STEP if self._strict else fits
                    continue
                room = self._admission.room()
                sequence.admitted_s = now
                step.admitted.append(sequence)
                if longer is not None:
                    self._places.pause(longer, step)
                self._places.changed()
            if sequence.cached is None or not self._arrived(sequence.cached.block_table):
                continue
            take = self._share(sequence, tokens, seconds, rows, step)
            rows += take
            cost_s = self._costs.prefill_s(take, sequence.num_computed)
            step.chunks[sequence] = Chunk.of(sequence, take)
            self._service.charge(sequence.request.tenant, cost_s)
            # What is left of a budget that cut a prompt short is not worth another chunk's cost.
            tokens = tokens - take if take == sequence.num_pending else 0
            seconds -= 0.0 if self._strict else cost_s

    def _prefill_budget(self, step: StepPlan, used: int, num_candidates: int) -> tuple[int, float]:
        """Tokens and seconds of prefill that a step of ``used`` tokens has room for."""
        tokens = self._config.max_batch_tokens
        seconds = self._step_s
        if step.decode_rows:
            tokens = min(tokens, self._config.prefill_tokens_beside_decodes)
            share = _LONE_SHARE if num_candidates <= 1 else 1.0
            seconds = min(seconds, share * step.decode_s)
            self._mixed_steps += 1
            if not self._strict and self._mixed_steps % _MIXED_STEPS == 0:
                seconds = 0.0
        elif num_candidates <= 1:
            seconds = _NO_BOUND_S
        return min(tokens, self._config.max_batch_tokens - used), seconds

    def _resume(self, sequence: Sequence, key: Key, now: float, step: StepPlan) -> bool:
        """Give a paused turn a place if there is one for it; a decode gets its token. True if
        it is a prefill that goes on."""
        if not self._places.resume(sequence, key, now, step):
            return False
        if sequence.decoding:
            self._decodes.resume(sequence, step)
            return False
        return True

    def _share(
        self, sequence: Sequence, tokens: int, seconds: float, rows: int, step: StepPlan
    ) -> int:
        """How many tokens of its prompt a turn computes, of what the step has left."""
        take = min(tokens, sequence.num_pending)
        if self._strict:
            return take
        within = self._costs.prefill_tokens_within(
            seconds, sequence.num_computed, beside_decodes=bool(step.decode_rows)
        )
        return _evenly(min(take, max(within, _LEAST_CHUNK_TOKENS)), sequence, rows)


def _always(blocks: BlockArray) -> bool:
    """Without tiers below the device every block is where it should be."""
    return True


def _evenly(num_tokens: int, sequence: Sequence, rows: int) -> int:
    """A chunk of about ``num_tokens`` that fills a step of ``rows`` tokens to a multiple of
    ``_ROW_STEP``, unless it ends the prompt or would be nothing."""
    if num_tokens == sequence.num_pending:
        return num_tokens
    even = num_tokens - (rows + num_tokens) % _ROW_STEP
    return even if even >= _LEAST_CHUNK_TOKENS else num_tokens
