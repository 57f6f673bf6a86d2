"""Rows that one transaction adds to a journal: ended turns, and what turns that run hold.

A record is written if its server still owns the session and what it stands on is still there. A
reservation is the record of the failed turn that it becomes if its server dies; it goes when its
turn's record comes, and nothing else but ``settle`` makes it one.

Always true: a turn is written once and charged once, whoever writes it; of a server that does
not own a session nothing is written there.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache
from itertools import chain

import orjson

from sessions.durable.account import Amount
from sessions.durable.item_ids import own_items
from sessions.durable.reservation import amount_of
from sessions.journal import conversations, listing, request_ids, rows, shares
from sessions.journal.encoding import decode_reservation, encode_reservation
from sessions.journal.errors import JournalParentGone
from sessions.journal.records import (
    SpendTotal,
    TurnRecord,
    session_account,
    tree_account,
)
from sessions.journal.rows import Row, SessionRow
from sessions.journal.tables import FIRST_EPOCH, Cursor, SqlTables, check_account, marks, slices
from sessions.journal.usage import HourlyUsage


class Batch:
    """One transaction's records: all is read once, for all records together, and written once; a
    store is asked a few things for a batch, not for each record."""

    def __init__(self, tables: SqlTables, cursor: Cursor) -> None:
        self._tables = tables
        self._cursor = cursor
        self._sessions: dict[tuple[str, str], SessionRow | None] = {}
        """The sessions' rows as they were; None: there was none."""
        self._changed: dict[tuple[str, str], SessionRow] = {}
        self._accounts: dict[tuple[str, str], SpendTotal | None] = {}
        self._charged: dict[tuple[str, str], SpendTotal] = {}
        self._there: dict[tuple[str, str], int] = {}
        """Turns, by tenant and response id, and the epochs under which they were written."""
        self._rows: list[Row] = []
        """Rows of new turns, not yet written."""
        self._names: list[Row] = []
        self._items: list[Row] = []
        self._reserved: dict[tuple[str, str], Row | None] = {}
        """Changes to reservations; None: they go."""
        self._left: set[tuple[str, str]] = set()
        """Sessions of turns that end without a record."""
        self._requests: dict[str, list[str]] = {}
        """Ids of each tenant whose turns have ended."""
        self._usage = HourlyUsage(tables, cursor)
        self.new_headers: set[bytes] = set()
        """Digests of those that were not in the journal before."""

    def add(self, records: Sequence[TurnRecord]) -> list[bool]:
        """False: the session is another server's now.

        Raises:
            JournalParentGone: nothing of the transaction may be kept.
        """
        for tenant in sorted({record.tenant for record in records}):
            self._look(tenant, [record for record in records if record.tenant == tenant])
        for record in records:
            self._ended(record)
        return list(map(self._add, records))

    def reserve(self, records: Sequence[TurnRecord]) -> None:
        """Note what running turns hold now, in the place of what they held before; of a session
        that is another server's nothing is noted."""
        for record in records:
            self._reserve(record)

    def settle(self, tenant: str, session: str) -> list[TurnRecord]:
        """Count as spent what running turns of the session held: they have failed. For who knows
        that their server does not run them any more. Returns what was written."""
        settled: list[TurnRecord] = []
        found = reservations(self._cursor, tenant, session)
        now_ms = self._tables.now_ms(self._cursor) if found else 0
        self._look(tenant, found)
        for held in found:
            row = self.session(tenant, session)
            sql = "SELECT 1 FROM turn WHERE tenant = ? AND request_id = ?"
            taken = self._cursor.execute(sql, (tenant, held.request_id)).fetchone() is not None
            # One whose request was sent again, and ended, keeps its usage alone.
            settled.append(replace(held, request_id=None if taken else held.request_id))
            self.insert(row, settled[-1], charged_ms=now_ms)
            self._flush()
        return settled

    def session(self, tenant: str, name: str) -> SessionRow:
        """A session's row as this transaction leaves it, locked; a new one if there is none."""
        key = (tenant, name)
        if key in self._changed:
            return self._changed[key]
        tables, cursor = self._tables, self._cursor
        found = self._sessions.get(key)
        if key not in self._sessions:
            found = tables.session_row(cursor, tenant, name, lock=True)
        if found is None:
            tables.lock_name(cursor, "session", tenant, name)
            if tables.for_update:  # somebody may have made it before it was locked
                found = tables.session_row(cursor, tenant, name, lock=True)
        found = self._sessions[key] = found or tables.new_session(tenant, name)
        return found

    def change(self, row: SessionRow) -> None:
        """Have the session's row written so."""
        self._changed[row.tenant, row.name] = row

    def write(self) -> None:
        """Write the rows that have changed."""
        self._flush()
        gone = [key for key, row in self._reserved.items() if row is None]
        for tenant in sorted({tenant for tenant, _ in gone}):
            mine = [id_ for owner, id_ in gone if owner == tenant]
            for some in slices(mine):
                sql = "DELETE FROM reservation WHERE tenant = ? AND response_id IN"
                self._cursor.execute(f"{sql} ({marks(len(some))})", (tenant, *some))
        held = [row for row in self._reserved.values() if row is not None]
        self._put("reservation", rows.RESERVATION, held, key=("tenant", "response_id"))
        sessions = list(map(rows.session_columns, self._changed.values()))
        self._put("session", rows.SESSION, sessions, key=("tenant", "name"))
        accounts = [rows.account_columns(*key, found) for key, found in self._charged.items()]
        self._put("account", rows.ACCOUNT, accounts, key=("tenant", "name"))
        self._usage.write()
        if self._tables.shared:
            for key in sorted(self._left):
                drop_empty(self._tables, self._cursor, *key)
            for tenant, ids in sorted(self._requests.items()):
                request_ids.free(self._tables, self._cursor, tenant, ids)

    def committed(self) -> None:
        """Have the store remember what it need not ask for again."""
        self._tables.kept_headers |= self.new_headers
        self._usage.remember()

    # Reading

    def _look(self, tenant: str, records: Sequence[TurnRecord]) -> None:
        """Read what is there of what the records name."""
        tables = self._tables
        ids = sorted({record.response_id for record in records})
        self._there |= self._epochs(tenant, ids, "")
        bases = {record.base_id for record in records if record.base_id is not None}
        self._there |= self._epochs(tenant, sorted(bases - set(ids)), tables.for_share)
        names = sorted({record.session for record in records})
        for name in names:
            self._sessions.setdefault((tenant, name), None)
        for row in self._named("session", rows.SESSION, tenant, names):
            self._sessions[tenant, row[1]] = rows.read_session(row)
        accounts = {session_account(name) for name in names}
        accounts.update(name for record in records for name in record.accounts)
        for name in sorted(accounts):
            self._accounts.setdefault((tenant, name), None)
        for row in self._named("account", rows.ACCOUNT, tenant, sorted(accounts)):
            self._accounts[tenant, row[1]] = rows.read_account(row)
        for name in names:
            session = self._sessions[tenant, name]
            if session is not None:
                check_account(session, self._accounts[tenant, session_account(name)])

    def _epochs(self, tenant: str, ids: Sequence[str], lock: str) -> dict[tuple[str, str], int]:
        found = {}
        for some in slices(ids):
            sql = "SELECT response_id, epoch FROM turn WHERE tenant = ? AND response_id IN"
            sql += f" ({marks(len(some))}){lock}"
            for id_, epoch in self._cursor.execute(sql, (tenant, *some)).fetchall():
                found[tenant, id_] = epoch
        return found

    def _named(self, table: str, columns: str, tenant: str, names: Sequence[str]) -> Iterator[Row]:
        """Rows of those names, locked in their order, so that no two servers wait for each
        other."""
        for some in slices(names):
            sql = f"SELECT {columns} FROM {table} WHERE tenant = ? AND name IN"
            sql += f" ({marks(len(some))}) ORDER BY name{self._tables.for_update}"
            yield from map(tuple, self._cursor.execute(sql, (tenant, *some)).fetchall())

    # Changing

    def _add(self, record: TurnRecord) -> bool:
        session = self.session(record.tenant, record.session)
        mine = self._may_write(session, record)
        there = self._there.get((record.tenant, record.response_id))
        if there is not None:
            # The call is repeated, unless whoever took the session over has ended the turn.
            return mine or there == _epoch(record)
        if not mine:
            return False
        if record.base_id is not None and (record.tenant, record.base_id) not in self._there:
            raise JournalParentGone(f"response {record.base_id} has been deleted")
        if not self._draw(record):
            self._reserved[record.tenant, record.response_id] = None
            self._left.add((record.tenant, record.session))
            return False
        if record.follows_turns and not session.head_seq:
            self._charge_above(record)
            return True
        conversations.move(self._tables, self._cursor, record)
        self.insert(session, record)
        return True

    def _charge_above(self, record: TurnRecord) -> None:
        """Charge the KV of a session that has been deleted meanwhile to those above it; of itself
        nothing comes back."""
        own = session_account(record.session), tree_account(record.session)
        for name in record.accounts:
            if name not in own:
                self._charge((record.tenant, name), record)
        self._usage.add(record, round(record.created_s * 1000))

    def _draw(self, record: TurnRecord) -> bool:
        """Take what the turn has spent from this server's shares, unless one of them is too
        small: others have taken this server for dead, and had it back."""
        if not record.shares:
            return True
        tables, cursor, left = self._tables, self._cursor, list[tuple[str, Amount]]()
        spent = amount_of(record.usage, record.price.cost(record.usage))  # KV is not held
        for name, kinds in record.shares:
            self._account((record.tenant, name))
            share = shares.mine(tables, cursor, record.tenant, name)
            if kinds and not shares.covers(share, spent, kinds):
                return False
            if share is not None:
                left.append((name, shares.less(share, spent)))
        for name, amount in left:
            shares.write(tables, cursor, record.tenant, name, amount)
        return True

    def _reserve(self, record: TurnRecord) -> None:
        key = (record.tenant, record.session)
        row: Row | None = None
        if record.holds:
            if self._tables.shared:
                session = self.session(*key)
                if not self._may_write(session, record):
                    return
                if not session.updated_ms:  # new: from now on others know whose it is
                    begun = round(record.created_s * 1000)
                    self._changed[key] = replace(session, updated_ms=begun)
            accounts = orjson.dumps(record.accounts).decode()
            amount = encode_reservation(record)
            row = rows.sealed((*key, record.response_id, accounts, amount))
        else:
            self._left.add(key)
            self._ended(record)
        self._reserved[record.tenant, record.response_id] = row

    def _ended(self, record: TurnRecord) -> None:
        """The turn runs no longer: its request id is not this server's any more."""
        if record.request_id is not None:
            self._requests.setdefault(record.tenant, []).append(record.request_id)

    def _may_write(self, session: SessionRow, record: TurnRecord) -> bool:
        tables = self._tables
        if not tables.shared:
            return True
        return session.owner == tables.owner and session.epoch == _epoch(record)

    def insert(
        self, session: SessionRow, record: TurnRecord, *, charged_ms: int | None = None
    ) -> None:
        """``charged_ms``: when its accounts got it, where that is not when it ended."""
        for name in (session_account(record.session), *record.accounts):
            self._charge((record.tenant, name), record)
        options = record.options_after(session.options)
        if options != session.options or not session.head_seq:
            session = listing.describe(self._tables, self._cursor, session, options)
        spent = self._charged[record.tenant, session_account(record.session)]
        session = self._changed[record.tenant, record.session] = replace(
            session,
            head_seq=session.head_seq + 1,
            head_id=session.head_id if record.entry is None else record.response_id,
            turns_begun=max(session.turns_begun, record.number),
            open_calls=session.open_calls if record.open_calls is None else record.open_calls,
            updated_ms=_updated_ms(session, record),
            failed=session.failed + (record.status == "failed"),
            computed_again=session.computed_again + record.computed_again,
            missing=listing.missing_part(spent.usage.cached_tokens, spent.usage.input_tokens),
            cost=spent.cost,
        )
        tables = self._tables
        for entry in record.links:
            digest, body = tables.headers.encoded(entry.header)
            if digest not in tables.kept_headers and digest not in self.new_headers:
                self.new_headers.add(digest)
                insert = "INSERT INTO header (digest, body) VALUES (?, ?) ON CONFLICT DO NOTHING"
                self._cursor.execute(insert, (digest, body))
        row = rows.turn_columns(
            record,
            seq=session.head_seq,
            epoch=session.epoch,
            fingerprint=tables.fingerprint,
            headers=tables.headers,
        )
        key = (record.tenant, record.response_id)
        self._rows.append(row)
        self._names.append((*key, record.session, session.head_seq))
        items = chain.from_iterable(map(own_items, record.links))
        self._items += rows.item_columns(*key, record.created_s, items)
        self._there[key] = session.epoch
        self._reserved[key] = None
        ended_ms = round(record.created_s * 1000)
        self._usage.add(record, ended_ms if charged_ms is None else charged_ms)

    def _charge(self, key: tuple[str, str], record: TurnRecord) -> None:
        self._charged[key] = self._account(key).plus(record)

    def _account(self, key: tuple[str, str]) -> SpendTotal:
        """An account's row as this transaction leaves it, locked."""
        account = self._charged.get(key) or self._accounts.get(key)
        if account is None and self._tables.for_update:
            self._tables.lock_name(self._cursor, "account", *key)
            account = self._tables.account_row(self._cursor, *key, lock=True)
        return account or SpendTotal()

    # Writing

    def _flush(self) -> None:
        """Write the rows of new turns."""
        self._put("turn", rows.TURN, self._rows)
        self._put("name", "tenant, response_id, session, seq", self._names)
        self._put("item", rows.ITEM, self._items)
        self._rows, self._names, self._items = [], [], []

    def _put(
        self, table: str, columns: str, found: Sequence[Row], key: tuple[str, ...] = ()
    ) -> None:
        """Insert rows, in the place of those with the same key."""
        for some in slices(found):
            sql = _insertion(table, columns, key, len(some))
            self._cursor.execute(sql, [value for row in some for value in row])


