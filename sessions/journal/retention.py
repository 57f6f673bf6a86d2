"""Which rows of a journal go: those that age out, and those that somebody deletes.

A session that is deleted goes inside a transaction of ``sql``; what ages out goes in pieces, each
in a transaction of its own. Headers are shared and go with ``sweep_headers``.

Always true: a row goes only when no row that stays stands on it; of what ages out no session
goes, with its accounts and budgets, that one which stays names as its parent.
"""

from collections.abc import Iterable, Sequence, Set
from dataclasses import replace

import orjson

from sessions.journal import rows
from sessions.journal.encoding import decode_turn
from sessions.journal.records import parent_in, session_account, tree_account
from sessions.journal.rows import Row
from sessions.journal.sql import SqlJournal
from sessions.journal.tables import Cursor

SLICE = 500
"""Rows that one transaction deletes."""
Place = tuple[str, str, str]
"""Tenant, session and response id of a row."""

_OLD_LEAF = """
SELECT tenant, session, response_id, base_id FROM turn WHERE created_ms < ? {only}
AND NOT EXISTS (SELECT 1 FROM turn AS child WHERE child.tenant = turn.tenant
                AND child.base_id = turn.response_id)
"""
_ONE_OLD_LEAF = _OLD_LEAF.format(only="AND tenant = ? AND response_id = ?")
_EMPTY = """
SELECT tenant, name FROM session WHERE updated_ms < ? AND head_seq = gone
AND NOT EXISTS (SELECT 1 FROM reservation AS held
                WHERE held.tenant = session.tenant AND held.session = session.name)
"""
_ONE_EMPTY = _EMPTY + " AND tenant = ? AND name = ?"
_STANDING_ON_SESSION = """
WITH RECURSIVE lost (session, response_id) AS (
    SELECT session, response_id FROM turn WHERE tenant = ? AND session = ?
    UNION SELECT turn.session, turn.response_id FROM turn
          JOIN lost ON turn.base_id = lost.response_id WHERE turn.tenant = ?)
SELECT session, response_id FROM lost
"""


def delete_session(journal: SqlJournal, cursor: Cursor, tenant: str, name: str) -> tuple[str, ...]:
    """See ``Journal.delete_session``."""
    lost = _standing_on(journal, cursor, tenant, name)
    _delete_rows(cursor, lost)
    headless = _mend(journal, cursor, (row for row in lost if row[1] != name))
    _forget(cursor, tenant, name)
    return tuple(sorted(headless))


def expire(journal: SqlJournal, before_ms: int) -> int:
    """See ``Journal.expire``. In slices, so that appends need not wait for all of it."""
    count, gone = 0, 1
    while gone:
        with journal.writing() as cursor:
            gone = _expire_rows(journal, cursor, before_ms)
        count += gone
    gone = 1
    while gone:
        with journal.writing() as cursor:
            gone = _expire_sessions(journal, cursor, before_ms)
    return count


def _expire_rows(journal: SqlJournal, cursor: Cursor, before_ms: int) -> int:
    """At most ``SLICE`` rows and what they alone stood on; 0: there is nothing left to be done."""
    count = 0
    found = cursor.execute(_OLD_LEAF.format(only="") + " LIMIT ?", (before_ms, SLICE)).fetchall()
    while found := _still_old_leaves(journal, cursor, found, before_ms):
        if count >= SLICE:
            break
        lost = [(tenant, session, response_id) for tenant, session, response_id, _ in found]
        _delete_rows(cursor, lost)
        _mend(journal, cursor, lost)
        count += len(lost)
        bases = {(tenant, base) for tenant, _, _, base in found if base is not None}
        found = [
            row
            for tenant, base in bases
            for row in cursor.execute(_ONE_OLD_LEAF, (before_ms, tenant, base)).fetchall()
        ]
    return count


def _expire_sessions(journal: SqlJournal, cursor: Cursor, before_ms: int) -> int:
    """At most ``SLICE`` sessions without rows; 0: there is none left."""
    empty = {(tenant, name) for tenant, name in cursor.execute(_EMPTY, (before_ms,)).fetchall()}
    count = 0
    for tenant, name in sorted(empty - _named_above(cursor, empty))[:SLICE] if empty else ():
        if journal.for_update:  # a turn may have ended in it before it was locked
            journal.session_row(cursor, tenant, name, lock=True)
            if not cursor.execute(_ONE_EMPTY, (before_ms, tenant, name)).fetchall():
                continue
        _forget(cursor, tenant, name)
        count += 1
    return count


