"""Rounds: what fails is done again, and nobody is told of what was not done."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from cluster.balancing import SAVE_EVERY_S, Balancer
from cluster.watch import Watch
from sessions.journal.errors import (
    JournalError,
    JournalOtherVersion,
    JournalPooled,
    JournalUnavailable,
)
from sessions.journal.members import Member, MemberState, Presence
from tests.support.clock import FakeClock
from tests.support.fake_haproxy import FakeHaproxy

SAID = Presence(cluster="c", address="10.0.0.1:80", identity="m", state=MemberState.READY)


class FakeRows:
    def __init__(self) -> None:
        self.members: list[Member] | None = [Member(owner="a", heartbeat_ms=1, presence=SAID)]
        self.away = False
        self.fault: JournalError = JournalUnavailable("away")
        self.written: list[tuple[dict[str, int], list[str]]] = []

    def read(self) -> list[Member] | None:
        if self.away:
            raise self.fault
        return self.members

    def write(self, slots: Mapping[str, int], told: Sequence[str]) -> None:
        self.written.append((dict(slots), list(told)))


class Rig:
    def __init__(self, folder: Path) -> None:
        self.rows, self.haproxy, self.clock = FakeRows(), FakeHaproxy(2), FakeClock(0.0)
        self.folder = folder
        self.balancer = self.balance()

    def balance(self) -> Balancer:
        return Balancer(
            rows=self.rows, carrier=self.haproxy, watch=Watch(2.0),
            homes_file=self.folder / "homes", clock=self.clock,
        )  # fmt: skip

    def drain(self, slot: int) -> None:
        said = Presence(
            cluster="c", address="10.0.0.1:80", identity="m", state=MemberState.DRAINING
        )
        self.rows.members = [Member(owner="a", heartbeat_ms=2, presence=said, slot=slot)]


@pytest.fixture
def rig(tmp_path: Path) -> Rig:
    return Rig(tmp_path)


def test_a_round_brings_a_member_to_its_slot_and_its_row_to_say_so(rig: Rig) -> None:
    rig.balancer.round()
    assert rig.rows.written == [({"a": 1}, [])]
    assert rig.haproxy.slots("b")[0].address == "10.0.0.1:80"


@pytest.mark.parametrize("lost", ["refused", "command", "reply"])
def test_who_drains_is_told_only_when_every_command_was_done(rig: Rig, lost: str) -> None:
    rig.balancer.round()
    rig.drain(1)
    rig.haproxy.loses = lambda command: lost if command.startswith("clear table") else ""
    rig.balancer.round()
    assert all(not told for _, told in rig.rows.written)
    rig.haproxy.loses = lambda _: ""
    rig.balancer.round()
    assert rig.rows.written[-1] == ({}, ["a"])


def test_a_database_that_is_away_is_told_once_and_changes_nothing(
    rig: Rig, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    rig.balancer.round()
    done = list(rig.haproxy.done)
    rig.rows.away = True
    for _ in range(240):
        rig.clock.advance(0.25)
        rig.balancer.round()
    rig.rows.away = False
    rig.rows.members = [Member(owner="a", heartbeat_ms=1, presence=SAID, slot=1)]
    rig.balancer.round()
    assert rig.haproxy.done == done
    assert [each.message for each in caplog.records] == [
        "the database is out of reach: away",
        "all is at hand again",
    ]


@pytest.mark.parametrize("fault", [JournalPooled(), JournalOtherVersion("of another version")])
def test_what_waiting_does_not_change_ends_a_balance_that_carries_nobody_yet(
    rig: Rig, fault: JournalError, caplog: pytest.LogCaptureFixture
) -> None:
    """One that carries goes on: what it knows is as good as before."""
    rig.rows.fault, rig.rows.away = fault, True
    with pytest.raises(type(fault)):
        rig.balancer.round()
    rig.rows.away = False
    rig.balancer.round()
    done, rig.rows.away = list(rig.haproxy.done), True
    rig.balancer.round()
    assert rig.haproxy.done == done
    assert str(fault) in caplog.text


def test_where_another_balance_is_at_work_haproxy_is_left_alone(rig: Rig) -> None:
    rig.rows.members = None
    rig.balancer.round()
    assert rig.balancer.waits
    assert not rig.balancer.carries
    assert not rig.haproxy.done


def test_homes_are_copied_now_and_then_and_filled_in_where_haproxy_is_new(rig: Rig) -> None:
    rig.balancer.round()
    rig.haproxy.homes = {"aa": rig.haproxy.slots("b")[0].id}
    rig.rows.members = [Member(owner="a", heartbeat_ms=2, presence=SAID, slot=1)]
    rig.clock.advance(SAVE_EVERY_S)
    rig.balancer.round()
    assert (rig.folder / "homes").read_text() == "aa 10.0.0.1:80\n"
    rig.haproxy.homes = {}
    rig.balancer.round()
    assert not rig.haproxy.homes  # it is the same HAProxy: who is not there was let go
    rig.haproxy.new = True
    rig.balancer.round()
    assert rig.haproxy.homes == {"aa": rig.haproxy.slots("b")[0].id}


def test_sessions_of_who_left_come_home_to_who_takes_its_slot_but_those_that_went_elsewhere(
    rig: Rig,
) -> None:
    rig.balancer.round()
    one, two = (slot.id for slot in rig.haproxy.slots("b"))
    rig.haproxy.homes = {"aa": one, "bb": one, "cc": two}
    rig.drain(1)
    rig.balancer.round()
    assert rig.haproxy.homes == {"cc": two}
    rig.haproxy.homes["bb"] = two
    rig.rows.members = []
    rig.balancer.round()
    rig.balancer = rig.balance()  # another one, that knows what was kept
    said = Presence(cluster="c", address="10.0.0.9:80", identity="m", state=MemberState.STARTING)
    rig.rows.members = [Member(owner="z", heartbeat_ms=9, presence=said, slot=1)]
    rig.balancer.round()
    assert rig.haproxy.homes == {"bb": two, "cc": two}  # nobody is there before it is ready
    said = replace(said, state=MemberState.READY)
    rig.rows.members = [Member(owner="z", heartbeat_ms=10, presence=said, slot=1)]
    rig.balancer.round()
    assert rig.haproxy.homes == {"aa": one, "bb": two, "cc": two}