def _updated_ms(session: SessionRow, record: TurnRecord) -> int:
    """When the session's last turn ended, with this record of it; what is no turn's is no sign of
    life, unless nothing else is known of the session, as where a first turn was refused."""
    created_ms = round(record.created_s * 1000)
    if record.is_turn or not session.updated_ms:
        return max(session.updated_ms, created_ms)
    return session.updated_ms


@cache
def _insertion(table: str, columns: str, key: tuple[str, ...], count: int) -> str:
    """The statement that inserts so many rows, in the place of those with the same key."""
    names = columns.split(", ")
    changes = ", ".join(f"{name} = excluded.{name}" for name in names if name not in key)
    update = f" ON CONFLICT ({', '.join(key)}) DO UPDATE SET {changes}" if key else ""
    values = ", ".join([f"({marks(len(names))})"] * count)
    return f"INSERT INTO {table} ({columns}) VALUES {values}{update}"


def drop_empty(tables: SqlTables, cursor: Cursor, tenant: str, session: str) -> bool:
    """Delete the row of a session that has kept nothing and in which no turn holds anything: it
    was there to say whose the session is. One of a later epoch stays while it has an owner, whose
    next record names that epoch. Returns whether it went."""
    sql = (
        "DELETE FROM session WHERE tenant = ? AND name = ? AND head_seq = 0 AND options = ? "
        "AND (owner = '' OR (owner = ? AND epoch = ?)) AND NOT EXISTS (SELECT 1 FROM reservation "
        "WHERE reservation.tenant = session.tenant AND reservation.session = session.name) "
        "RETURNING name"
    )
    key = (tenant, session, b"", tables.owner, FIRST_EPOCH)
    return cursor.execute(sql, key).fetchone() is not None


