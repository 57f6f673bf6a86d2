"""Rows of conversations: where each stands, and what was added behind that.

A turn that ends moves its conversation in the transaction that writes its record. Knows no order of
rows; the transactions are ``batch``'s and ``sql``'s.

Always true: a row is changed only from the version that its change was made of; a response that a
conversation stands at stays as long as that.
"""

import zlib

import orjson

from sessions.durable.conversations import Conversation, moved
from sessions.durable.packing import deflate
from sessions.journal import rows
from sessions.journal.errors import JournalDamaged, JournalParentGone
from sessions.journal.records import TurnRecord
from sessions.journal.rows import Row
from sessions.journal.tables import Cursor, SqlTables, marks
from tools_api.errors import ApiError
from tools_api.item_reading import parse_items

CONVERSATION = "tenant, id, updated_ms, head_id, edits, version, body, checksum"
_MOST_EXPIRED = 500
"""Rows that one transaction deletes."""


def columns(tenant: str, conversation: Conversation, now_ms: int) -> Row:
    """A conversation's columns, in the order of ``CONVERSATION``."""
    body = {
        "created": conversation.created_s,
        "metadata": dict(conversation.metadata),
        "items": [item.to_wire() for item in conversation.items],
        "changes": list(conversation.changes),
    }
    return rows.sealed(
        (
            tenant,
            conversation.id,
            now_ms,
            conversation.head_id,
            conversation.edits,
            conversation.version,
            deflate(orjson.dumps(body)),
        )
    )


def decode(row: Row) -> Conversation:
    """The inverse of ``columns``. Raises JournalDamaged."""
    _, id_, _, head_id, edits, version, body = rows.read_sealed(row, "conversation")
    try:
        told = orjson.loads(zlib.decompress(body))
        return Conversation(
            id=id_,
            created_s=told["created"],
            metadata=told["metadata"],
            head_id=head_id,
            items=parse_items(told["items"], "items"),
            edits=edits,
            version=version,
            changes=tuple(told.get("changes", ())),
        )
    except (KeyError, TypeError, ValueError, zlib.error, ApiError) as error:
        raise JournalDamaged(f"the journal's conversation {id_} cannot be read: {error}") from error


def read(
    tables: SqlTables, cursor: Cursor, tenant: str, id_: str, *, lock: bool = False
) -> Conversation | None:
    """``lock``: until the transaction ends."""
    sql = f"SELECT {CONVERSATION} FROM conversation WHERE tenant = ? AND id = ?"
    row = cursor.execute(sql + (tables.for_update if lock else ""), (tenant, id_)).fetchone()
    return None if row is None else decode(tuple(row))


def put(
    tables: SqlTables,
    cursor: Cursor,
    tenant: str,
    conversation: Conversation,
    *,
    version: int | None,
) -> bool:
    """Write it in the place of the one of that ``version``, None: of none. False: it is another one
    that is there."""
    if version is not None:
        found = read(tables, cursor, tenant, conversation.id, lock=True)
        if found is None or found.version != version:
            return False
        _replace(tables, cursor, tenant, conversation)
        return True
    sql = f"INSERT INTO conversation ({CONVERSATION}) VALUES ({marks(8)}) ON CONFLICT DO NOTHING"
    row = columns(tenant, conversation, tables.now_ms(cursor))
    return cursor.execute(sql + " RETURNING id", row).fetchone() is not None


def _replace(tables: SqlTables, cursor: Cursor, tenant: str, conversation: Conversation) -> None:
    names = CONVERSATION.split(", ")[2:]
    changes = ", ".join(f"{name} = ?" for name in names)
    row = columns(tenant, conversation, tables.now_ms(cursor))
    sql = f"UPDATE conversation SET {changes} WHERE tenant = ? AND id = ?"
    cursor.execute(sql, (*row[2:], tenant, conversation.id))


def move(tables: SqlTables, cursor: Cursor, record: TurnRecord) -> None:
    """Have the conversation of a turn that has ended stand at it. One that is deleted stays so.

    Raises:
        JournalParentGone: something that the turn read was taken out of it.
    """
    if record.conversation is None or record.entry is None:
        return
    found = read(tables, cursor, record.tenant, record.conversation.id, lock=True)
    if found is None:
        return
    conversation = moved(found, record.conversation, record.response_id, record.entry)
    if conversation is None:
        raise JournalParentGone(f"conversation {found.id} was edited")
    _replace(tables, cursor, record.tenant, conversation)


def delete(cursor: Cursor, tenant: str, id_: str) -> bool:
    """Delete a conversation's row; False: there is none."""
    sql = "DELETE FROM conversation WHERE tenant = ? AND id = ? RETURNING id"
    return cursor.execute(sql, (tenant, id_)).fetchone() is not None


def delete_standing_at(cursor: Cursor, tenant: str, response_id: str) -> None:
    """The response's row goes, and those that stand at it with it."""
    sql = "DELETE FROM conversation WHERE tenant = ? AND head_id = ?"
    cursor.execute(sql, (tenant, response_id))


def expire(cursor: Cursor, before_ms: int) -> int:
    """Delete some of those that nobody has changed since; returns how many, 0: there is none
    left."""
    sql = "SELECT tenant, id FROM conversation WHERE updated_ms < ? LIMIT ?"
    found = cursor.execute(sql, (before_ms, _MOST_EXPIRED)).fetchall()
    for tenant, id_ in found:  # one that has been changed meanwhile stays
        one = "DELETE FROM conversation WHERE tenant = ? AND id = ? AND updated_ms < ?"
        cursor.execute(one, (tenant, id_, before_ms))
    return len(found)
