"""Triton's steps of the delta rule: short sequences beside long ones, and arrays that stay where
they are, of a recorded step."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from kernels.delta_rows import DeltaPlaces, DeltaRows, DeltaSpans
from kernels.gated_delta import (
    DeltaDue,
    DeltaRings,
    fold_rings_reference,
    gated_delta,
    gated_delta_reference,
)
from tests.support.delta_steps import SHAPES, WAYS, close, drawn

COUNTS = [2, 40, 1, 70]
ROOM = {"sequences": 7, "tokens": 128, "chunks": 9}


@pytest.fixture(autouse=True)
def _triton_everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kernels.dispatch.SETTING", "triton")


def spans() -> DeltaSpans:
    return DeltaSpans(
        slots=np.array([3, 0, 2, 1]),
        rings=np.array([1, 2, 0, 1]),
        committed=np.array([6, 40, 3, 5]),
        counts=np.array([1, 5, 0, 2]),
    )


def rows() -> DeltaRows:
    return DeltaRows(
        slots=np.array([3, 0, 2, 1]),
        starts=np.concatenate(([0], np.cumsum(COUNTS))),
        positions=np.array([7, 45, 3, 64]),
        handed=((1, 8), (3, 38)),
    )


def recorded(step: DeltaRows, device: torch.device) -> tuple[DeltaRows, DeltaSpans]:
    """The step in arrays that have room for more of everything; those of the host say nothing."""
    places = step.places(spans())
    sizes = {"firsts": "chunks", "lows": "chunks", "highs": "chunks"}
    arrays = {}
    for name in DeltaPlaces._fields:
        array = getattr(places, name)
        size = ROOM[sizes.get(name, "sequences")] + (name == "begins")
        filled = {"begins": array[-1], "handed_in": -1, "slots": 4}.get(name, 0)
        arrays[name] = np.pad(array, (0, size - len(array)), constant_values=filled)
    there = DeltaPlaces(**{k: torch.from_numpy(array).to(device) for k, array in arrays.items()})
    none = np.zeros(ROOM["sequences"], dtype=np.int64)
    nothing = DeltaSpans(slots=none, rings=none, committed=none, counts=none)
    many = DeltaRows(
        slots=none,
        starts=np.zeros(len(none) + 1, dtype=np.int64),
        positions=none,
        handed=((0, 0),) * 4,
        there=there,
        recorded=True,
    )
    return many, nothing


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("in_places", [True, False])
def test_each_sequence_is_computed_as_if_it_were_alone(
    in_places: bool, way: str, shape: tuple[int, int, int, int], device: torch.device
) -> None:
    """Behind what is due of all four; rows of nobody are finite."""
    tokens = ROOM["tokens"] if in_places else sum(COUNTS)
    corrects, by_channel = WAYS[way]
    inputs, matrices, rings = drawn(
        shape, tokens, corrects=corrects, by_channel=by_channel, device=device
    )
    inputs = replace(inputs, decays=inputs.decays * 0.02)
    expected = matrices.clone()
    of_layer = DeltaRings(
        keys=rings.keys[:, 1:], corrected=rings.corrected[:, 1:], decays=rings.decays[:, 1:]
    )
    fold_rings_reference(expected[:, 1:], of_layer, spans())
    wanted = gated_delta_reference(inputs, expected[:, 1], rows())
    step, lacking = recorded(rows(), device) if in_places else (rows(), spans())
    due = DeltaDue(matrices=matrices, rings=rings, spans=lacking, layer=1)
    found = gated_delta(inputs, matrices[:, 1], step, due)
    own = sum(COUNTS)
    assert close(found.mixed[:own], wanted.mixed[:own])
    assert close(found.corrected[:own], wanted.corrected[:own])
    assert close(found.handed[:2], wanted.handed)
    assert close(matrices, expected)
    assert found.mixed.isfinite().all()


def test_a_step_without_a_sequence_is_no_launch(device: torch.device) -> None:
    inputs, matrices, _ = drawn(SHAPES[0], 0, corrects=True, device=device)
    none = np.zeros(0, dtype=np.int64)
    step = DeltaRows(slots=none, starts=np.zeros(1, dtype=np.int64), positions=none)
    found = gated_delta(inputs, matrices[:, 1], step)
    assert found.mixed.shape == inputs.values.shape
    assert not len(found.handed)