def reservations(cursor: Cursor, tenant: str, session: str) -> list[TurnRecord]:
    """The session's reservations for running turns, in the order of their numbers."""
    sql = f"SELECT {rows.RESERVATION} FROM reservation WHERE tenant = ? AND session = ?"
    found = map(_reservation, cursor.execute(sql, (tenant, session)).fetchall())
    return sorted(found, key=lambda record: record.number)


def sessions_with_reservations(cursor: Cursor) -> dict[tuple[str, str], int]:
    """Tenant and name of the sessions in which turns hold something, and how many do. No index has
    all of it: read by another way than ``reservations``."""
    sql = "SELECT tenant, session, response_id FROM reservation"
    found = ((tenant, name) for tenant, name, _ in cursor.execute(sql).fetchall())
    return dict(sorted(Counter(found).items()))


def _reservation(row: Row) -> TurnRecord:
    tenant, session, response_id, accounts, amount = rows.read_sealed(row, "reservation")
    names = tuple(orjson.loads(accounts))
    return decode_reservation(
        amount, tenant=tenant, session=session, response_id=response_id, accounts=names
    )


def _epoch(record: TurnRecord) -> int:
    """The epoch for a record that need not know that of a session which this server has made
    itself."""
    return record.epoch or FIRST_EPOCH
