"""Triton's prompts of the delta rule against the reference."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from kernels.delta_rows import DeltaRows, DeltaSpans
from kernels.gated_delta import (
    DeltaDue,
    DeltaInputs,
    DeltaOutputs,
    DeltaRings,
    fold_rings_reference,
    gated_delta,
    gated_delta_reference,
)
from tests.support.delta_steps import SHAPES, close
from tests.support.delta_steps import drawn as drawn_for_steps

HALVES = (1, 2, 40, 24)
"""Keys so long that they are looked at in two halves, as those of models are."""


FORGETS = 0.02
"""A chunk of a prompt leaves some of what was there before it: else nothing shows what is lost."""


def drawn(
    shape: tuple[int, int, int, int], tokens: int, *, corrects: bool, device: torch.device
) -> tuple[DeltaInputs, torch.Tensor, DeltaRings]:
    inputs, matrices, rings = drawn_for_steps(shape, tokens, corrects=corrects, device=device)
    return replace(inputs, decays=inputs.decays * FORGETS), matrices, rings


@pytest.fixture(autouse=True)
def _triton_everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kernels.dispatch.SETTING", "triton")


@pytest.mark.parametrize("shape", [*SHAPES, HALVES])
@pytest.mark.parametrize("corrects", [True, False])
@pytest.mark.parametrize("counts", [None, (0, 5, 1)])
def test_a_prompt_agrees_with_the_reference(
    counts: tuple[int, ...] | None,
    corrects: bool,
    shape: tuple[int, int, int, int],
    device: torch.device,
) -> None:
    """Three sequences that begin and end inside chunks, at their ends, or have no token; matrices
    are handed out at an end, inside, and not at all."""
    inputs, matrices, rings = drawn(shape, 203, corrects=corrects, device=device)
    rows = DeltaRows(
        slots=np.array([3, 0, 2, 1]),
        starts=np.array([0, 130, 130, 202, 203]),
        positions=np.array([41, 7, 64, 0]),
        handed=((0, 87), (2, 72)),
    )
    assert rows.by_chunks().tolist() == [True, False, True, False]
    expected, due = matrices.clone(), None
    if counts is not None:
        taken = DeltaSpans(
            slots=np.array([3, 0, 2, 1]),
            rings=np.array([1, 2, 0, 0]),
            committed=np.array([6, 40, 3, 5]),
            counts=np.array([*counts, 0]),
        )
        due = DeltaDue(matrices=matrices, rings=rings, spans=taken, layer=1)
        of_layer = DeltaRings(
            keys=rings.keys[:, 1:], corrected=rings.corrected[:, 1:], decays=rings.decays[:, 1:]
        )
        fold_rings_reference(expected[:, 1:], of_layer, taken)
    wanted = gated_delta_reference(inputs, expected[:, 1], rows)
    found = gated_delta(inputs, matrices[:, 1], rows, due)
    assert close(found.mixed, wanted.mixed)
    assert close(found.corrected, wanted.corrected)
    assert close(found.handed, wanted.handed)
    assert close(matrices, expected)
    assert torch.equal(matrices[:, 0], expected[:, 0])


@pytest.mark.parametrize("shape", [SHAPES[1], HALVES])
@pytest.mark.parametrize("corrects", [True, False])
def test_a_prompt_cut_at_a_chunk_has_the_bits_of_the_whole(
    corrects: bool, shape: tuple[int, int, int, int], device: torch.device
) -> None:
    inputs, matrices, _ = drawn(shape, 150, corrects=corrects, device=device)

    def play(low: int, high: int, before: torch.Tensor, hand: int) -> DeltaOutputs:
        part = DeltaInputs(
            queries=inputs.queries[low:high],
            keys=inputs.keys[low:high],
            values=inputs.values[low:high],
            decays=inputs.decays[low:high],
            betas=None if inputs.betas is None else inputs.betas[low:high],
        )
        rows = DeltaRows(
            slots=np.array([0]),
            starts=np.array([0, high - low]),
            positions=np.array([20 + low]),
            handed=((0, hand),),
        )
        return gated_delta(part, before, rows)

    whole = play(0, 150, matrices[2:3, 1], 150)
    for cut in (44, 108):  # positions 64 and 128
        first = play(0, cut, matrices[2:3, 1], cut)
        second = play(cut, 150, first.handed, 150 - cut)
        assert torch.equal(torch.cat([first.mixed, second.mixed]), whole.mixed)
        assert torch.equal(torch.cat([first.corrected, second.corrected]), whole.corrected)
        assert torch.equal(second.handed, whole.handed)


def test_keys_that_are_all_alike_are_solved_as_they_are_token_by_token(
    device: torch.device,
) -> None:
    """The worst that a system can be: nothing is forgotten, and each token corrects each other."""
    shape = (1, 2, 16, 8)
    inputs, matrices, _ = drawn(shape, 128, corrects=True, device=device)
    alike = DeltaInputs(
        queries=inputs.queries,
        keys=inputs.keys[:1].expand(128, -1, -1).contiguous(),
        values=inputs.values,
        decays=torch.zeros_like(inputs.decays),
        betas=torch.ones_like(inputs.values[:, :, 0]),
    )
    rows = DeltaRows(slots=np.array([0]), starts=np.array([0, 128]), positions=np.array([0]))
    wanted = gated_delta_reference(alike, matrices[:, 1], rows)
    found = gated_delta(alike, matrices[:, 1], rows)
    assert close(found.mixed, wanted.mixed)
    assert close(found.corrected, wanted.corrected)


@pytest.mark.parametrize("corrects", [True, False])
def test_where_nearly_all_is_forgotten_the_last_token_is_whole(
    corrects: bool, device: torch.device
) -> None:
    """Sums of logarithms are so large there that their differences have few digits left."""
    inputs, matrices, _ = drawn(SHAPES[1], 100, corrects=corrects, device=device)
    faded = replace(inputs, decays=inputs.decays * 50 / FORGETS)
    rows = DeltaRows(
        slots=np.array([0]),
        starts=np.array([0, 100]),
        positions=np.array([3]),
        handed=((0, 100),),
    )
    wanted = gated_delta_reference(faded, matrices[:, 1], rows)
    found = gated_delta(faded, matrices[:, 1], rows)
    assert close(found.mixed, wanted.mixed)
    assert close(found.handed, wanted.handed)
