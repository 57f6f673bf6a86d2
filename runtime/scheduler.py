"""Which sequences compute how many tokens in the next step.

There is no prefill mode and no decode mode: every sequence has pending tokens, and a step
gives each running one a share. Running decodes come first and are never skipped; what the
step's token budget leaves goes to prefills in the policy's order and to newly admitted
turns. Admission needs free or evictable blocks; a turn that does not fit does not block
those behind it. When a running turn cannot grow, the one that is cheapest to restore gives
way and is recomputed later.

``max_running`` turns have a place. When all are taken, a long turn that runs is paused for a
shorter one: it keeps its blocks and goes on when its turn comes again.

Ids and counts only: no tensors, no wall clock. Always true between calls: a sequence holds
a ``CachedSequence`` exactly while it is RUNNING or FLUSHING.
"""

from collections.abc import Callable, Iterable, Mapping
from collections.abc import Sequence as Many
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np

from radix_cache.block_pool import BlockArray, OutOfBlocks
from radix_cache.cache import PrefixCache
from runtime.config import EngineConfig
from runtime.estimates import StepCosts, StepWork
from runtime.messages import TokenArray
from runtime.policy import NUM_LEVELS, POLICIES, Policy, ServiceAccount, TurnFacts, level
from runtime.sequence import Sequence, SequenceState

Key = tuple[float, ...]
Place = tuple[bool, Sequence | None]
"""Whether there is one, and who has it now and is to be paused."""
_FREE_PLACE: Place = (True, None)
_NO_PLACE: Place = (False, None)
NO_DRAFT: TokenArray = np.empty(0, dtype=np.int32)
_NO_DRAFTS: Mapping[Sequence, TokenArray] = MappingProxyType({})
_ALLOCATE_AHEAD_TOKENS = 32
_BLOCKED_ATTEMPTS_PER_STEP = 16
_LEAST_CHUNK_TOKENS = 4
_ROW_STEP = 16
"""Steps are filled to a multiple of so many tokens: products of few rows are compiled for 16,
and libraries prepare others anew for each number of rows."""
_DECODE_RUN_TOKENS = 64
_MIXED_STEPS = 32
"""Of steps that decode and could prefill, one in so many only decodes: the bound of the others
is what decodes take by themselves, which only such a step tells."""
_REMEMBERED_SESSIONS = 1 << 15
_LONG_TURNS_SHARE = 8
"""One place in so many, and at least one, is not taken from a long turn for a shorter one."""
_NO_ROOM = (0, 0)
_NO_BOUND_S = 3600.0


class Chunk:
    """``num_tokens`` pending tokens of one sequence, from ``start`` on, and a draft.

    Made by the scheduler, read by its caller until the next plan: the chunk of a decode is
    the same object at each step.
    """

    __slots__ = ("draft", "num_tokens", "samples", "sequence", "start")

    def __init__(
        self, sequence: Sequence, start: int, num_tokens: int, samples: bool, draft: TokenArray
    ) -> None:
        self.sequence = sequence
        self.start = start
        self.num_tokens = num_tokens
        self.samples = samples
        """The chunk reaches the last known token, so the step also yields the next one."""
        self.draft = draft
        """int32 [k]: proposed tokens behind the last known one, to be verified in this step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """The plan of one step."""

    chunks: tuple[Chunk, ...]
    admitted: tuple[Sequence, ...]
    """Sequences whose prefix was matched in this call; they have not reported it yet."""
    exhausted: tuple[Sequence, ...]
    """Running sequences that cannot grow although nothing else is left to give way."""
    too_large: tuple[Sequence, ...]
    """Waiting sequences that would not fit the empty pool."""
    preempted: int
    paused: tuple[Sequence, ...]
    """Sequences that lost their place in this call; they keep their blocks and miss steps
    until they have one again."""

    @property
    def empty(self) -> bool:
        return not self.chunks


def step_work(chunks: Iterable[Chunk]) -> StepWork:
    """What a step with ``chunks`` costs, in the units of the cost model. To be asked before
    the step's results are applied."""
    tokens = rows = context = prefills = 0
    pairs = 0.0
    for chunk in chunks:
        sequence, n = chunk.sequence, chunk.num_tokens
        if sequence.decoding and sequence.finish is None and n <= _DECODE_RUN_TOKENS:
            rows += 1
            context += chunk.start + n
        else:
            prefills += 1
            tokens += n
            pairs += n * (chunk.start + n / 2)
    return StepWork(
        prefill_tokens=tokens,
        prefill_pairs=pairs,
        prefill_chunks=prefills,
        decode_rows=rows,
        decode_context=context,
    )


