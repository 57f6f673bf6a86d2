"""The law of sampling: the quick way against the reference, and what masks mean."""

import numpy as np
import pytest
import torch

from kernels.masked_sampling import (
    NO_TOKEN,
    SamplingBatch,
    allowed_tokens,
    position_uniform,
    sample,
    sample_reference,
)


def make_batch(rng: np.random.Generator, rows: int, vocab: int, **fixed: float) -> SamplingBatch:
    def choose(name: str, options: list[float]) -> np.ndarray:
        return np.array([fixed.get(name, rng.choice(options)) for _ in range(rows)])

    masks = rng.integers(-(1 << 31), 1 << 31, (rows, -(-vocab // 32)), dtype=np.int64)
    return SamplingBatch(
        temperature=choose("temperature", [0, 0.3, 1, 3]),
        top_k=choose("top_k", [0, 1, 5, 100, 10**6]).astype(np.int64),
        top_p=choose("top_p", [1, 0.95, 0.5, 1e-6]),
        min_p=choose("min_p", [0, 0.01, 0.5]),
        uniform=rng.random(rows),
        masks=torch.from_numpy(masks.astype(np.int32)),
        masked=rng.random(rows) < 0.5,
    )


@pytest.mark.parametrize("seed", range(25))
@pytest.mark.parametrize("spread", [0.1, 3.0, 40.0])
def test_the_quick_way_draws_what_the_reference_draws(seed: int, spread: float) -> None:
    rng = np.random.default_rng(seed)
    vocab = int(rng.choice([1, 31, 257, 3000]))
    logits = torch.from_numpy(rng.normal(size=(30, vocab)) * spread)
    batch = make_batch(rng, 30, vocab)
    assert torch.equal(sample(logits, batch), sample_reference(logits, batch))


def test_tokens_that_tie_at_a_threshold_stay_or_go_together() -> None:
    logits = torch.tensor([[1.0, 2.0, 2.0, 0.0]], dtype=torch.float64).expand(300, -1)
    rng = np.random.default_rng(0)
    for fixed in ({"top_k": 1.0, "top_p": 1.0}, {"top_k": 0.0, "top_p": 0.1}):
        batch = make_batch(rng, 300, 4, temperature=1.0, min_p=0.0, **fixed)
        batch.masked[:] = False
        assert set(sample(logits, batch).tolist()) == {1, 2}


@pytest.mark.parametrize("uniform", [0.0, 0.5, 1 - 2.0**-53])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_ends_of_the_unit_interval_draw_a_token_that_has_mass(
    uniform: float, dtype: torch.dtype
) -> None:
    logits = torch.full((1, 1000), -torch.inf, dtype=dtype)
    logits[0, [300, 301, 600]] = torch.tensor([0.1, 0.2, 0.3], dtype=dtype)
    batch = make_batch(
        np.random.default_rng(0), 1, 1000, temperature=1.0, top_k=0.0, top_p=1.0, min_p=0.0
    )
    batch.masked[:] = False
    batch.uniform[:] = uniform
    assert int(sample(logits, batch)) in (300, 301, 600)


def test_masks_are_read_bit_by_bit_and_end_where_they_end() -> None:
    words = torch.tensor([[1 | 1 << 31, 2]], dtype=torch.int64).to(torch.int32)
    allowed = allowed_tokens(words, 80)
    assert allowed[0].nonzero().flatten().tolist() == [0, 31, 33]
    assert allowed_tokens(words, 32).shape == (1, 32)


def test_a_row_whose_mask_is_empty_gives_no_token() -> None:
    rng = np.random.default_rng(0)
    batch = make_batch(rng, 2, 64)
    batch.masked[:] = True
    assert batch.masks is not None
    batch.masks[0] = 0
    batch.masks[1] = -1
    tokens = sample(torch.zeros(2, 64), batch)
    assert tokens[0] == NO_TOKEN
    assert tokens[1] != NO_TOKEN


def test_uniform_numbers_are_even_and_differ_by_seed_and_position() -> None:
    positions = np.arange(20000, dtype=np.uint64)
    values = position_uniform(np.full(20000, 9, dtype=np.uint64), positions)
    counts, _ = np.histogram(values, bins=20, range=(0, 1))
    assert counts.min() > 850
    assert counts.max() < 1150
    assert len(np.unique(values)) == 20000
    other = position_uniform(np.full(20000, 10, dtype=np.uint64), positions)
    assert not (values == other).any()
