"""A page of a journal's sessions: searched, filtered, sorted, from a place on.

What a list is sorted by stands in the session's own row, with an index for each order; what it is
searched for stands beside it, folded to one case. A page costs what it shows: where a filter
leaves few sessions these are sorted, where it leaves many the order is walked until the page is
full.

Always true: whatever the way, a page holds what the query is about, in its order; sessions that
do not change stand on one page each.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

from sessions.durable.usage_keys import Labels
from sessions.journal import rows
from sessions.journal.records import SessionRecord, SpendTotal, options_kept
from sessions.journal.rows import SessionRow
from sessions.journal.tables import Cursor, SqlTables, marks, slices

FEW = 2000
"""How many sessions are sorted when a page is asked for."""
MILLION = 1_000_000
Order = Literal["recent", "cost", "again", "hit"]
_KEYS: dict[Order, str] = {
    "recent": "updated_ms",
    "cost": "cost",
    "again": "computed_again",
    "hit": "missing",
}
_COLUMNS = ", ".join(f"session.{name}" for name in rows.SESSION.split(", "))


@dataclass(frozen=True, slots=True, kw_only=True)
class ListAsked:
    """Which sessions are asked for, and in which order."""

    tenant: str | None = None
    """The tenant whose sessions are listed; None: those of all."""
    search: str = ""
    """Part of the name, or of a label's name or value, folded to one case."""
    labels: Labels = ()
    """Labels that a session has to have, all of them."""
    failed: bool = False
    """Only those with a turn that failed."""
    bounded: bool = False
    """Only those with a budget, of their own or of a tree that they are in."""
    several: bool = False
    """Only those of more than one turn."""
    from_ms: int | None = None
    """Sessions that were used last at that time or later."""
    to_ms: int | None = None
    """Sessions that were used last before that time."""
    order: Order = "recent"

    def found_in(self, name: str, labels: Labels) -> bool:
        """Whether a session of that name and with those labels is found by its words."""
        return self.search in text_of(name, labels) and set(self.labels) <= set(labels)

    @property
    def plain(self) -> bool:
        """Whether no filter is set: all sessions are listed."""
        return self == ListAsked(order=self.order)


class ListPlace(NamedTuple):
    """Where a session stands in an order."""

    key: int
    tenant: str
    name: str

    @property
    def sorted_by(self) -> tuple[int, str, str]:
        """The largest key comes first."""
        return -self.key, self.tenant, self.name


def place_of(row: SessionRow, order: Order) -> ListPlace:
    """A row's place in the order of the list, for a cursor."""
    return ListPlace(getattr(row, _KEYS[order]), row.tenant, row.name)


def missing_part(cached: int, asked: int) -> int:
    """The part of a session's prompts that was not cached, by which the hit ratio is sorted, in
    millionths, 1 at least; 0 if it has asked for nothing."""
    return 1 + (asked - cached) * MILLION // asked if asked else 0


def text_of(name: str, labels: Labels) -> str:
    """The text of a session that a search goes through."""
    return "\n".join([name, *(f"{key}:{value}" for key, value in labels)]).casefold()


def describe(tables: SqlTables, cursor: Cursor, before: SessionRow, options: bytes) -> SessionRow:
    """The session with these options; what it is found by is written."""
    told, kept = options_kept(before.options), options_kept(options)
    labels = kept.labels
    if labels != told.labels or not before.head_seq:
        write_found_by(cursor, before, told.labels, labels)
    bounded = any(any(bounds.bounds() for bounds in pair) for pair in kept.budgets.values())
    if not bounded and kept.parent is not None:
        above = tables.session_row(cursor, before.tenant, kept.parent)
        bounded = above is not None and above.bounded
    return replace(before, options=options, parent=kept.parent or "", bounded=bounded)


def forget(cursor: Cursor, tenant: str, name: str) -> None:
    """Delete a session's row of the list."""
    for table in ("session_label", "session_text"):
        cursor.execute(f"DELETE FROM {table} WHERE tenant = ? AND session = ?", (tenant, name))


