"""Keys and values land in their slots and nowhere else."""

import pytest
import torch

from kernels.kv_write import write_kv, write_kv_reference, write_rows
from kernels.quantised_kv import FP8, SCALE_BYTES, quantise_rows, row_size, widened


@pytest.mark.parametrize("write", [write_kv, write_kv_reference])
def test_each_token_lands_in_its_slot_and_nothing_else_changes(write) -> None:
    blocks, block_size, heads, dim = 3, 4, 2, 5
    keys, values = torch.randn(2, 3, heads, dim).unbind()
    slots = torch.tensor([9, 2, 0])
    k_blocks = torch.full((blocks, heads, block_size, dim), torch.nan)
    v_blocks = k_blocks.clone()

    write(keys, values, k_blocks, v_blocks, slots)

    assert torch.equal(k_blocks[2, :, 1], keys[0])
    assert torch.equal(v_blocks[0, :, 2], values[1])
    assert torch.equal(v_blocks[0, :, 0], values[2])
    for written in (k_blocks, v_blocks):
        untouched = written.isnan().transpose(1, 2).flatten(2).all(-1)
        assert untouched.sum() == blocks * block_size - 3


def test_rows_in_8_bits_land_in_their_slots() -> None:
    keys, values = torch.randn(2, 3, 2, 6).unbind()
    slots = torch.tensor([9, 2, 0])
    blocks = [torch.zeros(3, 2, 4, 6 + SCALE_BYTES, dtype=torch.int8) for _ in range(2)]
    write_kv(keys, values, *blocks, slots)
    for given, written in zip((keys, values), blocks, strict=True):
        assert torch.equal(written[slots // 4, :, slots % 4], quantise_rows(given))
        assert written.transpose(1, 2).flatten(2).any(-1).sum() == 3


@pytest.mark.parametrize("dtype", [torch.float32, torch.int8, FP8])
def test_rows_that_are_keys_and_values_are_stored_once(dtype: torch.dtype) -> None:
    rows, slots = torch.randn(3, 1, 6), torch.tensor([9, 2, 0])
    shape = 3, 1, 4, row_size(6, dtype)
    blocks, others = (torch.zeros(shape).to(dtype) for _ in range(2))
    write_rows(rows, blocks, slots)
    write_kv(rows, rows, others, others.clone(), slots)
    assert torch.equal(widened(blocks, torch.float32), widened(others, torch.float32))
    with pytest.raises(ValueError, match="do not fit blocks"):
        write_rows(rows[..., :5], blocks, slots)


def test_shapes_that_do_not_fit_are_refused() -> None:
    k_blocks = torch.zeros(2, 2, 4, 5)
    with pytest.raises(ValueError, match="do not fit blocks"):
        write_kv(torch.zeros(1, 3, 5), torch.zeros(1, 3, 5), k_blocks, k_blocks, torch.tensor([0]))
