"""Arrays of a step's states, as large as a recording has room for."""

import numpy as np
import pytest
import torch

from kernels.delta_rows import DeltaPlaces
from runtime.model.batch import NO_STATE, TRIAL_STATE
from runtime.model.presets import random_model_config
from runtime.model.state_pool import StatePool
from runtime.model.state_step import (
    MOST_LONG,
    NOWHERE,
    RING,
    StateMoves,
    StatePlaces,
    StateRoom,
    places_of,
)

CONFIG = random_model_config("qwen3.5-tiny")


@pytest.fixture
def pool() -> StatePool:
    made = StatePool(
        CONFIG, num_slots=12, num_rings=12, dtype=torch.float32, device=torch.device("cpu")
    )
    for slot in range(12):
        made.begin(slot, source=None, position=0)
    return made


def planned(pool: StatePool, slots: list[int], counts: list[int]) -> StateMoves:
    starts = np.concatenate(([0], np.cumsum(counts))).astype(np.int64)
    own = np.array(slots, dtype=np.int64)
    return pool.plan(own, np.zeros(len(slots), dtype=np.int64), starts)


def placed(moves: StateMoves, room: StateRoom) -> tuple[StatePlaces, DeltaPlaces | None]:
    arrays = moves.arrays(room, 12)
    return places_of([torch.from_numpy(array) for array in arrays])


@pytest.mark.parametrize("triton", [True, False])
def test_arrays_are_as_large_as_the_room_whatever_the_step(
    pool: StatePool, monkeypatch: pytest.MonkeyPatch, triton: bool
) -> None:
    monkeypatch.setattr("kernels.dispatch.SETTING", "triton" if triton else "")
    room = StateRoom.of(sequences=4, tokens=256, chunked=True)
    shapes = set()
    for slots, counts in (([], []), ([3], [1]), ([5, NO_STATE, 2, TRIAL_STATE], [70, 3, 1, 40])):
        arrays = planned(pool, slots, counts).arrays(room, 12)
        shapes.add(tuple(len(array) for array in arrays))
        assert all(array.dtype == np.int64 for array in arrays)
    assert len(shapes) == 1
    assert len(shapes.pop()) == len(StatePlaces._fields) + triton * len(DeltaPlaces._fields)


def test_rows_of_nobody_are_on_the_spare_slot_and_leave_nothing(
    pool: StatePool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kernels.dispatch.SETTING", "triton")
    moves = planned(pool, [7, 2], [3, 40])
    own, deltas = placed(moves, StateRoom.of(sequences=4, tokens=64, chunked=True))
    assert own.slots.tolist() == [7, 2, 12, 12, 12]
    assert own.starts.tolist() == [0, 3, 43, 64, 64, 64]
    assert own.sequence_of.tolist() == [0] * 3 + [1] * 40 + [2] * 21
    kept = own.kept_rings != NOWHERE
    assert own.kept_tokens[kept].tolist() == [0, 1, 2, *range(43 - RING, 43)]
    assert (own.handed_slots.tolist(), own.handed_numbers.tolist()) == (
        [2, -1, -1, -1],
        [*range(4)],
    )
    before = CONFIG.recurrent[0].taps - 1
    assert own.moved_slots[:before].tolist() == [2] * before
    assert (own.moved_slots[before:] == NOWHERE).all()
    assert own.moved_tokens[:before].tolist() == [*range(43 - RING - before, 43 - RING)]
    assert deltas is not None
    assert (deltas.ends - deltas.starts).tolist() == [3, 0, 0, 0, 0]
    assert deltas.begins.tolist() == [0, 0, 1, 1, 1, 1]
    assert (deltas.highs - deltas.lows).tolist() == [40] + [0] * 8


def test_more_long_sequences_than_a_recording_has_room_for_do_not_fit(
    pool: StatePool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kernels.dispatch.SETTING", "triton")
    room = StateRoom.of(sequences=64, tokens=64 + 1024, chunked=True)
    few = StateRoom.of(sequences=64, tokens=256, chunked=False)
    for many, fits in ((MOST_LONG, True), (MOST_LONG + 1, False)):
        moves = planned(pool, list(range(many)), [40] * many)
        assert moves.fits(room) is fits
        assert not moves.fits(few)
    assert planned(pool, list(range(12)), [RING] * 12).fits(few)
    # Trials hand no matrix out, and have chunks all the same.
    assert not planned(pool, [TRIAL_STATE] * 40, [40] * 40).fits(room)


@pytest.mark.parametrize("seed", range(5))
def test_whatever_a_step_holds_its_chunks_find_room(
    pool: StatePool, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """Sequences that begin at any position of a chunk, as many as may be long."""
    monkeypatch.setattr("kernels.dispatch.SETTING", "triton")
    random = np.random.default_rng(seed)
    for _ in range(20):
        counts = random.integers(33, 260, random.integers(1, MOST_LONG + 1)).tolist()
        slots = np.full(len(counts), TRIAL_STATE)
        positions = random.integers(0, 500, len(counts))
        starts = np.concatenate(([0], np.cumsum(counts)))
        moves = pool.plan(slots, positions, starts)
        room = StateRoom.of(sequences=8, tokens=int(starts[-1]), chunked=True)
        assert moves.deltas is not None
        assert len(moves.deltas.firsts) <= room.chunks
