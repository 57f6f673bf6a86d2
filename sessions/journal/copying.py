"""Rows of a journal in another one, as from a file to PostgreSQL, and whether both are the same.

Rows travel as they are, with their checksums, which are looked at on the way. What belongs to
servers that run (their heartbeats, shares, request ids, buckets) stays behind: no server has either
journal meanwhile. Knows no store but by ``SqlTables``.

Always true: all of it is one transaction of the target, which is read back before it is committed;
one that differs, or a source that contradicts itself, leaves nothing there.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

import xxhash

from sessions.journal import calls, rows
from sessions.journal.conversations import CONVERSATION
from sessions.journal.errors import JournalError, JournalInUse, contradiction
from sessions.journal.ownership import DEAD_MS
from sessions.journal.records import session_account
from sessions.journal.rows import Row
from sessions.journal.samples import COLUMNS as CURVE
from sessions.journal.tables import Cursor, SqlTables, marks, slices
from sessions.journal.usage import COUNTS, HOURS, LABELLED

SLICE = 512
"""Rows that are in memory at a time."""
_DIGEST_END = 1 << 128


@dataclass(frozen=True, slots=True, kw_only=True)
class CopiedTable:
    """A table's columns, as both stores have them."""

    columns: str
    key: str
    """The table's primary key: the order in which rows are read."""
    sealed: bool = False
    """The last column is the row's checksum."""


TABLES: Mapping[str, CopiedTable] = MappingProxyType(
    {
        "session": CopiedTable(columns=rows.SESSION, key="tenant, name", sealed=True),
        "turn": CopiedTable(columns=rows.TURN, key="tenant, session, seq", sealed=True),
        "name": CopiedTable(columns="tenant, response_id, session, seq", key="tenant, response_id"),
        "header": CopiedTable(columns="digest, body", key="digest"),
        "account": CopiedTable(columns=rows.ACCOUNT, key="tenant, name", sealed=True),
        "reservation": CopiedTable(
            columns=rows.RESERVATION, key="tenant, response_id", sealed=True
        ),
        "item": CopiedTable(columns=rows.ITEM, key=rows.ITEM),
        "call_state": CopiedTable(
            columns=calls.COLUMNS, key="tenant, response_id, call_id", sealed=True
        ),
        "conversation": CopiedTable(columns=CONVERSATION, key="tenant, id", sealed=True),
        "curve": CopiedTable(columns=CURVE, key="width_s, tenant, number, server", sealed=True),
        "session_label": CopiedTable(
            columns="name, value, tenant, session", key="name, value, tenant, session"
        ),
        "session_text": CopiedTable(columns="tenant, session, text", key="tenant, session"),
        "usage_hour": CopiedTable(columns=f"{HOURS}, {COUNTS}", key=HOURS),
        "usage_label": CopiedTable(
            columns=f"{LABELLED}, {COUNTS}", key="name, hour, tenant, value"
        ),
        "usage_value": CopiedTable(columns="tenant, kind, value", key="tenant, kind, value"),
    }
)
"""Every table that outlives its servers."""
OF_SERVERS = frozenset({"share", "request", "member", "draw"})
"""Tables of servers that run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TableSum:
    """The content of a table, whatever the order of its rows."""

    count: int = 0
    digest: int = 0
    """The sum of the rows' checksums, below 2**128."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JournalSums:
    """The content of a journal: two that have the same sums hold the same."""

    tables: Mapping[str, TableSum]
    turns: int
    """Turns that its sessions have had."""
    cost: int
    """Nano-dollars of all sessions."""

    @property
    def sessions(self) -> int:
        """Number of sessions."""
        return self.tables["session"].count


@dataclass(slots=True)
class _Tally:
    """Adds a journal's rows up, and sees whether they agree with one another."""

    count: Counter[str] = field(default_factory=Counter)
    digest: Counter[str] = field(default_factory=Counter)
    cost: int = 0
    turns: int = 0
    _turns: set[int] = field(default_factory=set)
    _bases: set[int] = field(default_factory=set)
    _wanting: Counter[tuple[str, str]] = field(default_factory=Counter)
    """How many turns of each session are missing."""
    _named: int = 0
    """The digest of all names, as turns have them."""

    def add(self, table: str, found: Sequence[Row]) -> None:
        for row in found:
            self.count[table] += 1
            self.digest[table] = (self.digest[table] + _digest(row)) % _DIGEST_END
            if table == "session":
                self._session(row)
            elif table == "turn":
                self._turn(row)
            elif table == "account" and row[1].startswith(session_account("")):
                self.turns += rows.read_account(row).turns

    def _session(self, row: Row) -> None:
        session = rows.read_session(row)
        self.cost += session.cost
        self._wanting[session.tenant, session.name] += session.head_seq - session.gone

    def _turn(self, row: Row) -> None:
        tenant, session, seq, _, response_id, _, base_id, *_ = row
        self._wanting[tenant, session] -= 1
        self._turns.add(_short(tenant, response_id))
        if base_id is not None:
            self._bases.add(_short(tenant, base_id))
        self._named = (self._named + _digest((tenant, response_id, session, seq))) % _DIGEST_END

    def sums(self) -> JournalSums:
        """Raises JournalDamaged: rows contradict each other."""
        for (_, name), wanting in self._wanting.items():
            if wanting:
                raise contradiction(f"session {name!r} lacks some of its turns")
        if not self._bases <= self._turns:
            raise contradiction(
                f"{len(self._bases - self._turns)} responses, which others stand on, are missing"
            )
        if (self.count["name"], self.digest["name"]) != (self.count["turn"], self._named):
            raise contradiction("responses are found by one way alone")
        tables = {
            table: TableSum(count=self.count[table], digest=self.digest[table]) for table in TABLES
        }
        return JournalSums(tables=MappingProxyType(tables), turns=self.turns, cost=self.cost)


