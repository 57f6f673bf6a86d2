"""The loop body: messages in, one step of the model, what each turn got out of it.

``Engine`` is a plain synchronous object. It owns no device code (the runner's), no order
(the scheduler's) and no turn (``open_turns`` begins and ends them, ``emission`` lets them speak);
it turns a schedule into a batch, sampled tokens into sequences that advance, and a failed
step into turns that fail.
"""

import logging
import time
from collections.abc import Callable
from concurrent.futures import Executor

import numpy as np

from radix_cache.cache import PrefixCache
from runtime.answers import Answers
from runtime.aside import Aside, Settlement
from runtime.batch import SequenceInput, StepBatch
from runtime.cache_report import CacheReport
from runtime.config import EngineConfig
from runtime.drafting import Drafter, share_budget
from runtime.emission import NOTHING_TAKEN, Emission, Taken
from runtime.estimates import StepCosts, StepWork
from runtime.grammar_compiler import GrammarCompiler
from runtime.kv_transfer import KVTransfer
from runtime.messages import (
    CancelRequest,
    EngineInfo,
    EngineMessage,
    FinishReason,
    GenerationRequest,
    StepOutput,
    StepStats,
    TokenArray,
)
from runtime.model_runner import ModelRunner
from runtime.open_turns import OpenTurns
from runtime.sampler import Sampled, SampleRow, sample
from runtime.scheduler import NO_DRAFT, Chunk, Scheduler, step_work
from runtime.sequence import Sequence, SequenceState
from runtime.session_tokens import SessionTokens
from runtime.step_rows import StepRows
from runtime.tokenizer import Tokenizer

log = logging.getLogger(__name__)

