"""The plan of one step as data: which tokens of which turns are computed.

Knows turns and the units of the cost model. Knows no cache and no order of turns.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from runtime.estimates import StepWork
from runtime.messages import TokenArray
from runtime.sequence import Sequence

NO_DRAFT: TokenArray = np.empty(0, dtype=np.int32)
_DECODE_RUN_TOKENS = 64


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

    @classmethod
    def of(cls, sequence: Sequence, num_tokens: int) -> "Chunk":
        """The first ``num_tokens`` of what a running turn has pending."""
        samples = num_tokens == sequence.num_pending and sequence.request.max_new_tokens > 0
        return cls(sequence, sequence.num_computed, num_tokens, samples, NO_DRAFT)


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


class StepPlan:
    """A plan in the making."""

    __slots__ = (
        "admitted",
        "chunks",
        "decode_context",
        "decode_rows",
        "decode_s",
        "draft_tokens",
        "exhausted",
        "paused",
        "preempted",
        "too_large",
    )

    def __init__(self) -> None:
        self.chunks: dict[Sequence, Chunk] = {}
        self.admitted: list[Sequence] = []
        self.exhausted: list[Sequence] = []
        self.too_large: list[Sequence] = []
        self.preempted = 0
        self.paused: list[Sequence] = []
        """Who lost a place; some may have one again by the end."""
        self.decode_rows = 0
        self.decode_context = 0
        self.decode_s = 0.0
        self.draft_tokens = 0
        """Which the chunks do not count."""

    @property
    def num_tokens(self) -> int:
        return self.draft_tokens + sum(chunk.num_tokens for chunk in self.chunks.values())


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
