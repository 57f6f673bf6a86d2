"""The loop body: messages in, one step of the model, what each turn got out of it.

``Engine`` is a plain synchronous object. It owns no device code (the runner's), no order
(the scheduler's) and no grammar library (``token_mask``'s); it turns a schedule into a
batch, sampled tokens into sequences that advance, and failures into answers. Every request
is answered with exactly one finish.
"""

import logging
import time
from collections.abc import Callable
from concurrent.futures import Executor, Future
from dataclasses import dataclass

import numpy as np

from radix_cache.cache import PrefixCache
from runtime.batch import SequenceInput, StepBatch
from runtime.cache_report import CacheReport
from runtime.config import EngineConfig
from runtime.drafting import Drafter, share_budget
from runtime.estimates import OutputLengths, StepCosts, StepWork
from runtime.grammar_compiler import CompiledGrammar, GrammarCompiler
from runtime.grammar_refusal import GrammarRefused
from runtime.kv_transfer import KVTransfer
from runtime.messages import (
    CancelRequest,
    EngineInfo,
    EngineMessage,
    ErrorKind,
    FinishReason,
    GenerationRequest,
    ReleaseSession,
    SequenceOutput,
    StepOutput,
    StepStats,
    TokenArray,
    TokenLogprob,
    TurnStart,
)
from runtime.model_runner import ModelRunner
from runtime.sampler import Sampled, SampleRow, sample
from runtime.scheduler import Chunk, Scheduler, step_work
from runtime.sequence import Sequence, SequenceState
from runtime.session_tokens import SessionTokens
from runtime.token_mask import GrammarState, MaskRow
from runtime.tokenizer import Tokenizer

log = logging.getLogger(__name__)

_POSITION_REPORT_S = 0.25
_PAUSE_S = 0.002
_IDLE_S = 0.05
_CLOSE_S = 8.0
"""An ending engine writes to the disk no longer than this; its parent waits a little longer."""
_ANSWER_LEASE_S = 20.0
"""A session's KV is held so long after a final answer: one person in seven is back by then."""
_LEAST_DRAFT = 4
"""Draft tokens that each decoding turn could have, or no turn gets any."""


class _Answer:
    """What this step has to tell about one request, gathered until the step ends."""

    __slots__ = (
        "accepted",
        "drafted",
        "error",
        "error_message",
        "finish",
        "forced",
        "forwards",
        "logprobs",
        "queue_position",
        "start",
        "tokens",
    )

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self.logprobs: list[TokenLogprob] = []
        self.forced = 0
        self.drafted = 0
        self.accepted = 0
        self.forwards = 0
        self.start: TurnStart | None = None
        self.queue_position: int | None = None
        self.finish: FinishReason | None = None
        self.error: ErrorKind | None = None
        self.error_message = ""

    def output(self, request_id: str) -> SequenceOutput:
        return SequenceOutput(
            request_id=request_id,
            new_tokens=np.array(self.tokens, dtype=np.int32),
            forced=self.forced,
            drafted=self.drafted,
            accepted=self.accepted,
            forwards=self.forwards,
            start=self.start,
            queue_position=self.queue_position,
            logprobs=tuple(self.logprobs),
            finish=self.finish,
            error=self.error,
            error_message=self.error_message,
        )


@dataclass(frozen=True, slots=True)
class _Taken:
    """What a sequence made of its sampled rows."""

    accepted: int
    finish: FinishReason | None = None
    error: ErrorKind | None = None
    message: str = ""


_NOTHING_TAKEN = _Taken(0)


class _Counters:
    """Sums since the last report."""

    def __init__(self) -> None:
        self.prefill_tokens = 0
        self.decode_tokens = 0
        self.preemptions = 0
        self.mask_s = 0.0