_PAUSE_S = 0.002
_IDLE_S = 0.05
_CLOSE_S = 8.0
"""An ending engine writes to the disk no longer than this; its parent waits a little longer."""
_LEAST_DRAFT = 4
"""Draft tokens that each decoding turn could have, or no turn gets any."""
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
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.info = info
        self._transfer = transfer
        self._cache_report = CacheReport(cache, transfer)
        self._drafter = drafter
        self._scheduler = scheduler
        self._cache = cache
        self._runner = runner
        self._costs = costs
        self._config = config
        self._clock = clock
        self._answers = Answers()
        self._turns = OpenTurns(
            scheduler=scheduler,
            cache=cache,
            sessions=sessions,
            compiler=compiler,
            workers=workers,
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
        self.aside = Aside(clock)
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
        self._turns.take_compiled()
        if self._transfer is not None:
            self._transfer.report(self._cache)
            self._cache.tend()
        now = self._clock()
        schedule = self._scheduler.schedule(now, self._drafts())
        for sequence in schedule.admitted:
            self._turns.started(sequence)
        for sequence in schedule.too_large:
            self._turns.too_large(sequence)
        for sequence in schedule.exhausted:
            self._turns.finish(sequence, FinishReason.CONTEXT)
        self._counters.preemptions += schedule.preempted
        self.aside.drop_void()
        chunks = [c for c in schedule.chunks if self._runs(c.sequence)]
        step_s = 0.0
        self.aside.begin_step(idle=not chunks)
        if chunks:
            work = step_work(chunks)
            self._run(chunks)
            step_s = self._clock() - now - self.aside.spent_s
            self.aside.end_step(step_s)
            self._learn(work, step_s)
        else:
            self._settle_aside()
        self._idle_step = not chunks and not self.aside
        self._turns.report_positions(now)
        fell_idle = bool(chunks) and not self.has_work
        if not self._answers and not fell_idle:
            return None
        outputs = self._answers.take()
        emitted = sum(len(output.new_tokens) for output in outputs)
        return StepOutput(outputs=outputs, stats=self._stats(step_s, emitted))

    # One step

    def _drafts(self) -> dict[Sequence, TokenArray]:
        """Proposals for the turns that decode. None where so many do that their drafts would
        share the step's budget in crumbs: proposing costs the host time as well."""
        drafter, most = self._drafter, self._config.max_draft_tokens
        decoding = [s for s in self._scheduler.running if s.decoding and self._runs(s)]
        decoding = [s for s in decoding if s.finish is None]
        if drafter is None or len(decoding) * _LEAST_DRAFT > self._config.draft_tokens_per_step:
            return {}
        drafts = {}
        for sequence in decoding:
            request = sequence.request
            draft = drafter.propose(
                request.session_id,
                request.tenant,
                sequence.buffer.view(),
                sequence.grammar,
                min(sequence.remaining - 1, most),
            )
            if len(draft.tokens):
                drafts[sequence] = draft
        return share_budget(drafts, self._config.draft_tokens_per_step)

    def _run(self, chunks: list[Chunk]) -> None:
        sampled = self._compute(chunks)
        if sampled is None:
            return
        row = 0
        for chunk in chunks:
            taken: Taken | None = NOTHING_TAKEN
            if chunk.samples:
                taken = self._settle(chunk, sampled, row)
                row += 1 + len(chunk.draft)
            self._scheduler.advance(chunk, 0 if taken is None else taken.accepted)
            if taken is not None:
                self._conclude(chunk.sequence, len(chunk.draft), taken)

    def _compute(self, chunks: list[Chunk]) -> Sampled | None:
        """One forward pass and a draw for each row; None if it failed, and its turns with it.
        While a device computes, the host sees to turns that stand aside and to masks."""
        sampling = [c for c in chunks if c.samples]
        try:
            batch = StepBatch.build([_step_input(c) for c in chunks], self.info.block_size)
            if self._transfer is not None:
                self._transfer.settle(batch.block_tables)
            logits = self._runner.forward(batch)
        except Exception:
            self._failed(chunks)
            return None
        self._settle_aside()
        try:
            return sample(logits, self._sample_rows(sampling)) if sampling else _NOTHING_SAMPLED
        except Exception:
            self._failed(chunks)
            return None

    def _failed(self, chunks: list[Chunk]) -> None:
        log.exception("step failed sequences=%d", len(chunks))
        for chunk in chunks:
            self._turns.fail(chunk.sequence)
        self._cache.check()

    def _settle(self, chunk: Chunk, sampled: Sampled, row: int) -> Taken | None:
        """What a turn takes of its drawn tokens; None while it stands aside."""
        sequence = chunk.sequence
        work = self.emission.taking(chunk, sampled, row)
        return self.aside.settle(
            Settlement(
                sequence=sequence,
                num_drafted=len(chunk.draft),
                work=work,
                preemptions=sequence.preemptions,
            )
        )

    def _settle_aside(self) -> None:
        """Go on with the turns that stand aside; those that are done run from the next step
        on."""
        for settlement, taken in self.aside.go_on():
            sequence = settlement.sequence
            written = Chunk(sequence, sequence.num_computed, 0, False, NO_DRAFT)
            self._scheduler.advance(written, taken.accepted)
            self._conclude(sequence, settlement.num_drafted, taken)

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
        return sequence.state is not SequenceState.DONE and sequence not in self.aside

    def _sample_rows(self, sampling: list[Chunk]) -> list[SampleRow]:
        started = self._clock()
        rows = self._rows.rows(sampling)
        self._counters.mask_s += self._clock() - started
        return rows

    def _learn(self, work: StepWork, seconds: float) -> None:
        self._counters.prefill_tokens += work.prefill_tokens
        self._costs.observe(work, seconds=seconds)

    def _stats(self, step_s: float, emitted: int) -> StepStats:
        counters, self._counters = self._counters, _Counters()
        return StepStats(
            **self._cache_report.take(),
            running=len(self._scheduler.running),
            waiting=len(self._scheduler.waiting) + self._turns.num_compiling,
            step_s=step_s,
            prefill_tokens_delta=counters.prefill_tokens,
            decode_tokens_delta=emitted,
            preemptions_delta=counters.preemptions,
            mask_s_delta=counters.mask_s,
            sessions=len(self._sessions),
        )


def _step_input(chunk: Chunk) -> SequenceInput:
    sequence = chunk.sequence
    assert sequence.cached is not None
    tokens = sequence.buffer.view()[chunk.start : chunk.start + chunk.num_tokens]
    return SequenceInput(
        tokens=np.concatenate((tokens, chunk.draft)) if len(chunk.draft) else tokens,
        start=chunk.start,
        block_table=sequence.cached.block_table,
        num_logits=1 + len(chunk.draft) if chunk.samples else 0,
    )