def copy(source: SqlTables, target: SqlTables) -> JournalSums:
    """Write all that ``source`` has into ``target``, which has nothing yet.

    Returns:
        what both have now.

    Raises:
        JournalInUse: a server has one of them.
        JournalDamaged: the source contradicts itself.
        JournalError: the target has something already, or takes something otherwise.
    """
    with target.writing() as writer:
        _refuse_used(target, writer)
        _refuse_filled(writer)
        with source.reading() as reader:
            _refuse_used(source, reader)
            told = _carried(reader, writer)
        kept = _added_up(writer)
        if kept != told:
            raise JournalError(f"the copy differs in {_differing(told, kept)}: nothing was kept")
    return told


def sums(journal: SqlTables) -> JournalSums:
    """Add up all that a journal has. Raises JournalDamaged: it contradicts itself."""
    with journal.reading() as cursor:
        return _added_up(cursor)


def _carried(reader: Cursor, writer: Cursor) -> JournalSums:
    tally = _Tally()
    for table, of in TABLES.items():
        for found in _read(reader, table, of):
            tally.add(table, found)
            for some in slices(found):
                each = f"({marks(len(of.columns.split(', ')))})"
                sql = f"INSERT INTO {table} ({of.columns}) VALUES {', '.join([each] * len(some))}"
                writer.execute(sql, [value for row in some for value in row])
    return tally.sums()


def _added_up(cursor: Cursor) -> JournalSums:
    tally = _Tally()
    for table, of in TABLES.items():
        for found in _read(cursor, table, of):
            tally.add(table, found)
    return tally.sums()


def _read(cursor: Cursor, table: str, of: CopiedTable) -> Iterator[list[Row]]:
    """A table's rows, ``SLICE`` at a time. Raises JournalDamaged: one is not as it was written."""
    names, key = of.columns.split(", "), of.key.split(", ")
    places = [names.index(name) for name in key]
    after: tuple[object, ...] | None = None
    while True:
        where = "" if after is None else f"WHERE ({of.key}) > ({marks(len(key))})"
        sql = f"SELECT {of.columns} FROM {table} {where} ORDER BY {of.key} LIMIT ?"
        found = [
            tuple(bytes(value) if isinstance(value, memoryview) else value for value in row)
            for row in cursor.execute(sql, (*(after or ()), SLICE)).fetchall()
        ]
        for row in found if of.sealed else ():
            rows.read_sealed(row, table)
        if found:
            yield found
        if len(found) < SLICE:
            return
        after = tuple(found[-1][place] for place in places)


def _refuse_used(journal: SqlTables, cursor: Cursor) -> None:
    """Raise JournalInUse where a server's heartbeat is not old. (A file has a lock as well.)"""
    sql = "SELECT owner FROM member WHERE heartbeat_ms >= ? LIMIT 1"
    row = cursor.execute(sql, (journal.now_ms(cursor) - DEAD_MS,)).fetchone()
    if row is not None:
        raise JournalInUse(f"the server {row[0]} has the journal open: stop it, then copy")


def _refuse_filled(cursor: Cursor) -> None:
    for table in TABLES:
        if cursor.execute(f"SELECT 1 FROM {table} LIMIT 1").fetchone() is not None:
            raise JournalError(
                "the journal to copy into has sessions already: name one that is empty"
            )


def _differing(one: JournalSums, other: JournalSums) -> str:
    return ", ".join(table for table in TABLES if one.tables[table] != other.tables[table])


def _digest(row: Row) -> int:
    return int.from_bytes(rows.sealed(row)[-1], "big")


def _short(tenant: str, response_id: str) -> int:
    """A digest that stands for a session's name, where there are many."""
    return xxhash.xxh3_128_intdigest(f"{tenant}\0{response_id}".encode("utf-8", "surrogatepass"))
