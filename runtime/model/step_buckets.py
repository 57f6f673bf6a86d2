"""Which steps share a recording: what a recorded step makes room for, and what it is padded with.

A recording is made for so many sequences, tokens and rows of logits, and for contexts of any
length. A step runs in the smallest recording that has room for it. Rows past its last token
belong to no sequence: their keys and values go to a spare block that nobody reads, and what
becomes of them nobody looks at. Sequences past its last one have no query and no context.

Knows sizes and arrays; no device, no model and no recording.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from kernels.paged_layout import (
    DECODE_WIDTHS,
    GRID_TOKENS,
    MAX_DECODE_QUERIES,
    SharedPrefixes,
    decode_width,
)
from radix_cache.window_rows import claim_of
from runtime.model.batch import StepBatch

PREFIX_GROUPS = 8
"""Shared prefixes that a recording has room for. Of more, those that save most are read once."""
_MOST_WASTE = 4
"""A step runs in a recording of at most this many times its tokens."""
_VERIFIED_TOKENS = 256
_CHUNKS = (32, 128, 256)
_LARGE_CHUNKS = tuple(range(384, 2049, 128))
"""Products take as long as whole tiles of 128 rows, so that finer ones would save nothing."""
_LARGE_WASTE = 1.5
"""A step of a large chunk runs in a recording of at most this many times its tokens: the device
is busy with them, and padding is no longer free."""
_MOST_SHARERS = 64
"""Prefixes of more sequences are cut up as those of so many."""
_BESIDE = (2, 8, 64)
"""Sequences of the recorded steps in which one computes a chunk."""
_BESIDE_LARGE = ((8, MAX_DECODE_QUERIES), (64, 8))
"""The same for large chunks, beside which a few rows more take no time, with the widest decode that
there is room for: a prompt of 9 to 32 tokens counts as one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bucket:
    """The size that a step needs, or for which a recording has room."""

    sequences: int
    tokens: int
    logits: int
    """Rows that logits are computed for."""
    decode_width: int
    """Query tokens of a decode or a verification, as kernels make room for them; 0: none."""
    chunk: int = 0
    """Most query tokens of a prefill chunk; 0: none."""
    shared: bool = False
    """Shared prefixes are read once."""

    @classmethod
    def of(cls, batch: StepBatch, *, shared: bool) -> "Bucket":
        """The size that ``batch`` needs."""
        counts = np.diff(batch.query_starts)
        few = int(counts[counts <= MAX_DECODE_QUERIES].max(initial=0))
        most = int(counts.max())
        return cls(
            sequences=batch.num_sequences,
            tokens=batch.num_tokens,
            logits=len(batch.logit_rows),
            decode_width=decode_width(few) if few else 0,
            chunk=most if most > MAX_DECODE_QUERIES else 0,
            shared=shared,
        )

    def holds(self, step: "Bucket") -> bool:
        """Whether there is room for ``step``."""
        return (
            self.sequences >= step.sequences
            and self.tokens >= step.tokens
            and self.logits >= step.logits
            and self.decode_width >= step.decode_width
            and self.chunk >= step.chunk
            and self.shared >= step.shared
        )

    def cost(self) -> tuple[int, ...]:
        """Recordings are tried in this order: what a step of one takes, the weightiest first."""
        return (
            self.tokens,
            self.chunk,
            self.decode_width,
            self.logits,
            self.sequences,
            int(self.shared),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedSizes:
    """The sizes of steps that are recorded."""

    max_sequences: int
    """Steps of up to so many that decode."""
    large_chunks: Sequence[Bucket] = ()
    """Steps with chunks of many tokens, as far as their memory allows
    (``runtime.model.recording_plan``)."""


def smallest(recorded: Sequence[Bucket], step: Bucket) -> Bucket | None:
    """The first of ``recorded``, which are in the order of their cost, that is for ``step``."""
    for bucket in recorded:
        if bucket.tokens > _MOST_WASTE * step.tokens:
            return None
        large = bucket.chunk > _CHUNKS[-1]
        if bucket.holds(step) and not (large and bucket.chunk > _LARGE_WASTE * step.tokens):
            return bucket
    return None


def buckets_up_to(max_sequences: int) -> list[Bucket]:
    """The sizes that are recorded when a model is loaded, in the order of cost: decodes,
    verifications of drafts and chunks beside decodes, up to ``max_sequences`` at a time."""
    counts = [1 << power for power in range((max_sequences - 1).bit_length() + 1)]
    every = {*_decodes(counts), *_verifications(counts), *_chunks(counts)}
    return sorted(every, key=Bucket.cost)


def _decodes(counts: Iterable[int]) -> Iterable[Bucket]:
    for count in counts:
        for shared in (False, True)[: 1 + (count > 1)]:
            yield Bucket(sequences=count, tokens=count, logits=count, decode_width=1, shared=shared)


def _verifications(counts: Iterable[int]) -> Iterable[Bucket]:
    for count in counts:
        for each in (2, 4, 8, 16, MAX_DECODE_QUERIES):
            tokens = count * each
            if tokens <= max(_VERIFIED_TOKENS, 2 * count):
                yield Bucket(
                    sequences=count,
                    tokens=tokens,
                    logits=tokens,
                    decode_width=decode_width(each if count == 1 else max(each, 8)),
                    shared=count > 1,
                )


def _chunks(counts: Iterable[int]) -> Iterable[Bucket]:
    for count in counts:
        for chunk in _CHUNKS if count in _BESIDE else ():
            yield _chunk(count, chunk, 8 if chunk > MAX_DECODE_QUERIES else chunk)


def _chunk(count: int, chunk: int, few: int) -> Bucket:
    return Bucket(
        sequences=count,
        tokens=count + chunk,
        logits=count,
        decode_width=decode_width(few),
        chunk=chunk if chunk > MAX_DECODE_QUERIES else 0,
        shared=True,
    )


def large_chunks(max_sequences: int, max_tokens: int) -> list[Bucket]:
    """The sizes that steps with a chunk of more than 256 tokens are recorded in, up to
    ``max_tokens`` a step, in the order of cost."""
    most = max(max_tokens, 0)
    chunks = [chunk for chunk in _LARGE_CHUNKS if chunk - 128 < most]
    largest = 1 << (max_sequences - 1).bit_length()
    counts = [
        (min(count, largest), few) for count, few in _BESIDE_LARGE if count == 8 or largest > 8
    ]
    every = [_chunk(count, chunk, few) for count, few in counts for chunk in chunks]
    return sorted(every if most > _CHUNKS[-1] else [], key=Bucket.cost)


def unrecorded_kinds(max_sequences: int) -> list[Bucket]:
    """Small steps that launch what any step of up to ``max_sequences`` may that fits no recording:
    a chunk of a prompt beside decodes of every width, with and without shared prefixes of few and
    of many."""
    counts = [1 << power for power in range((max_sequences - 1).bit_length() + 1)]
    return [
        Bucket(
            sequences=count,
            tokens=count + 2 * MAX_DECODE_QUERIES,
            logits=count,
            decode_width=width,
            chunk=2 * MAX_DECODE_QUERIES,
            shared=count > 1,
        )
        for width in DECODE_WIDTHS
        for count in counts
        if count <= _MOST_SHARERS
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class StepArrays:
    """Arrays that change from step to step of a recording, as large as the step; what is smaller
    than its place leaves there what stood there, which nobody reads."""

    token_ids: npt.NDArray[np.int64]
    positions: npt.NDArray[np.int64]
    slots: npt.NDArray[np.int64]
    logit_rows: npt.NDArray[np.int64]
    query_starts: npt.NDArray[np.int32]
    context_lengths: npt.NDArray[np.int32]
    block_tables: npt.NDArray[np.int32]


def most_window_blocks(window: int, bucket: Bucket, block_size: int) -> int:
    """The longest table of window blocks of a step of ``bucket``: what one sequence's tokens see
    and write, and what is kept behind."""
    tokens = max(bucket.chunk, bucket.decode_width)
    seen = claim_of(window, block_size) + -(-tokens // block_size)
    return seen + GRID_TOKENS // block_size


def padded(batch: StepBatch, bucket: Bucket, spare_block: int) -> StepArrays:
    """``batch`` as a recording of ``bucket`` takes it."""
    more = bucket.sequences - batch.num_sequences
    return StepArrays(
        token_ids=batch.token_ids,
        positions=batch.positions,
        slots=np.pad(
            batch.slots,
            (0, bucket.tokens - batch.num_tokens),
            constant_values=spare_block * batch.block_size,
        ),
        logit_rows=batch.logit_rows,
        query_starts=np.pad(
            batch.query_starts.astype(np.int32), (0, more), constant_values=batch.num_tokens
        ),
        context_lengths=np.pad(batch.context_lengths.astype(np.int32), (0, more)),
        block_tables=batch.block_tables,
    )


def padded_prefixes(shared: SharedPrefixes | None, bucket: Bucket) -> SharedPrefixes:
    """The groups that save most, and empty ones."""
    filled = SharedPrefixes(
        members=torch.full((PREFIX_GROUPS, bucket.sequences), -1, dtype=torch.int32),
        lengths=torch.zeros(PREFIX_GROUPS, dtype=torch.int32),
        skips=torch.zeros(bucket.sequences, dtype=torch.int32),
    )
    if shared is None:
        return filled
    members, lengths, skips = shared.members, shared.lengths, shared.skips
    if len(lengths) > PREFIX_GROUPS:
        saved = ((members >= 0).sum(1) - 1) * lengths
        order = saved.argsort(descending=True, stable=True)
        left_out = members[order[PREFIX_GROUPS:]]
        skips = skips.clone()
        skips[left_out[left_out >= 0].long()] = 0
        members, lengths = members[order[:PREFIX_GROUPS]], lengths[order[:PREFIX_GROUPS]]
    width = min(members.shape[1], bucket.sequences)
    filled.members[: len(lengths), :width] = members[:, :width]
    filled.lengths[: len(lengths)] = lengths
    filled.skips[: len(skips)] = skips
    return filled
