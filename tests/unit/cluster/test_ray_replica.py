"""What Serve asks of a replica, played without Ray."""

import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from cluster import ray_replica as module
from cluster.keeper import ReplicaLost
from cluster.ray_replica import RayReplica, ScalePolicy, read_loads, read_plan
from cluster.scaling import UP_S
from sessions.journal.members import MemberLoad


class FakeKeeper:
    address = "10.0.0.1:80"

    def __init__(self) -> None:
        self.done: list[str] = []
        self.lost = False
        self.left = threading.Event()

    def check(self) -> None:
        self.done.append("check")
        if self.lost:
            raise ReplicaLost("it hangs")

    def reload(self) -> None:
        self.done.append("reload")

    def leave(self, timeout_s: float) -> None:
        self.done.append(f"leave {timeout_s:g}")
        self.left.set()

    def load(self) -> MemberLoad:
        return MemberLoad(running=2, kv_permille=300)


@pytest.fixture
def ended(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    told = threading.Event()
    monkeypatch.setattr(module, "end_at_once", told.set)
    return told


def replica() -> tuple[RayReplica, FakeKeeper]:
    made, keeper = object.__new__(RayReplica), FakeKeeper()
    made.keeper, made.drain_s = keeper, 7.0  # type: ignore[assignment]
    made.reloads, made.leaving = None, threading.Event()
    return made, keeper


def test_the_tenants_file_is_read_again_when_that_was_asked_for_since_it_began() -> None:
    made, keeper = replica()
    made.reconfigure({"reloads": 4, "leaving": []})
    assert keeper.done == []
    made.reconfigure({"reloads": 5, "leaving": ["10.0.0.2:80"]})
    made.reconfigure({"reloads": 5, "leaving": ["10.0.0.2:80"]})
    assert keeper.done == ["reload"]
    made.leaving.set()


def test_one_that_is_told_to_leave_drains_once_and_is_replaced(ended: threading.Event) -> None:
    made, keeper = replica()
    for _ in range(2):
        made.reconfigure({"leaving": ["10.0.0.1:80"]})
    assert ended.wait(20)
    made.check_health()
    assert keeper.done == ["leave 7"]
    made.__del__()
    assert keeper.done == ["leave 7"]


def test_a_server_that_is_lost_ends_its_actor(ended: threading.Event) -> None:
    made, keeper = replica()
    made.check_health()
    assert not ended.is_set()
    keeper.lost = True
    made.check_health()
    assert ended.is_set()
    made.leaving.set()


def test_when_serve_lets_it_go_it_drains_once() -> None:
    made, keeper = replica()
    assert made.record_autoscaling_stats() == {
        "kv_permille": 300,
        "active_permille": 0,
        "running": 2,
        "waiting": 0,
    }
    made.__del__()
    made.__del__()
    assert keeper.done == ["leave 7"]


@dataclass
class FakeContext:
    capacity_adjusted_min_replicas: int = 1
    capacity_adjusted_max_replicas: int = 4
    target_num_replicas: int = 1
    policy_state: dict[str, Any] = field(default_factory=lambda: {"serves own": 1})
    aggregated_metrics: Any = None


def test_serves_controller_hears_how_many_there_are_to_be(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: now[0])
    policy, context = ScalePolicy(turns_per_server=2), FakeContext()
    assert policy(context) == (1, {"serves own": 1})
    one = {"kv_permille": {"a": 0}, "active_permille": {"a": 0}, "running": {"a": 5.0}}
    context.aggregated_metrics = one | {"waiting": {"a": 1.2, "b": 9.0}}
    assert policy(context)[0] == 1
    now[0] += UP_S
    assert policy(context)[0] == 3


def test_a_replica_that_has_not_told_everything_has_told_nothing() -> None:
    told = {"kv_permille": {"a": 1.6, "b": 2}, "active_permille": {"a": 0, "b": 0}}
    assert read_loads(told) == []
    told |= {"running": {"b": 1}, "waiting": {"a": 1, "b": 0}}
    assert read_loads(told) == [MemberLoad(kv_permille=2, running=1)]


def test_a_plan_is_what_json_has() -> None:
    told = {
        "cluster": "c", "journal": "postgresql://x", "options": ["--threads", "1"],
        "folder": "/f", "kv_root": None, "environment": {"A": "1"},
    }  # fmt: skip
    plan = read_plan(told, "10.0.0.9")
    assert (plan.host, plan.options, plan.folder) == ("10.0.0.9", ("--threads", "1"), Path("/f"))
    assert plan.kv_root is None
    assert read_plan(told | {"kv_root": "/kv"}, "h").kv_root == Path("/kv")
