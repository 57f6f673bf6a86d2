"""Requests from their arrival to their one finish: opened, queued, cancelled, ended.

A request ends in two steps. It is *finished* when its client is told, wherever it stands; its
blocks are *released* at once, or behind the step that writes its tail. Knows branches, the
scheduler's queues and the cache's leases. Knows no logits and no tensors: what a sequence
emits between start and finish is ``emission``'s.

Always true: every request is answered with exactly one finish.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise

from radix_cache.cache import CachedSequence, PrefixCache
from radix_cache.snapshots import SnapshotKind
from runtime.drafting.drafter import Drafter
from runtime.engine.branch_tokens import BranchTokens
from runtime.engine.compilations import Compilations
from runtime.engine.step_outputs import OutputCollector
from runtime.grammar.compiler import CompiledGrammar
from runtime.grammar.refusal import GrammarRefused
from runtime.grammar.state import GrammarState
from runtime.grammar.stop_search import StopSearch
from runtime.messages import (
    ErrorKind,
    FinishReason,
    GenerationRequest,
    ReleaseBranch,
    ResumePoint,
    SequenceStart,
)
from runtime.scheduling.costs import OutputLengths
from runtime.scheduling.scheduler import Scheduler
from runtime.scheduling.sequence import WITHOUT_ADAPTER, Sequence, SequenceState
from runtime.tokenizer import Tokenizer
from tools_api.limits import DEFAULT_LIMITS

_POSITION_REPORT_S = 0.25


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestLimits:
    """Bounds on what an engine takes in; the rest is refused at once."""

    max_waiting: int
    """Sequences that may wait for admission; as many again of tenants within their share."""
    max_context_tokens: int
    """Tokens of the longest transcript."""
    first_token_limit_s: float
    """Longest predicted wait behind other prompts."""
    vocab_size: int
    """Size of the vocabulary: token ids are below it."""
    adapters: Mapping[str, tuple[int, str]] = field(default_factory=dict)
    """The model's number for each adapter by its name, and what it is called in the cache."""


