"""The plan of one step as data: which tokens of which sequences are computed.

Sequences that decode are told as arrays, all others as chunks. Knows sequences and the units of the
cost model. Knows no cache and no order of sequences.
"""

from collections.abc import Iterable
from collections.abc import Sequence as Many
from dataclasses import dataclass

import numpy as np

from runtime.scheduling.costs import StepWork
from runtime.scheduling.decode_rows import IntArray
from runtime.scheduling.draft import EMPTY_DRAFT, Draft
from runtime.scheduling.sequence import Sequence
from runtime.scheduling.shared_context import without_shared

_DECODE_RUN_TOKENS = 64


class Chunk:
    """``num_tokens`` pending tokens of one sequence, from ``start`` on, and a draft behind them.

    A chunk that samples has a row of logits for the next token and one behind each token of its
    draft, except where the grammar forces what follows: nothing is drawn there.
    """

    __slots__ = ("draft", "forced", "num_tokens", "samples", "sequence", "start")

    def __init__(
        self,
        sequence: Sequence,
        start: int,
        num_tokens: int,
        *,
        samples: bool,
        draft: Draft = EMPTY_DRAFT,
    ) -> None:
        self.sequence = sequence
        self.start = start
        self.num_tokens = num_tokens
        self.samples = samples
        """The chunk reaches the last known token, so the step also yields the next one."""
        self.draft = draft
        """Proposed tokens behind the last known one, to be verified in this step."""
        self.forced: tuple[int, ...] = draft.forced if draft.sources else ()
        """For how many draft tokens the one behind them is forced; ascending."""

    @classmethod
    def of(cls, sequence: Sequence, num_tokens: int, draft: Draft = EMPTY_DRAFT) -> "Chunk":
        """The first ``num_tokens`` of what a running sequence has pending."""
        samples = num_tokens == sequence.num_pending and sequence.request.max_new_tokens > 0
        return cls(sequence, sequence.num_computed, num_tokens, samples=samples, draft=draft)

    @property
    def num_drafted(self) -> int:
        return len(self.draft.tokens)

    def row_offsets(self) -> tuple[int, ...]:
        """For each row of logits, how many draft tokens stand before what is drawn from it."""
        if not self.samples:
            return ()
        offsets = range(1 + len(self.draft.tokens))
        if not self.forced:
            return tuple(offsets)
        return tuple(offset for offset in offsets if offset not in self.forced)


class Decodes:
    """Sequences that decode in a step without a draft: arrays with an entry for each.

    Holds until the next plan; a sequence that ends or is preempted meanwhile must be left out.
    """

    __slots__ = ("ends", "rows", "sequences", "starts")

    def __init__(
        self, sequences: tuple[Sequence, ...], rows: IntArray, starts: IntArray, ends: IntArray
    ) -> None:
        self.sequences = sequences
        self.rows = rows
        """int64 [n]: the sequences' rows, ascending."""
        self.starts = starts
        """int64 [n]: first pending token."""
        self.ends = ends
        """int64 [n]: known tokens."""

    def __len__(self) -> int:
        return len(self.rows)

    def only(self, entries: Many[int]) -> "Decodes":
        """Some of them, by their indices."""
        sequences = tuple([self.sequences[n] for n in entries])
        at = np.array(entries, dtype=np.int64)
        return Decodes(sequences, self.rows[at], self.starts[at], self.ends[at])

    def chunks(self) -> list[Chunk]:
        """The step's decodes as chunks, one by one."""
        spans = zip(self.sequences, self.starts.tolist(), self.ends.tolist(), strict=True)
        return [Chunk(s, start, end - start, samples=True) for s, start, end in spans]


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """The plan of one step: which sequences compute how many tokens."""

    decodes: Decodes
    others: tuple[Chunk, ...]
    """Decodes with drafts, prefill, and the tails of sequences that have ended."""
    admitted: tuple[Sequence, ...]
    """Sequences whose prefix was matched in this call; they have not reported it yet."""
    exhausted: tuple[Sequence, ...]
    """Running sequences that cannot grow although nothing else is left to preempt."""
    too_large: tuple[Sequence, ...]
    """Waiting sequences that would not fit the empty pool."""
    preempted: int
    paused: tuple[Sequence, ...]
    """Sequences that lost their slot in this call; they keep their blocks and miss steps until
    they have one again."""

    @property
    def chunks(self) -> list[Chunk]:
        """All chunks of the step, decodes included."""
        return [*self.decodes.chunks(), *self.others]


class StepPlan:
    """A plan in the making. All decoders are part of it unless they are exhausted or rest."""

    __slots__ = (
        "admitted",
        "chunks",
        "decode_context",
        "decode_rows",
        "decode_s",
        "draft_tokens",
        "exhausted",
        "given_back",
        "paused",
        "preempted",
        "prefill_s",
        "prefill_tokens",
        "resting",
        "too_large",
    )

    def __init__(self) -> None:
        self.chunks: dict[Sequence, Chunk] = {}
        """Chunks of sequences that do not decode, or with a draft."""
        self.admitted: list[Sequence] = []
        self.exhausted: list[Sequence] = []
        self.too_large: list[Sequence] = []
        self.preempted = 0
        self.paused: list[Sequence] = []
        """Sequences that lost their slot; some may have one again by the end."""
        self.resting: set[Sequence] = set()
        """Sequences that decode, but not in this step."""
        self.decode_rows = 0
        """Tokens of the sequences that decode, drafts included."""
        self.decode_context = 0
        self.decode_s = 0.0
        self.draft_tokens = 0
        """Which the chunks do not count."""
        self.prefill_tokens = 0
        self.prefill_s: dict[Sequence, float] = {}
        """Seconds that the chunk of each prompt adds to the step."""
        self.given_back: list[tuple[Sequence, float]] = []
        """The same of chunks that were planned and left out."""

    def leave_out(self, sequence: Sequence) -> None:
        """Take out the chunk of a sequence, if it has one."""
        chunk = self.chunks.pop(sequence, None)
        if chunk is not None:
            self.draft_tokens -= chunk.num_drafted
        cost_s = self.prefill_s.pop(sequence, None)
        if chunk is not None and cost_s is not None:
            self.prefill_tokens -= chunk.num_tokens
            self.given_back.append((sequence, cost_s))


def step_work(chunks: Iterable[Chunk], *, shared: int = 0) -> StepWork:
    """The cost of a step with ``chunks``, in the units of the cost model, where the sequences that
    decode have ``shared`` tokens of context in common. To be asked before the step's results are
    applied."""
    tokens = rows = context = prefills = decodes = 0
    pairs = 0.0
    for chunk in chunks:
        sequence, n = chunk.sequence, chunk.num_tokens
        if sequence.decoding and sequence.finish is None and n <= _DECODE_RUN_TOKENS:
            decodes += 1
            rows += n + chunk.num_drafted
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
        decode_context=without_shared(context, decodes, shared),
    )
