"""What Serve is told of a cluster, kept in a file, one command at a time."""

import contextlib
import fcntl
import stat
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from cluster import up as module
from cluster.up import Deployed, Deployment, UpError, names_of, serve_options
from sessions.journal.members import Member, MemberState, Presence

TOLD = Deployed(
    plan={"journal": "postgresql://x"}, drain_s=40.0, replicas=2, most=2, reloads_tenants=True
)
ONE = Member(
    owner="host:1:aa",
    heartbeat_ms=1,
    slot=3,
    presence=Presence(cluster="c", address="10.0.0.1:80", identity="m", state=MemberState.READY),
)


class Offline(Deployment):
    """Its Ray is a list of what was told."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, "c")
        self.told: list[Deployed] = []
        self.members = [ONE]

    @contextlib.contextmanager
    def _ray(self, told: Deployed, host: str) -> Iterator[None]:
        yield

    def _tell(self, told: Deployed) -> None:
        self._write(told)
        self.told.append(told)

    def _rows(self, told: Deployed) -> list[Member]:
        return self.members

    def _wait(self, *_: object) -> None: ...


def test_nothing_can_be_said_of_a_cluster_that_was_not_started(tmp_path: Path) -> None:
    for act in (lambda d: d.reload(), lambda d: d.scale(1, 1), lambda d: d.drain("3")):
        with pytest.raises(UpError, match="no cluster c was started here"):
            act(Offline(tmp_path))
    (tmp_path / "up.json").write_text('{"plan": 1}')
    with pytest.raises(UpError, match="no cluster c was started here"):
        Offline(tmp_path).found()


def test_what_was_told_last_is_in_a_file_of_its_users(tmp_path: Path) -> None:
    Offline(tmp_path / "f").up(TOLD, "127.0.0.1", print)
    assert Offline(tmp_path / "f").found() == TOLD
    assert stat.S_IMODE((tmp_path / "f/up.json").stat().st_mode) == 0o600
    assert stat.S_IMODE((tmp_path / "f").stat().st_mode) == 0o700


def test_up_again_replaces_all_and_other_changes_replace_nobody(tmp_path: Path) -> None:
    made = Offline(tmp_path)
    made.up(TOLD, "127.0.0.1", print)
    made.reload()
    made.scale(3, 5)
    made.up(replace(TOLD, drain_s=9.0), "127.0.0.1", print)
    told = [(each.generation, each.reloads, each.replicas, each.most) for each in made.told]
    assert told == [(1, 0, 2, 2), (1, 1, 2, 2), (1, 1, 3, 5), (2, 1, 2, 2)]


def test_nobody_is_told_to_read_a_file_that_it_has_not(tmp_path: Path) -> None:
    made = Offline(tmp_path)
    made.up(replace(TOLD, reloads_tenants=False), "127.0.0.1", print)
    with pytest.raises(UpError, match="have no tenants file"):
        made.reload()
    assert len(made.told) == 1


@pytest.mark.parametrize("name", ["10.0.0.1:80", "3", "host:1:aa"])
def test_a_member_is_meant_by_its_address_its_slot_or_its_name(tmp_path: Path, name: str) -> None:
    made = Offline(tmp_path)
    made.up(TOLD, "127.0.0.1", print)
    assert made.drain(name) == "10.0.0.1:80"
    assert made.told[-1].leaving == ("10.0.0.1:80",)
    assert made.told[-1].generation == 1
    with pytest.raises(UpError, match=r"there is no member '0': 10\.0\.0\.1:80"):
        made.drain("0")


def test_who_has_left_is_not_told_for_ever(tmp_path: Path) -> None:
    made = Offline(tmp_path)
    made.up(TOLD, "127.0.0.1", print)
    made.drain("3")
    said = replace(ONE.presence, address="10.0.0.2:80")
    made.members = [replace(ONE, owner="b", presence=said)]
    made.drain("3")
    assert made.told[-1].leaving == ("10.0.0.2:80",)


def test_one_command_is_at_work_at_a_time(tmp_path: Path) -> None:
    with (tmp_path / "up.lock").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(UpError, match="another command is at work"):
            Offline(tmp_path).up(TOLD, "127.0.0.1", print)


def test_a_ray_that_is_gone_is_said_and_not_started_by_who_only_changes(tmp_path: Path) -> None:
    Offline(tmp_path).up(TOLD, "127.0.0.1", print)
    with pytest.raises(UpError, match="the Ray of the cluster c does not run any more"):
        Deployment(tmp_path, "c").reload()


def test_numbers_are_fixed_or_chosen_between_two() -> None:
    assert serve_options(TOLD)["num_replicas"] == 2
    options = serve_options(replace(TOLD, most=6, turns_per_replica=3))
    scaling = options["autoscaling_config"]
    assert (scaling["min_replicas"], scaling["max_replicas"]) == (2, 6)
    assert scaling["policy"]["policy_kwargs"] == {"turns_per_server": 3}
    assert "num_replicas" not in options
    assert options["graceful_shutdown_timeout_s"] > TOLD.drain_s


def test_a_member_without_a_slot_is_not_meant_by_one() -> None:
    assert names_of(replace(ONE, slot=0)) == {"host:1:aa", "10.0.0.1:80"}


def test_why_replicas_do_not_start_is_one_line() -> None:
    said = "Traceback\n  File x\ncluster.x.ReplicaDidNotStart: keepwarm: error: no such model\n"
    replica = SimpleNamespace(message=said)
    failed = SimpleNamespace(message="", deployments={"replica": replica})
    assert module.failure_of(failed) == "no such model"
    silent = SimpleNamespace(message="", deployments={})
    assert module.failure_of(silent) == "see Ray's log"
