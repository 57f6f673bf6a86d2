"""The next step of sequences that decode, begun before the host knows this step's tokens.

Once this step's draw is under way, the model is given the sequences again that can be expected to
go on by one token, with the drawn tokens where they are, on the device. While it computes, the
host takes the tokens into their sequences, outputs and schedules. Sequences under a grammar are no
exception: what they wait for is the mask of the next draw, and the host makes that while the
model computes what the draw is from.

What was foreseen is used sequence by sequence. A sequence that has ended, was cancelled or was
preempted drops out of it. A sequence of which more is to be computed after all (what its grammar
forces behind the token, a draft) or something else (its limit left no choice but another token),
and every prefill is computed in a second pass of the same step. So no sequence misses a step, and
each step is the one that the scheduler planned.

A second pass reads the weights again. So a step is begun only if that costs less, weighed by how
often steps of its kind have had one, than what the host takes between two steps.

Always true: logits are handed out only for the very inputs they were computed from: the same
sequence, token, position and blocks. What was thrown away has written only slots of blocks that
its sequence had to itself and that nobody takes for written, as a rejected draft does.
"""

import logging
from collections.abc import Callable
from collections.abc import Sequence as Many
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from kernels.upload import upload
from radix_cache.window_rows import WindowRows
from runtime.engine.step_rows import step_input
from runtime.model.batch import SequenceInput, StepBatch
from runtime.model.rank_link import RunnerBroken
from runtime.model.runner import ModelRunner
from runtime.model.sampler import Drawing
from runtime.scheduling.costs import StepCosts
from runtime.scheduling.sequence import Sequence
from runtime.scheduling.step_plan import Chunk

log = logging.getLogger(__name__)

_LEARNING_RATE = 1 / 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """The next step, as far as it is known when it could be begun."""

    drafts: bool
    """Whether drafts are tried in such a step."""
    crowd: bool
    """Sequences wait for a slot, for their grammar or for a background task."""
    mixed: bool
    """Some sequence of this step goes on otherwise than by one token."""


@dataclass(slots=True)
class _Experience:
    """The experience with steps of one kind: the share that needed a second pass."""

    share: float = 0.0

    def learn(self, needed: bool) -> None:
        self.share += _LEARNING_RATE * (needed - self.share)


@dataclass(frozen=True, slots=True, kw_only=True)
class Prospect:
    """Sequences that are expected to go on by one token each."""

    kind: Kind
    sequences: dict[Sequence, tuple[int, int]]
    """The index of each sequence among them, and how often it had been preempted."""
    rows: list[int]
    """Rows of this step's draw, from which their tokens come."""


@dataclass(slots=True)
class Outcomes:
    """Steps that were begun ahead, by how they turned out."""

    held: int = 0
    """Steps of which all had been computed ahead."""
    second_passes: int = 0
    """A chunk of it had, and the rest was computed behind it."""
    dropped: int = 0
    """Steps of which nothing that had been computed was used."""

    @property
    def used(self) -> int:
        """Steps of which something was used."""
        return self.held + self.second_passes


@dataclass(frozen=True, slots=True)
class _Begun:
    batch: StepBatch
    """The step but for its tokens."""
    drawing: Drawing
    rows: list[int]
    logits: Tensor


