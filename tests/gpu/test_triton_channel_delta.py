"""Triton's prompts of the delta rule by channel against the reference, and the bits of prompts that
are cut."""

from dataclasses import fields, replace

import numpy as np
import pytest
import torch

from kernels.delta_rows import DeltaRows
from kernels.gated_delta import DeltaInputs, DeltaOutputs, gated_delta, gated_delta_reference
from tests.support.delta_steps import SHAPES, close, drawn


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


def test_a_prompt_cut_at_a_chunk_has_the_bits_of_the_whole(device: torch.device) -> None:
    inputs, matrices, _ = drawn(SHAPES[1], 150, corrects=True, by_channel=True, device=device)

    def play(low: int, high: int, before: torch.Tensor) -> DeltaOutputs:
        rows = DeltaRows(
            slots=np.array([0]),
            starts=np.array([0, high - low]),
            positions=np.array([20 + low]),
            handed=((0, high - low),),
        )
        return gated_delta(part(inputs, low, high), before, rows)

    whole = play(0, 150, matrices[2:3, 1])
    for cut in (44, 108):  # positions 64 and 128
        first = play(0, cut, matrices[2:3, 1])
        second = play(cut, 150, first.handed)
        assert torch.equal(torch.cat([first.mixed, second.mixed]), whole.mixed)
        assert torch.equal(torch.cat([first.corrected, second.corrected]), whole.corrected)
        assert torch.equal(second.handed, whole.handed)


def test_numbers_that_one_token_forgets_cost_those_behind_it_no_digits(
    device: torch.device,
) -> None:
    """Sums of logarithms are so large behind it that their differences would have few left."""
    inputs, matrices, _ = drawn(SHAPES[1], 60, corrects=True, by_channel=True, device=device)
    inputs.decays.mul_(0.01)
    inputs.decays[3, :, ::2] = -30000.0
    rows = DeltaRows(
        slots=np.array([1]),
        starts=np.array([0, 60]),
        positions=np.array([0]),
        handed=((0, 50),),
    )
    wanted = gated_delta_reference(inputs, matrices[:, 1], rows)
    found = gated_delta(inputs, matrices[:, 1], rows)
    for each in fields(wanted):
        assert close(getattr(found, each.name), getattr(wanted, each.name)), each.name
