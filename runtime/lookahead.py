"""The next step of turns that only decode, begun before the host knows this step's tokens.

Once this step's draw is under way, the model is given the same turns again, with the drawn
tokens where they are, on the device. While it computes, the host takes the tokens into their
turns, answers and schedules. If the next step turns out to be the one foreseen, its logits are
there or on their way; if a turn has ended, was cancelled or has to give way, or another came,
what was computed is thrown away.

Turns under a grammar are left out, since what comes next is for the host to say; a step with
one of them foresees nothing. So does one whose blocks do not hold another token, or that
is asked for log-probabilities, which are read from the logits later.

Always true: logits are handed out only for the very inputs they were computed from: the same
turns, tokens, places and blocks. What was thrown away has written only places of blocks that
its turn had to itself and that nobody takes for written, as a rejected draft does.
"""

import logging
from collections.abc import Sequence as Many
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from runtime.batch import SequenceInput, StepBatch
from runtime.model_runner import ModelRunner
from runtime.sampler import Drawing
from runtime.sequence import Sequence
from runtime.step_rows import StepPart

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Foreseen:
    turns: tuple[tuple[Sequence, int], ...]
    """Sequences, and how often each had given way."""
    batch: StepBatch
    """The step but for its tokens."""
    drawing: Drawing
    """Where its tokens come from."""
    logits: Tensor


class Lookahead:
    """At most one step ahead of one runner."""

    def __init__(self, runner: ModelRunner) -> None:
        self._runner = runner
        self._foreseen: _Foreseen | None = None
        self.hits = 0
        self.misses = 0
        """Steps computed ahead that were used, and that were thrown away."""

    def take(self, parts: Many[StepPart], batch: StepBatch) -> Tensor | None:
        """Logits of the step, if it is the one that was foreseen. What was foreseen is
        forgotten."""
        foreseen, self._foreseen = self._foreseen, None
        if foreseen is None:
            return None
        if _turns(parts) != foreseen.turns or not _same(batch, foreseen):
            self.misses += 1
            return None
        self.hits += 1
        return foreseen.logits

    def foresee(self, parts: Many[StepPart]) -> StepBatch | None:
        """The step after that of ``parts`` but for its tokens, if every turn of it can be
        expected to go on."""
        if not parts or not all(map(_expects_another, parts)):
            return None
        inputs = [_next_input(part.chunk.sequence) for part in parts]
        return StepBatch.build(inputs, self._runner.block_size)

    def begin(self, parts: Many[StepPart], batch: StepBatch, drawing: Drawing) -> None:
        """Begin the step that was foreseen behind that of ``parts``, with the tokens of its
        ``drawing``."""
        try:
            # What is no token is not looked up; its turn ends with this step.
            logits = self._runner.forward(batch, tokens=drawing.tokens.clamp(min=0))
        except Exception:
            log.exception("step ahead failed sequences=%d", len(parts))
            return
        self._foreseen = _Foreseen(_turns(parts), batch, drawing, logits)


def _turns(parts: Many[StepPart]) -> tuple[tuple[Sequence, int], ...]:
    return tuple((part.chunk.sequence, part.chunk.sequence.preemptions) for part in parts)


def _same(batch: StepBatch, foreseen: _Foreseen) -> bool:
    other = foreseen.batch
    return (
        np.array_equal(batch.token_ids, foreseen.drawing.result().tokens)
        and np.array_equal(batch.positions, other.positions)
        and np.array_equal(batch.slots, other.slots)
        and np.array_equal(batch.logit_rows, other.logit_rows)
        and np.array_equal(batch.block_tables, other.block_tables)
    )


def _expects_another(part: StepPart) -> bool:
    """Whether a turn draws one token now and, for all that is known, one in the next step."""
    sequence, chunk = part.chunk.sequence, part.chunk
    grammar = sequence.grammar
    return (
        chunk.samples
        and not len(chunk.draft)
        and len(part.row_offsets()) == 1
        and sequence.cached is not None
        and sequence.block_limit > len(sequence.buffer)
        and sequence.remaining > 1
        and (grammar is None or not grammar.bound)
        and sequence.request.sampling.top_logprobs is None
    )


def _next_input(sequence: Sequence) -> SequenceInput:
    assert sequence.cached is not None
    return SequenceInput(
        tokens=np.zeros(1, dtype=np.int32),
        start=len(sequence.buffer),
        block_table=sequence.cached.block_table,
        num_logits=1,
    )
