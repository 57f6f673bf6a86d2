"""Turns from their request to their one finish: opened, compiled, cancelled, ended.

Knows sessions, the scheduler's queue and the cache's leases. Knows no logits and no tensors:
what a turn says between start and finish is ``emission``'s.

Always true: every request is answered with exactly one finish.
"""

from collections.abc import Callable
from concurrent.futures import Executor, Future
from dataclasses import dataclass, field

from radix_cache.cache import PrefixCache
from runtime.answers import Answers
from runtime.aside import Aside
from runtime.config import EngineConfig
from runtime.drafts import Drafter
from runtime.estimates import OutputLengths
from runtime.grammar_closing import Work
from runtime.grammar_compiler import CompiledGrammar, GrammarCompiler, ParsedGrammar
from runtime.grammar_refusal import GrammarRefused
from runtime.messages import (
    ErrorKind,
    FinishReason,
    GenerationRequest,
    ReleaseSession,
    TurnStart,
)
from runtime.scheduler import Scheduler
from runtime.sequence import Sequence, SequenceState
from runtime.session_tokens import SessionTokens
from runtime.token_mask import GrammarState
from runtime.tokenizer import Tokenizer
from tools_api.grammar import GrammarSpec

_POSITION_REPORT_S = 0.25


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Compilation:
    """A grammar on its way: parsed on another thread, then finished beside steps."""

    spec: GrammarSpec
    parsing: Future[ParsedGrammar]
    work: Work[CompiledGrammar | Exception]
    waiting: list[Sequence] = field(default_factory=list)
    """Turns that want it."""

    @property
    def is_void(self) -> bool:
        return not self.waiting

    def holds(self, sequence: Sequence) -> bool:
        return False  # none of them is admitted