def _named_above(cursor: Cursor, empty: Set[tuple[str, str]]) -> set[tuple[str, str]]:
    """Sessions that others than those which are ``empty``, or turns that run, are a part of."""
    sql = f"SELECT {rows.SESSION} FROM session WHERE options <> ?"
    found = map(rows.read_session, cursor.execute(sql, (b"",)).fetchall())
    parents = {(row.tenant, row.name): parent_in(row.options) for row in found}
    named = set[tuple[str, str]]()
    for (tenant, name), parent in parents.items():
        if (tenant, name) not in empty:
            while parent is not None and (tenant, parent) not in named:
                named.add((tenant, parent))
                parent = parents.get((tenant, parent))
    running = cursor.execute("SELECT tenant, accounts FROM reservation").fetchall()
    held = {(tenant, each) for tenant, accounts in running for each in orjson.loads(accounts)}
    return named | {key for key in empty if (key[0], tree_account(key[1])) in held}


def _standing_on(journal: SqlJournal, cursor: Cursor, tenant: str, name: str) -> list[Place]:
    """The session's rows and those that stand on them. From here on no append makes another:
    whoever stands on a row waits for its lock, or was waited for."""
    locked: set[Place] = set()
    while True:
        found = cursor.execute(_STANDING_ON_SESSION, (tenant, name, tenant)).fetchall()
        lost = [(tenant, session, response_id) for session, response_id in found]
        if not journal.for_update or locked.issuperset(lost):
            return lost
        for place in lost:
            _lock(journal, cursor, place)
        locked.update(lost)


def _still_old_leaves(
    journal: SqlJournal, cursor: Cursor, found: Sequence[Row], before_ms: int
) -> Sequence[Row]:
    """Those of ``found`` that nothing stands on once nothing can be put on them."""
    if not journal.for_update:
        return found
    for tenant, session, response_id, _ in found:
        _lock(journal, cursor, (tenant, session, response_id))
    return [
        row
        for tenant, _, response_id, _ in found
        for row in cursor.execute(_ONE_OLD_LEAF, (before_ms, tenant, response_id)).fetchall()
    ]


def _lock(journal: SqlJournal, cursor: Cursor, place: Place) -> None:
    sql = "SELECT 1 FROM turn WHERE tenant = ? AND response_id = ?" + journal.for_update
    cursor.execute(sql, (place[0], place[2])).fetchall()


def sweep_headers(cursor: Cursor) -> int:
    """Delete the headers that no row names; returns how many. Reads every row."""
    used: set[bytes] = set()
    for row in cursor.execute(f"SELECT {rows.TURN} FROM turn").fetchall():
        used.update(link.header for link in decode_turn(rows.read_turn(row)).links)
    known = {bytes(digest) for (digest,) in cursor.execute("SELECT digest FROM header").fetchall()}
    for digest in known - used:
        cursor.execute("DELETE FROM header WHERE digest = ?", (digest,))
    return len(known - used)


def _delete_rows(cursor: Cursor, lost: Sequence[Place]) -> None:
    for tenant, _, response_id in lost:
        for table in ("turn", "name"):
            cursor.execute(
                f"DELETE FROM {table} WHERE tenant = ? AND response_id = ?", (tenant, response_id)
            )


def _mend(journal: SqlJournal, cursor: Cursor, lost: Iterable[Place]) -> set[str]:
    """Count what is gone from each session; names of those that lost their head."""
    by_session: dict[tuple[str, str], set[str]] = {}
    for tenant, session, response_id in lost:
        by_session.setdefault((tenant, session), set()).add(response_id)
    headless = set[str]()
    for (tenant, name), gone in by_session.items():
        row = journal.session_row(cursor, tenant, name, lock=True)
        if row is None:
            continue
        head = row.head_id
        if head in gone:
            head = None
            headless.add(name)
        journal.write_session(cursor, replace(row, head_id=head, gone=row.gone + len(gone)))
    return headless


def _forget(cursor: Cursor, tenant: str, name: str) -> None:
    for sql, key in (
        ("DELETE FROM session WHERE tenant = ? AND name = ?", name),
        ("DELETE FROM account WHERE tenant = ? AND name = ?", session_account(name)),
        ("DELETE FROM account WHERE tenant = ? AND name = ?", tree_account(name)),
        ("DELETE FROM reservation WHERE tenant = ? AND session = ?", name),
    ):
        cursor.execute(sql, (tenant, key))
