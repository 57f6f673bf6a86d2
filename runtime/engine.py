"""The loop body: messages in, one step of the model, what each turn got out of it.

``Engine`` is a plain synchronous object. It owns no device code (the runner's), no order
(the scheduler's) and no turn (``open_turns`` begins and ends them, ``emission`` lets them speak);
it turns a schedule into a batch, sampled tokens into sequences that advance, and a failed
step into turns that fail.
"""

import logging
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Executor

import numpy as np

from radix_cache.cache import PrefixCache
from runtime.answers import Answers
from runtime.aside import Aside
from runtime.batch import StepBatch
from runtime.cache_report import CacheReport
from runtime.config import EngineConfig
from runtime.draft_rounds import DraftRounds
from runtime.drafts import Draft, Drafter
from runtime.emission import NOTHING_TAKEN, Emission, Settlement, Taken
from runtime.estimates import StepCosts, StepWork
from runtime.grammar_compiler import GrammarCompiler
from runtime.growth import room_ahead
from runtime.kv_transfer import KVTransfer
from runtime.lookahead import Lookahead, Outcomes
from runtime.messages import (
    CancelRequest,
    EngineInfo,
    EngineMessage,
    FinishReason,
    GenerationRequest,
    StepOutput,
    StepStats,
)
from runtime.model_runner import ModelRunner
from runtime.open_turns import Compilation, OpenTurns
from runtime.sampler import Drawing, Sampled, SampleRow
from runtime.schedule import NO_DRAFT, Chunk, Decodes, step_work
from runtime.scheduler import Scheduler
from runtime.sequence import Sequence, SequenceState
from runtime.session_tokens import SessionTokens
from runtime.step_rows import StepPart, StepRows
from runtime.tokenizer import Tokenizer

log = logging.getLogger(__name__)

_PAUSE_S = 0.002
_IDLE_S = 0.05
_CLOSE_S = 8.0
"""An ending engine writes to the disk no longer than this; its parent waits a little longer."""
_NOTHING_SAMPLED = Sampled(
    tokens=np.empty(0, dtype=np.int32), finite=np.empty(0, dtype=np.bool_), logprobs=()
)


class _Counters:
    """Sums since the last report."""

    def __init__(self) -> None:
        self.prefill_tokens = 0
        self.preemptions = 0
        self.mask_s = 0.0


