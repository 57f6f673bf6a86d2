"""The way between a simulated device and its host memory."""

import numpy as np
import pytest

from benchmarks.host_link import HostLink
from radix_cache.nodes import Tier
from radix_cache.transfers import BlockMove


def move(blocks: list[int], source: Tier = Tier.HOST, target: Tier = Tier.DEVICE) -> BlockMove:
    ids = np.array(blocks, dtype=np.int32)
    return BlockMove(
        number=1,
        source=source,
        target=target,
        source_blocks=ids,
        target_blocks=ids,
        content=None,
    )


def test_blocks_arrive_one_order_after_the_other() -> None:
    now = 1.0
    link = HostLink(8, block_s=0.5, clock=lambda: now)
    link.move(move([0, 1]))
    link.move(move([2]))
    assert link.free_s == pytest.approx(2.5)
    assert not link.arrived(np.array([1], dtype=np.int32))
    assert link.arrived(np.array([5], dtype=np.int32))
    now = 2.0
    assert link.arrived(np.array([0, 1], dtype=np.int32))
    assert not link.arrived(np.array([0, 2], dtype=np.int32))
    now = 2.5
    assert link.arrived(np.array([0, 1, 2], dtype=np.int32))


def test_what_leaves_delays_nothing() -> None:
    link = HostLink(8, block_s=0.5, clock=lambda: 0.0)
    link.move(move([3], source=Tier.DEVICE, target=Tier.HOST))
    assert link.free_s == 0.0