class OpenRequests:
    """The open requests of an engine, and what becomes of them."""

    def __init__(
        self,
        *,
        limits: RequestLimits,
        scheduler: Scheduler,
        cache: PrefixCache,
        branches: BranchTokens,
        compilations: Compilations,
        tokenizer: Tokenizer,
        drafter: Drafter | None,
        clock: Callable[[], float],
    ) -> None:
        self._limits = limits
        self._scheduler = scheduler
        self._queues = scheduler.queues
        self._cache = cache
        self._branches = branches
        self.compilations = compilations
        self._tokenizer = tokenizer
        self._drafter = drafter
        self._clock = clock
        self.outputs = OutputCollector()
        """The requests' outputs at the end of the step."""
        self._output_lengths = OutputLengths()
        self._open: dict[str, Sequence] = {}
        self._positions: dict[Sequence, int] = {}
        """Places in the queue, as they were reported last."""
        self._positions_reported_s = -1.0

    @property
    def num_branches(self) -> int:
        """Branches whose tokens the engine holds."""
        return len(self._branches)

    @property
    def token_bytes(self) -> int:
        """Memory of the tokens of all branches."""
        return self._branches.num_bytes

    def open(self, request: GenerationRequest) -> None:
        """Take a request in. Its output comes at once or with a later step."""
        if request.request_id in self._open or self._branches.is_busy(request.branch_id):
            self.outputs.error(
                request.request_id, ErrorKind.INTERNAL, "the session already has an open turn"
            )
            return
        if not self._knows_tokens(request):
            message = "the turn names tokens that the model does not have"
            self.outputs.error(request.request_id, ErrorKind.INTERNAL, message)
            return
        adapter = self._adapter(request)
        if adapter is None:
            message = f"the engine has no adapter {str(request.adapter)[:128]!r}"
            self.outputs.error(request.request_id, ErrorKind.INTERNAL, message)
            return
        if fault := _fault_of_resume_points(request):
            self.outputs.error(request.request_id, ErrorKind.INTERNAL, fault)
            return
        if not self._queues.takes_one_more(request.tenant, self._limits.max_waiting):
            self.outputs.error(
                request.request_id,
                ErrorKind.OVERLOADED,
                f"{len(self._queues.waiting)} turns are waiting; try again later",
            )
            return
        if self._cache.branches.adapter_of(request.branch_id) not in (None, adapter[1]):
            self._leave_cache(request.branch_id)
        kept = request.base_offset if request.base_branch_id == request.branch_id else 0
        if kept < self._branches.length(request.branch_id):
            self._rewinding(request.branch_id, kept)
        opened = self._branches.open(request)
        if opened is None:
            self.outputs.of(request.request_id).finish = FinishReason.UNKNOWN_BASE
            return
        buffer, vouched = opened
        sequence = Sequence(
            request, buffer, arrival_s=self._clock(), vouched=vouched, adapter=adapter
        )
        if stops := request.sampling.stop:
            sequence.stop_search = StopSearch(stops, self._tokenizer, request.grammar)
        refusal = self._refusal(sequence)
        if refusal is not None:
            self._branches.close(request.branch_id, ran=False)
            self.outputs.error(request.request_id, *refusal)
            return
        expected = self._output_lengths.expected(request.branch_id)
        sequence.expected_output = min(request.max_new_tokens, int(expected))
        self._open[request.request_id] = sequence
        if request.grammar is None or request.max_new_tokens == 0:
            self._queues.add(sequence)
            return
        sequence.state = SequenceState.COMPILING
        self.compilations.want(sequence, request.grammar)

    def _adapter(self, request: GenerationRequest) -> tuple[int, str] | None:
        """The request's adapter; None: there is no such."""
        if request.adapter is None:
            return WITHOUT_ADAPTER
        return self._limits.adapters.get(request.adapter)

    def _knows_tokens(self, request: GenerationRequest) -> bool:
        """Whether all token ids are the model's: kernels index by them unchecked."""
        size, tokens = self._limits.vocab_size, request.new_tokens
        if len(tokens) and (tokens.min() < 0 or tokens.max() >= size):
            return False
        return all(0 <= token < size for token in request.banned_tokens)

    def _refusal(self, sequence: Sequence) -> tuple[ErrorKind, str] | None:
        """Why a sequence is not even queued; None if it is."""
        length = len(sequence.buffer)
        if length == 0 or length > self._limits.max_context_tokens:
            message = f"a prompt of {length} tokens, 1 to {self._limits.max_context_tokens} fit"
            return ErrorKind.TOO_LARGE, message
        limit_s = self._limits.first_token_limit_s
        if sequence.request.deadline_s is not None:
            limit_s = min(limit_s, sequence.request.deadline_s)
        before_s = self._scheduler.order.work_before_s(sequence)
        if limit_s > 0.0 and before_s <= self._limits.first_token_limit_s:
            return None
        return ErrorKind.OVERLOADED, (
            f"other prompts are expected to take {before_s:.1f} s before this one, "
            f"{max(limit_s, 0.0):.1f} s are allowed; try again later"
        )

    def queue_compiled(self) -> None:
        """Queue the sequences whose grammar is ready; end those whose grammar is refused."""
        for sequence, outcome in self.compilations.pop_ready():
            if isinstance(outcome, Exception):
                refused = isinstance(outcome, GrammarRefused)
                kind = ErrorKind.GRAMMAR if refused else ErrorKind.INTERNAL
                self.finish(sequence, FinishReason.ERROR, kind, str(outcome))
            else:
                self._queue(sequence, outcome)

    def _queue(self, sequence: Sequence, compiled: CompiledGrammar) -> None:
        state = GrammarState(compiled, self._tokenizer)
        limit = sequence.request.max_new_tokens
        if state.least_tokens > limit:
            message = (
                f"a legal output takes at least {state.least_tokens} tokens, "
                f"this turn may use {limit}"
            )
            self.finish(sequence, FinishReason.ERROR, ErrorKind.BUDGET_TOO_SMALL, message)
            return
        sequence.grammar = state
        self._queues.add(sequence)

    def cancel(self, request_id: str) -> None:
        """End a request, wherever it stands. An unknown one has just ended, or never was."""
        sequence = self._open.get(request_id)
        if sequence is not None:
            self.finish(sequence, FinishReason.CANCELLED)

    def forget_branch(self, message: ReleaseBranch) -> None:
        """Forget a branch: nothing will go on from it."""
        self._branches.release(message.branch_id)
        self._forgotten(message.branch_id)

    def _forgotten(self, branch_id: str) -> None:
        """A branch has lost its tokens: its cache handle goes as well, and its index."""
        self._off_the_cache(branch_id)
        if self._drafter is not None:
            self._drafter.close(branch_id)

    def _off_the_cache(self, branch_id: str) -> None:
        """A branch's cache handle goes. A later branch of that name has another handle, which
        vouches for nothing of waiting forks."""
        self._cache.release_branch(branch_id)
        for sequence in self._open.values():
            if sequence.request.base_branch_id == branch_id:
                sequence.vouched = 0

    def _leave_cache(self, branch_id: str) -> None:
        """A branch is gone on from under another adapter: its tokens stay, and its KV is of no use
        to it any more."""
        self._end_flush(branch_id)
        self._off_the_cache(branch_id)

    def _rewinding(self, branch_id: str, kept: int) -> None:
        """A branch's tokens from ``kept`` on are about to be replaced: stop writing the tail
        of its last request, forget its index, and tell waiting forks that its cache handle may
        move."""
        if self._drafter is not None:
            self._drafter.close(branch_id)
        self._end_flush(branch_id)
        for sequence in self._open.values():
            if sequence.request.base_branch_id == branch_id:
                sequence.vouched = min(sequence.vouched, kept)

    def _end_flush(self, branch_id: str) -> None:
        """Stop writing the tail of a branch's last request."""
        for sequence in list(self._queues.running):
            flushing = sequence.state is SequenceState.FLUSHING
            if flushing and sequence.request.branch_id == branch_id:
                self._queues.release(sequence, lease_s=0.0)

    def finish(
        self,
        sequence: Sequence,
        reason: FinishReason,
        error: ErrorKind | None = None,
        message: str = "",
    ) -> None:
        """Answer a request for the last time, wherever it stands. What it holds of the cache is
        released, behind the step that writes its tail if that completes a block."""
        if sequence.state is SequenceState.COMPILING:
            self.compilations.withdraw(sequence)
        elif sequence.state is SequenceState.WAITING:
            self._queues.withdraw(sequence)
        elif sequence.state is SequenceState.RUNNING:
            sequence.final_length = len(sequence.buffer)
            ended_well = reason not in (FinishReason.ERROR, FinishReason.CANCELLED)
            if ended_well and self._scheduler.wants_flush(sequence):
                self._queues.flush(sequence)
            else:
                self._release(sequence, reason)
        sequence.finish = reason
        self._close(sequence)
        output = self.outputs.of(sequence.request.request_id)
        output.finish, output.error, output.error_message = reason, error, message

    def release(self, sequence: Sequence) -> None:
        """Release the blocks of a finished request whose tail is written."""
        self._release(sequence, sequence.finish)

    def _release(self, sequence: Sequence, reason: FinishReason | None) -> None:
        lease_s, answered = _lease_s(sequence, reason), not _ends_in_call(sequence)
        kept: SnapshotKind | None = SnapshotKind.END
        if reason in (FinishReason.ERROR, FinishReason.CANCELLED):
            kept = SnapshotKind.PAUSE if reason is FinishReason.CANCELLED else None
        self._queues.release(sequence, lease_s=lease_s, answered=answered, kept=kept)

    def _close(self, sequence: Sequence) -> None:
        """Learn from a request that has ended, and keep its branch for the next one."""
        request, grammar = sequence.request, sequence.grammar
        del self._open[request.request_id]
        if self._drafter is not None and grammar is not None and grammar.bound:
            output = sequence.buffer.view()[sequence.prompt_length :]
            self._drafter.remember(request.tenant, output.copy())
        if grammar is not None and grammar.failed is not None:
            self.compilations.forget(grammar.compiled)
        self._branches.close(request.branch_id, ran=sequence.started)
        self._cache.tell_residency(request.branch_id)
        self._output_lengths.observe(request.branch_id, output_tokens=sequence.num_emitted)
        for branch_id in self._branches.overflow():
            self._forgotten(branch_id)

    def fail(self, sequence: Sequence) -> None:
        """End a request whose step failed."""
        if sequence.state is SequenceState.FLUSHING:
            self._queues.release(sequence, lease_s=None, kept=None)
        else:
            message = "the engine failed in this step; the turn can be repeated"
            self.finish(sequence, FinishReason.ERROR, ErrorKind.INTERNAL, message)

    def too_large(self, sequence: Sequence) -> None:
        """End a request that the empty pool would not hold; it has left the queue."""
        message = (
            f"{len(sequence.buffer) + 1} tokens need more KV blocks than the pool has; "
            "raise --kv-cache-mib"
        )
        self.finish(sequence, FinishReason.ERROR, ErrorKind.TOO_LARGE, message)

    def started(self, sequence: Sequence) -> None:
        """Tell once what an admitted sequence found in the cache."""
        if sequence.started:
            return
        sequence.started = True
        assert sequence.cached is not None
        assert sequence.admitted_s is not None
        grammar = sequence.grammar
        self.outputs.of(sequence.request.request_id).start = SequenceStart(
            input_tokens=sequence.prompt_length,
            cached_tokens=sequence.cached.num_cached_tokens,
            queue_s=sequence.admitted_s - sequence.arrival_s,
            miss_causes=dict(sequence.cached.miss_causes),
            evicted_ago_s=_ago_s(self._clock(), sequence.cached.evicted_s),
            ending_known=grammar is None or grammar.ends_within(sequence.request.max_new_tokens),
            resumed=_resume_point(sequence.cached),
        )

    def report_positions(self, now: float) -> None:
        """Tell waiting requests their positions, now and then."""
        if not self._queues.waiting:
            self._positions.clear()
            return
        if now - self._positions_reported_s < _POSITION_REPORT_S:
            return
        self._positions_reported_s = now
        before, self._positions = self._positions, {}
        for position, sequence in enumerate(self._scheduler.order.queue_positions(now)):
            if sequence.started:
                continue
            self._positions[sequence] = position
            if position != before.get(sequence):
                self.outputs.of(sequence.request.request_id).queue_position = position