def write_found_by(cursor: Cursor, row: SessionRow, before: Labels, labels: Labels) -> None:
    """Write what a session is searched by, its labels in the place of those from ``before``."""
    key = (row.tenant, row.name)
    cursor.execute(
        "INSERT INTO session_text (tenant, session, text) VALUES (?, ?, ?) "
        "ON CONFLICT (tenant, session) DO UPDATE SET text = excluded.text",
        (*key, text_of(row.name, labels)),
    )
    if before:
        cursor.execute("DELETE FROM session_label WHERE tenant = ? AND session = ?", key)
    for name, value in labels:
        sql = "INSERT INTO session_label (name, value, tenant, session) VALUES (?, ?, ?, ?)"
        cursor.execute(f"{sql} ON CONFLICT DO NOTHING", (name, value, *key))


# Reading


class ListedSession(NamedTuple):
    """One session of a list of sessions."""

    place: ListPlace
    record: SessionRecord
    tree: SpendTotal
    """Amounts that it and all below it have spent."""


class ListedPage(NamedTuple):
    """One page of a list of sessions, in its order."""

    rows: list[SessionRow]
    matching: int | None
    """How many the query is about; None: more than ``FEW``."""


Part = tuple[str, tuple[Any, ...]]
"""A piece of SQL and its parameters."""


def page(
    tables: SqlTables, cursor: Cursor, asked: ListAsked, after: ListPlace | None, most: int
) -> ListedPage:
    """One page of sessions behind ``after``."""
    narrow, matching = _narrow(tables, cursor, asked)
    where = _conditions(tables, asked)
    source, parameters = "session", list[Any]()
    if narrow is not None:
        # SQLite goes from each of the few to its row.
        source, parameters = f"({narrow[0]}) AS narrow CROSS JOIN session", [*narrow[1]]
        same = "session.tenant = narrow.tenant AND session.name = narrow.session"
        where.insert(0, (same, ()))
        counted = f"SELECT count(*) FROM {source}{_all_of(where)}"
        values = [value for _, some in where for value in some]
        (matching,) = cursor.execute(counted, (*parameters, *values)).fetchone()
    key = f"session.{_KEYS[asked.order]}"
    if after is not None:
        where.append((f"{key} <= ?", (after.key,)))
        behind = f"({key} < ? OR (session.tenant, session.name) > (?, ?))"
        where.append((behind, (after.key, after.tenant, after.name)))
    sql = (
        f"SELECT {_COLUMNS} FROM {source}{_all_of(where)} "
        f"ORDER BY {key} DESC, session.tenant, session.name LIMIT ?"
    )
    values = [value for _, some in where for value in some]
    found = cursor.execute(sql, (*parameters, *values, most)).fetchall()
    return ListedPage([rows.read_session(tuple(row)) for row in found], matching)


def named(
    tables: SqlTables, cursor: Cursor, asked: ListAsked, names: Iterable[tuple[str, str]]
) -> list[SessionRow]:
    """The sessions among these that the query is about, in its order."""
    by_tenant: dict[str, list[str]] = {}
    for tenant, name in names:
        by_tenant.setdefault(tenant, []).append(name)
    where = _conditions(tables, asked)
    values = [value for _, some in where for value in some]
    found = list[SessionRow]()
    for tenant, mine in sorted(by_tenant.items()):
        for some in slices(sorted(mine)):
            given = (f"session.tenant = ? AND session.name IN ({marks(len(some))})", ())
            sql = f"SELECT {_COLUMNS} FROM session{_all_of([given, *where])}"
            read = cursor.execute(sql, (tenant, *some, *values)).fetchall()
            found += [rows.read_session(tuple(row)) for row in read]
    return sorted(found, key=lambda row: place_of(row, asked.order).sorted_by)


class TreeRow(NamedTuple):
    """One session of a tree of sessions."""

    depth: int
    """0 for the one that was asked for."""
    row: SessionRow


def tree(cursor: Cursor, top: SessionRow, most: int) -> list[TreeRow]:
    """A session and those below it, each behind the one that it is a part of, the latest of
    several first; so many at most."""
    found, waiting = list[TreeRow](), [TreeRow(0, top)]
    while waiting and len(found) < most:
        each = waiting.pop()
        found.append(each)
        below = _children(cursor, each.row, most - len(found))
        waiting += [TreeRow(each.depth + 1, row) for row in reversed(below)]
    return found


