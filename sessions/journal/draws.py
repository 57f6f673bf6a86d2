"""Buckets of tenants' limits a minute that the servers of a cluster draw on together.

A row for each tenant and limit that was ever drawn on; one that is not there is full. The clock of
the database fills them. Knows no policy: who draws says the limit.

Always true: all that was given of a bucket is within what it held and gained; debts are taken
whatever it holds.
"""

from sessions.journal.tables import Cursor, SqlTables
from sessions.quotas import MINUTE_S, Draw, Drawn

_UNIT = 1_000_000
"""Parts of a turn or token that a row counts."""


def draw(tables: SqlTables, cursor: Cursor, tenant: str, now_ms: int, of: Draw) -> Drawn:
    """Take what there is of what is wanted, turns as whole ones.

    ``now_ms``: by the database's clock.
    """
    key = (of.cluster, tenant, of.kind)
    level, at_ms = _locked(tables, cursor, key, (of.limit * _UNIT, now_ms))
    gained = round(max(now_ms - at_ms, 0) * of.limit * _UNIT / (MINUTE_S * 1000))
    level = min(of.limit * _UNIT, level + gained) - round(of.debt * _UNIT)
    given = max(min(round(of.amount * _UNIT), level), 0)
    if of.kind == "turns":
        given -= given % _UNIT
    level -= given
    lacks = max(_UNIT - level, 0) / _UNIT
    sql = (
        "INSERT INTO draw (cluster, tenant, kind, level, at_ms) VALUES (?, ?, ?, ?, ?) "
        "ON CONFLICT (cluster, tenant, kind) DO UPDATE SET level = excluded.level, "
        "at_ms = excluded.at_ms"
    )
    cursor.execute(sql, (*key, level, now_ms))
    return Drawn(
        kind=of.kind,
        amount=given / _UNIT,
        left=level / _UNIT,
        wait_s=0.0 if given or not of.amount else lacks * MINUTE_S / of.limit,
    )


def _locked(
    tables: SqlTables, cursor: Cursor, key: tuple[str, str, str], full: tuple[int, int]
) -> tuple[int, int]:
    """Level and time of a bucket, which is this transaction's alone; ``full``: of a new one."""
    sql = "SELECT level, at_ms FROM draw WHERE cluster = ? AND tenant = ? AND kind = ?"
    sql += tables.for_update
    row = cursor.execute(sql, key).fetchone()
    if row is None:
        cluster, tenant, kind = key
        tables.lock_name(cursor, "draw", tenant, f"{kind}/{cluster}")
        row = cursor.execute(sql, key).fetchone()
    return full if row is None else (int(row[0]), int(row[1]))