def _resume_point(cached: CachedSequence) -> ResumePoint | None:
    """Where an admitted sequence began; None without recurrent layers."""
    if cached.state_slot < 0:
        return None
    if cached.resumed is None:
        return ResumePoint(position=0)
    kind, tier = cached.resumed
    return ResumePoint(position=cached.num_cached_tokens, kind=kind.value, tier=tier.name.lower())


def _fault_of_resume_points(request: GenerationRequest) -> str:
    """The fault of the positions at which a request wants states to be kept; empty for nothing."""
    points, length = request.resume_points, request.base_offset + len(request.new_tokens)
    most = DEFAULT_LIMITS.max_resume_points
    if len(points) > most:
        return f"resume_points has {len(points)} positions, at most {most} are taken: name fewer"
    if any(not 0 < point < length for point in points):
        return f"resume_points has positions outside the prompt of {length} tokens: name inner ones"
    if any(later <= point for point, later in pairwise(points)):
        return "resume_points is not in ascending order: name each position once, the first first"
    return ""


def _ends_in_call(sequence: Sequence) -> bool:
    request, grammar = sequence.request, sequence.grammar
    in_call = grammar is not None and request.grammar is not None and request.grammar.trigger
    return request.expects_tool_call or bool(in_call and grammar is not None and grammar.bound)


def _lease_s(sequence: Sequence, reason: FinishReason | None) -> float | None:
    """Seconds to hold the branch's KV after this sequence: the client's hint plus slack after a
    tool call, None for the cache's own estimate."""
    if reason is not FinishReason.STOP:
        return 0.0
    hint = sequence.request.expected_tool_s
    return None if hint is None or not _ends_in_call(sequence) else hint + 2.0


def _ago_s(now: float, then: float | None) -> float | None:
    return None if then is None else max(now - then, 0.0)