class OpenTurns:
    """The open turns of an engine, and what becomes of them."""

    def __init__(
        self,
        *,
        scheduler: Scheduler,
        cache: PrefixCache,
        sessions: SessionTokens,
        compiler: GrammarCompiler,
        workers: Executor,
        aside: Aside,
        tokenizer: Tokenizer,
        answers: Answers,
        config: EngineConfig,
        max_context_tokens: int,
        drafter: Drafter | None,
        clock: Callable[[], float],
    ) -> None:
        self._scheduler = scheduler
        self._cache = cache
        self._sessions = sessions
        self._compiler = compiler
        self._workers = workers
        self._aside = aside
        self._tokenizer = tokenizer
        self._answers = answers
        self._config = config
        self._max_context_tokens = max_context_tokens
        self._drafter = drafter
        self._clock = clock
        self._output_lengths = OutputLengths()
        self._parsing: dict[GrammarSpec, Compilation] = {}
        self._finishing: dict[GrammarSpec, Compilation] = {}
        self._compiled: list[tuple[Sequence, CompiledGrammar]] = []
        self._open: dict[str, Sequence] = {}
        self._positions_reported_s = -1.0

    @property
    def num_compiling(self) -> int:
        """Turns that wait for their grammar."""
        compilations = (*self._parsing.values(), *self._finishing.values())
        return len(self._compiled) + sum(len(c.waiting) for c in compilations)

    def open(self, request: GenerationRequest) -> None:
        """Take a request in. Its answer comes at once or with a later step."""
        if request.request_id in self._open or self._sessions.is_busy(request.session_id):
            self._answers.error(
                request.request_id, ErrorKind.INTERNAL, "the session already has an open turn"
            )
            return
        if len(self._scheduler.waiting) >= self._config.max_waiting:
            self._answers.error(
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
            self._answers.of(request.request_id).finish = FinishReason.UNKNOWN_BASE
            return
        buffer, vouched = opened
        sequence = Sequence(request, buffer, arrival_s=self._clock(), vouched=vouched)
        refusal = self._refusal(sequence)
        if refusal is not None:
            self._sessions.close(request.session_id, ran=False)
            self._answers.error(request.request_id, *refusal)
            return
        expected = self._output_lengths.expected(request.session_id)
        sequence.expected_output = min(request.max_new_tokens, int(expected))
        self._open[request.request_id] = sequence
        if request.grammar is None or request.max_new_tokens == 0:
            self._scheduler.add(sequence)
            return
        sequence.state = SequenceState.COMPILING
        self._compile(sequence, request.grammar)

    def _refusal(self, sequence: Sequence) -> tuple[ErrorKind, str] | None:
        """Why a turn is not even queued; None if it is."""
        length = len(sequence.buffer)
        if length == 0 or length > self._max_context_tokens:
            message = f"a prompt of {length} tokens, 1 to {self._max_context_tokens} fit"
            return ErrorKind.TOO_LARGE, message
        limit_s: float = self._config.first_token_limit_s
        if sequence.request.deadline_s is not None:
            limit_s = min(limit_s, sequence.request.deadline_s)
        first_token_s = self._scheduler.predicted_first_token_s(sequence)
        if limit_s > 0.0 and first_token_s <= self._config.first_token_limit_s:
            return None
        return ErrorKind.OVERLOADED, (
            f"the first token is expected after {first_token_s:.1f} s, "
            f"{max(limit_s, 0.0):.1f} s are allowed; try again later"
        )

    def _compile(self, sequence: Sequence, spec: GrammarSpec) -> None:
        compiled = self._compiler.cached(spec)
        if compiled is not None:
            self._compiled.append((sequence, compiled))
            return
        compilation = self._parsing.get(spec) or self._finishing.get(spec)
        if compilation is None:
            parsing = self._workers.submit(self._compiler.parse, spec)
            compilation = Compilation(spec=spec, parsing=parsing, work=self._finish_of(parsing))
            self._parsing[spec] = compilation
        compilation.waiting.append(sequence)

    def _finish_of(self, parsing: Future[ParsedGrammar]) -> Work[CompiledGrammar | Exception]:
        try:
            return (yield from self._compiler.finishing(parsing.result()))
        except Exception as error:
            return error

    def take_compiled(self) -> None:
        """Queue the turns whose grammar is ready; end those whose grammar is refused."""
        ready, self._compiled = self._compiled, []
        for sequence, compiled in ready:
            self._queue(sequence, compiled)
        for spec, compilation in list(self._parsing.items()):
            if compilation.parsing.done():
                del self._parsing[spec]
                self._finishing[spec] = compilation
                result = self._aside.begin(compilation)
                if result is not None:
                    self.compiled(compilation, result)

    def compiled(self, compilation: Compilation, result: CompiledGrammar | Exception) -> None:
        """A compilation has come to its end."""
        del self._finishing[compilation.spec]
        for sequence in compilation.waiting:
            if isinstance(result, Exception):
                refused = isinstance(result, GrammarRefused)
                kind = ErrorKind.GRAMMAR if refused else ErrorKind.INTERNAL
                self._close(sequence, FinishReason.ERROR, kind, str(result))
            else:
                self._queue(sequence, result)

    def _queue(self, sequence: Sequence, compiled: CompiledGrammar) -> None:
        state = GrammarState(compiled, self._tokenizer)
        limit = sequence.request.max_new_tokens
        if state.closing_tokens(limit) is None:
            message = (
                f"the shortest legal output takes about {len(compiled.closing)} tokens, "
                f"this turn may use {limit}"
            )
            self._close(sequence, FinishReason.ERROR, ErrorKind.BUDGET_TOO_SMALL, message)
            return
        sequence.grammar = state
        self._scheduler.add(sequence)

    def _stop_compiling(self, sequence: Sequence) -> None:
        """The turn does not want its grammar any more. If nobody does, it is not finished."""
        self._compiled = [entry for entry in self._compiled if entry[0] is not sequence]
        for stage in (self._parsing, self._finishing):
            for spec, compilation in list(stage.items()):
                if sequence in compilation.waiting:
                    compilation.waiting.remove(sequence)
                    if compilation.is_void:
                        del stage[spec]

    def cancel(self, request_id: str) -> None:
        """End a turn, wherever it stands. An unknown one is none."""
        sequence = self._open.get(request_id)
        if sequence is None:
            return  # it has just ended, or never was
        if sequence.state is SequenceState.COMPILING:
            self._stop_compiling(sequence)
            self._close(sequence, FinishReason.CANCELLED)
        elif sequence.state is SequenceState.WAITING:
            self._scheduler.drop_waiting(sequence)
            self._close(sequence, FinishReason.CANCELLED)
        else:
            self.finish(sequence, FinishReason.CANCELLED)

    def release(self, message: ReleaseSession) -> None:
        """Forget a session: nothing will go on from it."""
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

    def finish(
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
            self._scheduler.flush(sequence)
        else:
            self._let_go(sequence, reason)
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
        if sequence.grammar is not None and sequence.grammar.failed is not None:
            self._compiler.forget(sequence.grammar.compiled)
        self._sessions.close(request.session_id, ran=sequence.started)
        self._output_lengths.observe(request.session_id, output_tokens=sequence.num_emitted)
        answer = self._answers.of(request.request_id)
        answer.finish, answer.error, answer.error_message = reason, error, message
        for session_id in self._sessions.overflow():
            self._cache.release_session(session_id)

    def too_large(self, sequence: Sequence) -> None:
        """End a waiting turn that the empty pool would not hold."""
        sequence.state = SequenceState.DONE
        self._close(
            sequence,
            FinishReason.ERROR,
            ErrorKind.TOO_LARGE,
            f"{len(sequence.buffer) + 1} tokens need more KV blocks than the pool has; "
            "raise --kv-cache-mib",
        )

    def _let_go(self, sequence: Sequence, reason: FinishReason | None) -> None:
        lease_s, answered = _lease_s(sequence, reason), not _ends_in_call(sequence)
        self._scheduler.end(sequence, lease_s=lease_s, answered=answered)

    def flushed(self, sequence: Sequence) -> None:
        """The tail of a finished turn is written."""
        self._let_go(sequence, sequence.finish)

    def fail(self, sequence: Sequence) -> None:
        """End a turn whose step failed."""
        if sequence.state is SequenceState.FLUSHING:
            self._scheduler.end(sequence, lease_s=None)
        else:
            message = "the engine failed in this step; the turn can be repeated"
            self.finish(sequence, FinishReason.ERROR, ErrorKind.INTERNAL, message)

    def started(self, sequence: Sequence) -> None:
        """Tell once what an admitted turn found in the cache."""
        if sequence.started:
            return
        sequence.started = True
        assert sequence.cached is not None
        assert sequence.admitted_s is not None
        self._answers.of(sequence.request.request_id).start = TurnStart(
            input_tokens=sequence.prompt_length,
            cached_tokens=sequence.cached.num_cached_tokens,
            queue_s=sequence.admitted_s - sequence.arrival_s,
            miss_causes=dict(sequence.cached.miss_causes),
        )

    def report_positions(self, now: float) -> None:
        """Tell waiting turns their places, now and then."""
        if not self._scheduler.waiting or now - self._positions_reported_s < _POSITION_REPORT_S:
            return
        self._positions_reported_s = now
        for position, sequence in enumerate(self._scheduler.queue_positions(now)):
            if sequence.started or position == sequence.last_reported_position:
                continue
            sequence.last_reported_position = position
            self._answers.of(sequence.request.request_id).queue_position = position


def _ends_in_call(sequence: Sequence) -> bool:
    request, grammar = sequence.request, sequence.grammar
    in_call = grammar is not None and request.grammar is not None and request.grammar.trigger
    return request.expects_tool_call or bool(in_call and grammar is not None and grammar.bound)


def _lease_s(sequence: Sequence, reason: FinishReason | None) -> float | None:
    """Seconds to hold the session's KV after this turn: the client's hint plus slack after a
    tool call, None for the cache's own estimate."""
    if reason is not FinishReason.STOP:
        return 0.0
    hint = sequence.request.expected_tool_s
    return None if hint is None or not _ends_in_call(sequence) else hint + 2.0
