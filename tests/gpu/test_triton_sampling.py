"""Triton's draw: the reference's token, whatever the filters, and of no row but its own."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from kernels.dispatch import triton_kernels
from kernels.masked_sampling import (
    NO_TOKEN,
    NOT_FINITE,
    PLACES,
    penalised_reference,
    sample_reference,
)
from tests.support.sampling_batches import make_batch, make_penalties, on_the_edge_of_top_p

ROWS = 12


@pytest.fixture(autouse=True)
def _triton_everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kernels.dispatch.SETTING", "triton")


def drawn(logits: torch.Tensor, batch: object, device: torch.device) -> list[int]:
    kernels = triton_kernels("sampling", logits)
    assert kernels is not None
    tokens: list[int] = kernels.sample(logits.to(device), batch).tolist()
    return tokens


def make_logits(rng: np.random.Generator, rows: int, vocab: int, spread: float) -> torch.Tensor:
    """Random rows, some of them with many ties."""
    logits = torch.from_numpy(rng.normal(size=(rows, vocab)) * spread).float()
    logits[rng.random(rows) < 0.3] = torch.from_numpy(rng.integers(0, 5, vocab)).float()
    return logits


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(("vocab", "spread"), [(1, 1.0), (31, 40.0), (1500, 3.0), (2100, 0.05)])
def test_the_reference_draws_the_same_token(
    seed: int, vocab: int, spread: float, device: torch.device
) -> None:
    rng = np.random.default_rng(seed)
    logits = make_logits(rng, ROWS, vocab, spread)
    batch = make_batch(rng, ROWS, vocab)
    batch = replace(batch, penalties=make_penalties(rng, ROWS, vocab))
    before = logits.clone()
    assert drawn(logits, batch, device) == sample_reference(logits, batch).tolist()
    assert torch.equal(logits, before)


@pytest.mark.parametrize("masked", [True, False])
def test_batches_without_top_k_and_top_p_draw_the_same_as_well(
    masked: bool, device: torch.device
) -> None:
    rng = np.random.default_rng(1)
    logits = make_logits(rng, ROWS, 1200, 2.0)
    batch = make_batch(rng, ROWS, 1200, top_k=0.0, top_p=1.0)
    batch = batch if masked else replace(batch, masks=None)
    assert drawn(logits, batch, device) == sample_reference(logits, batch).tolist()


def test_top_p_is_exact_to_the_unit_of_mass(device: torch.device) -> None:
    logits, batch = on_the_edge_of_top_p(60)
    found = drawn(logits, batch, device)
    assert found == sample_reference(logits, batch).tolist()
    assert set(found[0::2]) == {1, 3}
    assert set(found[1::2]) == {1, 2, 3}


@pytest.mark.parametrize("options", [{"top_k": 2.0, "top_p": 1.0}, {"top_k": 0.0, "top_p": 0.4}])
def test_a_threshold_is_exact_to_the_unit_of_distance(
    options: dict[str, float], device: torch.device
) -> None:
    """Five tokens one unit apart, of which two are kept."""
    rows = 40
    logits = (-torch.tensor([3.0, 0.0, 2.0, 1.0, 4.0]) / (1 << PLACES)).expand(rows, -1)
    batch = make_batch(
        np.random.default_rng(0), rows, 5, temperature=1 / np.log(2), min_p=0.0, **options
    )
    batch.masked[:] = False
    found = drawn(logits, batch, device)
    assert found == sample_reference(logits, batch).tolist()
    assert set(found) == {1, 3}


def test_poisoned_neighbours_and_padding_play_no_part(device: torch.device) -> None:
    rng = np.random.default_rng(2)
    vocab = 1100
    logits = torch.full((5, vocab + 40), torch.nan)
    logits[1:4, :vocab] = make_logits(rng, 3, vocab, 3.0)
    logits[2, 1050] = torch.inf
    batch = make_batch(rng, 3, vocab, temperature=1.0)
    rows = logits[1:4, :vocab]
    kernels = triton_kernels("sampling", rows)
    assert kernels is not None
    found = kernels.sample(logits.to(device)[1:4, :vocab], batch).tolist()
    assert found == sample_reference(rows, batch).tolist()
    assert found[1] == NOT_FINITE
    assert min(found[0], found[2]) >= 0


def test_short_and_empty_masks_allow_what_they_say(device: torch.device) -> None:
    rng = np.random.default_rng(3)
    logits = make_logits(rng, 4, 1100, 3.0)
    batch = make_batch(rng, 4, 1100)
    batch.masked[:] = [True, True, True, False]
    masks = torch.zeros(4, 30, dtype=torch.int32)
    masks[1, 29] = 2
    masks[2] = -1
    batch = replace(batch, masks=masks)
    found = drawn(logits, batch, device)
    assert found == sample_reference(logits, batch).tolist()
    assert found[:2] == [NO_TOKEN, 29 * 32 + 1]
    assert found[2] < 30 * 32


def test_penalties_round_as_the_reference_rounds(device: torch.device) -> None:
    rng = np.random.default_rng(4)
    logits = make_logits(rng, 8, 3000, 3.0)
    penalties = make_penalties(rng, 8, 3000)
    kernels = triton_kernels("sampling", logits)
    assert kernels is not None
    found = kernels.penalised(logits.to(device), penalties).cpu()
    assert torch.equal(found, penalised_reference(logits, penalties))
    assert not torch.equal(found, logits)


def test_seeds_and_positions_of_any_size_draw_the_same(device: torch.device) -> None:
    rng = np.random.default_rng(5)
    rows = 6
    logits = torch.zeros(rows, 4000)
    batch = make_batch(rng, rows, 4000, temperature=1.0, top_k=0.0, top_p=1.0, min_p=0.0)
    seeds = np.array([0, 1, 2**63, 2**64 - 1, 2**32, 77], dtype=np.uint64)
    positions = np.array([0, 2**32, 2**31, 5, 2**62, 2**32 - 1], dtype=np.uint64)
    batch = replace(batch, seeds=seeds, positions=positions, masks=None)
    found = drawn(logits, batch, device)
    assert found == sample_reference(logits, batch).tolist()
    assert len(set(found)) > 3
