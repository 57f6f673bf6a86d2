"""Triton's prompts of the delta rule by channel against the reference, and the bits of states that
are handed out on the way."""

from dataclasses import fields, replace

import numpy as np
import pytest
import torch

from kernels.delta_rows import CHUNK, DeltaRows, DeltaSpans
from kernels.gated_delta import (
    DeltaInputs,
    DeltaRings,
    fold_rings,
    gated_delta,
    gated_delta_reference,
)
from tests.support.delta_steps import SHAPES, close, drawn

END = 2 * CHUNK + 9


@pytest.fixture(autouse=True)
def _triton_everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kernels.dispatch.SETTING", "triton")


def part(inputs: DeltaInputs, low: int, high: int) -> DeltaInputs:
    return DeltaInputs(
        **{each.name: getattr(inputs, each.name)[low:high] for each in fields(inputs)}
    )


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("forgets", [1e-3, 1.0, 20.0])
def test_prompts_agree_with_the_reference_whatever_they_forget(
    forgets: float, shape: tuple[int, int, int, int], device: torch.device
) -> None:
    """Beside a sequence that goes token by token, from positions within a chunk."""
    inputs, matrices, _ = drawn(shape, 203, corrects=True, by_channel=True, device=device)
    inputs = replace(inputs, decays=inputs.decays * forgets)
    rows = DeltaRows(
        slots=np.array([3, 0, 2]),
        starts=np.array([0, 80, 83, 203]),
        positions=np.array([40, 7, 64]),
        handed=((0, 48), (2, 1)),
    )
    before = matrices.clone()
    wanted = gated_delta_reference(inputs, matrices[:, 1], rows)
    found = gated_delta(inputs, matrices[:, 1], rows)
    for each in fields(wanted):
        assert close(getattr(found, each.name), getattr(wanted, each.name)), each.name
    assert torch.equal(matrices, before)


def test_a_step_that_is_cut_has_the_bits_of_a_whole_one(device: torch.device) -> None:
    """The state is handed out 32 tokens before the cut and taken on from a ring."""
    inputs, matrices, rings = drawn(SHAPES[1], END, corrects=True, by_channel=True, device=device)
    inputs = replace(inputs, decays=inputs.decays * 0.05)
    state = matrices[:1, :1].clone()

    def run(low: int, high: int, of: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        rows = DeltaRows(
            slots=np.array([0]),
            starts=np.array([0, high - low]),
            positions=np.array([low]),
            handed=((0, high - low - 8),),
        )
        own = part(inputs, low, high)
        found = gated_delta(own, of[:, 0], rows)
        kept = own.keys[-8:], found.corrected[-8:], own.decays[-8:]
        for ring, rows_of in zip((rings.keys, rings.corrected, rings.decays), kept, strict=True):
            ring[0, 0] = rows_of
        behind = found.handed[:, None].clone()
        one = DeltaRings(
            keys=rings.keys[:1, :1], corrected=rings.corrected[:1, :1], decays=rings.decays[:1, :1]
        )
        zero = np.zeros(1, dtype=np.int64)
        fold_rings(
            behind, one, DeltaSpans(slots=zero, rings=zero, committed=zero, counts=np.array([8]))
        )
        return found.mixed, behind

    whole, last = run(0, END, state)
    for cut in (CHUNK, CHUNK + 5):
        first, between = run(0, cut, state)
        second, end = run(cut, END, between)
        assert torch.equal(torch.cat((first, second)), whole), cut
        assert torch.equal(end, last), cut
