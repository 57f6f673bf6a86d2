"""Rows of the servers of a cluster, for the operator's page, for ``/sessions.json`` and for
``keepwarm cluster status``: the same everywhere.

Always true: a row is made of what its server said last and of how long ago that was.
"""

from collections.abc import Iterable
from typing import Any

from sessions.journal.members import Member, MemberState
from sessions.journal.ownership import DEAD_MS

SILENT = "silent"
"""The state of a server that was not heard for so long that others may take its sessions."""
_LEAVING_MS = 30_000
"""One that drains may be silent for longer."""
GONE_MS = 60_000
"""Without a slot, one that is silent for longer is not told of any more."""


def cluster_rows(members: Iterable[Member], now_ms: int) -> list[dict[str, Any]]:
    """The servers by slot, those without one last; ``now_ms`` as for ``member_row``."""
    shown = [each for each in members if each.slot or now_ms - each.heartbeat_ms <= GONE_MS]
    rows = [member_row(each, now_ms) for each in shown]
    return sorted(rows, key=lambda row: (row["slot"] or 1 << 30, row["address"]))


def member_row(member: Member, now_ms: int) -> dict[str, Any]:
    """A server.

    Args:
        now_ms: by the database's clock, as heartbeats are.
    """
    said = member.presence
    load, ago_ms = said.load, max(now_ms - member.heartbeat_ms, 0)
    patience_ms = _LEAVING_MS if said.state is MemberState.DRAINING else DEAD_MS
    asked = load.input_tokens
    return {
        "server": member.owner,
        "address": said.address,
        "state": str(said.state) if ago_ms <= patience_ms else SILENT,
        "slot": member.slot,
        "sockets": load.sockets,
        "sessions": load.sessions,
        "kv": load.kv_permille / 1000,
        "hit_ratio": load.cached_tokens / asked if asked else None,
        "running": load.running,
        "waiting": load.waiting,
        "version": said.version,
        "identity": said.identity,
        "heard_s": round(ago_ms / 1000, 1),
    }
