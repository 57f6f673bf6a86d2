"""The device's part of a step: one forward pass, one draw, and the next pass begun behind it.

Between the two the host has time, which is the caller's. Knows chunks, rows and tensors. Knows
no queue, no request and no cache but the wait for blocks that are on their way.
"""

from collections.abc import Callable
from collections.abc import Sequence as Many
from dataclasses import dataclass, replace

import numpy as np
from torch import Tensor

from runtime.engine.kv_memory import KVMemory
from runtime.engine.lookahead import Lookahead, Outcomes
from runtime.engine.step_rows import StepRows, step_input
from runtime.model.batch import StepBatch
from runtime.model.cuda_graphs import GraphCounts
from runtime.model.runner import ModelRunner
from runtime.model.sampler import Drawing, Sampled
from runtime.scheduling.block_allocation import allocate_ahead
from runtime.scheduling.step_plan import Chunk

Logits = Tensor
"""[rows, vocabulary], for those who only hand them on."""

_NOTHING_SAMPLED = Sampled(
    tokens=np.empty(0, dtype=np.int32), finite=np.empty(0, dtype=np.bool_), logprobs=()
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outlook:
    """The next step, as far as it is known while this one is computed."""

    drafts: bool
    """Drafts will be tried in it."""
    crowd: bool
    """Sequences wait for a slot, for their grammar or for a background task."""
    num_running: int


class StepComputation:
    """Computes the steps of one runner over one memory."""

    def __init__(
        self,
        runner: ModelRunner,
        memory: KVMemory,
        lookahead: Lookahead | None,
        clock: Callable[[], float],
    ) -> None:
        self._runner = runner
        self._memory = memory
        self._rows = StepRows(runner.model.config.vocab_size)
        self.clock = clock
        self.lookahead = lookahead
        """Begins steps before the last one's tokens are known; None: nobody does."""
        self._mask_s = 0.0
        self._told = GraphCounts()

    def memory_bytes(self) -> dict[str, float]:
        """Memory that steps write to, by part."""
        runner = self._runner
        states = 0 if runner.states is None else runner.states.num_bytes
        states += 0 if runner.tails is None else runner.tails.memory_bytes
        return {"kv": runner.pool.memory_bytes, "states": states}

    def forward(self, chunks: Many[Chunk]) -> Tensor:
        """Logits of the rows of all chunks, in their order, under way."""
        windows = self._memory.cache.windows
        if windows is not None:
            for chunk in chunks:
                assert chunk.sequence.cached is not None
                end = chunk.start + chunk.num_tokens + chunk.num_drafted
                windows.reach(chunk.sequence.cached, end)
        inputs = [step_input(chunk, windows) for chunk in chunks]
        batch = StepBatch.build(inputs, self._runner.block_size)
        self._settle(batch)
        if self.lookahead is None:
            return self._runner.forward(batch)
        return self.lookahead.logits(chunks, batch)

    def _settle(self, batch: StepBatch) -> None:
        windows = None if batch.window is None else batch.window.block_tables
        self._memory.settle(batch.block_tables, windows)

    def draw(self, chunks: Many[Chunk], logits: Tensor, outlook: Callable[[], Outlook]) -> Sampled:
        """A token for each row. While it is under way the next step is begun if that pays by
        ``outlook``, which is asked only then."""
        started = self.clock()
        rows = self._rows.rows(chunks)
        self._mask_s += self.clock() - started
        if not rows:
            return _NOTHING_SAMPLED
        drawing = Drawing(logits, rows)
        if self.lookahead is None:
            return drawing.result()
        self._begin_next(self.lookahead, chunks, drawing, outlook())
        sampled = drawing.result()
        self.lookahead.arrived()
        return sampled

    def _begin_next(
        self, lookahead: Lookahead, chunks: Many[Chunk], drawing: Drawing, outlook: Outlook
    ) -> None:
        cache, num_running = self._memory.cache, outlook.num_running
        batch = lookahead.foresee(
            chunks,
            drafts=outlook.drafts,
            crowd=outlook.crowd,
            has_block_ahead=lambda s: allocate_ahead(cache, s, num_running=num_running),
        )
        if batch is not None:
            self._settle(batch)
            lookahead.start(batch, drawing)

    def apart(self, chunks: Many[Chunk], logits: Logits | None) -> list[Logits | None]:
        """The logits of each chunk of a step whose draw failed, None where they have to be computed
        again. Copies: the next step may take the place of the others, or has done so."""
        begun = self.lookahead is not None and self.lookahead.has_begun
        if logits is None or begun:
            return [None] * len(chunks)
        ends = np.cumsum([len(chunk.row_offsets()) for chunk in chunks])
        return [*logits.clone().tensor_split(ends[:-1].tolist())]

    def nothing_runs(self) -> None:
        """No sequence is left that a step could go on with."""
        self._runner.rest()
        if self.lookahead is not None:
            self.lookahead.nothing_runs()

    def pop_rank_wait_s(self) -> float:
        """Seconds that sums with other ranks took since this was asked last."""
        return self._runner.pop_rank_wait_s()

    def close(self) -> None:
        """End what computes the steps elsewhere."""
        self._runner.close()

    def pop_outcomes(self) -> Outcomes:
        """How steps begun ahead have turned out since this was asked last."""
        return Outcomes() if self.lookahead is None else self.lookahead.since_last_asked()

    def pop_graphs(self) -> GraphCounts:
        """How forward passes have run since this was asked last; all 0 where none is recorded."""
        if self._runner.graphs is None:
            return GraphCounts()
        counts, told = self._runner.graphs.counts, self._told
        self._told = replace(counts)
        return counts.since(told)

    def pop_mask_s(self) -> float:
        """Seconds that masks took since this was asked last."""
        seconds, self._mask_s = self._mask_s, 0.0
        return seconds
