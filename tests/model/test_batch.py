"""Laying out a step: every token's position, slot and sequence."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from kernels.paged_layout import GRID_TOKENS
from runtime.model.batch import SequenceInput, StepBatch, with_any_window


def entry(start: int, count: int, table: list[int], logits: int = 0) -> SequenceInput:
    return SequenceInput(
        tokens=np.arange(100, 100 + count, dtype=np.int32),
        start=start,
        block_table=np.array(table, dtype=np.int32),
        num_logits=logits,
    )


def test_rows_positions_slots_and_logit_rows_of_a_mixed_step() -> None:
    batch = StepBatch.build(
        [entry(3, 3, [5, 2], 1), entry(0, 2, [9], 0), entry(8, 2, [1, 0, 7], 2)], 4
    )
    assert batch.token_ids.tolist() == [100, 101, 102, 100, 101, 100, 101]
    assert batch.positions.tolist() == [3, 4, 5, 0, 1, 8, 9]
    assert batch.slots.tolist() == [23, 8, 9, 36, 37, 28, 29]
    assert batch.query_starts.tolist() == [0, 3, 5, 7]
    assert batch.context_lengths.tolist() == [6, 2, 10]
    assert batch.block_tables.tolist() == [[5, 2, -1], [9, -1, -1], [1, 0, 7]]
    assert batch.logit_rows.tolist() == [2, 5, 6]
    assert (batch.num_tokens, batch.num_sequences) == (7, 3)


def test_single_tokens_are_laid_out_as_others_are() -> None:
    singles = [entry(3, 1, [5, 2], 1), entry(8, 1, [1, 0, 7], 0), entry(0, 1, [9, 4], 1)]
    batch = StepBatch.build([*singles, entry(4, 2, [6, 8], 1)], 4)  # not all are single ones
    single = StepBatch.build(singles, 4)
    for name in ("token_ids", "positions", "slots", "context_lengths", "block_tables"):
        among_others, alone = getattr(batch, name)[:3], getattr(single, name)
        assert (alone == among_others).all()
        assert alone.dtype == among_others.dtype
    assert single.query_starts.tolist() == [0, 1, 2, 3]
    assert single.logit_rows.tolist() == [0, 2]
    assert StepBatch.build([singles[1]], 4).logit_rows.tolist() == []
    assert StepBatch.build([singles[2]], 4).block_tables.tolist() == [[9]]


def test_places_behind_which_the_token_is_certain_have_no_logit_row() -> None:
    verified = replace(entry(0, 6, [1, 2], 5), certain=(1, 2))
    unneeded = replace(entry(0, 3, [3], 1), certain=(0,))
    batch = StepBatch.build([unneeded, verified, entry(0, 2, [4], 1)], 4)
    assert batch.logit_rows.tolist() == [3 + 1, 3 + 4, 3 + 5, 9 + 1]
    with pytest.raises(ValueError, match="of 1 logit rows"):
        replace(entry(0, 3, [3], 1), certain=(1,))


@pytest.mark.parametrize(
    ("table", "runs"),
    [
        ([4, 5, 6], ((4, 3),)),
        ([4, 6, 5], ((4, 1), (6, 1), (5, 1))),
        ([0, 1, 9], ((0, 2), (9, 1))),
    ],
)
def test_runs_are_neighbouring_blocks(table: list[int], runs: tuple[tuple[int, int], ...]) -> None:
    batch = StepBatch.build([entry(0, 1, [3]), entry(9, 2, [*table, 99])], 4)
    layout = batch.layout(torch.device("cpu"))
    assert layout.max_query_tokens == 2
    span = layout.spans()[1]
    assert (span.first_row, span.num_queries, span.context_length) == (1, 2, 11)
    assert span.runs == runs


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(ValueError, match="1 blocks do not hold 5 tokens"):
        StepBatch.build([entry(4, 1, [3])], 4)
    with pytest.raises(ValueError, match="at least one sequence"):
        StepBatch.build([], 4)
    with pytest.raises(ValueError, match="3 logit rows of 2 tokens"):
        entry(0, 2, [0], 3)
    with pytest.raises(ValueError, match="0 logit rows of 0 tokens"):
        entry(0, 0, [0], 0)


def test_spans_are_those_of_the_worked_example() -> None:
    tables = (np.array([5, 6, 2], dtype=np.int32), np.array([6, 7], dtype=np.int32))
    entries = [
        SequenceInput(
            tokens=np.zeros(count, dtype=np.int32),
            start=start,
            block_table=table,
            num_logits=1,
        )
        for table, start, count in zip(tables, (8, 5), (2, 1), strict=True)
    ]
    first, second = StepBatch.build(entries, 4).spans()
    assert (first.first_row, first.num_queries, first.context_length) == (0, 2, 10)
    assert first.runs == ((5, 2), (2, 1))
    assert (second.first_row, second.num_queries, second.context_length) == (2, 1, 6)
    assert second.runs == ((6, 2),)


def test_layers_with_a_window_see_a_later_beginning_in_blocks_of_their_own() -> None:
    """Two sequences of 2 and 1 tokens behind 9 and 3, in blocks of 4; of the first the first block
    is given back. Contexts begin on the grid of kernels, where another block stands in."""
    entries = [
        SequenceInput(
            tokens=np.arange(count, dtype=np.int32),
            start=start,
            block_table=np.array(table, dtype=np.int32),
            num_logits=1,
            window=(first, np.array(near, dtype=np.int32)),
        )
        for count, start, table, first, near in (
            (2, 9, [4, 9, 2], 1, [7, 0]),
            (1, 3, [5], 0, [3]),
        )
    ]
    batch = StepBatch.build(entries, 4)
    assert batch.slots.tolist() == [9, 10, 23]
    near = batch.window
    assert near is not None
    assert near.context_lengths.tolist() == [11, 4]
    assert near.block_tables.tolist() == [[7, 7, 0], [3, -1, -1]]
    assert near.slots.tolist() == [1, 2, 15]
    assert near.query_starts.tolist() == batch.query_starts.tolist()
    short = replace(entries[1], window=(0, np.zeros(0, dtype=np.int32)))
    with pytest.raises(ValueError, match="0 blocks do not hold 4 tokens"):
        StepBatch.build([entries[0], short], 4)


def test_a_context_far_behind_begins_on_the_grid() -> None:
    entry = SequenceInput(
        tokens=np.zeros(1, dtype=np.int32),
        start=2 * GRID_TOKENS + 40,
        block_table=np.arange(140, dtype=np.int32),
        num_logits=1,
        window=(129, np.array([5, 6], dtype=np.int32)),
    )
    near = StepBatch.build([entry], 16).window
    assert near is not None
    assert near.context_lengths.tolist() == [41]
    assert near.block_tables.tolist() == [[5, 5, 6]]


def test_steps_that_nobody_looks_at_have_any_window_blocks() -> None:
    entry = SequenceInput(
        tokens=np.zeros(5, dtype=np.int32),
        start=30,
        block_table=np.arange(6, 16, dtype=np.int32),
        num_logits=1,
    )
    made = with_any_window(entry, window=9, num_blocks=13, block_size=4)
    assert made.window is not None
    first, blocks = made.window
    assert first == 5
    assert blocks.tolist() == [11, 12, 0, 1]
