"""Servers join a cluster, say what they are, and are refused where they do not belong."""

from dataclasses import replace
from pathlib import Path

import pytest

from sessions.journal import members
from sessions.journal.errors import AddressTaken, ClusterRefused
from sessions.journal.members import (
    NO_SLOT,
    Heard,
    Member,
    MemberLoad,
    MemberState,
    Presence,
    bell_of,
)
from sessions.journal.ownership import DEAD_MS, Ownership, SystemWaiter
from sessions.journal.sqlite import SqliteJournal

ONE = Presence(cluster="c", address="10.0.0.1:80", identity="m", state=MemberState.STARTING)
TWO = replace(ONE, address="10.0.0.2:80")


class Servers:
    """Servers of one journal, and its clock."""

    def __init__(self, file: Path) -> None:
        self.file, self.now_ms = file, 1_000_000
        self.journals: list[SqliteJournal] = []

    def server(self, name: str) -> Ownership:
        journal = SqliteJournal(self.file, fingerprint=b"f", owner=name, shared=True)
        self.journals.append(journal)
        return Ownership(journal=journal, now_ms=lambda _: self.now_ms, waiter=SystemWaiter())

    def rows(self) -> dict[str, Member]:
        with self.journals[0].reading() as cursor:
            return {each.owner: each for each in members.cluster_members(cursor, "c")}


@pytest.fixture
def servers(tmp_path: Path):
    made = Servers(tmp_path / "j")
    yield made
    for journal in made.journals:
        journal.close()


def test_a_member_says_what_it_is_and_hears_who_else_serves(servers: Servers) -> None:
    a, b = servers.server("a"), servers.server("b")
    a.join(ONE)
    b.join(TWO)
    ready = replace(
        ONE, state=MemberState.READY, load=MemberLoad(kv_permille=700, sockets=3), version="1"
    )
    assert a.beat(ready) == Heard(now_ms=servers.now_ms, told=False, num_ready=1)
    assert b.beat(replace(TWO, state=MemberState.READY)).num_ready == 2
    assert servers.rows()["a"].presence == ready
    servers.now_ms += DEAD_MS + 1
    assert a.beat(ready).num_ready == 1  # the other one is dead


def test_a_heartbeat_leaves_slot_and_what_was_told_alone(servers: Servers) -> None:
    a = servers.server("a")
    a.join(ONE)
    with a.journal.writing() as cursor:
        members.assign_slots(cursor, {"a": 7, "nobody": 1})
        members.tell(cursor, ["a"], 5)
        members.tell(cursor, ["a"], 9)
    assert a.beat(replace(ONE, state=MemberState.DRAINING)).told
    row = servers.rows()["a"]
    assert (row.slot, row.told_ms, row.presence.state) == (7, 5, MemberState.DRAINING)


def test_another_identity_is_refused_by_name_as_long_as_one_lives(servers: Servers) -> None:
    a, b = servers.server("a"), servers.server("b")
    a.join(ONE)
    with pytest.raises(ClusterRefused, match=r"'c' serves m \(at 10\.0\.0\.1:80\), this server n"):
        b.join(replace(TWO, identity="n"))
    assert "b" not in servers.rows()
    b.join(replace(TWO, identity="n", cluster="d"))
    servers.now_ms += DEAD_MS + 1
    b.join(replace(TWO, identity="n"))


def test_an_address_is_one_servers_and_the_next_ones_when_that_is_dead(servers: Servers) -> None:
    a, b = servers.server("a"), servers.server("b")
    a.join(ONE)
    with pytest.raises(AddressTaken, match=r"10\.0\.0\.1:80 is that of a server"):
        b.join(ONE)
    servers.now_ms += DEAD_MS + 1
    b.join(ONE)
    assert list(servers.rows()) == ["b"]
    a.beat(ONE)  # it was stopped, and woke
    assert list(servers.rows()) == ["a", "b"]
    assert servers.rows()["a"].slot == NO_SLOT


def test_rows_go_when_their_process_is_known_to_have_ended_or_was_silent_for_long(
    servers: Servers,
) -> None:
    a, b = servers.server("a"), servers.server("b")
    a.join(ONE)
    b.join(TWO)
    with a.journal.writing() as cursor:
        members.assign_slots(cursor, {"b": 1})
        assert members.forget(cursor, "c", servers.now_ms + 1) == 1  # one with a slot stays
        assert members.bury(cursor, "c", TWO.address) == 1
        assert members.bury(cursor, "d", ONE.address) == 0
    assert not servers.rows()


def test_servers_without_a_cluster_are_in_none(servers: Servers) -> None:
    a = servers.server("a")
    assert a.beat() == Heard(now_ms=servers.now_ms)
    assert not servers.rows()


def test_a_clusters_bell_is_no_servers_name() -> None:
    assert bell_of("prod") == "cluster/prod"  # a server's own has a host's name and colons


def test_a_server_has_the_slot_that_it_asks_for_when_it_joins_and_then_the_balancers(
    servers: Servers,
) -> None:
    a, asking = servers.server("a"), replace(ONE, wanted_slot=3)
    a.join(asking)
    assert servers.rows()["a"].slot == 3
    with a.journal.writing() as cursor:
        members.assign_slots(cursor, {"a": 7})
    a.beat(asking)
    assert servers.rows()["a"].slot == 7
    with a.journal.writing() as cursor:
        members.bury(cursor, "c", ONE.address)
    a.beat(asking)  # it was taken for dead
    assert servers.rows()["a"].slot == 3


def test_addresses_are_those_of_servers_that_stand_in_a_cluster(servers: Servers) -> None:
    a, b = servers.server("a"), servers.server("b")
    a.join(ONE)
    b.beat()
    with a.journal.reading() as cursor:
        assert members.addresses(cursor) == {"a": ONE.address}
