"""Which rows of a journal go: those that age out, and those that somebody deletes.

All of it goes in slices, each in a transaction of its own, so that appends need not wait for the
whole. Headers are shared and go with ``sweep_headers``.

Always true: a row goes only when no row that stays stands on it; of what ages out no session
goes, with its accounts and budgets, that one which stays names as its parent, and no row at which
a conversation stands that stays.
"""

from collections import Counter
from collections.abc import Iterable, Sequence, Set
from dataclasses import replace

import orjson

from sessions.journal import conversations, listing, rows
from sessions.journal.encoding import decode_turn
from sessions.journal.records import options_kept, session_account, tree_account
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
AND NOT EXISTS (SELECT 1 FROM conversation WHERE conversation.tenant = turn.tenant
                AND conversation.head_id = turn.response_id)
"""
_ONE_OLD_LEAF = _OLD_LEAF.format(only="AND tenant = ? AND response_id = ?")
_EMPTY = """
SELECT tenant, name FROM session WHERE updated_ms < ? AND head_seq = gone
AND NOT EXISTS (SELECT 1 FROM reservation AS held
                WHERE held.tenant = session.tenant AND held.session = session.name)
"""
_ONE_EMPTY = _EMPTY + " AND tenant = ? AND name = ?"
_STANDING_ON_SESSION = """
WITH RECURSIVE lost (session, response_id, base_id) AS (
    SELECT session, response_id, base_id FROM turn WHERE tenant = ? AND session = ?
    UNION SELECT turn.session, turn.response_id, turn.base_id FROM turn
          JOIN lost ON turn.base_id = lost.response_id WHERE turn.tenant = ?)
SELECT session, response_id, base_id FROM lost
"""


def delete_session(journal: SqlJournal, tenant: str, name: str) -> tuple[str, ...]:
    """See ``Journal.delete_session``. The session itself goes with the last of its rows."""
    headless = set[str]()
    while True:
        with journal.writing() as cursor:
            lost = _standing_on(journal, cursor, tenant, name)
            some = _from_the_leaves(lost) or lost  # damaged rows may stand on each other
            places = [(tenant, session, response_id) for session, response_id, _ in some]
            _delete_rows(cursor, places)
            headless |= _mend(journal, cursor, places)
            if len(some) == len(lost):
                _forget(cursor, tenant, name)
                conversations.delete(cursor, tenant, name)
                return tuple(sorted(headless - {name}))


def expire(journal: SqlJournal, before_ms: int) -> int:
    """See ``Journal.expire``."""
    count, gone = 0, 1
    while gone:
        with journal.writing() as cursor:
            gone = conversations.expire(cursor, before_ms)
    gone = 1
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
    parents = {(row.tenant, row.name): options_kept(row.options).parent for row in found}
    named = set[tuple[str, str]]()
    for (tenant, name), parent in parents.items():
        if (tenant, name) not in empty:
            while parent is not None and (tenant, parent) not in named:
                named.add((tenant, parent))
                parent = parents.get((tenant, parent))
    running = cursor.execute("SELECT tenant, accounts FROM reservation").fetchall()
    held = {(tenant, each) for tenant, accounts in running for each in orjson.loads(accounts)}
    return named | {key for key in empty if (key[0], tree_account(key[1])) in held}


def _standing_on(
    journal: SqlJournal, cursor: Cursor, tenant: str, name: str
) -> list[tuple[str, str, str | None]]:
    """The session's rows and those that stand on them: session, response and what each stands on.
    From here on no append makes another: whoever stands on a row waits for its lock, or was
    waited for."""
    locked: set[Place] = set()
    while True:
        found = cursor.execute(_STANDING_ON_SESSION, (tenant, name, tenant)).fetchall()
        lost = [(session, response_id, base_id) for session, response_id, base_id in found]
        places = [(tenant, session, response_id) for session, response_id, _ in lost]
        if not journal.for_update or locked.issuperset(places):
            return lost
        for place in places:
            _lock(journal, cursor, place)
        locked.update(places)


def _from_the_leaves(
    lost: Sequence[tuple[str, str, str | None]],
) -> list[tuple[str, str, str | None]]:
    """At most ``SLICE`` of these rows, on which none of the rest stands."""
    by_id = {row[1]: row for row in lost}
    standing = Counter(base_id for _, _, base_id in lost)
    leaves = [row for row in lost if not standing[row[1]]]
    some: list[tuple[str, str, str | None]] = []
    while leaves and len(some) < SLICE:
        some.append(leaves.pop())
        base_id = some[-1][2]
        standing[base_id] -= 1
        if base_id in by_id and not standing[base_id]:
            leaves.append(by_id[base_id])
    return some


def _still_old_leaves(
    journal: SqlJournal, cursor: Cursor, found: Sequence[Row], before_ms: int
) -> Sequence[Row]:
    """The turns of ``found`` that nothing stands on once nothing can be put on them."""
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


class _NamedHeaders:
    """Digests of the headers that rows of an SQLite journal name, as far as they were read.

    New rows get numbers above the last one's: as long as the last one that was read is there,
    whatever has come since is behind it.
    """

    def __init__(self) -> None:
        self.digests: set[bytes] = set()
        self._last = (0, "")
        """Number and response id of the last row that was read."""

    def read_on(self, cursor: Cursor) -> bool:
        """Read a slice more; False: it was the last one."""
        number, response_id = self._last
        sql = "SELECT response_id FROM turn WHERE rowid = ?"
        if cursor.execute(sql, (number,)).fetchone() != (response_id,):
            number = 0  # numbers may have been given anew: all once more
        sql = f"SELECT rowid, {rows.TURN} FROM turn WHERE rowid > ? ORDER BY rowid LIMIT ?"
        found = cursor.execute(sql, (number, SLICE)).fetchall()
        for row in found:
            turn = rows.read_turn(row[1:])
            self.digests.update(link.header for link in decode_turn(turn).links)
            self._last = (row[0], turn.response_id)
        return len(found) == SLICE


def sweep_headers(journal: SqlJournal) -> int:
    """Delete the headers that no row of an SQLite journal names; returns how many. Every row is
    read, beside whoever writes; inside the transactions that delete only what has come since."""
    named, count = _NamedHeaders(), 0
    while True:
        with journal.reading() as cursor:
            if named.read_on(cursor):
                continue
        with journal.writing() as cursor:
            if named.read_on(cursor):
                continue
            journal.kept_headers.clear()
            found = cursor.execute("SELECT digest FROM header").fetchall()
            unnamed = sorted({bytes(digest) for (digest,) in found} - named.digests)[:SLICE]
            for digest in unnamed:
                cursor.execute("DELETE FROM header WHERE digest = ?", (digest,))
        count += len(unnamed)
        if not unnamed:
            return count


def _delete_rows(cursor: Cursor, lost: Sequence[Place]) -> None:
    for tenant, _, response_id in lost:
        for table in ("turn", "name", "item", "call_state"):
            cursor.execute(
                f"DELETE FROM {table} WHERE tenant = ? AND response_id = ?", (tenant, response_id)
            )
        conversations.delete_standing_at(cursor, tenant, response_id)


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
    listing.forget(cursor, tenant, name)
    for sql, key in (
        ("DELETE FROM session WHERE tenant = ? AND name = ?", name),
        ("DELETE FROM account WHERE tenant = ? AND name = ?", session_account(name)),
        ("DELETE FROM account WHERE tenant = ? AND name = ?", tree_account(name)),
        ("DELETE FROM reservation WHERE tenant = ? AND session = ?", name),
    ):
        cursor.execute(sql, (tenant, key))
