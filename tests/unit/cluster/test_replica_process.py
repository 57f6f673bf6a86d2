"""A child is told apart from one that did not start, and its death is told once."""

import signal
import threading
from pathlib import Path

import pytest

from cluster.replica_process import ReplicaDidNotStart, ReplicaProcess
from tests.support.fake_keepwarm import fake_keepwarm


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    return fake_keepwarm(tmp_path)


def start(
    tmp_path: Path, environment: dict[str, str], *words: str, **more: object
) -> ReplicaProcess:
    return ReplicaProcess(words, log=tmp_path / "log", environment=environment, **more)  # type: ignore[arg-type]


def test_it_serves_until_it_is_drained(tmp_path: Path, environment: dict[str, str]) -> None:
    deaths: list[ReplicaProcess] = []
    replica = start(tmp_path, environment, on_death=deaths.append)
    assert replica.wait_ready(20) == "127.0.0.1:4711"
    assert replica.lives
    assert replica.drain(20) == 7
    assert not replica.lives
    assert not deaths


def test_one_that_does_not_stop_is_killed(tmp_path: Path, environment: dict[str, str]) -> None:
    replica = start(tmp_path, environment, "deaf")
    replica.wait_ready(20)
    assert replica.drain(0.1) == -signal.SIGKILL


def test_one_that_does_not_start_is_told_by_its_last_line(
    tmp_path: Path, environment: dict[str, str]
) -> None:
    with pytest.raises(ReplicaDidNotStart, match="keepwarm: error: no"):
        start(tmp_path, environment, "wrong").wait_ready(20)


def test_a_death_that_nobody_asked_for_is_told(tmp_path: Path, environment: dict[str, str]) -> None:
    died = threading.Event()
    replica = start(tmp_path, environment, on_death=lambda _: died.set())
    replica.wait_ready(20)
    replica.process.kill()
    assert died.wait(20)
    replica.end()
