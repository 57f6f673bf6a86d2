"""Copies that are under way: what they touch, and the checksums of what they bring."""

import random
from concurrent.futures import Future
from typing import Any

import numpy as np
import pytest
import torch

from runtime.model.kv_pool import PoolPart
from runtime.offload.copies import ThreadCopies
from runtime.offload.flights import Flight, KindOfRows, Leg
from tests.support.executors import AtOnce, Later


def ids(*numbers: int) -> np.ndarray:
    return np.array(numbers, dtype=np.int32)


def part(blocks: int = 8, rows: int = 6, worker: Any = None) -> KindOfRows:
    group = torch.arange(blocks * 16, dtype=torch.float32).view(1, 1, blocks, 1, 4, 4).clone()
    copies = ThreadCopies(PoolPart(groups=(group,)), worker or AtOnce())
    return KindOfRows(copies, num_rows=rows, written=0)


def done(value: bool = True) -> "Future[bool]":
    future: Future[bool] = Future()
    future.set_result(value)
    return future


def flight(*legs: Leg, check: "Future[bool] | None" = None) -> Flight:
    copies = [leg.part.copies.down(leg.blocks, leg.rows, leg.places) for leg in legs]
    return Flight(list(legs), copies, check or done(), "device_host", arriving=False)


def leg(of: KindOfRows, blocks: np.ndarray, places: np.ndarray) -> Leg:
    return Leg(of, of.rows, blocks, places)


def test_a_flight_touches_blocks_of_its_own_kind_alone() -> None:
    main, near = part(), part()
    both = flight(leg(main, ids(1, 2), ids(3, 4)), leg(near, ids(5), ids(0)))
    assert both.touches(main, ids(7, 2))
    assert not both.touches(main, ids(5))
    assert both.touches(near, np.array([[0, 5], [1, 1]], dtype=np.int32))
    assert not both.touches(near, ids(1))
    assert not both.touches(near, None)
    assert not both.touches(None, ids(5))


def test_a_flight_uses_rows_of_the_memory_that_it_goes_to() -> None:
    main, near = part(), part()
    one = flight(leg(main, ids(1, 2), ids(3, 4)))
    assert one.uses(leg(main, ids(7), ids(4)))
    assert not one.uses(leg(main, ids(1), ids(0)))
    assert not one.uses(leg(near, ids(1), ids(3)))
    assert not one.uses(Leg(main, main.staging(4), ids(1), ids(3)))


def test_rows_that_came_down_are_summed_but_for_those_on_their_way_to_the_disk() -> None:
    kind = part()
    came = leg(kind, ids(1, 2), ids(3, 4))
    flight(came).wait()
    assert came.seal()
    assert came.intact()
    passing = Leg(kind, kind.staging(2), ids(1, 2), ids(0, 1))
    assert not passing.settled
    assert passing.seal()
    kind.rows[4, 0] ^= 1
    assert not came.intact()
    assert came.num_bytes == 2 * kind.row_bytes == 2 * 16 * 4


def test_a_flight_is_over_when_all_its_copies_are() -> None:
    later = Later(random.Random(0))
    one, other = part(), part(worker=later)
    both = flight(leg(one, ids(0), ids(0)), leg(other, ids(1), ids(1)))
    assert later.num_waiting == 1
    both.wait()
    assert later.num_waiting == 0
    assert both.done
    assert both.seconds >= 0.0
    both.settle()
    assert np.array_equal(other.rows[1].view(np.float32), np.arange(16, 32, dtype=np.float32))


def test_memory_counts_as_far_as_it_was_written() -> None:
    kind = part()
    assert kind.memory_bytes == 0
    kind.note(ids(2, 1))
    kind.note(ids())
    kind.note(ids(0))
    assert kind.memory_bytes == 3 * kind.row_bytes


@pytest.mark.parametrize("counts", [(10, 90), (90, 10)])
def test_the_largest_staging_rows_are_used_again(counts: tuple[int, int]) -> None:
    kind = part()
    first, second = (kind.staging(count) for count in counts)
    kind.give_back(first)
    kind.give_back(second)
    assert kind.staging(90) is max(first, second, key=len)
    assert len(kind.staging(200)) == 200
