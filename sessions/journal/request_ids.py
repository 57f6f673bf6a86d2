"""Which server is about to run, or runs, the turn of a request id.

A turn's reservation names its request id, but is written only when the engine is asked for the
turn: until then, while the request waits for its session or is planned, another server would not
know of it. So a server takes the id before anything else is done for the request, and gives it
back in the transaction that writes the turn, or when nothing came of the request.

Always true: of the servers that live one has an id; that of a dead server is anybody's.
"""

from collections.abc import Callable, Iterable, Sequence

from sessions.journal.tables import Cursor, SqlTables, marks

_MOST_IDS = 64
"""The most ids of one statement."""


def take(
    tables: SqlTables, cursor: Cursor, tenant: str, request_id: str, lives: Callable[[str], bool]
) -> bool:
    """Have the id, from now on or as before; False: another server that ``lives`` has it."""
    sql = (
        "INSERT INTO request (tenant, request_id, owner) VALUES (?, ?, ?) "
        "ON CONFLICT (tenant, request_id) DO UPDATE SET owner = excluded.owner "
        "WHERE request.owner = excluded.owner RETURNING owner"
    )
    key = (tenant, request_id)
    if cursor.execute(sql, (*key, tables.owner)).fetchone() is not None:
        return True
    other = holder(cursor, tenant, request_id)
    if other is None or lives(other):
        return False
    sql = (
        "UPDATE request SET owner = ? WHERE tenant = ? AND request_id = ? AND owner = ? "
        "RETURNING owner"
    )
    return cursor.execute(sql, (tables.owner, *key, other)).fetchone() is not None


def holder(cursor: Cursor, tenant: str, request_id: str) -> str | None:
    """The server that has the id, dead or alive."""
    sql = "SELECT owner FROM request WHERE tenant = ? AND request_id = ?"
    row = cursor.execute(sql, (tenant, request_id)).fetchone()
    return None if row is None else str(row[0])


def free(tables: SqlTables, cursor: Cursor, tenant: str, ids: Sequence[str]) -> None:
    """Let others have these request ids; those of other servers stay theirs."""
    for first in range(0, len(ids), _MOST_IDS):
        some = ids[first : first + _MOST_IDS]
        sql = "DELETE FROM request WHERE tenant = ? AND owner = ? AND request_id IN"
        cursor.execute(f"{sql} ({marks(len(some))})", (tenant, tables.owner, *some))


def owners(cursor: Cursor) -> set[str]:
    """The servers that have request ids."""
    found = cursor.execute("SELECT DISTINCT owner FROM request").fetchall()
    return {owner for (owner,) in found}


def leave(cursor: Cursor, servers: Iterable[str]) -> None:
    """Servers that end, or are dead, have none."""
    for server in sorted(servers):
        cursor.execute("DELETE FROM request WHERE owner = ?", (server,))
