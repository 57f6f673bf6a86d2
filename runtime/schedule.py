"""The plan of one step as data: which tokens of which turns are computed.

Turns that decode are told as arrays, all others as chunks. Knows turns and the units of the cost
model. Knows no cache and no order of turns.
"""

from collections.abc import Iterable
from collections.abc import Sequence as Many
from dataclasses import dataclass

import numpy as np

from runtime.estimates import StepWork
from runtime.messages import TokenArray
from runtime.sequence import Sequence
from runtime.turn_arrays import IntArray

NO_DRAFT: TokenArray = np.empty(0, dtype=np.int32)
_DECODE_RUN_TOKENS = 64


class Chunk:
    """``num_tokens`` pending tokens of one sequence, from ``start`` on, and a draft."""

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


class Decodes:
    """Turns that decode in a step without a draft: arrays with an entry for each.

    Holds until the next plan; a turn that ends or gives way meanwhile must be left out.
    """

    __slots__ = ("ends", "rows", "sequences", "starts")

    def __init__(
        self, sequences: tuple[Sequence, ...], rows: IntArray, starts: IntArray, ends: IntArray
    ) -> None:
        self.sequences = sequences
        self.rows = rows
        """int64 [n]: the turns' rows, ascending."""
        self.starts = starts
        """int64 [n]: first pending token."""
        self.ends = ends
        """int64 [n]: known tokens."""

    def __len__(self) -> int:
        return len(self.rows)

    def only(self, entries: Many[int]) -> "Decodes":
        """Some of them, by their places."""
        turns = tuple([self.sequences[n] for n in entries])
        at = np.array(entries, dtype=np.int64)
        return Decodes(turns, self.rows[at], self.starts[at], self.ends[at])

    def chunks(self) -> list[Chunk]:
        """The same, one by one."""
        places = zip(self.sequences, self.starts.tolist(), self.ends.tolist(), strict=True)
        return [Chunk(turn, start, end - start, True, NO_DRAFT) for turn, start, end in places]


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """The plan of one step."""

    decodes: Decodes
    others: tuple[Chunk, ...]
    """Decodes with drafts, prefill, and the tails of turns that have ended."""
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
    def chunks(self) -> list[Chunk]:
        """All of it, one by one."""
        return [*self.decodes.chunks(), *self.others]


class StepPlan:
    """A plan in the making. The roster's decoders are part of it unless they are exhausted."""

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
        """Of turns that do not decode, or with a draft."""
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
