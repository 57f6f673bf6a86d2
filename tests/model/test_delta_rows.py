"""Which sequences of a step go token by token, and where the chunks of the others are."""

import numpy as np
import pytest
import torch

from kernels.delta_rows import CHUNK, MOST_TOKENS, DeltaRows, DeltaSpans


def rows(counts: list[int], positions: list[int], handed: tuple[tuple[int, int], ...] = ()):
    return DeltaRows(
        slots=np.arange(len(counts)),
        starts=np.concatenate(([0], np.cumsum(counts))),
        positions=np.array(positions),
        handed=handed,
    )


def test_long_sequences_and_those_whose_matrix_is_handed_out_go_by_chunks() -> None:
    step = rows([1, MOST_TOKENS, MOST_TOKENS + 1, 1], [0, 5, 9, 3], ((3, 1),))
    assert step.by_chunks().tolist() == [False, False, True, True]


@pytest.mark.parametrize("seed", range(4))
def test_chunks_have_every_token_of_long_sequences_once_where_its_position_is(seed: int) -> None:
    random = np.random.default_rng(seed)
    counts = random.choice([0, 1, 5, 34, 64, 65, 200], 6).tolist()
    positions = random.integers(0, 300, 6).tolist()
    step = rows(counts, positions)
    places = step.places(None)
    found: list[tuple[int, int]] = []
    for sequence in range(6):
        for chunk in range(places.begins[sequence], places.begins[sequence + 1]):
            low, high = places.lows[chunk], places.highs[chunk]
            assert 0 <= low < high <= CHUNK
            found += ((sequence, row) for row in places.firsts[chunk] + np.arange(low, high))
            for within in (low, high - 1):
                row = places.firsts[chunk] + within - step.starts[sequence]
                assert (positions[sequence] + row) % CHUNK == within
    wanted = [
        (sequence, row)
        for sequence, count in enumerate(counts)
        for row in range(step.starts[sequence], step.starts[sequence + 1])
        if count > MOST_TOKENS
    ]
    assert found == wanted
    short = [count <= MOST_TOKENS for count in counts]
    assert np.array_equal(places.ends - places.starts, np.where(short, counts, 0))
    assert not places.counts.any()


def test_a_matrix_is_handed_out_within_the_chunk_of_the_token_before_it() -> None:
    places = rows([130, 1, 100], [20, 7, 64], ((0, 44), (2, 100))).places(None)
    assert places.begins.tolist() == [0, 3, 3, 5]
    assert places.handed_in.tolist() == [0, -1, 4]
    assert places.handed_at.tolist() == [CHUNK, 0, 36]
    assert places.handed_to.tolist() == [0, 0, 1]


def test_spans_are_put_on_the_device_or_are_there() -> None:
    ones = np.ones(2, dtype=np.int64)
    spans = DeltaSpans(slots=ones * 4, rings=ones, committed=ones * 2, counts=ones * 3)
    device = torch.device("cpu")
    assert [int(part[0]) for part in spans.on(device)] == [4, 1, 2, 3]
    there = spans.on(device)
    placed = DeltaSpans(slots=ones, rings=ones, committed=ones, counts=ones, there=there)
    assert placed.on(device) is there