class _Step:
    """A plan in the making."""

    __slots__ = (
        "admitted",
        "chunks",
        "decode_context",
        "decode_rows",
        "decode_s",
        "exhausted",
        "paused",
        "preempted",
        "tokens",
        "too_large",
        "victims",
    )

    def __init__(self) -> None:
        self.chunks: dict[Sequence, Chunk] = {}
        self.admitted: list[Sequence] = []
        self.exhausted: list[Sequence] = []
        self.too_large: list[Sequence] = []
        self.preempted = 0
        self.paused: list[Sequence] = []
        self.victims: list[tuple[Key, Sequence | None]] | None = None
        self.decode_rows = 0
        self.decode_context = 0
        self.decode_s = 0.0
        self.tokens = 0
        """Draft tokens, which the chunks do not count."""


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
        self._awaited: dict[Sequence, int] = {}
        """The last order that reads a waiting turn's KV from the disk."""
        self._config = config
        self._costs = costs
        self._policy = policy or POLICIES[config.policy]
        self._block_size = cache.block_size
        self._waiting: list[Sequence] = []
        self._running: list[Sequence] = []
        self._decoders: dict[Sequence, Chunk] = {}
        """The running sequences that decode, each with the chunk that its steps reuse."""
        self._tenant_rows: dict[str, int] | None = None
        """Decoding sequences by tenant; None when it has to be counted again."""
        self._last_victim: Sequence | None = None
        self._service = ServiceAccount()
        self._strict = config.policy == "fcfs"
        """Nobody passes a turn that has to wait, and prefill is bounded in tokens alone."""
        self._step_s = config.step_ms / 1000
        self._session_starts: dict[str, float] = {}
        self._looked_at = 0
        self._mixed_steps = 0
        self._tokens_per_step = tokens_per_step
        self._paused: dict[Sequence, None] = {}
        self._roomy = False
        """Half of the pool was free at the last look: nothing has to make room for anything."""

    @property
    def waiting(self) -> Many[Sequence]:
        """In no particular order."""
        return self._waiting

    @property
    def running(self) -> Many[Sequence]:
        """Admitted sequences, flushing ones included, oldest admission first."""
        return self._running

    @property
    def paused(self) -> Iterable[Sequence]:
        """Those of ``running`` that have no place at the moment."""
        return self._paused.keys()

    @property
    def has_work(self) -> bool:
        return bool(self._waiting or self._running)

    def add(self, sequence: Sequence) -> None:
        """Queue ``sequence``; from here the scheduler decides when it runs."""
        request = sequence.request
        starts = self._session_starts
        start = sequence.arrival_s
        if request.base_session_id is not None:
            start = starts.get(request.base_session_id, start)
        sequence.session_start_s = start
        starts.pop(request.session_id, None)
        starts[request.session_id] = start
        if len(starts) > _REMEMBERED_SESSIONS:
            del starts[next(iter(starts))]
        self._cache.set_queued(request.session_id, True)
        self._fetch(sequence)
        self._wait(sequence)

    def _wait(self, sequence: Sequence) -> None:
        sequence.state = SequenceState.WAITING
        self._estimate(sequence)
        self._service.turn_opened(sequence.request.tenant)
        self._waiting.append(sequence)

    def _fetch(self, sequence: Sequence) -> None:
        """Have what is on disk of the prompt read into host memory while the turn waits."""
        if self._cache.prefetch(**_prompt(sequence)):
            self._awaited[sequence] = self._cache.last_order

    def _estimate(self, sequence: Sequence) -> None:
        """Note how much of the prompt would have to be computed if it were admitted now."""
        matched = self._cache.match_length(**_prompt(sequence))
        sequence.uncached_estimate = len(sequence.buffer) - matched

    def drop_waiting(self, sequence: Sequence) -> None:
        """Forget a sequence that was never admitted or is waiting again."""
        self._waiting.remove(sequence)
        self._awaited.pop(sequence, None)
        self._service.turn_closed(sequence.request.tenant)
        self._cache.set_queued(sequence.request.session_id, False)
        sequence.state = SequenceState.DONE

    def end(self, sequence: Sequence, *, lease_s: float | None) -> None:
        """Let a running sequence go: its blocks stay in the tree, evictable or leased.

        Whole blocks with KV are published first; the partial last block returns to the pool.
        """
        assert sequence.cached is not None
        self._cache.finish(sequence.cached, lease_s=lease_s)
        sequence.cached = None
        sequence.state = SequenceState.DONE
        self._running.remove(sequence)
        self._paused.pop(sequence, None)
        if self._decoders.pop(sequence, None) is not None:
            self._tenant_rows = None
        self._service.turn_closed(sequence.request.tenant)

    def wants_flush(self, sequence: Sequence) -> bool:
        """Whether writing the pending tail would complete another whole block."""
        size = self._block_size
        return sequence.flush_target // size > sequence.num_computed // size

    def advance(self, chunk: Chunk, accepted: int = 0) -> None:
        """Note that the KV of the chunk and of ``accepted`` draft tokens is written, and
        publish the blocks they filled. What was rejected is overwritten later."""
        sequence = chunk.sequence
        computed = sequence.num_computed + chunk.num_tokens + accepted
        sequence.num_computed = computed
        if computed >= sequence.publish_at:
            assert sequence.cached is not None
            self._cache.commit(sequence.cached, sequence.buffer.view()[:computed])
            sequence.publish_at = (computed // self._block_size + 1) * self._block_size

    def schedule(self, now: float, drafts: Mapping[Sequence, TokenArray] = _NO_DRAFTS) -> Schedule:
        """Plan the next step.

        Args:
            now: seconds, any origin.
            drafts: tokens proposed for decoding sequences; they are cut to what the step's
                draft budget and the free blocks allow, and never make another turn give way.
        """
        step = _Step()
        prefills: list[Sequence] = []
        for sequence in [s for s in self._paused if s.state is not SequenceState.RUNNING]:
            del self._paused[sequence]
        if len(self._decoders) + len(self._paused) < len(self._running):
            for sequence in list(self._running):
                if sequence.state is SequenceState.FLUSHING:
                    self._decoders.pop(sequence, None)
                    self._plan_flush(sequence, step.chunks)
                elif sequence in self._decoders or sequence in self._paused:
                    continue
                elif sequence.decoding:
                    self._decoders[sequence] = Chunk(sequence, 0, 0, True, NO_DRAFT)
                    self._tenant_rows = None
                else:
                    prefills.append(sequence)
        self._plan_decodes(step, drafts)
        prefills = [s for s in prefills if s.state is SequenceState.RUNNING]
        if step.decode_rows:
            self._charge_decodes(step)
        admitted, too_large = step.admitted, step.too_large
        if prefills or self._waiting or self._paused:
            self._share_out(now, prefills, step)
        return Schedule(
            chunks=tuple(step.chunks.values()),
            admitted=tuple(admitted),
            exhausted=tuple(step.exhausted),
            too_large=tuple(too_large),
            preempted=step.preempted,
            paused=tuple(s for s in step.paused if s in self._paused),
        )

    def _plan_decodes(self, step: "_Step", drafts: Mapping[Sequence, TokenArray]) -> None:
        """Every running decode gets its token: the loop that each step runs for each turn."""
        chunks = step.chunks
        running = SequenceState.RUNNING
        context = 0
        special: list[tuple[Sequence, Chunk]] = []
        for sequence, chunk in self._decoders.items():
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
        draft_budget = self._config.draft_tokens_per_step
        for sequence, chunk in special:
            if sequence.cached is None:
                continue  # gave way to an earlier one in this loop
            if sequence.state is SequenceState.FLUSHING:
                self._decoders.pop(sequence)
                self._plan_flush(sequence, chunks)
                continue
            if self._grow(sequence, step):
                draft = drafts.get(sequence, NO_DRAFT)[:draft_budget]
                draft = draft if self._room_for(sequence, len(draft)) else NO_DRAFT
                draft_budget -= len(draft)
                chunk.start = sequence.num_computed
                chunk.num_tokens = sequence.num_pending
                chunk.draft = draft
                chunks[sequence] = chunk
                context += len(sequence.buffer)
                step.tokens += len(draft)
            elif sequence.state is SequenceState.RUNNING:
                step.exhausted.append(sequence)
        step.decode_rows = len(chunks)
        step.decode_context = context

    def _charge_decodes(self, step: "_Step") -> None:
        """Put the decodes of a step on the accounts of their tenants."""
        step.decode_s = self._costs.decode_s(step.decode_context)
        share_s = step.decode_s / step.decode_rows
        if self._tenant_rows is None:
            rows: dict[str, int] = {}
            for sequence in self._decoders:
                tenant = sequence.request.tenant
                rows[tenant] = rows.get(tenant, 0) + 1
            self._tenant_rows = rows
        for tenant, count in self._tenant_rows.items():
            self._service.charge(tenant, share_s * count)

    def predicted_first_token_s(self, sequence: Sequence) -> float:
        """Seconds until ``sequence``, which is not queued yet, would emit its first token: the
        prefill that goes before it and its own. Blocks that are not free yet, and turns still
        to come, are not foreseen."""
        costs = self._costs
        own_s = costs.prefill_s(len(sequence.buffer) - sequence.vouched, sequence.vouched)
        total_s = own_s
        for other in (*self._running, *self._waiting):
            if other in self._decoders or other.finish is not None:
                continue
            runs = other.cached is not None
            pending = other.num_pending if runs else other.uncached_estimate
            cost_s = costs.prefill_s(pending, len(other.buffer) - pending)
            if self._strict or cost_s <= own_s:
                total_s += cost_s
        # Beside decodes prefill has half of the time.
        return total_s * (2.0 if self._decoders else 1.0)

    def queue_positions(self, now: float) -> list[Sequence]:
        """The waiting sequences in the order in which they are considered."""
        return sorted(self._waiting, key=lambda s: self._key(s, now))

    def _key(self, sequence: Sequence, now: float) -> Key:
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
                level=self._level(sequence, waited),
            )
        )

    def _level(self, sequence: Sequence, age_s: float) -> int:
        length = len(sequence.buffer)
        pending = sequence.num_pending
        if sequence.cached is None:
            pending = sequence.uncached_estimate
        prefill_s = self._costs.prefill_s(pending, length - pending)
        prompt = prefill_s / self._costs.decode_s(length) * self._tokens_per_step
        return level(sequence.num_emitted, prompt, age_s)

    def _warm(self, sequence: Sequence) -> bool:
        """Whether a waiting turn counts as warm in the order: what it needs is here, or takes
        less than a step to compute, or memory is plenty."""
        pending = sequence.uncached_estimate
        position = len(sequence.buffer) - pending
        cheap = self._costs.prefill_s(pending, position) <= self._step_s
        return self._roomy or sequence.warm or cheap

    def _work_s(self, sequence: Sequence) -> float:
        """Engine seconds until the turn's expected end."""
        length = len(sequence.buffer)
        runs = sequence.cached is not None
        pending = sequence.num_pending if runs else sequence.uncached_estimate
        output = max(sequence.expected_output - sequence.num_emitted, 0)
        prefill_s = self._costs.prefill_s(pending, length - pending)
        return prefill_s + output / self._tokens_per_step * self._costs.decode_s(length)

    def _plan_flush(self, sequence: Sequence, chunks: dict[Sequence, Chunk]) -> None:
        assert sequence.cached is not None
        pending = sequence.flush_target - sequence.num_computed
        needed = self._blocks_for(sequence.flush_target) - sequence.cached.num_blocks
        try:
            if needed > 0:
                self._allocate(sequence, needed)
        except OutOfBlocks:
            self.end(sequence, lease_s=0.0)
            return
        chunks[sequence] = Chunk(sequence, sequence.num_computed, pending, False, NO_DRAFT)

    def _blocks_for(self, num_tokens: int) -> int:
        return -(-num_tokens // self._block_size)

    def _grow(self, sequence: Sequence, step: "_Step") -> bool:
        """Give ``sequence`` blocks for the tokens it has.

        False: nothing else could give way, or ``sequence`` itself did.
        """
        while True:
            assert sequence.cached is not None
            needed = self._blocks_for(len(sequence.buffer)) - sequence.cached.num_blocks
            try:
                if needed > 0:
                    self._allocate(sequence, needed)
                return True
            except OutOfBlocks:
                victim = self._victim(sequence)
                if victim is None:
                    return False
                step.chunks.pop(victim, None)
                self._give_way(victim)
                step.preempted += 1
                if victim is sequence:
                    return False

    def _allocate(self, sequence: Sequence, num_blocks: int) -> None:
        """Raises OutOfBlocks."""
        assert sequence.cached is not None
        self._cache.allocate(sequence.cached, num_blocks)
        sequence.block_limit = sequence.cached.num_blocks * self._block_size

    def _room_for(self, sequence: Sequence, num_draft: int) -> bool:
        """Give a sequence blocks for a draft if that takes them from nobody who runs."""
        assert sequence.cached is not None
        needed = self._blocks_for(len(sequence.buffer) + num_draft) - sequence.cached.num_blocks
        try:
            if needed > 0:
                self._allocate(sequence, needed)
        except OutOfBlocks:
            return False
        return True

    def _victim(self, sequence: Sequence) -> Sequence | None:
        """The other running sequence that is cheapest to restore, or ``sequence`` itself when
        all others are of a higher class; None when it is alone."""
        others = [s for s in self._running if s is not sequence]
        if not others:
            return None
        victim = min(
            others,
            key=lambda s: (
                s.state is not SequenceState.FLUSHING,
                s.request.priority,
                s is self._last_victim,
                s.num_computed,
            ),
        )
        flushing = victim.state is SequenceState.FLUSHING
        if not flushing and victim.request.priority > sequence.request.priority:
            return sequence
        return victim

    def _give_way(self, victim: Sequence) -> None:
        self.end(victim, lease_s=0.0)
        if victim.finish is not None:
            return  # it had only its tail left to write
        victim.reusable = victim.num_computed
        victim.num_computed = 0
        victim.preemptions += 1
        self._last_victim = victim
        self._wait(victim)  # not as queued: others are to have its blocks

    def _share_out(self, now: float, prefills: list[Sequence], step: "_Step") -> None:
        """Give the step's prefill budget to running prefills and to waiting turns, in one
        order, so that a short turn passes a long prefill that has begun."""
        rows = step.tokens + sum(chunk.num_tokens for chunk in step.chunks.values())
        tokens, seconds = self._prefill_budget(step, rows, len(prefills) + len(self._waiting))
        order = self._order(now, prefills)
        room = self._room() if self._waiting else _NO_ROOM
        blocked = 0
        for key, sequence in order:
            if sequence in self._paused and not self._resume(sequence, key, now, step):
                continue
            if tokens <= 0 or seconds <= 0.0:
                if not self._paused:
                    break
                continue
            if sequence.state is SequenceState.WAITING:
                if self._blocks_for(len(sequence.buffer) + 1) > self._cache.usable_blocks:
                    self.drop_waiting(sequence)
                    step.too_large.append(sequence)
                    continue
                placed, longer = self._place(sequence, key, now, step)
                if not placed or blocked >= _BLOCKED_ATTEMPTS_PER_STEP or self._must_wait(sequence):
                    continue
                fits = self._may_fit(sequence, room)
                if not fits or not self._try_admit(sequence):
                    blocked += _BLOCKED_ATTEMPTS_PER_STEP if self._strict else fits
                    continue
                room = self._room()
                sequence.admitted_s = now
                step.admitted.append(sequence)
                if longer is not None:
                    self._pause(longer, step)
                step.victims = None
            if sequence.cached is None:
                continue
            if not self._arrived(sequence.cached.block_table):
                continue
            position = sequence.num_computed
            take = min(tokens, sequence.num_pending)
            if not self._strict:
                within = self._costs.prefill_tokens_within(seconds, position)
                take = _evenly(min(take, max(within, _LEAST_CHUNK_TOKENS)), sequence, rows)
            rows += take
            cost_s = self._costs.prefill_s(take, position)
            step.chunks[sequence] = _chunk(sequence, take)
            self._service.charge(sequence.request.tenant, cost_s)
            tokens -= take
            seconds -= 0.0 if self._strict else cost_s

    def _prefill_budget(self, step: "_Step", used: int, num_candidates: int) -> tuple[int, float]:
        """Tokens and seconds of prefill that a step of ``used`` tokens has room for."""
        tokens = self._config.max_batch_tokens
        seconds = self._step_s
        if step.decode_rows:
            tokens = min(tokens, self._config.prefill_tokens_beside_decodes)
            seconds = min(seconds, step.decode_s)
            self._mixed_steps += 1
            if not self._strict and self._mixed_steps % _MIXED_STEPS == 0:
                seconds = 0.0
        elif num_candidates <= 1:
            seconds = _NO_BOUND_S
        return min(tokens, self._config.max_batch_tokens - used), seconds

    def _order(self, now: float, prefills: list[Sequence]) -> list[tuple[Key, Sequence]]:
        """Running prefills, paused and waiting turns in the policy's order."""
        stats = self._cache.stats()
        self._roomy = not self._strict and 2 * stats.free >= stats.total
        if self._waiting:
            self._look_again()
        candidates = (*prefills, *self._waiting, *self._paused)
        return sorted(((self._key(s, now), s) for s in candidates), key=lambda pair: pair[0])

    def _look_again(self) -> None:
        """Ask the cache about one waiting turn, another one at each step: what it counted on
        may be gone, or somebody else has computed it by now."""
        self._looked_at = (self._looked_at + 1) % len(self._waiting)
        self._estimate(self._waiting[self._looked_at])

    def _room(self) -> tuple[int, int]:
        """Blocks that a cold and a warm turn could have now, at best."""
        stats = self._cache.stats()
        return stats.free + stats.idle, stats.free + stats.evictable

    def _may_fit(self, sequence: Sequence, room: tuple[int, int]) -> bool:
        """A cheap look whether ``_try_admit`` has a chance, and whether a session that has not
        begun may begin."""
        if not self._running:
            return True
        length = len(sequence.buffer)
        if (
            not self._strict
            and sequence.request.base_session_id is None
            and not sequence.preemptions
        ):
            capacity = self._cache.usable_blocks + self._cache.stats().host_total
            bound = self._config.session_context_percent * capacity // 100
            if self._live_blocks(length) > bound:
                return False
        missing = self._blocks_for(length + 1) - (length - sequence.uncached_estimate) // (
            self._block_size
        )
        return missing <= room[1 if sequence.warm else 0]

    def _live_blocks(self, more_tokens: int) -> int:
        """Blocks of the transcripts that run, are leased, or wait for their next turn."""
        tokens = more_tokens + sum(len(s.buffer) for s in self._running)
        tokens += sum(
            len(s.buffer)
            for s in self._waiting
            if s.request.base_session_id is not None or s.preemptions
        )
        return self._blocks_for(tokens) + self._cache.stats().leased

    def _must_wait(self, sequence: Sequence) -> bool:
        """Whether a running turn is about to write KV that this one will reuse, or a part of
        the prompt is on its way."""
        return self._is_read(sequence) or self._must_wait_for_another(sequence)

    def _place(self, sequence: Sequence, key: Key, now: float, step: "_Step") -> Place:
        """Whether there is a place for ``sequence``, and who is to be paused for it."""
        if self._config.max_running > len(self._running) - len(self._paused):
            return _FREE_PLACE
        if self._strict:
            return _NO_PLACE
        if step.victims is None:
            step.victims = self._victims_of_length(now)
        mine = self._level(sequence, now - sequence.arrival_s)
        victim_key, victim = step.victims[mine]
        return (True, victim) if victim is not None and victim_key > key else _NO_PLACE

    def _victims_of_length(self, now: float) -> list[tuple[Key, Sequence | None]]:
        """By the level of who wants a place: the last one in the order of the longer turns
        that run, None where none has to give its place."""
        long: list[tuple[int, Sequence]] = []
        for sequence in self._running:
            if sequence not in self._paused and sequence.finish is None:
                long.append((self._level(sequence, now - sequence.arrival_s), sequence))
        long = [(length, sequence) for length, sequence in long if length]
        none: tuple[Key, Sequence | None] = ((), None)
        if len(long) <= max(1, self._config.max_running // _LONG_TURNS_SHARE):
            return [none] * (NUM_LEVELS)
        keyed = [(length, self._key(sequence, now), sequence) for length, sequence in long]
        return [
            max(((k, s) for n, k, s in keyed if n > mine), key=lambda pair: pair[0], default=none)
            for mine in range(NUM_LEVELS)
        ]

    def _pause(self, sequence: Sequence, step: "_Step") -> None:
        step.victims = None
        step.chunks.pop(sequence, None)
        step.paused.append(sequence)
        self._paused[sequence] = None
        if self._decoders.pop(sequence, None) is not None:
            self._tenant_rows = None

    def _resume(self, sequence: Sequence, key: Key, now: float, step: "_Step") -> bool:
        """Give a paused turn a place if there is one for it; a decode gets its token. True if
        it is a prefill that goes on."""
        placed, victim = self._place(sequence, key, now, step)
        if not placed:
            return False
        if victim is not None:
            self._pause(victim, step)
        step.victims = None
        del self._paused[sequence]
        if not sequence.decoding:
            return True
        if self._grow(sequence, step):
            chunk = self._decoders[sequence] = _chunk(sequence, sequence.num_pending)
            step.chunks[sequence] = chunk
            self._tenant_rows = None
        elif sequence.state is SequenceState.RUNNING:
            step.exhausted.append(sequence)
        return False

    def _is_read(self, sequence: Sequence) -> bool:
        """Whether a part of the prompt is on its way from the disk."""
        if sequence not in self._awaited:
            return False
        if self._cache.is_reading(self._awaited[sequence]):
            return True
        del self._awaited[sequence]
        self._estimate(sequence)
        return False

    def _must_wait_for_another(self, sequence: Sequence) -> bool:
        """True while a running sequence is about to write KV that this one will reuse: the
        tail of the same session's last turn, or a prefix both have and neither has yet."""
        request = sequence.request
        mine = sequence.buffer.view()
        known = len(mine) - sequence.uncached_estimate
        for other in self._running:
            if other.request.tenant != request.tenant:
                continue
            if other.state is SequenceState.FLUSHING:
                if other.request.session_id == request.base_session_id:
                    return True
                continue
            end = other.num_computed + self._block_size
            theirs = other.buffer.view()
            if other.decoding or known > other.num_computed or end >= min(len(mine), len(theirs)):
                continue
            if np.array_equal(theirs[:end], mine[:end]):
                return True
        return False

    def _try_admit(self, sequence: Sequence) -> bool:
        """Match, lock and allocate; on False nothing has changed."""
        request = sequence.request
        cached = self._cache.begin(**_prompt(sequence))
        available = self._cache.available_blocks(cached)
        length = len(sequence.buffer)
        least = self._blocks_for(length + 1) - cached.num_blocks
        if least + self._headroom(sequence) > available:
            self._cache.finish(cached, lease_s=0.0)
            sequence.uncached_estimate = length - cached.num_cached_tokens
            return False
        ahead = min(request.max_new_tokens, _ALLOCATE_AHEAD_TOKENS)
        wanted = self._blocks_for(length + ahead) - cached.num_blocks
        roomy = wanted + 4 * (len(self._running) + 1) <= available
        try:
            came_back = cached.num_restorable_blocks
            self._cache.restore(cached)
            self._cache.allocate(cached, (wanted if roomy else least) - came_back)
        except OutOfBlocks:
            self._cache.finish(cached, lease_s=0.0)
            return False
        sequence.cached = cached
        sequence.num_computed = cached.num_cached_tokens
        sequence.block_limit = cached.num_blocks * self._block_size
        sequence.publish_at = sequence.num_computed + self._block_size
        sequence.state = SequenceState.RUNNING
        self._waiting.remove(sequence)
        self._running.append(sequence)
        return True

    def _headroom(self, newcomer: Sequence) -> int:
        """Blocks to leave for what the running turns and ``newcomer`` are expected to emit, so
        that admitting it makes nobody give way. None is needed for a turn that is alone."""
        if not self._running:
            return 0
        blocks = 0
        share = self._config.output_reserve_percent
        for sequence in (*self._running, newcomer):
            if sequence.finish is not None:
                continue
            expected = sequence.expected_output
            more = max(expected - sequence.num_emitted, expected // 4)
            more = min(more * share // 100 + 1, sequence.remaining)
            held = 0 if sequence.cached is None else sequence.cached.num_blocks
            length = len(sequence.buffer)
            blocks += max(0, self._blocks_for(length + more) - max(held, self._blocks_for(length)))
        return blocks


def _prompt(sequence: Sequence) -> dict[str, Any]:
    """What the cache is asked about a turn's prompt."""
    base_session_id, base_offset = _base(sequence)
    return {
        "session_id": sequence.request.session_id,
        "tenant": sequence.request.tenant,
        "tokens": sequence.buffer.view(),
        "base_session_id": base_session_id,
        "base_offset": base_offset,
    }


def _always(blocks: BlockArray) -> bool:
    """Without tiers below the device every block is where it should be."""
    return True


def _base(sequence: Sequence) -> tuple[str | None, int | None]:
    """Whose handle to match by, and how many tokens it vouches for. A preempted turn has a
    handle of its own, which says no more about where the transcript came from."""
    request = sequence.request
    if sequence.preemptions:
        return request.session_id, None
    if request.base_session_id is None:
        return None, None
    return request.base_session_id, sequence.vouched


def _evenly(num_tokens: int, sequence: Sequence, rows: int) -> int:
    """A chunk of about ``num_tokens`` that fills a step of ``rows`` tokens to a multiple of
    ``_ROW_STEP``, unless it ends the prompt or would be nothing."""
    if num_tokens == sequence.num_pending:
        return num_tokens
    even = num_tokens - (rows + num_tokens) % _ROW_STEP
    return even if even >= _LEAST_CHUNK_TOKENS else num_tokens


def _chunk(sequence: Sequence, num_tokens: int) -> Chunk:
    samples = num_tokens == sequence.num_pending and sequence.request.max_new_tokens > 0
    return Chunk(sequence, sequence.num_computed, num_tokens, samples, NO_DRAFT)
