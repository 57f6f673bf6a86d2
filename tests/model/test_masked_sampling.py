"""The law of sampling: the compiled way against the reference, and what masks mean."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from kernels.masked_sampling import (
    FARTHEST,
    MASS_BITS,
    NO_TOKEN,
    NOT_FINITE,
    PLACES,
    SHARE_BITS,
    WholeNumbers,
    allowed_tokens,
    mass_of,
    position_bits,
    sample,
    sample_reference,
)
from kernels.native_sampling import native_sampler
from tests.support.sampling_batches import make_batch, make_penalties, on_the_edge_of_top_p


@pytest.mark.samples(33)
@pytest.mark.parametrize("seed", range(25))
@pytest.mark.parametrize("spread", [0.1, 3.0, 40.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_compiled_way_draws_what_the_reference_draws(
    seed: int, spread: float, dtype: torch.dtype
) -> None:
    rng = np.random.default_rng(seed)
    vocab = int(rng.choice([1, 31, 257, 3000]))
    logits = torch.from_numpy(rng.normal(size=(30, vocab)) * spread).to(dtype)
    logits[rng.random(30) < 0.2] = torch.from_numpy(rng.integers(0, 4, vocab)).to(dtype)
    logits[3, vocab // 2] = torch.nan
    batch = make_batch(rng, 30, vocab)
    batch = replace(batch, penalties=make_penalties(rng, 30, vocab))
    before = logits.clone()
    expected = sample_reference(logits, batch)
    assert torch.equal(sample(logits, batch), expected)
    assert torch.equal(logits.nan_to_num(7), before.nan_to_num(7))
    assert expected[3] == NOT_FINITE


def test_a_row_of_a_wider_tensor_is_read_in_its_place() -> None:
    rng = np.random.default_rng(0)
    wide = torch.from_numpy(rng.normal(size=(20, 300)).astype(np.float32))
    batch = make_batch(rng, 10, 200)
    for part in (wide[::2, :200], wide.T[:10, ::2].T[:10, :].expand(10, -1)):
        vocab = part.shape[1]
        own = make_batch(rng, 10, vocab) if vocab != 200 else batch
        assert torch.equal(sample(part, own), sample_reference(part, own))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("masked", [False, True])
def test_each_of_equal_tokens_has_its_own_random_bits(dtype: torch.dtype, masked: bool) -> None:
    """The first and the last bits of tokens at the ends of the compiled way's blocks."""
    draw = native_sampler(dtype)
    if draw is None:
        pytest.skip("no compiled library")
    vocab = 4096
    wanted = [0, 1, 1023, 1024, 2047, 2048, 4094, 4095]
    share = 1 << (SHARE_BITS - 12)
    bits = [token * share for token in wanted] + [(token + 1) * share - 1 for token in wanted]
    none = np.zeros(len(bits), dtype=np.int64)
    drawn = draw(
        torch.ones(len(bits), vocab, dtype=dtype),
        scales=np.ones(len(bits), dtype=np.float32),
        top_k=none,
        top_p=none,
        least_mass=none,
        bits=np.array(bits, dtype=np.uint64),
        masks=torch.full((len(bits), vocab // 32), -1, dtype=torch.int32),
        masked=np.full(len(bits), masked),
    )
    assert drawn.tolist() == wanted * 2


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("masked", [False, True])
def test_the_least_mass_is_enough_and_a_unit_less_is_not(dtype: torch.dtype, masked: bool) -> None:
    draw = native_sampler(dtype)
    if draw is None:
        pytest.skip("no compiled library")
    logits = torch.full((2, 64), -1e30, dtype=dtype)
    logits[:, 3], logits[:, 40] = 0.0, -1.0
    half, none = 1 << (MASS_BITS - 1), np.zeros(2, dtype=np.int64)
    drawn = draw(
        logits,
        scales=np.ones(2, dtype=np.float32),
        top_k=none,
        top_p=none,
        least_mass=np.array([half, half + 1]),
        bits=np.full(2, (1 << SHARE_BITS) - 1, dtype=np.uint64),
        masks=torch.full((2, 2), -1, dtype=torch.int32),
        masked=np.full(2, masked),
    )
    assert drawn.tolist() == [40, 3]


def test_mass_halves_with_each_unit_of_distance() -> None:
    distances = torch.randint(0, FARTHEST << PLACES, (100_000,))
    distances = torch.cat((distances, torch.arange(3), torch.tensor([FARTHEST << PLACES])))
    exact = 2.0**MASS_BITS * 2.0 ** -(distances.double() / 2**PLACES)
    mass = mass_of(distances)
    assert ((mass - exact).abs() <= 1e-7 * exact + 1).all()
    assert mass_of(torch.tensor([0, FARTHEST << PLACES])).tolist() == [2**MASS_BITS, 0]


def test_tokens_that_tie_at_a_threshold_stay_or_go_together() -> None:
    logits = torch.tensor([[1.0, 2.0, 2.0, 0.0]], dtype=torch.float64).expand(300, -1)
    rng = np.random.default_rng(0)
    for fixed in ({"top_k": 1.0, "top_p": 1.0}, {"top_k": 0.0, "top_p": 0.1}):
        batch = make_batch(rng, 300, 4, temperature=1.0, min_p=0.0, **fixed)
        batch.masked[:] = False
        assert set(sample(logits, batch).tolist()) == {1, 2}


def test_top_p_is_exact_to_the_unit_of_mass() -> None:
    logits, batch = on_the_edge_of_top_p(400)
    assert set(sample(logits, batch)[0::2].tolist()) == {1, 3}
    assert set(sample(logits, batch)[1::2].tolist()) == {1, 2, 3}
    assert torch.equal(sample(logits, batch), sample_reference(logits, batch))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_only_tokens_that_have_mass_are_drawn(dtype: torch.dtype) -> None:
    logits = torch.full((500, 1000), -1e30, dtype=dtype)
    logits[:, [300, 301, 600]] = torch.tensor([0.1, 0.2, 0.3], dtype=dtype)
    rng = np.random.default_rng(0)
    batch = make_batch(rng, 500, 1000, temperature=1.0, top_k=0.0, top_p=1.0, min_p=0.0)
    batch.masked[:] = False
    assert set(sample(logits, batch).tolist()) == {300, 301, 600}


def test_masks_are_read_bit_by_bit_and_end_where_they_end() -> None:
    words = torch.tensor([[1 | 1 << 31, 2]], dtype=torch.int64).to(torch.int32)
    allowed = allowed_tokens(words, 80)
    assert allowed[0].nonzero().flatten().tolist() == [0, 31, 33]
    assert allowed_tokens(words, 32).shape == (1, 32)
    batch = make_batch(np.random.default_rng(0), 2, 80, temperature=0.0)
    batch.masked[:] = True
    batch = replace(batch, masks=words.expand(2, -1))
    logits = torch.arange(80.0).expand(2, -1)
    assert sample(logits, batch).tolist() == [33, 33]


def test_a_row_whose_mask_is_empty_gives_no_token() -> None:
    rng = np.random.default_rng(0)
    batch = make_batch(rng, 2, 64)
    batch.masked[:] = True
    assert batch.masks is not None
    batch.masks[0] = 0
    batch.masks[1] = -1
    tokens = sample(torch.zeros(2, 64), batch)
    assert tokens[0] == NO_TOKEN
    assert tokens[1] >= 0


def test_few_rows_have_the_random_bits_that_many_have() -> None:
    rng = np.random.default_rng(3)
    seeds = rng.integers(0, 2**64, 64, dtype=np.uint64)
    positions = rng.integers(0, 2**64, 64, dtype=np.uint64)
    seeds[:2], positions[:2] = (0, 2**64 - 1), (2**64 - 1, 0)
    many = position_bits(seeds, positions)
    for count in (1, 7, 8, 9):
        assert (position_bits(seeds[:count], positions[:count]) == many[:count]).all()


def test_the_same_parameters_twice_are_the_same_whole_numbers_and_others_are_not() -> None:
    rng = np.random.default_rng(0)
    batch = make_batch(rng, 4, 64, temperature=0.5)
    first, again = (WholeNumbers.of(batch, 64) for _ in range(2))
    other = WholeNumbers.of(replace(batch, temperature=batch.temperature * 2), 64)
    assert (first.scales == again.scales).all()
    assert (first.scales == 2 * other.scales).all()
    assert WholeNumbers.of(replace(batch, top_k=np.full(4, 64)), 64).top_k.tolist() == [0] * 4
    assert WholeNumbers.of(replace(batch, top_k=np.full(4, 64)), 65).top_k.tolist() == [64] * 4


def test_random_bits_are_even_and_differ_by_seed_and_position() -> None:
    positions = np.arange(20000, dtype=np.uint64)
    values = position_bits(np.full(20000, 9, dtype=np.uint64), positions)
    counts, _ = np.histogram(values, bins=20, range=(0, 2**SHARE_BITS))
    assert counts.min() > 850
    assert counts.max() < 1150
    assert len(np.unique(values)) == 20000
    other = position_bits(np.full(20000, 10, dtype=np.uint64), positions)
    assert not (values == other).any()
