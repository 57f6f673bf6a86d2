"""Blocks of a lower tier: free, held, or still used by an order."""

import numpy as np
import pytest

from radix_cache.block_pool import OutOfBlocks
from radix_cache.nodes import Tier
from radix_cache.transfers import TierBlocks


def test_a_block_given_up_during_an_order_is_free_when_it_is_over() -> None:
    blocks = TierBlocks(Tier.HOST, 8)
    taken = blocks.take(4)
    blocks.use(taken[:2])
    blocks.release(taken)
    assert blocks.num_free == 6
    assert sorted(blocks.unheld_blocks().tolist()) == list(range(8))
    blocks.used(taken[:2])
    assert blocks.num_free == 8


def test_a_block_kept_during_an_order_stays_held() -> None:
    blocks = TierBlocks(Tier.DISK, 4)
    taken = blocks.take(2)
    blocks.use(taken)
    blocks.used(taken)
    assert blocks.num_free == 2
    assert not set(blocks.unheld_blocks().tolist()) & set(taken.tolist())


def test_claimed_blocks_are_not_handed_out() -> None:
    blocks = TierBlocks(Tier.DISK, 6)
    blocks.claim(np.array([4, 1], dtype=np.int32))
    assert sorted(blocks.take(4).tolist()) == [0, 2, 3, 5]
    with pytest.raises(OutOfBlocks):
        blocks.take(1)


def test_claiming_a_block_in_use_changes_nothing() -> None:
    blocks = TierBlocks(Tier.DISK, 4)
    used = blocks.take(1)
    with pytest.raises(ValueError, match="1 of them are free"):
        blocks.claim(np.array([int(used[0]), 3], dtype=np.int32))
    assert blocks.num_free == 3
