"""States of calls in a journal's database: a row for each call that was decided about or begun.

Who changes one keeps others from the response's calls until its transaction ends. What a change
may be is said by ``sessions.durable.call_states``.

Always true: a row goes with its turn.
"""

from collections.abc import Callable

from sessions.durable.call_states import CallState, decoded
from sessions.journal import rows
from sessions.journal.tables import Cursor, SqlTables
from tools_api import errors

COLUMNS = "tenant, response_id, call_id, body, checksum"
Change = Callable[[CallState], CallState]


def read(cursor: Cursor, tenant: str, response_id: str) -> dict[str, CallState]:
    """The states of a response's calls, by their ids; of a call without one nothing was said."""
    sql = f"SELECT {COLUMNS} FROM call_state WHERE tenant = ? AND response_id = ?"
    found = cursor.execute(sql, (tenant, response_id)).fetchall()
    return {row[2]: _read(tuple(row)) for row in found}


def change(
    tables: SqlTables,
    cursor: Cursor,
    key: tuple[str, str, str],
    change: Change,
    *,
    session: str | None,
) -> CallState | None:
    """Change a call's state; None: there is no such turn.

    Args:
        key: tenant, response and call.
        session: it has to stand at the response.

    Raises:
        ApiError: it does not, or of ``change``; nothing is written.
    """
    tenant, response_id, call_id = key
    tables.lock_name(cursor, "call", tenant, response_id)
    sql = "SELECT 1 FROM turn WHERE tenant = ? AND response_id = ? AND hidden = 0"
    if not cursor.execute(sql + tables.for_share, (tenant, response_id)).fetchall():
        return None
    if session is not None:
        row = tables.session_row(cursor, tenant, session)
        if row is None or row.head_id != response_id:
            raise errors.call_not_open(session, response_id)
    sql = f"SELECT {COLUMNS} FROM call_state WHERE tenant = ? AND response_id = ? AND call_id = ?"
    found = cursor.execute(sql, key).fetchone()
    before = CallState(call_id=call_id) if found is None else _read(tuple(found))
    after = change(before)
    if after != before:
        cursor.execute(
            f"INSERT INTO call_state ({COLUMNS}) VALUES (?, ?, ?, ?, ?) "
            "ON CONFLICT (tenant, response_id, call_id) DO UPDATE SET "
            "body = excluded.body, checksum = excluded.checksum",
            rows.sealed((*key, after.encoded())),
        )
    return after


def _read(row: rows.Row) -> CallState:
    _, _, call_id, body = rows.read_sealed(row, "state of a call")
    return decoded(call_id, body)
