"""Samples of the curves in a journal's database: a row for each stretch of time and server.

A server writes what happened on it in a minute when that minute has ended, and what has happened
in the hour so far beside it, in place of what it wrote a minute ago. Who reads adds up what
several servers, and several lives of one server, have written of the same time. What a row says
is its writer's business; here it is bytes. Commits nothing.

Always true: rows that are older than ``KEPT`` allows go with the next ones that are written.
"""

import logging
from collections.abc import Iterable
from dataclasses import dataclass

from sessions.journal import rows
from sessions.journal.errors import JournalDamaged
from sessions.journal.tables import Cursor

log = logging.getLogger(__name__)

MINUTE_S, HOUR_S = 60, 3600
KEPT = {MINUTE_S: 25 * 60, HOUR_S: 62 * 24}
"""How many samples are kept, by a stretch's seconds."""
MOST_READ = 50_000
"""Rows of one answer; the newest ones."""
COLUMNS = "width_s, number, server, tenant, body, checksum"


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One stretch of time on one server."""

    width_s: int
    number: int
    """The number of the stretch, counted from the epoch in its own width."""
    tenant: str
    """Empty: all of the server, its engine as well."""
    body: bytes


def keep(cursor: Cursor, server: str, samples: Iterable[Sample]) -> None:
    """Write them in place of what ``server`` wrote of the same stretches, and let old ones go."""
    newest: dict[int, int] = {}
    for each in samples:
        newest[each.width_s] = max(newest.get(each.width_s, 0), each.number)
        cursor.execute(
            f"INSERT INTO curve ({COLUMNS}) VALUES (?, ?, ?, ?, ?, ?) "
            "ON CONFLICT (width_s, tenant, number, server) DO UPDATE SET "
            "body = excluded.body, checksum = excluded.checksum",
            rows.sealed((each.width_s, each.number, server, each.tenant, each.body)),
        )
    for width_s, number in newest.items():
        cursor.execute(
            "DELETE FROM curve WHERE width_s = ? AND number <= ?", (width_s, number - KEPT[width_s])
        )


def read(
    cursor: Cursor, tenant: str, width_s: int, first: int, without_server: str | None
) -> list[Sample]:
    """Samples from ``first`` on, the oldest first; a damaged row is left out and logged."""
    found = cursor.execute(
        f"SELECT {COLUMNS} FROM curve WHERE width_s = ? AND tenant = ? AND number >= ? "
        "ORDER BY number DESC LIMIT ?",
        (width_s, tenant, first, MOST_READ),
    ).fetchall()
    samples: list[Sample] = []
    for row in reversed(found):
        try:
            width, number, server, owner, body = rows.read_sealed(tuple(row), "curve")
        except JournalDamaged as error:
            log.warning("a sample of the curves is damaged reason=%s", error)
            continue
        if server != without_server:
            samples.append(Sample(width_s=width, number=number, tenant=owner, body=body))
    return samples
