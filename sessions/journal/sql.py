"""The journal in SQL that SQLite and PostgreSQL both speak; the stores bring connection and lock.

All of an ``append`` is one transaction, read, changed and written back: the rows it changes are
locked, by the whole file or one by one. A response is found by two ways, its row's own index and
the table ``name``: where one of them is damaged they contradict each other, and that is said
instead of "not found". So do a session, its turns and its account. Until a file is looked through a
damaged index can hide that a request id was used, that a history or an item was said before, a
session that has had no turn, an account of many sessions while the server runs, and what a turn
holds that runs.

Always true: what is read has the checksum that it was written with.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from sessions.durable.call_states import CallState
from sessions.durable.conversations import Conversation
from sessions.journal import calls, conversations, listing, rows, samples, usage_reading
from sessions.journal.batch import Batch, reservations, sessions_with_reservations
from sessions.journal.encoding import decode_turn, request_in_reservation
from sessions.journal.errors import contradiction
from sessions.journal.listing import ListAsked, ListedSession, ListPlace
from sessions.journal.records import (
    NO_TURNS,
    SessionRecord,
    SpendTotal,
    StoredTurn,
    TurnRecord,
    tree_account,
)
from sessions.journal.rows import Row, SessionRow
from sessions.journal.samples import Sample
from sessions.journal.tables import Cursor, SqlTables, marks, slices
from sessions.journal.usage import UsageSums
from sessions.journal.usage_reading import UsageAsked, UsagePlace, UsageRow

CHAIN = """
WITH RECURSIVE link (response_id, base_id) AS (
    SELECT response_id, base_id FROM turn WHERE tenant = ? AND response_id = ?
    UNION SELECT turn.response_id, turn.base_id FROM link CROSS JOIN turn
          WHERE turn.tenant = ? AND turn.response_id = link.base_id)
SELECT response_id, base_id FROM link
"""
"""CROSS JOIN: SQLite goes from each link to its row, and never through all that a tenant has."""
NAMED = f"""
SELECT {rows.TURN},
    (SELECT 1 FROM name WHERE name.tenant = turn.tenant AND name.response_id = turn.response_id
     AND name.session = turn.session AND name.seq = turn.seq)
FROM turn WHERE tenant = ? AND response_id IN
"""
"""Rows, and 1 for each that the table ``name`` has at the same place. (A value is looked for row by
row; what is joined a planner may read whole.)"""

_STANDING_ITEMS = """
SELECT DISTINCT digest FROM item WHERE item.tenant = ?
AND EXISTS (SELECT 1 FROM turn WHERE turn.tenant = item.tenant
            AND turn.response_id = item.response_id AND turn.hidden = 0)