class Lookahead:
    """At most one step ahead of one runner."""

    def __init__(
        self,
        runner: ModelRunner,
        costs: StepCosts,
        clock: Callable[[], float],
        *,
        windows: WindowRows | None = None,
        always: bool = False,
    ) -> None:
        """``windows``: where rows behind windows are given back; ``always`` begins every step that
        can be, whether it pays or not: for tests."""
        self._runner = runner
        self._windows = windows
        self._costs = costs
        self._clock = clock
        self.always = always
        self._prospect: Prospect | None = None
        self._begun: _Begun | None = None
        self._known: dict[Kind, _Experience] = {}
        self._arrived_s: float | None = None
        self.host_s = 0.0
        """Seconds of the host's work between two steps, as a moving average."""
        self.outcomes = Outcomes()
        """How often each outcome was seen since the start."""
        self._told = Outcomes()

    def logits(self, chunks: Many[Chunk], batch: StepBatch) -> Tensor:
        """Logits of the step, computed ahead or now. What was foreseen is forgotten."""
        prospect, self._prospect = self._prospect, None
        begun, self._begun = self._begun, None
        self._learn(chunks, prospect)
        if prospect is None or begun is None:
            return self._runner.forward(batch)
        indices, used = agreeing(chunks, batch, prospect, begun)
        if not used:
            self.outcomes.dropped += 1
            return self._runner.forward(batch)
        if len(used) == len(chunks):
            self.outcomes.held += 1
            if used == list(range(begun.logits.shape[0])):
                return begun.logits
            return self._picked(begun.logits, used)
        self.outcomes.second_passes += 1
        # A copy: the second pass may take the place of the first one's logits.
        first = self._picked(begun.logits, used)
        others = [chunk for at, chunk in enumerate(chunks) if indices[at] < 0]
        second = self._runner.run([step_input(chunk, self._windows) for chunk in others])
        return self._picked(torch.cat((first, second)), _merged(chunks, indices, len(used)))

    @property
    def has_begun(self) -> bool:
        """A step is under way that nothing has been used of yet."""
        return self._begun is not None

    def since_last_asked(self) -> Outcomes:
        """How steps have turned out since this was asked last."""
        total, told = self.outcomes, self._told
        self._told = replace(total)
        return Outcomes(
            held=total.held - told.held,
            second_passes=total.second_passes - told.second_passes,
            dropped=total.dropped - told.dropped,
        )

    def nothing_runs(self) -> None:
        """No sequence is left that a step could go on with; what was begun is for nobody."""
        if self._begun is not None:
            self._begun = None
            self.outcomes.dropped += 1

    def _picked(self, logits: Tensor, rows: list[int]) -> Tensor:
        index = upload(np.array(rows, dtype=np.int64), logits.device)
        return logits.index_select(0, index)

    def _learn(self, chunks: Many[Chunk], prospect: Prospect | None) -> None:
        arrived_s, self._arrived_s = self._arrived_s, None
        if prospect is None or all(chunk.sequence not in prospect.sequences for chunk in chunks):
            return  # the engine may have had nothing to do in between
        if arrived_s is not None:
            self.host_s += _LEARNING_RATE * (self._clock() - arrived_s - self.host_s)
        others = any(not _goes_on(chunk, prospect) for chunk in chunks)
        self._known.setdefault(prospect.kind, _Experience()).learn(others)

    def foresee(
        self,
        chunks: Many[Chunk],
        *,
        drafts: bool = False,
        crowd: bool = False,
        has_block_ahead: Callable[[Sequence], bool],
    ) -> StepBatch | None:
        """The step after that of ``chunks`` but for its tokens, as far as sequences can be
        expected to go on; None if there is none, or if to begin it would not pay.

        Args:
            chunks: this step.
            drafts: drafts will be tried in the next one.
            crowd: sequences wait for something.
            has_block_ahead: whether a sequence has blocks for another token, or gets them now.
        """
        going_on: dict[Sequence, tuple[int, int]] = {}
        rows, row, mixed = [], -1, False
        for chunk in chunks:
            row += len(chunk.row_offsets())
            sequence = chunk.sequence
            if _expects_another(chunk) and has_block_ahead(sequence):
                going_on[sequence] = len(going_on), sequence.preemptions
                rows.append(row)
            elif not (chunk.samples and sequence.remaining <= 1):
                mixed = True
        if not going_on:
            return None
        kind = Kind(drafts=drafts, crowd=crowd, mixed=mixed)
        self._prospect = Prospect(kind=kind, sequences=going_on, rows=rows)
        if not self._pays(kind):
            return None
        inputs = [_next_input(sequence, self._windows) for sequence in going_on]
        return StepBatch.build(inputs, self._runner.block_size)

    def _pays(self, kind: Kind) -> bool:
        share = self._known.setdefault(kind, _Experience()).share
        return self.always or share * self._costs.decode_s(0) <= self.host_s

    def start(self, batch: StepBatch, drawing: Drawing) -> None:
        """Begin what was foreseen, behind the step of ``drawing``, with its tokens."""
        assert self._prospect is not None
        rows, tokens = self._prospect.rows, drawing.tokens
        if rows != list(range(tokens.shape[0])):
            tokens = tokens[upload(np.array(rows, dtype=np.int64), tokens.device)]
        try:
            # What is no token is not looked up; its sequence ends with this step.
            logits = self._runner.forward(batch, tokens=tokens.clamp(min=0))
        except RunnerBroken:
            raise
        except Exception:
            log.exception("step ahead failed sequences=%d", len(rows))
            return
        self._begun = _Begun(batch, drawing, rows, logits)

    def arrived(self) -> None:
        """This step's tokens are on the host: from now on it alone is what a step waits for."""
        self._arrived_s = self._clock()


