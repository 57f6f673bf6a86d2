"""Copies of blocks in main memory: which pieces, and that their bytes lie together below."""

import numpy as np
import torch

from runtime.kv_copies import ThreadCopies, runs
from runtime.kv_pool import KVPool
from runtime.models.presets import random_model_config
from tests.support.executors import AtOnce


def ids(*numbers: int) -> np.ndarray:
    return np.array(numbers, dtype=np.int32)


def test_runs_count_up_on_both_sides() -> None:
    assert list(runs(ids(3, 4, 5, 9, 8), ids(0, 1, 3, 4, 5))) == [
        (3, 0, 2),
        (5, 3, 1),
        (9, 4, 1),
        (8, 5, 1),
    ]
    assert list(runs(ids(), ids())) == []


def test_a_block_lies_in_one_row_layer_by_layer() -> None:
    pool = KVPool(
        random_model_config("qwen3-tiny"),
        num_blocks=6,
        block_size=4,
        dtype=torch.float32,
        device=torch.device("cpu"),
    )
    pool.blocks.copy_(torch.randn(pool.blocks.shape, generator=torch.Generator().manual_seed(0)))
    copies = ThreadCopies(pool, AtOnce())
    rows = copies.new_rows(3)
    copies.down(ids(5, 2), rows, ids(0, 2)).wait()
    for block, row in ((5, 0), (2, 2)):
        expected = pool.blocks[:, :, block].contiguous().flatten()
        assert torch.equal(torch.from_numpy(rows[row]).view(torch.float32), expected)
