"""Triton's steps of few tokens and commits of the delta rule against their references."""

import numpy as np
import pytest
import torch

from kernels.delta_rows import DeltaRows, DeltaSpans
from kernels.gated_delta import (
    DeltaDue,
    DeltaRings,
    fold_rings,
    fold_rings_reference,
    gated_delta,
    gated_delta_reference,
)
from tests.support.delta_steps import SHAPES, SLOTS, WAYS, close, drawn


@pytest.fixture(autouse=True)
def _triton_everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kernels.dispatch.SETTING", "triton")


def spans(*counts: int) -> DeltaSpans:
    return DeltaSpans(
        slots=np.array([3, 0, 2][: len(counts)]),
        rings=np.array([1, 2, 0][: len(counts)]),
        committed=np.array([6, 40, 3][: len(counts)]),
        counts=np.array(counts),
    )


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("counts", [None, (0, 5, 1)])
def test_a_step_of_few_tokens_agrees_with_the_reference(
    counts: tuple[int, ...] | None,
    way: str,
    shape: tuple[int, int, int, int],
    device: torch.device,
) -> None:
    """Behind what is due, which the matrices in memory are taken on by, and by no more."""
    corrects, by_channel = WAYS[way]
    inputs, matrices, rings = drawn(
        shape, 7, corrects=corrects, by_channel=by_channel, device=device
    )
    rows = DeltaRows(
        slots=np.array([3, 0, 2]), starts=np.array([0, 1, 6, 7]), positions=np.array([9, 0, 4])
    )
    assert not rows.by_chunks().any()
    expected, due = matrices.clone(), None
    if counts is not None:
        due = DeltaDue(matrices=matrices, rings=rings, spans=spans(*counts), layer=1)
        fold_rings_reference(
            expected[:, 1:],
            DeltaRings(
                keys=rings.keys[:, 1:], corrected=rings.corrected[:, 1:], decays=rings.decays[:, 1:]
            ),
            spans(*counts),
        )
    wanted = gated_delta_reference(inputs, expected[:, 1], rows)
    found = gated_delta(inputs, matrices[:, 1], rows, due)
    assert close(found.mixed, wanted.mixed)
    assert close(found.corrected, wanted.corrected)
    assert close(matrices, expected)
    assert torch.equal(matrices[:, 0], expected[:, 0])


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("by_channel", [True, False])
def test_a_commit_of_all_layers_agrees_with_the_reference(
    by_channel: bool, shape: tuple[int, int, int, int], device: torch.device
) -> None:
    _, matrices, rings = drawn(shape, 1, corrects=True, by_channel=by_channel, device=device)
    expected = matrices.clone()
    fold_rings_reference(expected, rings, spans(8, 0, 3))
    fold_rings(matrices, rings, spans(8, 0, 3))
    assert close(matrices, expected)
    untouched = [slot for slot in range(SLOTS) if slot not in (3, 2)]
    assert torch.equal(matrices[untouched], expected[untouched])
