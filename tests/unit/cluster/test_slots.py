"""Slots are held by one, the lowest first, and those whose KV is on this host before them."""

import fcntl
import os
from pathlib import Path

import pytest

from cluster.slots import folder_free, lock_first_free, order, slot_folder
from runtime.offload.disk import MARK
from tests.support.clock import FakeClock


class FakeLocks:
    """Locks of one cluster; ``held`` by others."""

    def __init__(self, *held: int) -> None:
        self.held = set(held)
        self.open = 0

    def __call__(self, slot: int) -> "FakeLock":
        self.open += 1
        return FakeLock(self, slot)


class FakeLock:
    def __init__(self, locks: FakeLocks, slot: int) -> None:
        self.locks, self.slot, self.mine = locks, slot, False

    def holds(self) -> bool:
        if not self.mine and self.slot not in self.locks.held:
            self.locks.held.add(self.slot)
            self.mine = True
        return self.mine

    def leave(self) -> None:
        self.locks.open -= 1
        if self.mine:
            self.locks.held.discard(self.slot)


def test_the_lowest_that_is_free_is_taken_and_no_lock_is_left_open() -> None:
    locks = FakeLocks(1, 2)
    found = lock_first_free(range(1, 5), locks)
    assert found is not None
    assert found[0] == 3
    assert (locks.held, locks.open) == ({1, 2, 3}, 1)
    found[1].leave()
    assert (locks.held, locks.open) == ({1, 2}, 0)


def test_where_all_are_held_there_is_none() -> None:
    locks = FakeLocks(1, 2)
    assert lock_first_free([1, 2], locks) is None
    assert locks.open == 0


def test_slots_whose_folder_is_here_come_first(tmp_path: Path) -> None:
    for slot in (4, 2):
        slot_folder(tmp_path, slot).mkdir()
    assert order(range(1, 6), tmp_path) == [2, 4, 1, 3, 5]
    assert order(range(1, 4), None) == [1, 2, 3]


@pytest.fixture
def engine(tmp_path: Path):
    """The lock of an engine that has the folder."""
    file = os.open(tmp_path / MARK, os.O_RDWR | os.O_CREAT, 0o600)
    fcntl.flock(file, fcntl.LOCK_EX)
    yield file
    os.close(file)


def test_a_folder_is_waited_for_until_its_engine_has_ended(tmp_path: Path, engine: int) -> None:
    clock = FakeClock(0.0)

    def pause(seconds: float) -> None:
        clock.advance(seconds)
        if clock.now_s > 3.0:
            fcntl.flock(engine, fcntl.LOCK_UN)

    assert folder_free(tmp_path, clock=clock, pause=pause)
    assert 3.0 < clock.now_s < 3.5


def test_a_folder_is_not_waited_for_for_ever(tmp_path: Path, engine: int) -> None:
    clock = FakeClock(0.0)
    assert not folder_free(tmp_path, clock=clock, pause=clock.advance, wait_s=5.0)
    assert clock.now_s == pytest.approx(5.0, abs=0.2)


def test_one_that_is_not_there_yet_is_free_and_left_as_it_was(tmp_path: Path) -> None:
    assert folder_free(tmp_path / "no", clock=FakeClock(0.0), pause=lambda _: None)
    assert not (tmp_path / "no").exists()
