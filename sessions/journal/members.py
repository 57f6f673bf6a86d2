"""Rows of servers that stand together behind a balancer: what each says of itself, and which of the
balancer's slots it has.

A server writes its state and its load with its heartbeat, the balancer writes slot and ``told_ms``:
neither changes what is the other's. Knows no balancer.

Always true: a row that is gone comes back whole with the next heartbeat of its server, with the
slot that the server asks for, or none.
"""

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields

from sessions.journal.tables import Cursor

NO_SLOT = 0
"""Stands for no slot: slots count from 1."""
MOST_SLOTS = 256
NOBODY = ""
"""The cluster of a server that has none."""


class MemberState(enum.StrEnum):
    """The state that a server says it is in."""

    STARTING = "starting"
    """The server's engine is not there yet, or is being replaced: sockets stay, new sessions do not
    come."""
    READY = "ready"
    DRAINING = "draining"
    """The server is about to end: who opens a socket goes elsewhere."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberLoad:
    """Figures of a server as its heart beats; whole numbers."""

    kv_permille: int = 0
    """Blocks of the KV cache that requests hold, in thousandths."""
    active_permille: int = 0
    """The KV of sessions that were active in the last ten minutes, in thousandths of the cache;
    above 1000 where it does not hold them all."""
    running: int = 0
    """Number of turns that run."""
    waiting: int = 0
    """Number of turns that wait."""
    sockets: int = 0
    sessions: int = 0
    """Sessions that are the server's own and in its memory."""
    input_tokens: int = 0
    """Prompt tokens since its start."""
    cached_tokens: int = 0
    """Prompt tokens whose KV was there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Presence:
    """Everything that a server says of itself with a heartbeat."""

    cluster: str
    address: str
    """``HOST:PORT`` at which others reach it; HOST is an address, no name."""
    identity: str
    """Model, tokenizer and chat format: servers of different ones do not stand in one cluster."""
    state: MemberState
    version: str = ""
    """The version of the server's program."""
    wanted_slot: int = NO_SLOT
    """The balancer's slot that it asks for when it joins; nobody else may have it then."""
    load: MemberLoad = field(default_factory=MemberLoad)


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """The row of one server of a cluster."""

    owner: str
    heartbeat_ms: int
    """When its heart beat last, by the database's clock."""
    presence: Presence
    slot: int = NO_SLOT
    told_ms: int = 0
    """Since when nobody new is sent to one that drains; 0: it is not known to."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Heard:
    """The answer to a heartbeat."""

    now_ms: int
    """What the journal's clock showed, in milliseconds since the epoch."""
    told: bool = False
    """Nobody new is sent to this server."""
    num_ready: int = 1
    """Servers of its cluster that serve."""


def bell_of(cluster: str) -> str:
    """The name under which a cluster's balancer is told of changes."""
    return f"cluster/{cluster}"


_LOAD = tuple(each.name for each in fields(MemberLoad))
_SAID = ("heartbeat_ms", "cluster", "address", "identity", "state", "version", *_LOAD)
"""Columns that each heartbeat writes."""
_COLUMNS = ", ".join(("owner", "slot", "told_ms", *_SAID))
_BEAT = (
    f"INSERT INTO member (owner, slot, {', '.join(_SAID)}) "
    f"VALUES (?, ?, {', '.join('?' * len(_SAID))}) ON CONFLICT (owner) DO UPDATE SET "
    f"{', '.join(f'{name} = excluded.{name}' for name in _SAID)} RETURNING told_ms"
)
_IN_NONE = Presence(cluster=NOBODY, address="", identity="", state=MemberState.STARTING)


def beat(cursor: Cursor, owner: str, now_ms: int, presence: Presence | None) -> int:
    """Write a server's heartbeat; None: it stands in no cluster. Returns ``told_ms``."""
    said = presence or _IN_NONE
    values = (
        *(now_ms, said.cluster, said.address, said.identity, str(said.state), said.version),
        *(getattr(said.load, name) for name in _LOAD),
    )
    row = cursor.execute(_BEAT, (owner, said.wanted_slot, *values)).fetchone()
    return int(row[0])


def cluster_members(cursor: Cursor, cluster: str) -> list[Member]:
    """All servers of a cluster that have a row, those that are dead too, by name."""
    sql = f"SELECT {_COLUMNS} FROM member WHERE cluster = ? ORDER BY owner"
    return [_member(row) for row in cursor.execute(sql, (cluster,)).fetchall()]


def addresses(cursor: Cursor) -> dict[str, str]:
    """The addresses of servers that stand in a cluster, whichever that is, by the server's name."""
    sql = "SELECT owner, address FROM member WHERE cluster <> ?"
    return {str(owner): str(at) for owner, at in cursor.execute(sql, (NOBODY,)).fetchall()}


def count_ready(cursor: Cursor, cluster: str, since_ms: int) -> int:
    """How many of a cluster serve whose heartbeat is not older."""
    sql = "SELECT count(*) FROM member WHERE cluster = ? AND state = ? AND heartbeat_ms >= ?"
    (count,) = cursor.execute(sql, (cluster, str(MemberState.READY), since_ms)).fetchone()
    return int(count)


def assign_slots(cursor: Cursor, slots: Mapping[str, int]) -> None:
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
    owner, slot, told_ms, heartbeat_ms, cluster, address, identity, state, version, *load = row
    figures = {name: int(str(value)) for name, value in zip(_LOAD, load, strict=True)}
    presence = Presence(
        cluster=str(cluster),
        address=str(address),
        identity=str(identity),
        state=MemberState(str(state)),
        version=str(version),
        load=MemberLoad(**figures),
    )
    return Member(
        owner=str(owner),
        heartbeat_ms=int(str(heartbeat_ms)),
        presence=presence,
        slot=int(str(slot)),
        told_ms=int(str(told_ms)),
    )