def _children(cursor: Cursor, above: SessionRow, most: int) -> list[SessionRow]:
    sql = (
        f"SELECT {rows.SESSION} FROM session WHERE tenant = ? AND parent = ? AND parent <> '' "
        "ORDER BY updated_ms DESC, name LIMIT ?"
    )
    found = cursor.execute(sql, (above.tenant, above.name, most)).fetchall()
    return [rows.read_session(tuple(row)) for row in found]


def _all_of(where: Sequence[Part]) -> str:
    return f" WHERE {' AND '.join(sql for sql, _ in where)}" if where else ""


def _narrow(tables: SqlTables, cursor: Cursor, asked: ListAsked) -> tuple[Part | None, int | None]:
    """The few sessions that one of the filters leaves, if it does. Of all sessions how many there
    are, as far as ``FEW``."""
    for sql, parameters in _sources(tables, asked):
        counted = f"SELECT count(*) FROM ({sql} LIMIT ?) AS counted"
        (count,) = cursor.execute(counted, (*parameters, FEW + 1)).fetchone()
        if count <= FEW:
            return (sql, parameters), count
    if not asked.plain:
        return None, None
    sql = "SELECT count(*) FROM (SELECT 1 FROM session LIMIT ?) AS counted"
    (count,) = cursor.execute(sql, (FEW + 1,)).fetchone()
    return None, count if count <= FEW else None


def _sources(tables: SqlTables, asked: ListAsked) -> list[Part]:
    """A query for each filter alone: tenant and name of the sessions it leaves, found by an index;
    what has to be searched comes last."""
    sources = list[Part]()
    mine, who = ("", ()) if asked.tenant is None else (" AND tenant = ?", (asked.tenant,))
    for name, value in asked.labels:
        sql = "SELECT tenant, session FROM session_label WHERE name = ? AND value = ?"
        sources.append((sql + mine, (name, value, *who)))
    by_row = "SELECT tenant, name AS session FROM session WHERE"
    if asked.failed:
        sources.append((f"{by_row} failed > 0{mine}", who))
    if asked.bounded:
        sources.append((f"{by_row} bounded > 0{mine}", who))
    if asked.several:
        sources.append((f"{by_row} turns_begun > 1{mine}", who))
    if asked.from_ms is not None or asked.to_ms is not None:
        stretch = (asked.from_ms or 0, 1 << 62 if asked.to_ms is None else asked.to_ms)
        sources.append((f"{by_row} updated_ms >= ? AND updated_ms < ?{mine}", (*stretch, *who)))
    if asked.tenant is not None:
        sources.append((f"{by_row} tenant = ?", who))
    if asked.search:
        sql = f"SELECT tenant, session FROM session_text WHERE {tables.text_in}{mine}"
        sources.append((sql, (asked.search, *who)))
    if not asked.plain:
        sources.append(("SELECT tenant, name AS session FROM session", ()))
    return sources


def _conditions(tables: SqlTables, asked: ListAsked) -> list[Part]:
    """The conditions on a row. Written so that no index is used for them: the order's is."""
    where = list[Part]()
    if asked.tenant is not None:
        where.append(("session.tenant || '' = ?", (asked.tenant,)))
    if asked.failed:
        where.append(("session.failed + 0 > 0", ()))
    if asked.bounded:
        where.append(("session.bounded + 0 > 0", ()))
    if asked.several:
        where.append(("session.turns_begun + 0 > 1", ()))
    used = "session.updated_ms" if asked.order == "recent" else "session.updated_ms + 0"
    if asked.from_ms is not None:
        where.append((f"{used} >= ?", (asked.from_ms,)))
    if asked.to_ms is not None:
        where.append((f"{used} < ?", (asked.to_ms,)))
    for name, value in asked.labels:
        sql = (
            "EXISTS (SELECT 1 FROM session_label AS l WHERE l.name = ? AND l.value = ? "
            "AND l.tenant = session.tenant AND l.session = session.name)"
        )
        where.append((sql, (name, value)))
    if asked.search:
        sql = (
            "EXISTS (SELECT 1 FROM session_text AS t WHERE t.tenant = session.tenant "
            f"AND t.session = session.name AND {tables.text_in})"
        )
        where.append((sql, (asked.search,)))
    return where