def agreeing(
    chunks: Many[Chunk], batch: StepBatch, prospect: Prospect, begun: _Begun
) -> tuple[list[int], list[int]]:
    """For each chunk its index in what was begun, or -1; and the indices in the order of the
    chunks that have one."""
    indices = np.array(
        [
            prospect.sequences[chunk.sequence][0] if _goes_on(chunk, prospect) else -1
            for chunk in chunks
        ],
        dtype=np.int64,
    )
    at = np.flatnonzero(indices >= 0)
    mine, theirs = batch.query_starts[at], indices[at]
    drawn = begun.drawing.result().tokens[begun.rows]
    width = min(batch.block_tables.shape[1], begun.batch.block_tables.shape[1])
    same = (
        (batch.token_ids[mine] == drawn[theirs])
        & (batch.positions[mine] == begun.batch.positions[theirs])
        & (batch.slots[mine] == begun.batch.slots[theirs])
        & (batch.block_tables[at, :width] == begun.batch.block_tables[theirs, :width]).all(axis=1)
    )
    if batch.window is not None and begun.batch.window is not None:
        same &= _same_rows(batch.window, begun.batch.window, at, theirs)
    indices[at[~same]] = -1
    return indices.tolist(), theirs[same].tolist()


def _same_rows(
    batch: StepBatch, begun: StepBatch, at: npt.NDArray[np.int64], theirs: npt.NDArray[np.int64]
) -> npt.NDArray[np.bool_]:
    """Whether layers with a window read and write the same rows for sequences of two steps."""
    width = min(batch.block_tables.shape[1], begun.block_tables.shape[1])
    tables = batch.block_tables[at, :width] == begun.block_tables[theirs, :width]
    same: npt.NDArray[np.bool_] = batch.context_lengths[at] == begun.context_lengths[theirs]
    same &= tables.all(axis=1)
    return same


def _merged(chunks: Many[Chunk], indices: list[int], num_used: int) -> list[int]:
    """Where each row of a step lies when the rows that were computed ahead come first."""
    order, ahead, behind = [], 0, num_used
    for chunk, index in zip(chunks, indices, strict=True):
        if index >= 0:
            order.append(ahead)
            ahead += 1
        else:
            count = len(chunk.row_offsets())
            order += range(behind, behind + count)
            behind += count
    return order


def _goes_on(chunk: Chunk, prospect: Prospect) -> bool:
    """Whether a sequence does what was expected of it, as far as its tokens need not be known."""
    known = prospect.sequences.get(chunk.sequence)
    return (
        known is not None
        and known[1] == chunk.sequence.preemptions
        and chunk.num_tokens == 1
        and chunk.samples
        and not chunk.num_drafted
        and not chunk.forced
    )


def _expects_another(chunk: Chunk) -> bool:
    """Whether a sequence draws one token now and, for all that is known, one in the next step."""
    sequence = chunk.sequence
    return (
        chunk.samples
        and not chunk.num_drafted
        and len(chunk.row_offsets()) == 1
        and sequence.cached is not None
        and sequence.remaining > 1
    )


def _next_input(sequence: Sequence, windows: WindowRows | None) -> SequenceInput:
    cached, start, window = sequence.cached, len(sequence.buffer), None
    assert cached is not None
    if windows is not None:
        windows.reach(cached, start + 1)
        window = windows.window_of(cached, start, start + 1)
    return SequenceInput(
        tokens=np.zeros(1, dtype=np.int32),
        start=start,
        window=window,
        block_table=cached.block_table,
        num_logits=1,
        state_slot=cached.state_slot,
        adapter=sequence.adapter,
    )