class Engine:
    """Runs turns step by step. Not thread-safe: one loop calls it."""

    takes_forced_tokens = True
    """False in measurements and tests only: what the grammar forces is then sampled, one token
    a step, and comes out the same."""

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
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.info = info
        self._transfer = transfer
        self._cache_report = CacheReport(cache, transfer)
        self._drafter = drafter
        self._scheduler = scheduler
        self._cache = cache
        self._runner = runner
        self._tokenizer = tokenizer
        self._compiler = compiler
        self._sessions = sessions
        self._costs = costs
        self._config = config
        self._clock = clock
        self._output_lengths = OutputLengths()
        self._workers = workers
        self._compiling: dict[Sequence, Future[CompiledGrammar]] = {}
        self._open: dict[str, Sequence] = {}
        self._answers: dict[str, _Answer] = {}
        self._counters = _Counters()
        self._positions_reported_s = -1.0
        self._idle_step = False
        self._mask_words = -(-info.vocab_size // 32)
        self._all_allowed = np.full(self._mask_words, 0xFFFFFFFF, dtype=np.uint32)

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
        return bool(self._answers or self._compiling or self._scheduler.has_work)

    def submit(self, messages: list[EngineMessage]) -> None:
        """Take messages in; their answers come from ``step``. Never raises for a bad one."""
        self._idle_step = False
        for message in messages:
            if isinstance(message, GenerationRequest):
                self._open_turn(message)
            elif isinstance(message, CancelRequest):
                self._cancel(message.request_id)
            else:
                self._release(message)

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
        self._take_compiled()
        if self._transfer is not None:
            self._transfer.report(self._cache)
            self._cache.tend()
        now = self._clock()
        schedule = self._scheduler.schedule(now, self._drafts())
        for sequence in schedule.admitted:
            self._report_start(sequence)
        for sequence in schedule.too_large:
            self._too_large(sequence)
        for sequence in schedule.exhausted:
            self._finish(sequence, FinishReason.CONTEXT)
        self._counters.preemptions += schedule.preempted
        chunks = [c for c in schedule.chunks if c.sequence.state is not SequenceState.DONE]
        step_s = 0.0
        if chunks:
            work = step_work(chunks)
            self._run(chunks)
            step_s = self._clock() - now
            self._learn(work, step_s)
        self._idle_step = not chunks
        self._report_positions(now)
        fell_idle = bool(chunks) and not self.has_work
        if not self._answers and not fell_idle:
            return None
        outputs = tuple(answer.output(name) for name, answer in self._answers.items())
        self._answers = {}
        return StepOutput(outputs=outputs, stats=self._stats(step_s))

    # Opening and closing turns

    def _open_turn(self, request: GenerationRequest) -> None:
        if request.request_id in self._open or self._sessions.is_busy(request.session_id):
            self._answer_error(
                request.request_id, ErrorKind.INTERNAL, "the session already has an open turn"
            )
            return
        if len(self._scheduler.waiting) >= self._config.max_waiting:
            self._answer_error(
                request.request_id,
                ErrorKind.OVERLOADED,
                f"{self._config.max_waiting} turns are waiting; try again later",
            )
            return
        kept = request.base_offset if request.base_session_id == request.session_id else 0
        if kept < self._sessions.length(request.session_id):
            self._rewinding(request.session_id, kept)
        opened = self._sessions.open(request)
        if opened is None:
            self._answer(request.request_id).finish = FinishReason.UNKNOWN_BASE
            return
        buffer, vouched = opened
        sequence = Sequence(request, buffer, arrival_s=self._clock(), vouched=vouched)
        if len(buffer) == 0 or len(buffer) > self.info.max_context_tokens:
            self._sessions.close(request.session_id, ran=False)
            self._answer_error(
                request.request_id,
                ErrorKind.TOO_LARGE,
                f"a prompt of {len(buffer)} tokens, 1 to {self.info.max_context_tokens} fit",
            )
            return
        limit_s: float = self._config.first_token_limit_s
        if request.deadline_s is not None:
            limit_s = min(limit_s, request.deadline_s)
        first_token_s = self._scheduler.predicted_first_token_s(sequence)
        if limit_s <= 0.0 or first_token_s > self._config.first_token_limit_s:
            self._sessions.close(request.session_id, ran=False)
            self._answer_error(
                request.request_id,
                ErrorKind.OVERLOADED,
                f"the first token is expected after {first_token_s:.1f} s, "
                f"{max(limit_s, 0.0):.1f} s are allowed; try again later",
            )
            return
        expected = self._output_lengths.expected(request.session_id)
        sequence.expected_output = min(request.max_new_tokens, int(expected))
        self._open[request.request_id] = sequence
        if request.grammar is None or request.max_new_tokens == 0:
            self._scheduler.add(sequence)
            return
        sequence.state = SequenceState.COMPILING
        self._compiling[sequence] = self._workers.submit(self._compiler.compile, request.grammar)

    def _take_compiled(self) -> None:
        for sequence, future in list(self._compiling.items()):
            if not future.done():
                continue
            del self._compiling[sequence]
            error = future.exception()
            if error is not None:
                kind = (
                    ErrorKind.GRAMMAR if isinstance(error, GrammarRefused) else ErrorKind.INTERNAL
                )
                self._close(sequence, FinishReason.ERROR, kind, str(error))
                continue
            compiled = future.result()
            state = GrammarState(compiled, self._tokenizer)
            limit = sequence.request.max_new_tokens
            if state.closing_tokens(limit) is None:
                self._close(
                    sequence,
                    FinishReason.ERROR,
                    ErrorKind.BUDGET_TOO_SMALL,
                    f"the shortest legal output takes about {len(compiled.closing)} tokens, "
                    f"this turn may use {limit}",
                )
                continue
            sequence.grammar = state
            self._scheduler.add(sequence)

    def _cancel(self, request_id: str) -> None:
        sequence = self._open.get(request_id)
        if sequence is None:
            return  # it has just ended, or never was
        if sequence.state is SequenceState.COMPILING:
            del self._compiling[sequence]
            self._close(sequence, FinishReason.CANCELLED)
        elif sequence.state is SequenceState.WAITING:
            self._scheduler.drop_waiting(sequence)
            self._close(sequence, FinishReason.CANCELLED)
        else:
            self._finish(sequence, FinishReason.CANCELLED)

    def _release(self, message: ReleaseSession) -> None:
        self._sessions.release(message.session_id)
        self._cache.release_session(message.session_id)
        if self._drafter is not None:
            self._drafter.close(message.session_id)

    def _rewinding(self, session_id: str, kept: int) -> None:
        """A session's tokens from ``kept`` on are about to be replaced: stop writing the tail
        of its last turn, forget its index, and tell waiting forks that its cache handle may
        move."""
        if self._drafter is not None:
            self._drafter.close(session_id)
        for sequence in list(self._scheduler.running):
            flushing = sequence.state is SequenceState.FLUSHING
            if flushing and sequence.request.session_id == session_id:
                self._scheduler.end(sequence, lease_s=0.0)
        for sequence in self._open.values():
            if sequence.request.base_session_id == session_id:
                sequence.vouched = min(sequence.vouched, kept)

    def _finish(
        self,
        sequence: Sequence,
        reason: FinishReason,
        error: ErrorKind | None = None,
        message: str = "",
    ) -> None:
        """End a running sequence: answer it, then flush its tail or let its blocks go."""
        sequence.final_length = len(sequence.buffer)
        ended_well = reason not in (FinishReason.ERROR, FinishReason.CANCELLED)
        if ended_well and self._scheduler.wants_flush(sequence):
            sequence.state = SequenceState.FLUSHING
        else:
            self._scheduler.end(sequence, lease_s=_lease_s(sequence, reason))
        sequence.finish = reason
        self._close(sequence, reason, error, message)

    def _close(
        self,
        sequence: Sequence,
        reason: FinishReason,
        error: ErrorKind | None = None,
        message: str = "",
    ) -> None:
        """Send the one finish of a sequence that the scheduler does not run any more."""
        request = sequence.request
        del self._open[request.request_id]
        if self._drafter is not None and sequence.grammar is not None and sequence.grammar.bound:
            output = sequence.buffer.view()[sequence.prompt_length :]
            self._drafter.remember(request.tenant, output.copy())
        self._sessions.close(request.session_id, ran=sequence.started)
        self._output_lengths.observe(request.session_id, output_tokens=sequence.num_emitted)
        answer = self._answer(request.request_id)
        answer.finish, answer.error, answer.error_message = reason, error, message
        for session_id in self._sessions.overflow():
            self._cache.release_session(session_id)

    def _too_large(self, sequence: Sequence) -> None:
        sequence.state = SequenceState.DONE
        self._close(
            sequence,
            FinishReason.ERROR,
            ErrorKind.TOO_LARGE,
            f"{len(sequence.buffer) + 1} tokens need more KV blocks than the pool has; "
            "raise --kv-cache-mib",
        )

    def _answer_error(self, request_id: str, kind: ErrorKind, message: str) -> None:
        answer = self._answer(request_id)
        answer.finish, answer.error, answer.error_message = FinishReason.ERROR, kind, message

    # One step

    def _drafts(self) -> dict[Sequence, TokenArray]:
        """Proposals for the turns that decode. None where so many do that their drafts would
        share the step's budget in crumbs: proposing costs the host time as well."""
        drafter, most = self._drafter, self._config.max_draft_tokens
        decoding = [s for s in self._scheduler.running if s.decoding and s.finish is None]
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
        sampling = [c for c in chunks if c.samples]
        try:
            inputs = [_step_input(chunk) for chunk in chunks]
            batch = StepBatch.build(inputs, self.info.block_size)
            if self._transfer is not None:
                self._transfer.settle(batch.block_tables)
            logits = self._runner.forward(batch)
            sampled = sample(logits, self._sample_rows(sampling)) if sampling else None
        except Exception:
            log.exception("step failed sequences=%d", len(chunks))
            for chunk in chunks:
                self._fail(chunk.sequence)
            self._cache.check()
            return
        row = 0
        for chunk in chunks:
            sequence = chunk.sequence
            taken = _NOTHING_TAKEN
            if chunk.samples:
                assert sampled is not None
                taken = self._take(chunk, sampled, row)
                row += 1 + len(chunk.draft)
            if self._drafter is not None and len(chunk.draft):
                looked_at = min(len(chunk.draft), taken.accepted + 1)
                self._drafter.verified(sequence.request.session_id, looked_at, taken.accepted)
            self._scheduler.advance(chunk, taken.accepted)
            if sequence.state is SequenceState.FLUSHING:
                self._scheduler.end(sequence, lease_s=_lease_s(sequence, sequence.finish))
            elif sequence.request.max_new_tokens == 0 and sequence.num_pending == 0:
                self._finish(sequence, FinishReason.PREFILLED)
            elif taken.finish is not None:
                self._finish(sequence, taken.finish, taken.error, taken.message)

    def _sample_rows(self, sampling: list[Chunk]) -> list[SampleRow]:
        """One row for each chunk and one more for each of its draft tokens."""
        started = self._clock()
        rows = []
        for chunk in sampling:
            sequence = chunk.sequence
            emitted = sequence.buffer.view()[sequence.prompt_length :]
            if len(chunk.draft):
                emitted = np.concatenate((emitted, chunk.draft))
            known = sequence.num_emitted
            for offset, mask in enumerate(self._masks(sequence, chunk.draft)):
                rows.append(
                    SampleRow(
                        params=sequence.request.sampling,
                        position=len(sequence.buffer) + offset,
                        emitted=emitted[: known + offset],
                        mask=mask,
                    )
                )
        self._counters.mask_s += self._clock() - started
        return rows

    def _masks(self, sequence: Sequence, draft: TokenArray) -> list[MaskRow | None]:
        """Packed allowed tokens for the next token and for the one behind each draft token."""
        grammar = sequence.grammar
        state = grammar.copy() if grammar is not None and len(draft) else grammar
        masks = [self._mask(sequence, state, sequence.remaining)]
        for offset, token in enumerate(draft.tolist(), start=1):
            if state is not None:
                state.advance([token])
            masks.append(self._mask(sequence, state, sequence.remaining - offset))
        return masks

    def _mask(
        self, sequence: Sequence, grammar: GrammarState | None, remaining: int
    ) -> MaskRow | None:
        """Packed allowed tokens, int32 [ceil(vocab / 32)]; None allows all."""
        if grammar is not None and grammar.bound:
            row = np.zeros(self._mask_words, dtype=np.int32)
            grammar.fill_mask(row)
            return row
        banned = sequence.request.banned_tokens
        if grammar is not None:
            banned += grammar.blocked_tokens(remaining)
        if not banned:
            return None
        words = self._all_allowed.copy()
        for token in banned:
            words[token >> 5] &= np.uint32(0xFFFFFFFF ^ (1 << (token & 31)))
        return words.view(np.int32)

    def _fail(self, sequence: Sequence) -> None:
        if sequence.state is SequenceState.FLUSHING:
            self._scheduler.end(sequence, lease_s=None)
        else:
            message = "the engine failed in this step; the turn can be repeated"
            self._finish(sequence, FinishReason.ERROR, ErrorKind.INTERNAL, message)

    def _take(self, chunk: Chunk, sampled: Sampled, first_row: int) -> "_Taken":
        """Emit what was drawn, as far as the draft agrees with it, and the forced run behind.

        The token drawn at a position depends on the tokens before it and on (seed, position)
        alone, so what is emitted is what a run without drafts emits (sample and compare;
        Leviathan et al. 2023, arXiv:2211.17192, for a drafter that proposes one token).
        """
        sequence, draft = chunk.sequence, chunk.draft
        grammar = sequence.grammar
        answer = self._answer(sequence.request.request_id)
        answer.forwards = 1
        answer.drafted += len(draft)
        accepted = 0
        for offset in range(1 + len(draft)):
            row = first_row + offset
            error = _row_error(sampled, row)
            if error is not None:
                return _Taken(accepted, FinishReason.ERROR, *error)
            token = int(sampled.tokens[row])
            if grammar is not None:
                token = grammar.within_limit(token, sequence.remaining)
            logprob = sampled.logprobs[row]
            if logprob is not None and logprob.token != token:
                logprob = TokenLogprob(token=token, logprob=0.0)  # the limit left no choice
            reason = self._emit(sequence, answer, token, logprob)
            agrees = offset < len(draft) and token == int(draft[offset])
            accepted += agrees
            answer.accepted += agrees
            if reason is not None:
                return _Taken(accepted, reason)
            if grammar is not None and grammar.failed is not None:
                return _Taken(accepted, FinishReason.ERROR, ErrorKind.GRAMMAR, grammar.failed)
            if not agrees:
                break
        return self._take_forced(sequence, answer, accepted)

    def _take_forced(self, sequence: Sequence, answer: "_Answer", accepted: int) -> "_Taken":
        """Emit the tokens that the grammar leaves no choice about: no logits are needed."""
        grammar = sequence.grammar if self.takes_forced_tokens else None
        while grammar is not None:
            run = grammar.forced_tokens(sequence.remaining)
            if not run:
                break
            for token in run:
                certain = TokenLogprob(token=token, logprob=0.0)
                wanted = sequence.request.sampling.top_logprobs is not None
                answer.forced += 1
                reason = self._emit(sequence, answer, token, certain if wanted else None)
                if reason is not None:
                    return _Taken(accepted, reason)
            if grammar.failed is not None:
                return _Taken(accepted, FinishReason.ERROR, ErrorKind.GRAMMAR, grammar.failed)
        return _Taken(accepted)

    def _emit(
        self, sequence: Sequence, answer: "_Answer", token: int, logprob: TokenLogprob | None
    ) -> FinishReason | None:
        """Add one token to the turn; says whether it ends the turn."""
        answer.tokens.append(token)
        if logprob is not None:
            answer.logprobs.append(logprob)
        self._counters.decode_tokens += 1
        reason = self._append(sequence, token)
        if reason is None and sequence.grammar is not None:
            sequence.grammar.advance([token])
        return reason

    def _append(self, sequence: Sequence, token: int) -> FinishReason | None:
        """Append one emitted token and say whether it ends the turn."""
        sequence.buffer.append(token)
        if token in self._tokenizer.end_of_turn_ids:
            return FinishReason.STOP
        if self._hits_stop_string(sequence, token):
            return FinishReason.STOP_STRING
        if sequence.remaining <= 0:
            return FinishReason.LENGTH
        if len(sequence.buffer) >= self.info.max_context_tokens:
            return FinishReason.CONTEXT
        return None

    def _hits_stop_string(self, sequence: Sequence, token: int) -> bool:
        stops = sequence.request.sampling.stop
        if not stops:
            return False
        wanted = [s.encode() for s in stops]
        text = sequence.stop_tail + self._tokenizer.token_bytes(token)
        if any(w in text for w in wanted):
            return True
        keep = max(len(w) for w in wanted) - 1
        sequence.stop_tail = text[-keep:] if keep else b""
        return False

    # Reports

    def _report_start(self, sequence: Sequence) -> None:
        if sequence.started:
            return
        sequence.started = True
        assert sequence.cached is not None
        assert sequence.admitted_s is not None
        self._answer(sequence.request.request_id).start = TurnStart(
            input_tokens=sequence.prompt_length,
            cached_tokens=sequence.cached.num_cached_tokens,
            queue_s=sequence.admitted_s - sequence.arrival_s,
            miss_causes=dict(sequence.cached.miss_causes),
        )

    def _report_positions(self, now: float) -> None:
        if not self._scheduler.waiting or now - self._positions_reported_s < _POSITION_REPORT_S:
            return
        self._positions_reported_s = now
        for position, sequence in enumerate(self._scheduler.queue_positions(now)):
            if sequence.started or position == sequence.last_reported_position:
                continue
            sequence.last_reported_position = position
            self._answer(sequence.request.request_id).queue_position = position

    def _answer(self, request_id: str) -> "_Answer":
        return self._answers.setdefault(request_id, _Answer())

    def _learn(self, work: StepWork, seconds: float) -> None:
        self._counters.prefill_tokens += work.prefill_tokens
        self._costs.observe(work, seconds=seconds)

    def _stats(self, step_s: float) -> StepStats:
        counters, self._counters = self._counters, _Counters()
        return StepStats(
            **self._cache_report.take(),
            running=len(self._scheduler.running),
            waiting=len(self._scheduler.waiting) + len(self._compiling),
            step_s=step_s,
            prefill_tokens_delta=counters.prefill_tokens,
            decode_tokens_delta=counters.decode_tokens,
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


def _row_error(sampled: Sampled, row: int) -> tuple[ErrorKind, str] | None:
    if not sampled.finite[row]:
        return ErrorKind.NOT_FINITE, "the model produced logits that are not finite"
    if sampled.tokens[row] < 0:
        return ErrorKind.GRAMMAR, "the grammar allows no token here"
    return None


def _lease_s(sequence: Sequence, reason: FinishReason | None) -> float | None:
    """Seconds to hold the session's KV after this turn: the client's hint plus slack, None
    for the cache's own estimate after a tool call, a short time after an answer."""
    if reason is not FinishReason.STOP:
        return 0.0
    grammar = sequence.grammar
    request = sequence.request
    spec = request.grammar
    in_call = grammar is not None and spec is not None and spec.trigger and grammar.bound
    if not (request.expects_tool_call or in_call):
        return _ANSWER_LEASE_S
    hint = request.expected_tool_s
    return None if hint is None else hint + 2.0
