"""Places where others are expected to begin: whose go first, and what is left of one that is partly
below the device."""

import numpy as np
import pytest

from radix_cache.handle import BranchHandle
from radix_cache.nodes import LEASED, Owner
from radix_cache.tree import RadixTree
from radix_cache.window_points import WindowPoints


def ids(*numbers: int) -> np.ndarray:
    return np.array(numbers, dtype=np.int32)


class Noted:
    """Points of twenty blocks, and what they have said of them."""

    def __init__(self) -> None:
        self.kept: list[int] = []
        self.left: list[int] = []
        self.points = WindowPoints(20, on_kept=self.kept.extend, on_left=self.left.extend)
        tree = RadixTree(4, seed=0, on_idle_leaf=lambda node: None)
        self.owners: dict[str, Owner] = {name: tree.owner(name) for name in ("red", "blue")}

    def handle(self, name: str, owner: str = "red") -> BranchHandle:
        return BranchHandle(name, self.owners[owner])


def test_a_place_is_kept_with_its_blocks_until_it_is_let_go() -> None:
    noted = Noted()
    points, handle = noted.points, noted.handle("a")
    points.move_end(handle, ids(4, 5, 6))
    assert noted.kept == [4, 5, 6]
    points.move_end(handle, ids(6, 7))
    assert noted.left == [4, 5, 6]
    assert points.kept[[4, 5, 6, 7]].tolist() == [0, 0, 1, 1]
    points.check()
    points.end_left(handle)
    points.end_left(handle)
    assert not points.kept.any()
    points.check()


def test_the_first_to_go_is_of_the_lowest_class_then_of_who_has_most_then_the_oldest() -> None:
    noted = Noted()
    points = noted.points
    assert points.first_to_go() is None
    leased = noted.handle("leased")
    leased.klass = LEASED
    points.move_end(leased, ids(1))
    mine = points.add(ids(2), noted.owners["blue"], None)
    older, newer = noted.handle("older"), noted.handle("newer")
    first = points.move_end(older, ids(3))
    points.move_end(newer, ids(4))
    assert points.first_to_go() is first
    assert points.used(3, older)
    assert points.first_to_go() is not first
    for _ in range(2):
        point = points.first_to_go()
        assert point is not None
        points.let_go(point)
    points.let_go(mine)
    point = points.first_to_go()
    assert point is not None
    assert point.handle is leased


def test_a_place_serves_its_branch_or_if_it_is_nobodys_any_of_its_tenant() -> None:
    noted = Noted()
    points, mine, other = noted.points, noted.handle("mine"), noted.handle("other")
    points.move_end(mine, ids(3, 4))
    assert points.used(4, mine)
    assert not points.used(4, other)
    assert not points.for_any(4)
    points.add(ids(3, 4), mine.owner, None)
    assert points.used(4, other)
    assert not points.used(4, noted.handle("else", "blue"))
    assert points.for_any(4)


def test_of_a_place_that_goes_down_the_rest_stays() -> None:
    noted = Noted()
    points, handle = noted.points, noted.handle("a")
    points.move_end(handle, ids(3, 4, 5, 6))
    points.went_down(ids(5, 6))
    points.check()
    assert noted.left == [5, 6]
    assert points.kept[[3, 4, 5, 6]].tolist() == [1, 1, 0, 0]
    assert not points.used(4, handle), "no sequence begins behind what is left"
    assert not points.for_any(4)
    points.went_down(ids(4))
    points.went_down(ids(3))
    assert points.first_to_go() is None
    points.move_end(handle, ids(8))
    points.check()


def test_a_place_goes_whose_rest_loses_its_rows() -> None:
    noted = Noted()
    points, handle = noted.points, noted.handle("a")
    points.move_end(handle, ids(3, 4, 5, 6))
    points.went_down(ids(6))
    points.freed(ids(5))
    assert points.first_to_go() is None
    assert not points.kept.any()


def test_a_check_tells_what_does_not_agree() -> None:
    noted = Noted()
    noted.points.move_end(noted.handle("a"), ids(3, 4))
    noted.points.kept[9] = 1
    with pytest.raises(AssertionError, match="blocks kept for no resume point"):
        noted.points.check()
