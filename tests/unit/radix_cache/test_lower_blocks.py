"""Which blocks have rows of layers with a window, in all tiers, and who gets room for them."""

import numpy as np
import pytest

from radix_cache.block_pool import OutOfBlocks
from radix_cache.lower_blocks import LowerBlocks
from radix_cache.nodes import Tier
from radix_cache.transfers import TierBlocks
from radix_cache.tree import RadixTree
from radix_cache.window_rows import WindowRows

DEVICE, HOST, DISK = Tier.DEVICE, Tier.HOST, Tier.DISK


def ids(*numbers: int) -> np.ndarray:
    return np.array(numbers, dtype=np.int32)


def lower_blocks(host: int = 12, near: int = 6, disk: int = 20) -> LowerBlocks:
    windows = WindowRows(num_blocks=30, num_window_blocks=20, block_size=4, window=8, step_tokens=8)
    windows.place[:10] = np.arange(10)
    return LowerBlocks(
        TierBlocks(HOST, host, near_rows=near), TierBlocks(DISK, disk, near_rows=disk), windows
    )


def test_blocks_go_down_with_the_rows_that_they_have() -> None:
    below = lower_blocks()
    sources = ids(12, 3, 13, 5)
    targets = below.take(HOST, DEVICE, sources)
    here, there = below.moving(DEVICE, HOST, sources, targets)
    assert here is not None
    assert there is not None
    assert here.tolist() == [-1, 3, -1, 5]
    assert ((there >= 0) == (here >= 0)).all()
    assert below.held(HOST, targets).tolist() == [False, True, False, True]
    below.check()


def test_where_every_block_has_all_rows_nothing_is_noted() -> None:
    below = LowerBlocks(TierBlocks(HOST, 8), None, None)
    targets = below.take(HOST, DEVICE, ids(1, 2))
    assert below.held(HOST, targets) is None
    assert below.moving(DEVICE, HOST, ids(1, 2), targets) == (None, None)
    assert below.rows_read_from(100) == 0
    below.check()


def test_rows_that_no_place_is_kept_for_get_half_of_the_room_that_nobody_has() -> None:
    below = lower_blocks(near=6)
    first = below.take(HOST, DEVICE, ids(0, 1, 2, 3))
    assert below.held(HOST, first).tolist() == [False, True, True, True]
    second = below.take(HOST, DEVICE, ids(4, 5))
    assert below.held(HOST, second).tolist() == [False, True]
    assert below.held(HOST, first).sum() == 3, "nobody has lost any"


def test_the_disk_has_room_for_all_rows_and_misses_those_that_are_kept() -> None:
    below = lower_blocks()
    targets = below.take(DISK, DEVICE, ids(0, 1, 12, 3))
    assert below.held(DISK, targets).tolist() == [True, True, False, True]
    assert below.kept_rows(DISK, targets).tolist() == [True, True, False, True]
    assert not below.kept_rows(DEVICE, ids(0, 1, 12, 3)).any(), "no place is kept for them"


def test_from_the_disk_come_the_last_rows_and_those_go_that_are_oldest() -> None:
    below = lower_blocks(near=4)
    disk = below.of(DISK)
    stored = disk.take(5)
    disk.give_rows(stored)
    old = below.take(HOST, DISK, stored[:2])
    assert below.held(HOST, old).all()
    new = below.take(HOST, DISK, stored, first_rows=2)
    assert below.held(HOST, new).tolist() == [False, False, True, True, True]
    assert below.held(HOST, old).tolist() == [False, True]
    below.check()


def test_rows_of_blocks_in_use_stay_and_the_last_of_the_new_get_what_is_left() -> None:
    host = TierBlocks(HOST, 8, near_rows=3)
    old = host.take(2)
    host.give_rows(old)
    host.use(old)
    new = host.take(3)
    host.give_rows(new)
    assert (host.near[old] >= 0).all()
    assert (host.near[new] >= 0).tolist() == [False, False, True]
    host.used(old)
    host.release(np.concatenate([old, new]))
    assert host.free_rows == 3
    host.check()
    with pytest.raises(OutOfBlocks):
        host.take(9)


def test_a_prefix_reaches_as_far_as_a_window_has_rows_in_all_tiers() -> None:
    below = lower_blocks()
    tree = RadixTree(4, seed=0, on_idle_leaf=lambda node: None)
    tokens = np.arange(40, dtype=np.int32)
    owner = tree.owner("t")
    device = tree.add_leaf(owner.root, owner, tokens[:16], ids(10, 11, 0, 1))
    targets = below.take(HOST, DEVICE, ids(2, 12, 3))
    host = tree.add_leaf(device, owner, tokens[16:28], targets, tier=HOST)
    stored = below.take(DISK, DEVICE, ids(4, 5))
    disk = tree.add_leaf(host, owner, tokens[28:36], stored, tier=DISK)
    near = [below.held(tier, blocks) for tier, blocks in ((HOST, targets), (DISK, stored))]
    held = [False, False, True, True, *near[0].tolist(), *near[1].tolist()]
    assert below.along(disk, 9).tolist() == held
    assert below.along(disk, 8, 3).tolist() == held[3:8]
    assert below.along(device, 2).tolist() == held[:2]
    plain = max(n for n in range(10) if all(held[max(0, n - 2) : n]))
    assert below.reach(disk, 9) == plain
    assert below.reach(device, 3) == 0
    assert below.reach(device, 4) == 4


def test_rows_of_a_path_are_kept_while_it_is_brought_up() -> None:
    below = lower_blocks(near=4)
    tree = RadixTree(4, seed=0, on_idle_leaf=lambda node: None)
    owner = tree.owner("t")
    path = below.host.take(2)
    below.host.give_rows(path)
    node = tree.add_leaf(owner.root, owner, np.arange(8, dtype=np.int32), path, tier=HOST)
    with below.kept(node, 0):
        others = below.host.take(4)
        below.host.give_rows(others)
        assert (below.host.near[path] >= 0).all()
        assert (below.host.near[others] >= 0).sum() == 2
    last = below.host.take(2)
    below.host.give_rows(last)
    assert (below.host.near[path] < 0).all()