class Engine:
    """Runs turns step by step. Not thread-safe: one loop calls it."""

    def __init__(
        self,
        *,
        scheduler: Scheduler,
        cache: PrefixCache,
        runner: ModelRunner,
        tokenizer: Tokenizer,
        compiler: GrammarCompiler,
        workers: Executor,
        sessions: SessionTokens,
        costs: StepCosts,
        config: EngineConfig,
        info: EngineInfo,
        drafter: Drafter | None = None,
        transfer: KVTransfer | None = None,
        emission_type: type[Emission] = Emission,
        looks_ahead: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.info = info
        self._transfer = transfer
        self._cache_report = CacheReport(cache, transfer)
        self._drafter = drafter
        self._rounds = DraftRounds(drafter, config, clock)
        self._scheduler = scheduler
        self._cache = cache
        self._runner = runner
        self.ahead = Lookahead(runner, costs, clock) if looks_ahead else None
        self.costs = costs
        self._clock = clock
        self._answers = Answers()
        self.aside = Aside(clock)
        self._turns = OpenTurns(
            scheduler=scheduler,
            cache=cache,
            sessions=sessions,
            compiler=compiler,
            workers=workers,
            aside=self.aside,
            tokenizer=tokenizer,
            answers=self._answers,
            config=config,
            max_context_tokens=info.max_context_tokens,
            drafter=drafter,
            clock=clock,
        )
        self.emission = emission_type(
            tokenizer=tokenizer, answers=self._answers, max_context_tokens=info.max_context_tokens
        )
        self._rows = StepRows(info.vocab_size)
        self._sessions = sessions
        self._counters = _Counters()
        self._idle_step = False

    @property
    def pause_s(self) -> float:
        """How long a caller may wait for messages before the next ``step``: not at all while
        steps compute something, a moment while all turns wait for a grammar or for blocks."""
        return _PAUSE_S if self._idle_step else 0.0

    @property
    def idle_s(self) -> float | None:
        """How long an engine without work may be left alone before it wants a step to look
        after its cache; None: until a message comes."""
        return _IDLE_S if self._transfer is not None and self._cache.wants_tending else None

    @property
    def has_work(self) -> bool:
        """Whether ``step`` has something to do or to say."""
        return bool(self._answers or self._turns.num_compiling or self._scheduler.has_work)

    def submit(self, messages: list[EngineMessage]) -> None:
        """Take messages in; their answers come from ``step``. Never raises for a bad one."""
        self._idle_step = False
        for message in messages:
            if isinstance(message, GenerationRequest):
                self._turns.open(message)
            elif isinstance(message, CancelRequest):
                self._turns.cancel(message.request_id)
            else:
                self._turns.release(message)

    def check(self) -> None:
        """Raise AssertionError if the cache's blocks do not add up. For tests and after a
        failed step; walks the whole tree."""
        self._cache.check()

    def close(self) -> None:
        """Write the KV that sessions may come back for to the disk, if there is one, and end
        the threads. The engine cannot be used afterwards."""
        if self._transfer is None:
            return
        until = time.monotonic() + _CLOSE_S
        self._transfer.report(self._cache)
        self._cache.copy_down()
        while self._cache.num_pending_orders and time.monotonic() < until:
            self._transfer.report(self._cache)
            time.sleep(_PAUSE_S)
        self._transfer.close()

    def step(self) -> StepOutput | None:
        """Run one step; None when there is nothing to tell. The last one before the engine
        falls idle is always told, so that its figures are true while nothing happens."""
        scheduler = self._scheduler
        turns = len(scheduler.running) + len(scheduler.waiting) + self._turns.num_compiling
        self.aside.begin_step(idle=turns <= 1)
        self._turns.take_compiled()
        if self._transfer is not None:
            self._transfer.report(self._cache)
            self._cache.tend()
        now, spent_s = self._clock(), self.aside.spent_s
        drafts = self._drafts()
        schedule = self._scheduler.schedule(now, {s: d.tokens for s, d in drafts.items()})
        for sequence in schedule.admitted:
            self._turns.started(sequence)
        for sequence in schedule.too_large:
            self._turns.too_large(sequence)
        for sequence in schedule.exhausted:
            self._turns.finish(sequence, FinishReason.CONTEXT)
        self._counters.preemptions += schedule.preempted
        self.aside.drop_void()
        decodes = self._that_run(schedule.decodes)
        chunks = decodes.chunks() + [c for c in schedule.others if self._runs(c.sequence)]
        step_s = 0.0
        if chunks:
            work = step_work(chunks)
            self._run([self._part(chunk, drafts) for chunk in chunks], decodes)
            step_s = self._clock() - now - (self.aside.spent_s - spent_s)
            self.aside.end_step(step_s)
            self._learn(work, step_s)
            if not work.prefill_tokens:
                self._rounds.observe(self._answers.num_tokens, step_s)
        else:
            self.aside.begin_step(idle=True)
            self._go_on_aside()
        self._idle_step = not chunks and not self.aside
        if self.ahead is not None and not self._scheduler.running:
            self.ahead.nobody_runs()
        self._turns.report_positions(now)
        fell_idle = bool(chunks) and not self.has_work
        if not self._answers and not fell_idle:
            return None
        outputs = self._answers.take()
        emitted = sum(len(output.new_tokens) for output in outputs)
        return StepOutput(outputs=outputs, stats=self._stats(step_s, emitted))

    # One step

    def _drafts(self) -> dict[Sequence, Draft]:
        """Proposals for the turns that decode."""
        if self._drafter is None:
            return {}
        running = [s for s in self._scheduler.running if s.row is not None or s.decoding]
        decoding = [s for s in running if s.finish is None and self._runs(s)]
        return self._rounds.propose(decoding, step_s=self.aside.mean_step_s)

    def _that_run(self, decodes: Decodes) -> Decodes:
        running = [n for n, sequence in enumerate(decodes.sequences) if self._runs(sequence)]
        return decodes if len(running) == len(decodes) else decodes.only(running)

    def _part(self, chunk: Chunk, drafts: Mapping[Sequence, Draft]) -> StepPart:
        """The chunk, and which of the tokens to come are certain: forced ones in its draft, or
        the first of the turn's output."""
        sequence = chunk.sequence
        draft, grammar = drafts.get(sequence), sequence.grammar
        if draft is None and sequence.row is not None:
            return StepPart(chunk)
        if not self.emission.takes_forced_tokens or not chunk.samples:
            return StepPart(chunk)
        if draft is not None:
            return StepPart(chunk, draft.certain(len(chunk.draft)))
        begins_forced = (
            sequence.num_emitted == 0
            and grammar is not None
            and grammar.forced_tokens(sequence.remaining)
        )
        return StepPart(chunk, (0,) if begins_forced else ())

    def _run(self, parts: list[StepPart], decodes: Decodes) -> None:
        """Compute the parts of a step, those of ``decodes`` first, and let each turn take what
        was drawn for it: those that just say it all at once, the others one by one."""
        sampled = self._compute(parts)
        if sampled is None:
            return
        plain = self.emission.take_plain(decodes, sampled)
        self._scheduler.said(decodes.only(plain), sampled.tokens[np.array(plain, dtype=np.int64)])
        done = set(plain)
        row = 0
        for place, part in enumerate(parts):
            chunk = part.chunk
            if place in done:
                row += 1
                continue
            taken: Taken | None = NOTHING_TAKEN
            if chunk.samples:
                taken = self._settle(part, sampled, row)
                row += len(part.row_offsets())
            self._scheduler.advance(chunk, 0 if taken is None else taken.accepted)
            if taken is not None:
                self._conclude(chunk.sequence, len(chunk.draft), taken)

    def _compute(self, parts: list[StepPart]) -> Sampled | None:
        """One forward pass and a draw for each row; None if it failed, and its turns with it.
        While a device computes, the host sees to turns that stand aside and to masks."""
        try:
            batch = StepBatch.build([p.step_input() for p in parts], self.info.block_size)
            if self._transfer is not None:
                self._transfer.settle(batch.block_tables)
            if self.ahead is None:
                logits = self._runner.forward(batch)
            else:
                logits = self.ahead.logits(parts, batch)
        except Exception:
            self._failed(parts)
            return None
        self._go_on_aside()
        try:
            rows = self._sample_rows(parts)
            if not rows:
                return _NOTHING_SAMPLED
            drawing = Drawing(logits, rows)
            if self.ahead is None:
                return drawing.result()
            self._look_ahead(self.ahead, parts, drawing)
            sampled = drawing.result()
            self.ahead.arrived()
            return sampled
        except Exception:
            self._failed(parts)
            return None

    def _look_ahead(self, ahead: Lookahead, parts: list[StepPart], drawing: Drawing) -> None:
        """Begin the next step if that pays."""
        crowd = bool(self._scheduler.waiting or self._turns.num_compiling or self.aside)
        drafts = self._rounds.expects_drafts(len(parts))
        num_running = len(self._scheduler.running)
        batch = ahead.foresee(
            parts,
            drafts=drafts,
            crowd=crowd,
            make_room=lambda turn: room_ahead(self._cache, turn, num_running=num_running),
        )
        if batch is None:
            return
        if self._transfer is not None:
            self._transfer.settle(batch.block_tables)
        ahead.begin(batch, drawing)

    def _failed(self, parts: list[StepPart]) -> None:
        log.exception("step failed sequences=%d", len(parts))
        for part in parts:
            self._turns.fail(part.chunk.sequence)
        self._cache.check()

    def _settle(self, part: StepPart, sampled: Sampled, row: int) -> Taken | None:
        """What a turn takes of its drawn tokens; None while it stands aside."""
        sequence = part.chunk.sequence
        work = self.emission.taking(part, sampled, row)
        settlement = Settlement(
            sequence=sequence,
            num_drafted=len(part.chunk.draft),
            work=work,
            preemptions=sequence.preemptions,
        )
        taken: Taken | None = self.aside.begin(settlement)
        return taken

    def _go_on_aside(self) -> None:
        """Go on with what stands aside; turns that waited for it run from the next step on."""
        for errand, result in self.aside.go_on():
            if isinstance(errand, Compilation):
                self._turns.compiled(errand, result)
                continue
            assert isinstance(errand, Settlement)
            sequence, taken = errand.sequence, result
            written = Chunk(sequence, sequence.num_computed, 0, False, NO_DRAFT)
            self._scheduler.advance(written, taken.accepted)
            self._conclude(sequence, errand.num_drafted, taken)

    def _conclude(self, sequence: Sequence, num_drafted: int, taken: Taken) -> None:
        """Draw the consequences of what a turn took: for its drafter, and for itself."""
        if self._drafter is not None and num_drafted:
            looked_at = min(num_drafted, taken.accepted + 1)
            self._drafter.verified(sequence.request.session_id, looked_at, taken.accepted)
        if sequence.state is SequenceState.FLUSHING:
            self._turns.flushed(sequence)
        elif sequence.request.max_new_tokens == 0 and sequence.num_pending == 0:
            self._turns.finish(sequence, FinishReason.PREFILLED)
        elif taken.finish is not None:
            self._turns.finish(sequence, taken.finish, taken.error, taken.message)

    def _runs(self, sequence: Sequence) -> bool:
        """Whether a turn takes part in steps: it has not ended, and does not stand aside."""
        if sequence.state is SequenceState.DONE:
            return False
        return not self.aside or sequence not in self.aside

    def _sample_rows(self, parts: list[StepPart]) -> list[SampleRow]:
        started = self._clock()
        rows = self._rows.rows(parts)
        self._counters.mask_s += self._clock() - started
        return rows

    def _learn(self, work: StepWork, seconds: float) -> None:
        self._counters.prefill_tokens += work.prefill_tokens
        self.costs.observe(work, seconds=seconds)

    def _stats(self, step_s: float, emitted: int) -> StepStats:
        counters, self._counters = self._counters, _Counters()
        ahead = Outcomes() if self.ahead is None else self.ahead.news()
        return StepStats(
            **self._cache_report.take(),
            running=len(self._scheduler.running),
            waiting=len(self._scheduler.waiting) + self._turns.num_compiling,
            step_s=step_s,
            prefill_tokens_delta=counters.prefill_tokens,
            decode_tokens_delta=emitted,
            preemptions_delta=counters.preemptions,
            mask_s_delta=counters.mask_s,
            ahead_held_delta=ahead.held,
            ahead_second_passes_delta=ahead.second_passes,
            ahead_dropped_delta=ahead.dropped,
            sessions=len(self._sessions),
        )
