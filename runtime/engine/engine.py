"""The loop body: messages in, one step of the model, what each sequence got out of it.

``Engine`` is a plain synchronous object. It owns no device code (``step_computation``), no order
(the scheduler's) and no request (``open_requests`` begins and ends them, ``emission`` takes
their tokens); it turns a schedule into chunks to compute, sampled tokens into sequences that
advance, and a failed step into one step for each of its sequences, of which those that fail again
end.
"""

import logging
import math
from collections.abc import Callable, Iterable

import numpy as np

from runtime.engine.background import Pieces
from runtime.engine.draft_controller import DraftController
from runtime.engine.emission import NOTHING_TAKEN, Emission, Settlement, Taken
from runtime.engine.kv_memory import KVMemory
from runtime.engine.open_requests import OpenRequests
from runtime.engine.step_computation import Logits, Outlook, StepComputation
from runtime.heap_free import heap_free_bytes
from runtime.messages import (
    CachePicture,
    CancelRequest,
    DropBranch,
    EngineInfo,
    EngineMessage,
    FinishReason,
    GenerationRequest,
    PictureRequest,
    StepOutput,
    StepStats,
)
from runtime.model.rank_link import RunnerBroken
from runtime.model.sampler import Sampled
from runtime.scheduling.costs import StepWork
from runtime.scheduling.draft import Draft
from runtime.scheduling.scheduler import Scheduler
from runtime.scheduling.sequence import Sequence, SequenceState
from runtime.scheduling.step_plan import Chunk, Decodes, step_work

log = logging.getLogger(__name__)

_PAUSE_S = 0.002
_IDLE_S = 0.05
_TELL_S = 1.0
"""Idle branches still have KV, which is told of now and then."""
_HEAP_S = 10.0
"""Looking at the heap takes a millisecond."""
_MOST_SILENT_STEPS = 256
"""Steps that tell nothing are reported together, so many at most."""


MOST_FAILED_STEPS = 8


class EngineBroken(Exception):
    """Step after step fails, or a rank is gone: this engine is of no use any more, a fresh one may
    be."""


class _Counters:
    """Sums since the last report."""

    def __init__(self) -> None:
        self.preemptions = 0
        self.steps_s: list[float] = []
        self.steps_prefill_tokens: list[int] = []
        self.steps_cost_ratio: list[float] = []


