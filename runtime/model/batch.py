"""One step's input: which tokens of which sequences are computed, and where KV goes.

Made from what the scheduler decided; knows no scheduler, no model and no policy. A prefill
chunk, a decode and a verification of drafts differ only in how many tokens and how many
logit rows they have.

Always true: rows of one sequence are neighbours and in the order of their positions.
"""

import functools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import numpy.typing as npt
import torch

from kernels.dispatch import wants_triton
from kernels.low_rank import NO_ADAPTER as NO_ADAPTER  # noqa: PLC0414
from kernels.low_rank import RowAdapters
from kernels.paged_layout import (
    GRID_TOKENS,
    MAX_DECODE_QUERIES,
    PagedLayout,
    SequenceSpan,
    SharedPrefixes,
    find_shared_prefixes,
)
from kernels.upload import upload
from runtime.messages import TokenArray

IntArray = npt.NDArray[np.int64]
NO_STATE: Final = -1
TRIAL_STATE: Final = -2
"""Stands in the place of a state that is not there, for steps that are only timed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SequenceInput:
    """One sequence's part in a step."""

    tokens: TokenArray
    """int32 [n], n >= 1: tokens to compute; their KV is written."""
    start: int
    """Position of the first of them = tokens of the sequence that are in the cache."""
    block_table: TokenArray
    """int32: blocks of the sequence; must cover start + n tokens. Longer is fine."""
    num_logits: int
    """For how many of the last tokens logits are wanted: 0 in mid-prompt, 1 for a decode or
    a prompt's end, 1 + drafts for a verification."""
    state_slot: int = NO_STATE
    """Where its state is, for models with recurrent layers: without one, tokens of a sequence's
    beginning alone are computed, and nothing is kept; ``TRIAL_STATE`` where nobody looks at the
    result."""
    window: tuple[int, TokenArray] | None = None
    """Where rows behind windows are given back: the first of its blocks that layers with a window
    still have, and int32 the window blocks from there on; they must cover what such layers see."""
    adapter: int = NO_ADAPTER
    """Number of the adapter that it is computed with."""
    certain: tuple[int, ...] = ()
    """The rows among these behind which the next token is known; no logits are computed for them.
    Counted from the first."""

    def __post_init__(self) -> None:
        if not 0 <= self.num_logits <= len(self.tokens) or len(self.tokens) == 0:
            raise ValueError(f"{self.num_logits} logit rows of {len(self.tokens)} tokens")
        if self.certain and not all(0 <= place < self.num_logits for place in self.certain):
            raise ValueError(f"places {self.certain} of {self.num_logits} logit rows")


