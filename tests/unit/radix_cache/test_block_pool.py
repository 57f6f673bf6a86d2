"""The block pool against a plain set of ids."""

import random

import numpy as np
import pytest

from radix_cache.block_pool import BlockPool, OutOfBlocks


@pytest.mark.parametrize("seed", range(20))
def test_agrees_with_a_plain_set_under_random_use(seed: int) -> None:
    rng = random.Random(seed)
    pool, held = BlockPool(16), set[int]()
    for _ in range(500):
        if rng.random() < 0.5:
            taken = pool.take(rng.randint(0, pool.num_free)).tolist()
            assert not held & set(taken), "handed out a block in use"
            assert len(set(taken)) == len(taken)
            held.update(taken)
        elif held:
            returned = rng.sample(sorted(held), rng.randint(1, len(held)))
            pool.release(np.array(returned, dtype=np.int32))
            held.difference_update(returned)
        assert pool.num_free == 16 - len(held)
        assert set(pool.free_blocks().tolist()) == set(range(16)) - held


def test_asking_for_more_than_is_free_changes_nothing() -> None:
    pool = BlockPool(4)
    pool.take(3)
    with pytest.raises(OutOfBlocks, match="asked for 2 blocks, 1 are free"):
        pool.take(2)
    assert pool.num_free == 1
    assert pool.take(1).tolist() == [3]


def test_releasing_more_than_is_in_use_changes_nothing() -> None:
    pool = BlockPool(4)
    pool.take(1)
    with pytest.raises(ValueError, match="2 blocks released, 1 are in use"):
        pool.release(np.array([0, 1], dtype=np.int32))
    assert pool.num_free == 3


def test_a_released_run_is_handed_out_again_in_its_order() -> None:
    pool = BlockPool(8)
    pool.take(8)
    pool.release(np.array([2, 3, 4], dtype=np.int32))
    pool.release(np.array([6, 7], dtype=np.int32))
    assert pool.take(2).tolist() == [6, 7]
    assert pool.take(3).tolist() == [2, 3, 4]


def test_a_fresh_pool_hands_out_one_ascending_run() -> None:
    pool = BlockPool(6)
    assert pool.take(2).tolist() + pool.take(4).tolist() == [0, 1, 2, 3, 4, 5]


def test_a_pool_without_blocks_is_refused() -> None:
    with pytest.raises(ValueError, match="at least 1"):
        BlockPool(0)


def test_claimed_ids_are_taken_and_the_others_keep_their_order() -> None:
    pool = BlockPool(6)
    pool.take(1)
    pool.claim(np.array([4, 2], dtype=np.int32))
    assert pool.take(3).tolist() == [1, 3, 5]


def test_an_id_in_use_cannot_be_claimed() -> None:
    pool = BlockPool(3)
    pool.take(2)
    with pytest.raises(ValueError, match="2 blocks claimed, 1 of them are free"):
        pool.claim(np.array([1, 2], dtype=np.int32))
    assert pool.num_free == 1
