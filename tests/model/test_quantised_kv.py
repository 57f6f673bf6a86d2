"""Rows in 8 bits: how near they stay, and what damage does not spread."""

import pytest
import torch

from kernels.kv_write import write_kv
from kernels.native_library import native_library
from kernels.quantised_kv import (
    FP8,
    SCALE_BYTES,
    fp8_parts,
    quantise_fp8,
    quantise_rows,
    row_size,
    widen_rows,
    widened,
)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("head_dim", [1, 16, 63, 128])
def test_a_number_is_off_by_at_most_half_a_step(dtype: torch.dtype, head_dim: int) -> None:
    rows = (torch.randn(5, 3, head_dim) * torch.logspace(-3, 3, 3)[:, None]).to(dtype)
    kept = quantise_rows(rows)
    assert (kept.dtype, kept.shape) == (torch.int8, (5, 3, head_dim + SCALE_BYTES))
    step = rows.double().abs().amax(-1, keepdim=True) / 127
    off = (widen_rows(kept, torch.float64) - rows.double()).abs()
    assert (off <= step * (0.5 + 1e-4)).all()


def test_zeros_stay_zero() -> None:
    assert not widen_rows(quantise_rows(torch.zeros(4, 8)), torch.float32).any()


@pytest.mark.parametrize("poison", [torch.nan, torch.inf, -torch.inf])
def test_a_row_that_is_not_finite_comes_back_as_nan_and_alone(poison: float) -> None:
    rows = torch.randn(3, 8)
    rows[1, 2] = poison
    back = widen_rows(quantise_rows(rows), torch.float32)
    assert back[1].isnan().all()
    assert back[[0, 2]].isfinite().all()


def test_rows_in_either_form_widen() -> None:
    rows = torch.randn(3, 8, dtype=torch.bfloat16)
    assert torch.equal(widened(rows, torch.float32), rows.float())
    kept = quantise_rows(rows)
    assert torch.equal(widened(kept, torch.float32), widen_rows(kept, torch.float32))
    assert row_size(8, torch.bfloat16) == rows.shape[1]
    assert row_size(8, torch.int8) == kept.shape[1]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize(("tokens", "head_dim"), [(1, 64), (7, 20), (300, 128)])
def test_the_compiled_way_writes_the_same_bytes(
    dtype: torch.dtype, tokens: int, head_dim: int
) -> None:
    library = native_library(dtype)
    if library is None:
        pytest.skip("no C++ compiler here")
    kv_heads, block_size = 3, 4
    rows = torch.randn(kv_heads, tokens, head_dim).to(dtype)
    rows[0, 0, 1] = torch.inf
    rows[1, 0] = 0
    rows[2, tokens - 1, 0] = torch.nan
    slots = torch.randperm(tokens + 20)[:tokens]
    blocks = torch.full((-(-(tokens + 20) // block_size), kv_heads, block_size, head_dim + 4), 3)
    blocks = blocks.to(torch.int8)
    library.write_int8(rows, slots, blocks)

    expected = torch.full_like(blocks, 3)
    kept = quantise_rows(rows.transpose(0, 1))
    expected[slots // block_size, :, slots % block_size] = kept
    whole = rows.isfinite().all(-1).transpose(0, 1)
    at = slots // block_size, slice(None), slots % block_size
    assert torch.equal(blocks[at][whole], expected[at][whole])
    assert widen_rows(blocks[at], torch.float32)[~whole].isnan().all()
    blocks[at] = expected[at]
    assert torch.equal(blocks, expected)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("head_dim", [16, 128])
def test_a_number_in_fp8_is_off_by_at_most_half_a_step(dtype: torch.dtype, head_dim: int) -> None:
    rows = (torch.randn(4, 2, 16, head_dim) * torch.logspace(-3, 3, 16)[:, None]).to(dtype)
    blocks = fp8_blocks(rows)
    off = (widened(blocks, torch.float64) - rows.double()).abs()
    largest = rows.double().abs().amax(-1, keepdim=True)
    # Three binary places of the number, or of the smallest one with as many, 2 ** -6 of 448.
    step = torch.maximum(rows.double().abs(), largest / 448 / 64) / 16
    assert (off <= step * (1 + 1e-5)).all()
    assert (off[..., :] > 0).any()


@pytest.mark.parametrize("poison", [torch.nan, torch.inf, -torch.inf])
def test_an_fp8_row_that_is_not_finite_comes_back_as_nan_and_alone(poison: float) -> None:
    rows = torch.randn(1, 2, 4, 8)
    rows[0, 1, 2, 3] = poison
    rows[0, 0, 0] = 0
    back = widened(fp8_blocks(rows), torch.float32)
    assert back[0, 1, 2].isnan().all()
    assert back.isnan().sum() == 8
    assert not back[0, 0, 0].any()


def test_written_fp8_slots_hold_what_was_written_and_the_others_what_they_held() -> None:
    blocks = torch.full((3, 2, 4, 12), 0x7F, dtype=torch.uint8).view(FP8)
    keys, values = torch.randn(2, 5, 2, 8)
    slots = torch.tensor([11, 0, 6, 7, 1])
    other = blocks.clone()
    write_kv(keys, values, blocks, other, slots)
    for pool, given in ((blocks, keys), (other, values)):
        at = slots // 4, slice(None), slots % 4
        assert torch.allclose(widened(pool, torch.float32)[at], given, rtol=0.07, atol=0.02)
        left = torch.ones(3, 4, dtype=torch.bool)
        left[at[0], at[2]] = False
        for part in fp8_parts(pool):
            bytes_left = part.transpose(1, 2)[left].contiguous().view(torch.uint8)
            assert (bytes_left == 0x7F).all()


def fp8_blocks(rows: torch.Tensor) -> torch.Tensor:
    """Blocks that hold ``rows`` [..., block_size, head_dim]."""
    blocks = torch.zeros(*rows.shape[:-1], rows.shape[-1] + SCALE_BYTES).to(FP8)
    for part, new in zip(fp8_parts(blocks), quantise_fp8(rows), strict=True):
        part.copy_(new)
    return blocks