AND digest IN
"""


class SqlJournal(SqlTables):
    """``sessions.journal.journal.Journal`` over a database."""

    def tell(self, cursor: Cursor, server: str) -> None:
        """Wake that server once the transaction is committed; where the store cannot, it looks
        by itself every 250 ms."""
        del cursor, server

    def listen(self, tell: Callable[[], None]) -> None:
        """Call ``tell``, in another thread, when this server is woken."""
        del tell

    # Writing

    def append(
        self, turns: Sequence[TurnRecord], reserved: Sequence[TurnRecord] = ()
    ) -> list[bool]:
        """See ``Journal``."""
        with self.writing() as cursor:
            batch = Batch(self, cursor)
            owned = batch.add(turns)
            batch.reserve(reserved)
            batch.write()
        batch.committed()
        return owned

    def reserve(self, reserved: Sequence[TurnRecord]) -> None:
        """See ``Journal``."""
        with self.writing(synced=False) as cursor:
            batch = Batch(self, cursor)
            batch.reserve(reserved)
            batch.write()

    def settle_left(self) -> list[TurnRecord]:
        """See ``Journal``; of a journal that this server has for itself."""
        with self.writing() as cursor:
            batch = Batch(self, cursor)
            left = sessions_with_reservations(cursor)
            settled = [each for key in left for each in batch.settle(*key)]
            if len(settled) < sum(left.values()):
                raise contradiction("what a running turn held is found by one way alone")
            batch.write()
        return settled

    def hide(self, tenant: str, response_id: str) -> bool:
        """See ``Journal``."""
        with self.writing() as cursor:
            row = self._turn_row(cursor, tenant, response_id)
            if row is None or rows.is_hidden(row):
                return False
            turn = rows.read_turn(row)
            if not turn.continuable and decode_turn(turn).status in NO_TURNS:
                return False
            changed = rows.hidden(row)
            cursor.execute(
                "UPDATE turn SET hidden = ?, checksum = ? WHERE tenant = ? AND response_id = ?",
                (changed[12], changed[-1], tenant, response_id),
            )
            session = self.session_row(cursor, tenant, row[1], lock=True)
            if session is not None and session.head_id == response_id:
                self.write_session(cursor, replace(session, head_id=None))
            return True

    def change_call(
        self,
        tenant: str,
        response_id: str,
        call_id: str,
        change: calls.Change,
        session: str | None = None,
    ) -> CallState | None:
        """See ``Journal``."""
        with self.writing() as cursor:
            key = (tenant, response_id, call_id)
            return calls.change(self, cursor, key, change, session=session)

    def put_conversation(
        self, tenant: str, conversation: Conversation, *, version: int | None
    ) -> bool:
        """See ``Journal``."""
        with self.writing() as cursor:
            return conversations.put(self, cursor, tenant, conversation, version=version)

    def delete_conversation(self, tenant: str, id_: str) -> bool:
        """See ``Journal``."""
        with self.writing() as cursor:
            return conversations.delete(cursor, tenant, id_)

    def keep_samples(self, kept: Sequence[Sample]) -> None:
        """See ``Journal``."""
        with self.writing(synced=False) as cursor:
            samples.keep(cursor, self.owner, kept)

    # Reading

    def call_states(self, tenant: str, response_id: str) -> dict[str, CallState]:
        """See ``Journal``."""
        with self.reading() as cursor:
            return calls.read(cursor, tenant, response_id)

    def conversation(self, tenant: str, id_: str) -> Conversation | None:
        """See ``Journal``."""
        with self.reading() as cursor:
            return conversations.read(self, cursor, tenant, id_)

    def samples(self, tenant: str, width_s: int, first: int, *, own: bool) -> list[Sample]:
        """See ``Journal``."""
        with self.reading() as cursor:
            return samples.read(cursor, tenant, width_s, first, None if own else self.owner)

    def listed(
        self, asked: ListAsked, after: ListPlace | None, most: int
    ) -> tuple[list[ListedSession], int | None]:
        """See ``Journal``."""
        with self.reading() as cursor:
            found = listing.page(self, cursor, asked, after, most)
            return self._listed(cursor, found.rows, asked), found.matching

    def listed_among(
        self, asked: ListAsked, names: Iterable[tuple[str, str]]
    ) -> list[ListedSession]:
        """See ``Journal``."""
        with self.reading() as cursor:
            return self._listed(cursor, listing.named(self, cursor, asked, names), asked)

    def session_tree(self, tenant: str, name: str, most: int) -> list[tuple[int, ListedSession]]:
        """See ``Journal``."""
        with self.reading() as cursor:
            row = self.session_row(cursor, tenant, name)
            found = [] if row is None else listing.tree(cursor, row, most)
            depths = [each.depth for each in found]
            listed = self._listed(cursor, [each.row for each in found], ListAsked())
            return list(zip(depths, listed, strict=True))

    def _listed(
        self, cursor: Cursor, found: Iterable[SessionRow], asked: ListAsked
    ) -> list[ListedSession]:
        return [
            ListedSession(
                place=listing.place_of(row, asked.order),
                record=row.record(self.account_of(cursor, row)),
                tree=self.account_row(cursor, row.tenant, tree_account(row.name)),
            )
            for row in found
        ]

    def usage(
        self, asked: UsageAsked, after: UsagePlace | None, most: int
    ) -> tuple[list[UsageRow], UsageSums]:
        """See ``Journal``."""
        with self.reading() as cursor:
            found = usage_reading.read(cursor, asked, after, most)
            return found, usage_reading.total(cursor, asked)

    def usage_labels(self, tenant: str | None) -> list[str]:
        """See ``Journal``."""
        with self.reading() as cursor:
            return usage_reading.label_names(cursor, tenant)

    def cursor_secret(self) -> bytes:
        """See ``Journal``."""
        with self.reading() as cursor:
            (identity,) = cursor.execute("SELECT identity FROM journal WHERE id = 1").fetchone()
        return bytes(identity)

    def reservations(self, tenant: str, session: str) -> list[TurnRecord]:
        """See ``Journal``."""
        with self.reading() as cursor:
            return reservations(cursor, tenant, session)

    def session_running(
        self, tenant: str, request_id: str | None, response_id: str | None
    ) -> str | None:
        """See ``Journal``."""
        condition: str = "response_id = ?"
        value: str | bytes | None = response_id
        if request_id is not None:
            condition, value = self.request_in, request_in_reservation(request_id)
        sql = f"SELECT session FROM reservation WHERE tenant = ? AND {condition}"
        with self.reading() as cursor:
            row = cursor.execute(sql, (tenant, value)).fetchone()
        return None if row is None else str(row[0])

    def session(self, tenant: str, name: str) -> SessionRecord | None:
        """See ``Journal``."""
        with self.reading() as cursor:
            row = self.session_row(cursor, tenant, name)
            if row is None:
                self._deny_rows(cursor, tenant, name)
                return None
            return row.record(self.account_of(cursor, row))

    def _deny_rows(self, cursor: Cursor, tenant: str, name: str) -> None:
        """A session that is not there has no turns either."""
        sql = "SELECT seq FROM turn WHERE tenant = ? AND session = ? LIMIT 1"
        if cursor.execute(sql, (tenant, name)).fetchone() is not None:
            raise contradiction(f"session {name!r} is missing, its turns are there")

    def account(self, tenant: str, name: str) -> SpendTotal:
        """See ``Journal``."""
        with self.reading() as cursor:
            return self.account_row(cursor, tenant, name)

    def accounts_named(self, name: str) -> dict[str, SpendTotal]:
        """See ``Journal``."""
        with self.reading() as cursor:
            sql = f"SELECT {rows.ACCOUNT} FROM account WHERE name = ?"
            found = cursor.execute(sql, (name,)).fetchall()
        accounts = {row[0]: rows.read_account(row) for row in found}
        if len(accounts) < len(found):
            raise contradiction(f"account {name!r} is there twice")
        return accounts

    def accounts_of_policies(self) -> dict[tuple[str, str], SpendTotal]:
        """See ``Journal``."""
        sql = f"SELECT {rows.ACCOUNT} FROM account WHERE name LIKE ? OR name LIKE ?"
        with self.reading() as cursor:
            found = cursor.execute(sql, ("tenant/%", "key/%")).fetchall()
        return {(row[0], row[1]): rows.read_account(row) for row in found}

    def clock_s(self) -> float:
        """See ``Journal``."""
        with self.reading() as cursor:
            return self.now_ms(cursor) / 1000

    def turn(self, tenant: str, response_id: str) -> StoredTurn | None:
        """See ``Journal``."""
        with self.reading() as cursor:
            row = self._turn_row(cursor, tenant, response_id)
        turn = None if row is None else rows.read_turn(row)
        return turn if turn is not None and turn.continuable else None

    def ended_turn(self, tenant: str, response_id: str) -> StoredTurn | None:
        """See ``Journal``."""
        with self.reading() as cursor:
            row = self._turn_row(cursor, tenant, response_id)
        return None if row is None or rows.is_hidden(row) else rows.read_turn(row)

    def turn_of_request(self, tenant: str, request_id: str) -> StoredTurn | None:
        """See ``Journal``."""
        sql = f"SELECT {rows.TURN} FROM turn WHERE tenant = ? AND request_id = ?"
        with self.reading() as cursor:
            row = cursor.execute(sql, (tenant, request_id)).fetchone()
        return None if row is None else rows.read_turn(row)

    def turns_with_digest(self, tenant: str, digest: bytes, most: int) -> list[StoredTurn]:
        """See ``Journal``."""
        sql = (
            f"SELECT {rows.TURN} FROM turn WHERE tenant = ? AND digest = ? AND hidden = 0 "
            "ORDER BY created_ms DESC, session DESC, seq DESC LIMIT ?"
        )
        with self.reading() as cursor:
            found = cursor.execute(sql, (tenant, digest, most)).fetchall()
        return [turn for turn in map(rows.read_turn, found) if turn.continuable]

    def turns_with_item(self, tenant: str, item_id: str, most: int) -> list[StoredTurn]:
        """See ``Journal``."""
        sql = (
            "SELECT response_id FROM item WHERE tenant = ? AND digest = ? "
            "ORDER BY created_ms DESC, response_id LIMIT ?"
        )
        with self.reading() as cursor:
            found = cursor.execute(sql, (tenant, rows.item_digest(item_id), most)).fetchall()
            turns = [self._turn_row(cursor, tenant, response_id) for (response_id,) in found]
        read = [rows.read_turn(row) for row in turns if row is not None]
        return [turn for turn in read if turn.continuable]

    def deleted(
        self, tenant: str, response_ids: Sequence[str], item_ids: Sequence[str]
    ) -> frozenset[str]:
        """See ``Journal``."""
        found = set[str]()
        items = {rows.item_digest(id_): id_ for id_ in item_ids}
        with self.reading() as cursor:
            for ids in slices(response_ids):
                sql = "SELECT response_id FROM turn WHERE tenant = ? AND hidden = 1 "
                sql += f"AND response_id IN ({marks(len(ids))})"
                found.update(id_ for (id_,) in cursor.execute(sql, (tenant, *ids)).fetchall())
            for digests in slices(list(items)):
                sql = f"{_STANDING_ITEMS} ({marks(len(digests))})"
                for (digest,) in cursor.execute(sql, (tenant, *digests)).fetchall():
                    items.pop(bytes(digest), None)
        return frozenset(found | set(items.values()))

    def chain(
        self, tenant: str, response_id: str, known: Callable[[str], bool] = lambda _: False
    ) -> list[StoredTurn]:
        """See ``Journal``."""
        turns: list[StoredTurn] = []
        with self.reading() as cursor:
            found = self._standing_under(cursor, tenant, response_id, known)
            row = found.get(response_id) or self._turn_row(cursor, tenant, response_id)
            while row is not None:
                turns.append(rows.read_turn(row))
                if not turns[0].continuable:
                    return []
                base = turns[-1].base_id
                if base is None or known(base):
                    return turns[::-1]
                row = found.get(base) or self._turn_row(cursor, tenant, base)
        if not turns:
            return []
        raise contradiction(f"response {turns[-1].base_id}, which others stand on, is missing")

    def _standing_under(
        self, cursor: Cursor, tenant: str, response_id: str, known: Callable[[str], bool]
    ) -> dict[str, Row]:
        """The row of a response and those of a chain below it, as far as all ways lead to them:
        what is not here has to be looked for as one row."""
        bases = dict(cursor.execute(CHAIN, (tenant, response_id, tenant)).fetchall())
        ids, each = list[str](), response_id
        while each in bases and not (ids and known(each)):
            ids.append(each)
            each = bases.pop(each)
        found: dict[str, Row] = {}
        for some in slices(ids):
            sql = f"{NAMED} ({marks(len(some))})"
            for row in cursor.execute(sql, (tenant, *some)).fetchall():
                if row[0] == tenant and row[-1]:
                    found[row[4]] = row[:-1]
        return found

    def header(self, digest: bytes) -> bytes:
        """See ``Journal``."""
        with self.reading() as cursor:
            sql = "SELECT body FROM header WHERE digest = ?"
            row = cursor.execute(sql, (digest,)).fetchone()
        if row is None:
            raise contradiction(f"header {digest.hex()} is missing")
        body = bytes(row[0])
        if rows.content_digest(body) != digest:
            raise contradiction(f"header {digest.hex()} does not agree with its name")
        return body

    def session_turns(self, tenant: str, session: str) -> list[StoredTurn]:
        """See ``Journal``. Raises JournalDamaged also where a row is missing."""
        sql = f"SELECT {rows.TURN} FROM turn WHERE tenant = ? AND session = ? ORDER BY seq"
        with self.reading() as cursor:
            found = cursor.execute(sql, (tenant, session)).fetchall()
            row = self.session_row(cursor, tenant, session)
        turns = [rows.read_turn(each) for each in found]
        if len(turns) + (0 if row is None else row.gone) != (0 if row is None else row.head_seq):
            raise contradiction(f"session {session!r} lacks some of its turns")
        return turns

    def last_turns(self, tenant: str, session: str, most: int) -> tuple[int, list[StoredTurn]]:
        """See ``Journal``. Raises JournalDamaged also where one of them is missing."""
        sql = (
            f"SELECT {rows.TURN} FROM turn WHERE tenant = ? AND session = ? "
            "ORDER BY seq DESC LIMIT ?"
        )
        with self.reading() as cursor:
            found = cursor.execute(sql, (tenant, session, most)).fetchall()
            row = self.session_row(cursor, tenant, session)
        total = 0 if row is None else row.head_seq - row.gone
        if len(found) != min(most, total):
            raise contradiction(f"session {session!r} lacks some of its turns")
        return total, [rows.read_turn(each) for each in found]

    def sessions(self, tenant: str | None = None) -> list[SessionRecord]:
        """See ``Journal``."""
        where, parameters = ("", ()) if tenant is None else ("WHERE tenant = ?", (tenant,))
        sql = f"SELECT {rows.SESSION} FROM session {where} ORDER BY updated_ms DESC, name"
        with self.reading() as cursor:
            found = [rows.read_session(r) for r in cursor.execute(sql, parameters).fetchall()]
            return [row.record(self.account_of(cursor, row)) for row in found]

    def _turn_row(self, cursor: Cursor, tenant: str, response_id: str) -> Row | None:
        """A turn's row, for both ways of reading one."""
        key = (tenant, response_id)
        sql = f"SELECT {rows.TURN} FROM turn WHERE tenant = ? AND response_id = ?"
        row = cursor.execute(sql, key).fetchone()
        sql = "SELECT session, seq FROM name WHERE tenant = ? AND response_id = ?"
        place = cursor.execute(sql, key).fetchone()
        if (None if row is None else tuple(row[1:3])) != (None if place is None else tuple(place)):
            raise contradiction(f"response {response_id} is found by one way alone")
        if row is not None and tuple(row[i] for i in (0, 4)) != key:
            raise contradiction(f"response {response_id} is found under another name")
        return None if row is None else tuple(row)