class Engine:
    """Runs requests step by step. Not thread-safe: one loop calls it.

    ``runtime.process.loading`` puts it together.
    """

    def __init__(
        self,
        *,
        info: EngineInfo,
        scheduler: Scheduler,
        requests: OpenRequests,
        emission: Emission,
        computation: StepComputation,
        memory: KVMemory,
        drafts: DraftController,
        clock: Callable[[], float],
    ) -> None:
        self.info = info
        self.costs = scheduler.costs
        self.background = requests.compilations.background
        self.computation = computation
        self.emission = emission
        self.memory = memory
        self.scheduler = scheduler
        self._queues = scheduler.queues
        self._requests = requests
        self._compilations = requests.compilations
        self._outputs = requests.outputs
        self._drafts = drafts
        self._clock = clock
        self._counters = _Counters()
        self._pictures: list[CachePicture] = []
        """Asked for and not yet told."""
        self._memory_told_s = self._heap_looked_s = -math.inf
        self._heap_free = 0
        self._idle_step = False
        self._failed_steps = 0
        """Steps of one sequence each that have failed in a row."""

    @property
    def pause_s(self) -> float:
        """How long a caller may wait for messages before the next ``step``: not at all while
        steps compute something, a moment while all sequences wait for a grammar or for blocks."""
        return _PAUSE_S if self._idle_step else 0.0

    @property
    def idle_s(self) -> float | None:
        """How long an engine without work may be left alone before it wants a step to look
        after its cache; None: until a message comes."""
        if self.memory.wants_tending:
            return _IDLE_S
        return _TELL_S if self.memory.cache.tells_residency else None

    @property
    def has_work(self) -> bool:
        """Whether ``step`` has something to do or to report."""
        told = self._outputs or self._pictures
        return bool(told or self._compilations.num_waiting or self._queues.has_work)

    def submit(self, messages: list[EngineMessage]) -> None:
        """Take messages in; their outputs come from ``step``. Never raises for a bad one."""
        self._idle_step = False
        for message in messages:
            if isinstance(message, GenerationRequest):
                self._requests.open(message)
            elif isinstance(message, CancelRequest):
                self._requests.cancel(message.request_id)
            elif isinstance(message, DropBranch):
                self.memory.cache.drop_branch(message.branch_id)
            elif isinstance(message, PictureRequest):
                self._pictures.append(self.memory.picture(message))
            else:
                self._requests.forget_branch(message)

    def check(self) -> None:
        """Raise AssertionError if the cache's blocks do not add up. For tests and after a
        failed step; walks the whole tree."""
        self.memory.cache.check()

    def close(self) -> None:
        """Write the KV that sessions may come back for to the disk, if there is one, and end
        the threads and the other ranks. The engine cannot be used afterwards."""
        self.memory.close()
        self.computation.close()

    def step(self) -> StepOutput | None:
        """Run one step; None when there is nothing to tell. The last one before the engine
        falls idle is always told, so that its figures are true while nothing happens.

        Raises:
            EngineBroken: see there.
        """
        try:
            return self._step()
        except RunnerBroken as broken:
            raise EngineBroken(str(broken)) from broken

    def _step(self) -> StepOutput | None:
        queues, background = self._queues, self.background
        open_requests = len(queues.running) + len(queues.waiting) + self._compilations.num_waiting
        background.begin_step(idle=open_requests <= 1)
        self._compilations.poll()
        self._requests.queue_compiled()
        self.memory.tend()
        now, spent_s = self._clock(), background.spent_s
        decodes, chunks = self._plan(now)
        step_s = 0.0
        if chunks:
            work = step_work(chunks, shared=queues.decoders.shared_tokens)
            self._run(chunks, decodes)
            step_s = self._clock() - now - (background.spent_s - spent_s)
            background.end_step(step_s)
            self._learn(work, step_s)
        else:
            background.begin_step(idle=True)
            self._resume_background()
        self._idle_step = not chunks and not background
        if not queues.running:
            self.computation.nothing_runs()
        self._requests.report_positions(now)
        fell_idle = bool(chunks) and not self.has_work
        silent = len(self._counters.steps_s) < _MOST_SILENT_STEPS
        residency = self.memory.residency()
        told = self._outputs or self._pictures or residency
        if not told and not fell_idle and silent:
            return None
        pictures, self._pictures = tuple(self._pictures), []
        outputs = self._outputs.collect()
        emitted = sum(len(output.new_tokens) for output in outputs)
        stats = self._stats(step_s, emitted)
        return StepOutput(outputs=outputs, stats=stats, pictures=pictures, residency=residency)

    # One step

    def _plan(self, now: float) -> tuple[Decodes, list[Chunk]]:
        """Plan the step's work: the plain decodes, and the chunks of all, these first. Tells
        requests what became of them in the plan."""
        schedule = self.scheduler.schedule(now, self._proposals())
        for sequence in schedule.admitted:
            self._requests.started(sequence)
        for sequence in schedule.too_large:
            self._requests.too_large(sequence)
        for sequence in schedule.exhausted:
            self._requests.finish(sequence, FinishReason.CONTEXT)
        self._counters.preemptions += schedule.preempted
        self.background.drop_void()
        decodes = self._that_run(schedule.decodes)
        others = [chunk for chunk in schedule.others if self._runs(chunk.sequence)]
        self._mark_forced(others)
        return decodes, decodes.chunks() + others

    def _proposals(self) -> dict[Sequence, Draft]:
        """Drafts for the sequences that decode."""
        if not self._drafts.enabled:
            return {}
        running = [s for s in self._queues.running if s.row is not None or s.decoding]
        decoding = [s for s in running if s.finish is None and self._runs(s)]
        return self._drafts.propose(decoding, step_s=self.background.mean_step_s)

    def _that_run(self, decodes: Decodes) -> Decodes:
        """The decodes whose sequences take part in the step, finish and tasks seen to."""
        running = [n for n, sequence in enumerate(decodes.sequences) if self._runs(sequence)]
        return decodes if len(running) == len(decodes) else decodes.only(running)

    def _mark_forced(self, chunks: Iterable[Chunk]) -> None:
        """Where the grammar forces the first token of an output, no row is drawn for it."""
        for chunk in chunks:
            if not self.emission.takes_forced_tokens:
                chunk.forced = ()
            elif chunk.samples and not chunk.sequence.num_emitted:
                grammar = chunk.sequence.grammar
                if grammar is not None and grammar.forced_tokens(chunk.sequence.remaining):
                    chunk.forced = (0,)

    def _run(self, chunks: list[Chunk], decodes: Decodes, logits: Logits | None = None) -> None:
        """Compute the chunks of a step, those of ``decodes`` first, and let each sequence take
        what was drawn for it: those that just emit it all at once, the others one by one.
        ``logits`` where they are known already."""
        logits = self._forward(chunks) if logits is None else logits
        sampled = None if logits is None else self._draw(chunks, logits)
        if sampled is None:
            self._after_failure(chunks, decodes.only(()), logits)
            return
        self._failed_steps = 0
        plain = self.emission.take_plain(decodes, sampled)
        self.scheduler.decoded(decodes.only(plain), sampled.tokens[np.array(plain, dtype=np.int64)])
        done = set(plain)
        row = 0
        for index, chunk in enumerate(chunks):
            if index in done:
                row += 1
                continue
            taken: Taken | None = NOTHING_TAKEN
            if chunk.samples:
                taken = self._settle(chunk, sampled, row)
                row += len(chunk.row_offsets())
            self.scheduler.advance(chunk, 0 if taken is None else taken.accepted)
            if taken is not None:
                self._conclude(chunk.sequence, chunk.num_drafted, taken)

    def _forward(self, chunks: list[Chunk]) -> Logits | None:
        """The logits of one forward pass; None if it failed."""
        try:
            return self.computation.forward(chunks)
        except RunnerBroken:
            raise
        except Exception:
            log.exception("step failed sequences=%d", len(chunks))
            return None

    def _draw(self, chunks: list[Chunk], logits: Logits) -> Sampled | None:
        """A draw for each row; None if it failed. While a device computes, the host works on
        background tasks and makes masks."""
        self._resume_background()
        try:
            return self.computation.draw(chunks, logits, lambda: self._outlook(len(chunks)))
        except RunnerBroken:
            raise
        except Exception:
            log.exception("step failed sequences=%d", len(chunks))
            return None

    def _outlook(self, num_chunks: int) -> Outlook:
        waiting = self._queues.waiting or self._compilations.num_waiting
        return Outlook(
            drafts=self._drafts.expects_drafts(num_chunks),
            crowd=bool(waiting or self.background),
            num_running=len(self._queues.running),
        )

    def _after_failure(
        self, chunks: list[Chunk], no_decodes: Decodes, logits: Logits | None
    ) -> None:
        """Nothing was taken of a failed step. Each of its sequences is computed by itself, so that
        one cannot end the others; one that fails alone is ended. Where it was the draw that failed,
        each is drawn by itself from its ``logits``: what recurrent layers keep of a sequence has
        gone on, and cannot go back behind a long chunk. Else what was written is written again.

        Raises:
            EngineBroken: so many steps in a row failed that it is hardly for what they computed.
        """
        if len(chunks) == 1:
            self._failed_steps += 1
            self._requests.fail(chunks[0].sequence)
        apart = self.computation.apart(chunks, logits)
        for chunk, part in zip(chunks, apart, strict=True) if len(chunks) > 1 else ():
            if self._runs(chunk.sequence):
                self._run([chunk], no_decodes, part)
        self.check()
        if self._failed_steps >= MOST_FAILED_STEPS:
            raise EngineBroken(f"{self._failed_steps} steps in a row failed")

    def _settle(self, chunk: Chunk, sampled: Sampled, row: int) -> Taken | None:
        """Give a sequence its drawn tokens; None while a background task finds out."""
        settlement = Settlement(
            sequence=chunk.sequence,
            num_drafted=chunk.num_drafted,
            pieces=Pieces(self.emission.taking(chunk, sampled, row)),
            preemptions=chunk.sequence.preemptions,
            settled=self._settled,
        )
        at_once = self.background.finished_at_once(settlement)
        return settlement.pieces.result if at_once else None

    def _settled(self, settlement: Settlement) -> None:
        """A background task has found out what a sequence takes."""
        sequence, taken = settlement.sequence, settlement.pieces.result
        written = Chunk(sequence, sequence.num_computed, 0, samples=False)
        self.scheduler.advance(written, taken.accepted)
        self._conclude(sequence, settlement.num_drafted, taken)

    def _resume_background(self) -> None:
        """Work on background tasks; sequences that waited for one run from the next step on."""
        self.background.resume()
        self._requests.queue_compiled()

    def _conclude(self, sequence: Sequence, num_drafted: int, taken: Taken) -> None:
        """Draw the consequences of what a sequence took: for its drafter, and for itself."""
        if num_drafted:
            looked_at = min(num_drafted, taken.accepted + 1)
            self._drafts.verified(sequence.request.branch_id, looked_at, taken.accepted)
        if sequence.state is SequenceState.FLUSHING:
            self._requests.release(sequence)
        elif sequence.request.max_new_tokens == 0 and sequence.num_pending == 0:
            self._requests.finish(sequence, FinishReason.PREFILLED)
        elif taken.finish is not None:
            self._requests.finish(sequence, taken.finish, taken.error, taken.message)

    def _runs(self, sequence: Sequence) -> bool:
        """Whether a sequence takes part in steps: it has not ended, and waits for no
        background task."""
        if sequence.state is SequenceState.DONE:
            return False
        return not self.background or sequence not in self.background

    def _learn(self, work: StepWork, seconds: float) -> None:
        """Learn from a step that took ``seconds``, background tasks not counted."""
        counters = self._counters
        counters.steps_s.append(seconds)
        counters.steps_prefill_tokens.append(work.prefill_tokens)
        predicted_s = self.costs.step_s(work)
        counters.steps_cost_ratio.append(seconds / predicted_s if predicted_s > 0.0 else 1.0)
        self.costs.observe(work, seconds=seconds)
        if not work.prefill_tokens:
            self._drafts.observe(self._outputs.num_tokens, seconds)

    def _stats(self, step_s: float, emitted: int) -> StepStats:
        counters, self._counters = self._counters, _Counters()
        ahead = self.computation.pop_outcomes()
        graphs = self.computation.pop_graphs()
        return StepStats(
            **self.memory.report(),
            running=len(self._queues.running),
            waiting=len(self._queues.waiting) + self._compilations.num_waiting,
            step_s=step_s,
            prefill_tokens_delta=sum(counters.steps_prefill_tokens),
            steps_s=counters.steps_s,
            steps_prefill_tokens=counters.steps_prefill_tokens,
            steps_cost_ratio=counters.steps_cost_ratio,
            token_gap_bound_s=self.scheduler.prefill_budget.gap_bound_s,
            decode_tokens_delta=emitted,
            preemptions_delta=counters.preemptions,
            mask_s_delta=self.computation.pop_mask_s(),
            rank_wait_s_delta=self.computation.pop_rank_wait_s(),
            ahead_held_delta=ahead.held,
            ahead_second_passes_delta=ahead.second_passes,
            ahead_dropped_delta=ahead.dropped,
            graph_replayed_delta=graphs.replayed,
            graph_eager_delta=graphs.eager,
            graph_replayed_chunks_delta=graphs.replayed_chunks,
            graph_eager_chunks_delta=graphs.eager_chunks,
            graph_failed_delta=graphs.failed,
            branches=self._requests.num_branches,
            memory_bytes=self._memory_bytes(),
        )

    def _memory_bytes(self) -> dict[str, float]:
        """Memory by part; nothing where that was told less than a second ago."""
        now = self._clock()
        if now - self._memory_told_s < _TELL_S and self.has_work:
            return {}
        self._memory_told_s = now
        if now - self._heap_looked_s >= _HEAP_S:
            self._heap_looked_s, self._heap_free = now, heap_free_bytes()
        return {
            **self.computation.memory_bytes(),
            **self.memory.memory_bytes(),
            "session_tokens": self._requests.token_bytes,
            "drafts": self._drafts.num_bytes,
            "grammars": self._compilations.num_bytes,
            "heap_free": self._heap_free,
        }
