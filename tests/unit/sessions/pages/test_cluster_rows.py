"""A server's row says what it said last, and whether it is heard still."""

from dataclasses import replace

import pytest

from sessions.journal.members import Member, MemberLoad, MemberState, Presence
from sessions.pages.cluster_rows import cluster_rows, member_row

SAID = Presence(cluster="c", address="10.0.0.1:80", identity="m", state=MemberState.READY)


@pytest.mark.parametrize(
    ("state", "ago_ms", "shown"),
    [
        (MemberState.READY, 2000, "ready"),
        (MemberState.READY, 2001, "silent"),
        (MemberState.STARTING, 2001, "silent"),
        (MemberState.DRAINING, 2001, "draining"),
        (MemberState.DRAINING, 30_001, "silent"),
        (MemberState.READY, -5000, "ready"),
    ],
)
def test_who_is_not_heard_is_silent_whatever_it_said(
    state: MemberState, ago_ms: int, shown: str
) -> None:
    member = Member(owner="a", heartbeat_ms=10_000, presence=replace(SAID, state=state))
    assert member_row(member, 10_000 + ago_ms)["state"] == shown


def test_servers_stand_by_slot_and_the_dead_are_forgotten() -> None:
    found = [
        Member(owner=name, heartbeat_ms=at, slot=slot, presence=replace(SAID, address=name))
        for name, at, slot in [("b", 100_000, 0), ("a", 39_000, 0), ("c", 1, 7), ("d", 99_000, 2)]
    ]
    rows = cluster_rows(found, 100_000)
    assert [(each["server"], each["state"]) for each in rows] == [
        ("d", "ready"),
        ("c", "silent"),
        ("b", "ready"),
    ]


def test_ratios_are_between_0_and_1_and_absent_where_nothing_was_asked() -> None:
    load = MemberLoad(kv_permille=250, input_tokens=400, cached_tokens=100)
    busy = Member(owner="a", heartbeat_ms=1, presence=replace(SAID, load=load), slot=2)
    row = member_row(busy, 1)
    assert (row["kv"], row["hit_ratio"], row["slot"]) == (0.25, 0.25, 2)
    assert member_row(replace(busy, presence=SAID), 1)["hit_ratio"] is None
