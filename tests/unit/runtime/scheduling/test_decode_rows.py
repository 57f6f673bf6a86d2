"""Rows that come and go, and the numbers that stay with them."""

import random

import numpy as np
import pytest

from runtime.scheduling.decode_rows import TAIL, DecodeRows, Row


def _open(arrays: DecodeRows, value: int) -> Row:
    return arrays.open(length=value, computed=value + 1, block_limit=value + 2, publish_at=value)


@pytest.mark.parametrize("seed", range(10))
def test_a_row_keeps_its_numbers_wherever_it_moves(seed: int) -> None:
    rng = random.Random(seed)
    arrays = DecodeRows()
    rows: dict[Row, int] = {}
    moved = 0
    for value in range(600):
        if rows and rng.random() < 0.48:
            row = rng.choice(list(rows))
            arrays.close(row)
            del rows[row]
        else:
            row = _open(arrays, value)
            rows[row] = value
        if arrays.has_many_gaps:
            before = arrays.open_rows()
            assert arrays.close_gaps().tolist() == before.tolist()
            moved += 1
        assert arrays.open_rows().tolist() == [row.index for row in rows], "in their order"
        for row, known in rows.items():
            assert (row.length, row.computed, row.block_limit) == (known, known + 1, known + 2)
            assert arrays.publish_at[row.index] == known
    assert moved
    assert arrays.num_rows <= 4 / 3 * max(len(rows), 16)


def test_single_numbers_and_arrays_are_the_same_memory() -> None:
    arrays = DecodeRows()
    rows = [_open(arrays, value) for value in range(200)]
    rows[150].length += 7
    assert arrays.length[150] == 157
    arrays.computed[3] = 99
    assert rows[3].computed == 99
    rows[3].block_limit = 5
    assert arrays.block_limit[3] == 5


def test_a_gap_never_asks_for_blocks() -> None:
    arrays = DecodeRows()
    row = arrays.open(length=9, computed=8, block_limit=8, publish_at=12)
    assert (arrays.length > arrays.block_limit).any()
    arrays.close(row)
    assert not (arrays.length > arrays.block_limit).any()


@pytest.mark.parametrize("start", [0, 10, TAIL - 3, 5 * TAIL + 61])
@pytest.mark.parametrize("count", [1, 5, TAIL])
def test_a_tail_is_read_across_its_end(start: int, count: int) -> None:
    arrays = DecodeRows()
    row = _open(arrays, 0)
    for position in range(start, start + count):
        arrays.tails[row.index, position % TAIL] = position
    assert np.array_equal(row.tail(start, start + count), np.arange(start, start + count))
