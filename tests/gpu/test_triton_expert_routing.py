"""Triton's choice of experts, sorting and adding up against torch's."""

import pytest
import torch

from kernels.dispatch import triton_kernels
from kernels.expert_routing import (
    combined_reference,
    route_reference,
    sorted_picks_reference,
)
from tests.support.routings import ROUTINGS, logits_and_correction


@pytest.fixture(autouse=True)
def _triton_everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kernels.dispatch.SETTING", "triton")


def kernels(device: torch.device):
    found = triton_kernels("expert_routing", torch.zeros(1, device=device))
    assert found is not None
    return found


@pytest.mark.parametrize("corrected", [False, True])
@pytest.mark.parametrize("name", ROUTINGS)
def test_the_experts_of_torch_are_chosen(name: str, corrected: bool, device: torch.device) -> None:
    _, routing = ROUTINGS[name]
    logits, correction = logits_and_correction(name, 9, 2, corrected=corrected)
    wanted = route_reference(logits, correction, routing, torch.float32)
    found = kernels(device).route(
        logits.to(device),
        None if correction is None else correction.to(device),
        routing,
        torch.float32,
    )
    assert torch.equal(found[1].cpu(), wanted[1])
    assert torch.allclose(found[0].cpu(), wanted[0], rtol=1e-5, atol=1e-7)


@pytest.mark.filterwarnings("ignore:(All-NaN|invalid value):RuntimeWarning")  # the interpreter's
@pytest.mark.parametrize("name", ROUTINGS)
def test_numbers_that_are_none_stay_with_their_token(name: str, device: torch.device) -> None:
    experts, routing = ROUTINGS[name]
    logits, correction = logits_and_correction(name, 3, 3, corrected=True)
    assert correction is not None
    clean = kernels(device).route(logits.to(device), correction.to(device), routing, torch.float32)
    logits[1] = torch.nan
    found = kernels(device).route(logits.to(device), correction.to(device), routing, torch.float32)
    assert torch.equal(found[0][[0, 2]].cpu(), clean[0][[0, 2]].cpu())
    assert found[0][1].isnan().all()
    assert bool(((found[1] >= 0) & (found[1] < experts)).all())


@pytest.mark.parametrize(
    ("tokens", "taken", "experts"), [(1, 1, 1), (1, 8, 128), (7, 3, 5), (100, 8, 40), (128, 8, 16)]
)
def test_picks_are_sorted_as_by_torch(
    tokens: int, taken: int, experts: int, device: torch.device
) -> None:
    generator = torch.Generator().manual_seed(tokens)
    chosen = torch.randint(0, experts, (tokens, taken), generator=generator)
    assert kernels(device).sorts(chosen.numel(), experts)
    found = kernels(device).sorted_picks(chosen.to(device), experts)
    for one, other in zip(found, sorted_picks_reference(chosen, experts), strict=True):
        assert torch.equal(one.cpu(), other)


def test_more_picks_than_a_program_sorts_are_left_to_torch(device: torch.device) -> None:
    assert not kernels(device).sorts(1025, 8)
    assert not kernels(device).sorts(0, 8)


@pytest.mark.parametrize("some", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize(("tokens", "taken", "hidden"), [(1, 1, 16), (5, 3, 70), (3, 8, 1500)])
def test_parts_are_added_up_as_by_torch(
    tokens: int, taken: int, hidden: int, dtype: torch.dtype, some: bool, device: torch.device
) -> None:
    generator = torch.Generator().manual_seed(hidden)
    count = tokens * taken
    parts = torch.randn(count, hidden, generator=generator).to(dtype)
    places = torch.randperm(count, generator=generator).view(tokens, taken)
    weights = torch.rand(tokens, taken, generator=generator).to(dtype)
    mine = torch.rand(tokens, taken, generator=generator) < 0.6 if some else None
    if mine is not None:
        parts[places[~mine]] = torch.nan
    wanted = combined_reference(parts.float(), places, weights.float(), mine)
    found = kernels(device).combined(
        parts.to(device),
        places.to(device),
        weights.to(device),
        None if mine is None else mine.to(device),
    )
    limit = 1e-5 if dtype == torch.float32 else 4e-3
    assert torch.allclose(found.cpu().float(), wanted, rtol=limit, atol=limit)
