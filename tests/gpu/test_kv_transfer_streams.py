"""Copies by a stream beside the computing one. They have no interpreter: a GPU is needed."""

import numpy as np
import pytest
import torch

from runtime.model.kv_pool import KVPool
from runtime.model.presets import random_model_config
from runtime.offload.copies import StreamCopies

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")

BLOCKS, ROWS = 64, 48


def ids(*numbers: int) -> np.ndarray:
    return np.array(numbers, dtype=np.int32)


@pytest.fixture
def pool(device: torch.device) -> KVPool:
    pool = KVPool(
        random_model_config("qwen3-tiny"),
        num_blocks=BLOCKS,
        block_size=16,
        dtype=torch.bfloat16,
        device=device,
    )
    pool.blocks.copy_(torch.randn(pool.blocks.shape))
    return pool


def test_a_round_trip_gives_the_same_bits_in_other_blocks(pool: KVPool) -> None:
    before = pool.blocks.clone()
    copies = StreamCopies(pool)
    rows = copies.new_rows(ROWS)
    down = copies.down(ids(4, 5, 6, 40), rows, ids(9, 10, 0, 2))
    pool.blocks[:, :, [4, 5, 6, 40]] = 0  # by the computing stream, after the gathering
    down.wait()
    assert down.done
    up = copies.up(rows, ids(9, 0, 10, 2), ids(7, 8, 3, 63))
    up.settle()
    assert torch.equal(pool.blocks[:, :, [7, 8, 3, 63]], before[:, :, [4, 6, 5, 40]])
    assert up.seconds > 0


def test_what_comes_up_is_put_in_place_after_the_steps_before_it(pool: KVPool) -> None:
    copies = StreamCopies(pool)
    rows = copies.new_rows(ROWS)
    copies.down(ids(1), rows, ids(1)).wait()
    wanted = pool.blocks[:, :, 1].clone()
    work = torch.randn(4096, 4096, device=pool.blocks.device)
    for _ in range(20):
        work = work @ work / 64
    pool.blocks[:, :, 2] = 0  # still under way when the copy is ordered
    up = copies.up(rows, ids(1), ids(2))
    up.wait()
    assert torch.equal(pool.blocks[:, :, 2], wanted)