def with_any_window(
    entry: SequenceInput, *, window: int, num_blocks: int, block_size: int
) -> SequenceInput:
    """The input with some of ``num_blocks`` window blocks, of layers that see ``window`` tokens,
    for steps whose results nobody looks at."""
    first = max(0, entry.start - window) // block_size
    count = -(-(entry.start + len(entry.tokens)) // block_size) - first
    blocks = (np.arange(count) + int(entry.block_table[first])) % num_blocks
    return replace(entry, window=(first, blocks.astype(np.int32)))


@dataclass(frozen=True, slots=True, kw_only=True)
class StepBatch:
    """A step's sequences laid end to end: T tokens, S sequences, R logit rows."""

    token_ids: IntArray
    """[T]"""
    positions: IntArray
    """[T] position of each token in its sequence."""
    slots: IntArray
    """[T] block * block_size + offset: where each token's KV is written."""
    query_starts: IntArray
    """[S + 1] sequence i's tokens are query_starts[i] .. query_starts[i + 1] - 1."""
    context_lengths: IntArray
    """[S] tokens in the cache after this step's writes."""
    block_tables: npt.NDArray[np.int32]
    """[S, max blocks], padded with -1."""
    logit_rows: IntArray
    """[R] tokens for which logits are wanted, ascending."""
    state_slots: IntArray
    """[S] see ``SequenceInput``."""
    block_size: int
    adapters: IntArray | None = None
    """[S] see ``SequenceInput``; None: no sequence has one."""
    window: "StepBatch | None" = None
    """The same step for layers with a window, where their rows are given back behind it: contexts
    begin where theirs do, and blocks are window blocks. What they compute does not depend on it,
    since keys are rotated before they are written."""

    @classmethod
    def build(cls, inputs: Sequence[SequenceInput], block_size: int) -> "StepBatch":
        """Lay out a step.

        Raises:
            ValueError: there is no input, or a block table is too short for its sequence.
        """
        if not inputs:
            raise ValueError("a step needs at least one sequence")
        if inputs[0].window is not None:
            plain = cls.build([replace(entry, window=None) for entry in inputs], block_size)
            return replace(plain, window=plain.seen_by_windows(inputs))
        adapters = [entry.adapter for entry in inputs]
        if any(number != NO_ADAPTER for number in adapters):
            plain = cls.build([replace(entry, adapter=NO_ADAPTER) for entry in inputs], block_size)
            return replace(plain, adapters=np.array(adapters, dtype=np.int64))
        if all(len(entry.tokens) == 1 and not entry.certain for entry in inputs):
            return cls._of_single_tokens(inputs, block_size)
        counts = np.array([len(entry.tokens) for entry in inputs], dtype=np.int64)
        firsts = np.array([entry.start for entry in inputs], dtype=np.int64)
        starts = np.concatenate(([0], np.cumsum(counts)))
        return cls.laid_out(
            token_ids=np.concatenate([entry.tokens for entry in inputs]).astype(np.int64),
            query_starts=starts,
            context_lengths=firsts + counts,
            block_tables=_block_tables(inputs, block_size),
            logit_rows=_logit_rows(inputs, starts[1:]),
            state_slots=np.array([entry.state_slot for entry in inputs], dtype=np.int64),
            block_size=block_size,
        )

    @classmethod
    def laid_out(
        cls,
        *,
        token_ids: IntArray,
        query_starts: IntArray,
        context_lengths: IntArray,
        block_tables: npt.NDArray[np.int32],
        logit_rows: IntArray,
        state_slots: IntArray,
        block_size: int,
        adapters: IntArray | None = None,
    ) -> "StepBatch":
        """A step whose positions and slots follow from its contexts: the tokens computed are each
        sequence's last. Block tables have to cover the contexts."""
        counts = np.diff(query_starts)
        sequence = np.repeat(np.arange(len(counts)), counts)
        firsts = context_lengths - counts
        positions = np.arange(query_starts[-1]) - query_starts[sequence] + firsts[sequence]
        blocks = block_tables[sequence, positions // block_size].astype(np.int64)
        return cls(
            token_ids=token_ids,
            positions=positions,
            slots=blocks * block_size + positions % block_size,
            query_starts=query_starts,
            context_lengths=context_lengths,
            block_tables=block_tables,
            logit_rows=logit_rows,
            state_slots=state_slots,
            block_size=block_size,
            adapters=adapters,
        )

    @classmethod
    def _of_single_tokens(cls, inputs: Sequence[SequenceInput], block_size: int) -> "StepBatch":
        """``build`` of a token each, as most steps are, in fewer operations."""
        tables = _block_tables(inputs, block_size)
        positions = np.array([entry.start for entry in inputs], dtype=np.int64)
        starts = np.arange(len(inputs) + 1)
        rows = starts[:-1]
        logit_rows = [row for row, entry in enumerate(inputs) if entry.num_logits]
        places = positions % block_size
        blocks = tables[rows, positions // block_size].astype(np.int64)
        return cls(
            token_ids=np.array([entry.tokens.item() for entry in inputs], dtype=np.int64),
            positions=positions,
            slots=blocks * block_size + places,
            query_starts=starts,
            context_lengths=positions + 1,
            block_tables=tables,
            logit_rows=rows if len(logit_rows) == len(inputs) else np.array(logit_rows, np.int64),
            state_slots=np.array([entry.state_slot for entry in inputs], dtype=np.int64),
            block_size=block_size,
        )

    def seen_by_windows(self, inputs: Sequence[SequenceInput]) -> "StepBatch":
        """The step as layers with a window see it.

        Raises:
            ValueError: there are fewer window blocks than a sequence's tokens take.
        """
        given = [entry.window for entry in inputs if entry.window is not None]
        on_grid = [self._from_grid(*each) for each in given]
        skipped = np.array([first for first, _ in on_grid], dtype=np.int64) * self.block_size
        return self.behind(skipped, [blocks for _, blocks in on_grid])

    def _from_grid(self, first: int, blocks: TokenArray) -> tuple[int, TokenArray]:
        """Window blocks from where kernels divide the context, so that a step gives the same bits
        wherever its rows begin; of those that are not there another stands in, unread."""
        more = first % max(1, GRID_TOKENS // self.block_size)
        return first - more, np.concatenate((np.repeat(blocks[:1], more), blocks))

    def behind(self, skipped: IntArray, tables: Sequence[TokenArray]) -> "StepBatch":
        """The step with contexts that begin ``skipped`` [S] tokens later, in blocks of their own,
        int32 each."""
        lengths = self.context_lengths - skipped
        entries = list(zip(lengths.tolist(), tables, strict=True))
        return StepBatch.laid_out(
            token_ids=self.token_ids,
            query_starts=self.query_starts,
            context_lengths=lengths,
            block_tables=_padded_tables(entries, self.block_size),
            logit_rows=self.logit_rows,
            state_slots=self.state_slots,
            block_size=self.block_size,
        )

    def with_tokens(self, token_ids: IntArray) -> "StepBatch":
        """The batch with other tokens, [T]."""
        return replace(self, token_ids=token_ids)

    @property
    def first_positions(self) -> IntArray:
        """[S] the position of each sequence's first token."""
        return self.positions[self.query_starts[:-1]]

    @property
    def num_tokens(self) -> int:
        return len(self.token_ids)

    @property
    def num_sequences(self) -> int:
        return len(self.context_lengths)

    def adapter_rows(self, device: torch.device) -> RowAdapters | None:
        """The step's tokens by their adapter; None: none has one."""
        if self.adapters is None:
            return None
        of_tokens = self.adapter_of_tokens(self.num_tokens)
        return RowAdapters(upload(of_tokens.astype(np.int32), device), of_tokens)

    def adapter_of_tokens(self, count: int) -> IntArray:
        """[count] the adapter of each token, ``NO_ADAPTER`` for those behind the step's last."""
        of_tokens = np.full(count, NO_ADAPTER, dtype=np.int64)
        if self.adapters is not None:
            of_tokens[: self.num_tokens] = np.repeat(self.adapters, np.diff(self.query_starts))
        return of_tokens

    def layout(self, device: torch.device) -> PagedLayout:
        """The step's contexts as the attention wants them."""
        on_triton = wants_triton(device)
        shared = self.shared_prefixes() if on_triton else None
        counts = np.diff(self.query_starts)
        most = int(counts.max())
        return PagedLayout(
            query_starts=upload(self.query_starts.astype(np.int32), device),
            context_lengths=upload(self.context_lengths.astype(np.int32), device),
            block_tables=upload(self.block_tables, device),
            max_query_tokens=most,
            max_decode_tokens=(
                most
                if most <= MAX_DECODE_QUERIES
                else int(counts[counts <= MAX_DECODE_QUERIES].max(initial=0))
            ),
            spans=functools.cache(self.spans),
            shared=None if shared is None else shared.to(device),
        )

    def shared_prefixes(self) -> SharedPrefixes | None:
        """Prefixes of the step that are worth reading once, on the host."""
        if self.num_sequences < 2:
            return None
        counts = np.diff(self.query_starts)
        return find_shared_prefixes(
            self.block_tables,
            (self.context_lengths - counts).tolist(),
            counts.tolist(),
            self.block_size,
        )

    def spans(self) -> tuple[SequenceSpan, ...]:
        """The step's contexts for the host: of each sequence, its runs of neighbouring blocks.

        Two sequences of 10 and 6 tokens in blocks of 4, of which 2 and 1 are computed now::

            block_tables            [[5, 6, 2], [6, 7, -1]]
            counts                  [3, 2]        blocks that hold the contexts
            blocks                  [5, 6, 2, 6, 7]
            rows                    [0, 3, 5]     where each sequence begins in blocks
            begins                  [1, 0, 1, 1, 0]
            firsts, sizes           [0, 2, 3], [2, 1, 2]
            runs                    [(5, 2), (2, 1), (6, 2)]
            edges                   [0, 2, 3]     where each sequence begins in runs

        So the first sequence has rows 0 and 1 of the step and runs (5, 2) and (2, 1): two
        blocks from block 5 on, then block 2. The second has row 2 and the run (6, 2); that
        block 6 is the first one's as well, and follows its block 2 here, does not matter.
        """
        counts = -(-self.context_lengths // self.block_size)
        held = np.arange(self.block_tables.shape[1]) < counts[:, None]
        blocks = self.block_tables[held]
        rows = np.concatenate(([0], np.cumsum(counts)))
        begins = np.ones(len(blocks), dtype=np.bool_)
        begins[1:] = blocks[1:] != blocks[:-1] + 1
        begins[rows[:-1]] = True
        firsts = np.flatnonzero(begins)
        sizes = np.diff(firsts, append=len(blocks))
        runs = list(zip(blocks[firsts].tolist(), sizes.tolist(), strict=True))
        edges = np.searchsorted(firsts, rows).tolist()
        starts = self.query_starts.tolist()
        lengths = self.context_lengths.tolist()
        return tuple(
            SequenceSpan(
                first_row=starts[row],
                num_queries=starts[row + 1] - starts[row],
                context_length=length,
                runs=tuple(runs[edges[row] : edges[row + 1]]),
            )
            for row, length in enumerate(lengths)
        )


def _block_tables(inputs: Sequence[SequenceInput], block_size: int) -> npt.NDArray[np.int32]:
    """The blocks that hold each sequence's tokens, padded with -1.

    Raises:
        ValueError: there are fewer.
    """
    entries = [(entry.start + len(entry.tokens), entry.block_table) for entry in inputs]
    return _padded_tables(entries, block_size)


def _padded_tables(
    entries: Sequence[tuple[int, TokenArray]], block_size: int
) -> npt.NDArray[np.int32]:
    """The blocks that hold so many tokens of each sequence; see ``_block_tables``."""
    needed = [-(-length // block_size) for length, _ in entries]
    if len(entries) == 1 and len(entries[0][1]) >= needed[0]:
        return entries[0][1][None, : needed[0]].astype(np.int32)
    tables = np.full((len(entries), max(needed)), -1, dtype=np.int32)
    for row, ((length, table), count) in enumerate(zip(entries, needed, strict=True)):
        if len(table) < count:
            raise ValueError(f"{len(table)} blocks do not hold {length} tokens")
        tables[row, :count] = table[:count]
    return tables


def _logit_rows(inputs: Sequence[SequenceInput], ends: IntArray) -> IntArray:
    """The tokens with logits, ascending; ``ends`` are where each input's tokens end."""
    counts = np.array([entry.num_logits for entry in inputs], dtype=np.int64)
    before = np.cumsum(counts) - counts
    rows = np.arange(counts.sum()) + np.repeat(ends - counts - before, counts)
    certain = [
        first + place
        for first, entry in zip(before.tolist(), inputs, strict=True)
        for place in entry.certain
    ]
    return np.delete(rows, certain) if certain else rows
