"""Rows of servers that stand together behind a balancer: what each says of itself, and which of the
balancer's slots it has.

A server writes its state with its heartbeat, the balancer writes slot and ``told_ms``: neither
changes what is the other's. Knows no balancer.

Always true: a row that is gone comes back whole with the next heartbeat of its server, without a
slot.
"""

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sessions.journal.tables import Cursor

NO_SLOT = 0
"""Slots count from 1."""
NOBODY = ""
"""The cluster of a server that has none."""


class MemberState(enum.StrEnum):
    """The state that a server says it is in."""

    STARTING = "starting"
    """Its engine is not there yet, or is being replaced: sockets stay, new sessions do not come."""
    READY = "ready"
    DRAINING = "draining"
    """It is about to end: who opens a socket goes elsewhere."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Presence:
    """Everything that a server says of itself with a heartbeat."""

    cluster: str
    address: str
    """``HOST:PORT`` at which others reach it; HOST is an address, no name."""
    identity: str
    """Model, tokenizer and chat format: servers of different ones do not stand in one cluster."""
    state: MemberState
    kv_permille: int = 0
    """Blocks of the KV cache that requests hold, in thousandths."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """A server's row."""

    owner: str
    heartbeat_ms: int
    """By the database's clock."""
    presence: Presence
    slot: int = NO_SLOT
    told_ms: int = 0
    """Since when nobody new is sent to one that drains; 0: it is not known to."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Heard:
    """The answer to a heartbeat."""

    told: bool = False
    """Nobody new is sent to this server."""
    num_ready: int = 1
    """Servers of its cluster that serve."""


def bell_of(cluster: str) -> str:
    """The name under which a cluster's balancer is told of changes."""
    return f"cluster/{cluster}"


_COLUMNS = "owner, heartbeat_ms, cluster, address, identity, state, kv_permille, slot, told_ms"


def beat(cursor: Cursor, owner: str, now_ms: int, presence: Presence | None) -> int:
    """Write a server's heartbeat; None: it stands in no cluster. Returns ``told_ms``."""
    said = presence or Presence(cluster=NOBODY, address="", identity="", state=MemberState.STARTING)
    row = cursor.execute(
        "INSERT INTO member (owner, heartbeat_ms, cluster, address, identity, state, kv_permille) "
        "VALUES (?, ?, ?, ?, ?, ?, ?) ON CONFLICT (owner) DO UPDATE SET "
        "heartbeat_ms = excluded.heartbeat_ms, cluster = excluded.cluster, "
        "address = excluded.address, identity = excluded.identity, state = excluded.state, "
        "kv_permille = excluded.kv_permille RETURNING told_ms",
        (
            *(owner, now_ms, said.cluster, said.address, said.identity),
            *(str(said.state), said.kv_permille),
        ),
    ).fetchone()
    return int(row[0])


def of_cluster(cursor: Cursor, cluster: str) -> list[Member]:
    """All that have a row, those that are dead too, by name."""
    sql = f"SELECT {_COLUMNS} FROM member WHERE cluster = ? ORDER BY owner"
    return [_member(row) for row in cursor.execute(sql, (cluster,)).fetchall()]


def count_ready(cursor: Cursor, cluster: str, since_ms: int) -> int:
    """How many of a cluster serve whose heartbeat is not older."""
    sql = "SELECT count(*) FROM member WHERE cluster = ? AND state = ? AND heartbeat_ms >= ?"
    (count,) = cursor.execute(sql, (cluster, str(MemberState.READY), since_ms)).fetchone()
    return int(count)


def give_slots(cursor: Cursor, slots: Mapping[str, int]) -> None:
    """Write which slots servers have."""
    for owner, slot in sorted(slots.items()):
        cursor.execute("UPDATE member SET slot = ? WHERE owner = ?", (slot, owner))


def tell(cursor: Cursor, owners: Sequence[str], now_ms: int) -> None:
    """Write that nobody new is sent to these."""
    for owner in sorted(owners):
        sql = "UPDATE member SET told_ms = ? WHERE owner = ? AND told_ms = 0"
        cursor.execute(sql, (now_ms, owner))


def bury(cursor: Cursor, cluster: str, address: str) -> int:
    """Delete the row of a process that is known to have ended; returns how many there were."""
    sql = "DELETE FROM member WHERE cluster = ? AND address = ? RETURNING owner"
    return len(cursor.execute(sql, (cluster, address)).fetchall())


def forget(cursor: Cursor, cluster: str, before_ms: int) -> int:
    """Delete rows without a slot whose heartbeat is older; returns how many there were."""
    sql = "DELETE FROM member WHERE cluster = ? AND heartbeat_ms < ? AND slot = ? RETURNING owner"
    return len(cursor.execute(sql, (cluster, before_ms, NO_SLOT)).fetchall())


def _member(row: Sequence[object]) -> Member:
    owner, heartbeat_ms, cluster, address, identity, state, kv_permille, slot, told_ms = row
    presence = Presence(
        cluster=str(cluster),
        address=str(address),
        identity=str(identity),
        state=MemberState(str(state)),
        kv_permille=int(str(kv_permille)),
    )
    return Member(
        owner=str(owner),
        heartbeat_ms=int(str(heartbeat_ms)),
        presence=presence,
        slot=int(str(slot)),
        told_ms=int(str(told_ms)),
    )
