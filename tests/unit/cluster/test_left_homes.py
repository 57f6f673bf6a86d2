"""Homes of who left a slot go to who comes to it next, once, and not for ever."""

from pathlib import Path

import pytest

from cluster.left_homes import KEEP_S, MOST_KEYS, LeftHomes
from tests.support.clock import FakeClock


def test_what_was_kept_is_given_once_also_to_the_next_balance(tmp_path: Path) -> None:
    clock = FakeClock(0.0)
    left = LeftHomes(tmp_path / "left", clock)
    left.keep(1, ["aa", "bb"])
    left.keep(1, ["bb", "cc"])
    left.keep(2, ["dd"])
    left.save()
    again = LeftHomes(tmp_path / "left", clock)
    assert again.take(1) == ["aa", "bb", "cc"]
    assert again.take(1) == []
    again.save()
    assert LeftHomes(tmp_path / "left", clock).take(1) == []
    assert LeftHomes(tmp_path / "left", clock).take(2) == ["dd"]


def test_what_is_older_than_the_balancers_own_memory_is_forgotten(tmp_path: Path) -> None:
    clock = FakeClock(0.0)
    left = LeftHomes(tmp_path / "left", clock)
    left.keep(1, ["aa"])
    clock.advance(KEEP_S + 1)
    assert left.take(1) == []


def test_a_file_that_is_another_is_none_and_a_full_disk_costs_the_file_alone(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "left"
    file.write_bytes(b"\xff\n")
    assert LeftHomes(file, FakeClock(0.0)).take(1) == []
    file.write_text("x aa\n1 a;b\n1\n1 aa bb\n1 cc\n")
    assert LeftHomes(file, FakeClock(0.0)).take(1) == ["cc"]
    nowhere = LeftHomes(tmp_path / "no folder" / "left", FakeClock(0.0))
    nowhere.keep(1, ["aa"])
    nowhere.save()
    assert "cannot be saved" in caplog.text
    assert nowhere.take(1) == ["aa"]


def test_a_slots_keys_are_bounded(tmp_path: Path) -> None:
    left = LeftHomes(tmp_path / "left", FakeClock(0.0))
    left.keep(1, (f"{n:x}" for n in range(MOST_KEYS + 5)))
    assert len(left.take(1)) == MOST_KEYS
