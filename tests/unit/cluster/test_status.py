"""A cluster's servers as a table and as JSON."""

import json

from cluster.status import as_json, as_table
from sessions.journal.members import Member, MemberLoad, MemberState, Presence
from sessions.pages.cluster_rows import member_row


def row(name: str, slot: int, load: MemberLoad, heard_ms: int = 0) -> dict[str, object]:
    said = Presence(
        cluster="c", address=f"10.0.0.{name}:80", identity="m", state=MemberState.READY,
        version="0.1", load=load,
    )  # fmt: skip
    member = Member(owner=name, heartbeat_ms=1000, presence=said, slot=slot)
    return member_row(member, 1000 + heard_ms)


ROWS = [
    row("1", 1, MemberLoad(sockets=12, sessions=9, kv_permille=455, running=2, waiting=1)),
    row("20", 0, MemberLoad(input_tokens=200, cached_tokens=150), heard_ms=2001),
]


def test_columns_stand_below_each_other() -> None:
    assert as_table(ROWS).splitlines() == [
        "ADDRESS       STATE   SLOT  SOCKETS  SESSIONS    KV  HITS  RUNNING  WAITING  VERSION",
        "10.0.0.1:80   ready      1       12         9  46 %     -        2        1  0.1",
        "10.0.0.20:80  silent     -        0         0   0 %  75 %        0        0  0.1",
    ]
    assert as_table([]) == "no servers"


def test_json_has_everything() -> None:
    found = json.loads(as_json(ROWS))
    assert [each["server"] for each in found] == ["1", "20"]
    assert found[1]["hit_ratio"] == 0.75
    assert found[1]["heard_s"] == 2.0
