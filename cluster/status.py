"""A cluster's servers, as their rows have them: a table for people, JSON for programs.

No server is asked: a row has the figures of its server's last heartbeat. A server that was not
heard for a while is called silent, whatever it said last.
"""

import json
from collections.abc import Sequence
from contextlib import closing
from typing import Any

from cluster.rows import MemberRows
from sessions.journal.members import NO_SLOT
from sessions.pages.cluster_rows import cluster_rows

_TITLES = {
    "address": "ADDRESS",
    "state": "STATE",
    "slot": "SLOT",
    "sockets": "SOCKETS",
    "sessions": "SESSIONS",
    "kv": "KV",
    "hit_ratio": "HITS",
    "running": "RUNNING",
    "waiting": "WAITING",
    "version": "VERSION",
}


def look(journal: str, cluster: str) -> list[dict[str, Any]]:
    """A row for each member, by slot.

    Raises:
        JournalError: the database cannot be asked.
    """
    with closing(MemberRows(journal, cluster)) as rows:
        return cluster_rows(*rows.look_at())


def as_json(found: Sequence[dict[str, Any]]) -> str:
    """One object a line and a list around them."""
    return json.dumps(list(found), indent=1)


def as_table(found: Sequence[dict[str, Any]]) -> str:
    """A line for each, under a head, in columns as wide as they have to be."""
    if not found:
        return "no servers"
    cells = [[_cell(name, row[name]) for name in _TITLES] for row in found]
    lines = [list(_TITLES.values()), *cells]
    widths = [max(len(line[column]) for line in lines) for column in range(len(_TITLES))]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if name in ("address", "state", "version") else cell.rjust(width)
            for name, cell, width in zip(_TITLES, line, widths, strict=True)
        ).rstrip()
        for line in lines
    )


def _cell(name: str, value: Any) -> str:
    if name == "slot":
        return "-" if value == NO_SLOT else str(value)
    if name in ("kv", "hit_ratio"):
        return "-" if value is None else f"{100 * value:.0f} %"
    return str(value)
