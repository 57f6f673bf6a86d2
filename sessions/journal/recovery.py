"""Saving from a damaged journal what is whole, and naming the rest.

Works on a copy of the files, made while no server has them; the originals are left as they are. A
turn is whole if its row's checksum agrees, its headers are there and everything it stands on is
whole. Accounts are taken as they are where they are whole, so that what lost turns spent stays
spent, and are added up from the turns otherwise. Commits that are gone without a trace, as with
the end of a write-ahead log, are known by the mark beside the journal.

Always true: what is in the new file is what was written once; nothing is guessed.
"""

import contextlib
import shutil
import sqlite3
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path

from sessions.journal import calls, conversations, rows
from sessions.journal.encoding import decode_links, decode_turn, link_items
from sessions.journal.errors import (
    JournalDamaged,
    JournalError,
    other_version,
)
from sessions.journal.file_state import left_alone
from sessions.journal.listing import missing_part, write_found_by
from sessions.journal.mark import read_mark
from sessions.journal.records import (
    NO_TURNS,
    SpendTotal,
    StoredTurn,
    options_kept,
    session_account,
)
from sessions.journal.rows import Row, SessionRow
from sessions.journal.sqlite import SqliteJournal
from sessions.journal.tables import VERSION, marks
from sessions.journal.usage import COUNTS, HOURS, LABELLED

_USAGE = {
    "usage_hour": f"{HOURS}, {COUNTS}",
    "usage_label": f"{LABELLED}, {COUNTS}",
    "usage_value": "tenant, kind, value",
}
_FARTHEST = 1 << 24
"""Rows to jump over, at most, where a page cannot be read."""


@dataclass(slots=True, kw_only=True)
class Recovered:
    """The results of a recovery."""

    turns: int = 0
    """Turns that were saved, without what sessions were charged beside them."""
    sessions: int = 0
    gone: int = 0
    """Rows of turns that sessions had, as far as these are there, and that cannot be read."""
    lost: list[str] = field(default_factory=list)
    """A line for each thing that could not be saved."""


@dataclass(slots=True)
class _Found:
    turns: dict[tuple[str, str], tuple[StoredTurn, Row]] = field(default_factory=dict)
    headers: dict[bytes, bytes] = field(default_factory=dict)
    sessions: dict[tuple[str, str], SessionRow] = field(default_factory=dict)
    accounts: dict[tuple[str, str], Row] = field(default_factory=dict)
    reservations: list[Row] = field(default_factory=list)
    calls: list[Row] = field(default_factory=list)
    conversations: list[Row] = field(default_factory=list)
    usage: dict[str, list[Row]] = field(default_factory=dict)
    """Rows of its tables, which have no checksum."""


def recover(source: Path, target: Path) -> Recovered:
    """Save what is whole of ``source`` into the new file ``target``.

    Raises:
        JournalInUse: a server has the journal.
        JournalOtherVersion: its rows are not those that this program reads.
        JournalError: there is nothing to read, or ``target`` exists.
    """
    if target.exists():
        raise JournalError(f"{target} exists: name another file")
    report = Recovered()
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "journal"
        with left_alone(source, "recover"):
            for suffix in ("", "-wal", ".mark"):
                if Path(f"{source}{suffix}").exists():
                    shutil.copy(f"{source}{suffix}", f"{copy}{suffix}")
        try:
            connection = sqlite3.connect(copy)
            (version,) = connection.execute("PRAGMA user_version").fetchone()
        except sqlite3.Error as error:
            raise JournalDamaged(f"{source}: {error}; nothing can be read") from error
        with contextlib.closing(connection):
            if version not in (0, VERSION):
                raise other_version(str(source), version, VERSION)
            _count_commits(connection, Path(f"{copy}.mark"), report)
            return save(connection, target, report)


def save(connection: sqlite3.Connection, target: Path, report: Recovered) -> Recovered:
    """Save what of an open journal can be read and is whole; returns ``report``."""
    found = _read(connection, report)
    known = sum(session.head_seq - session.gone for session in found.sessions.values())
    report.gone = max(known - len(found.turns), 0)
    _keep_whole(found, report)
    _write(found, target, report)
    return report


def _count_commits(connection: sqlite3.Connection, mark: Path, report: Recovered) -> None:
    """Name the commits that were told of and have left no trace."""
    try:
        row = connection.execute("SELECT identity, commits FROM journal").fetchone()
    except sqlite3.Error:
        row = None
    marked = read_mark(mark)
    if row is None or not isinstance(row[1], int):
        of = "" if marked is None else f" of {marked.commits}"
        report.lost.append(f"the count of commits: how many{of} are gone is unknown")
    elif marked is None:
        if mark.exists():
            report.lost.append("the mark of the last commit: how many are gone is unknown")
    elif marked.identity != row[0]:
        report.lost.append("the mark of the last commit, another journal's is in its place")
    elif row[1] < marked.commits:
        report.lost.append(f"the last {marked.commits - row[1]} of {marked.commits} commits")


def _read(connection: sqlite3.Connection, report: Recovered) -> _Found:
    found = _Found()
    for row in _rows(connection, "turn", rows.TURN, report):
        with _naming(report):
            turn = rows.read_turn(row)
            found.turns[turn.tenant, turn.response_id] = (turn, row)
    for digest, body in _rows(connection, "header", "digest, body", report):
        if isinstance(body, bytes) and rows.content_digest(body) == digest:
            found.headers[digest] = body
        else:
            report.lost.append("a header does not agree with its name")
    for row in _rows(connection, "session", rows.SESSION, report):
        with _naming(report):
            session = rows.read_session(row)
            known = found.sessions.get(key := (session.tenant, session.name))
            if known is not None:
                report.lost.append(f"session {session.name}: it was there twice")
            if known is None or known.head_seq < session.head_seq:
                found.sessions[key] = session
    for row in _rows(connection, "account", rows.ACCOUNT, report):
        with _naming(report):
            account = rows.read_account(row)
            known_row = found.accounts.get(row[:2])
            if known_row is not None:  # an index hid the first, and the second began at zero
                report.lost.append(f"account {row[1]}: it was there twice, and is added up")
                account = _sum(account, rows.read_account(known_row))
            found.accounts[row[0], row[1]] = rows.account_columns(row[0], row[1], account)
    for row in _rows(connection, "reservation", rows.RESERVATION, report):
        with _naming(report):
            rows.read_sealed(row, "reservation")
            found.reservations.append(row)
    for row in _rows(connection, "call_state", calls.COLUMNS, report):
        with _naming(report):
            rows.read_sealed(row, "state of a call")
            found.calls.append(row)
    for row in _rows(connection, "conversation", conversations.CONVERSATION, report):
        with _naming(report):
            conversations.decode(row)
            found.conversations.append(row)
    for table, columns in _USAGE.items():
        found.usage[table] = _sums(connection, table, columns, report)
    return found


def _sums(connection: sqlite3.Connection, table: str, columns: str, report: Recovered) -> list[Row]:
    """The rows of a table of usage, as far as they can be read from its beginning."""
    kept = list[Row]()
    try:
        for row in connection.execute(f"SELECT {columns} FROM {table}"):
            if all(isinstance(value, int | str) for value in row):
                kept.append(tuple(row))
            else:
                report.lost.append(f"a row of table {table}")
    except (sqlite3.Error, UnicodeDecodeError, OverflowError) as error:
        report.lost.append(f"rows of table {table} behind row {len(kept)}: {error}")
    return kept


@contextlib.contextmanager
def _naming(report: Recovered) -> Iterator[None]:
    try:
        yield
    except JournalDamaged as error:
        report.lost.append(str(error).partition(":")[0])


def _rows(
    connection: sqlite3.Connection, table: str, columns: str, report: Recovered
) -> Iterator[Row]:
    """All rows of a table that can be read; where a page cannot, those behind it."""
    after, jump = 0, 0
    while jump <= _FARTHEST:
        sql = f"SELECT rowid, {columns} FROM {table} WHERE rowid > ? ORDER BY rowid"
        try:
            for row in connection.execute(sql, (after + jump,)):
                after, jump = row[0], 0
                yield tuple(row[1:])
        except (sqlite3.Error, UnicodeDecodeError, OverflowError) as error:
            if not jump:
                report.lost.append(f"rows of table {table} behind row {after}: {error}")
            jump = max(jump * 2, 1)
        else:
            return


def _keep_whole(found: _Found, report: Recovered) -> None:
    """Leave out turns without headers, and those that stand on what is not there."""
    for key, (turn, _) in list(found.turns.items()):
        with _naming(report):
            headers = {link.header for link in decode_turn(turn).links}
            if headers <= set(found.headers):
                continue
            report.lost.append(f"turn {turn.response_id}: its header is gone")
        del found.turns[key]
    while orphans := [
        key
        for key, (turn, _) in found.turns.items()
        if turn.base_id is not None and (turn.tenant, turn.base_id) not in found.turns
    ]:
        for key in orphans:
            report.lost.append(f"turn {key[1]}: what it stands on is gone")
            del found.turns[key]
    for row in list(found.conversations):
        head_id = conversations.decode(row).head_id
        if head_id is not None and (row[0], head_id) not in found.turns:
            report.lost.append(f"conversation {row[1]}: what was said in it is gone")
            found.conversations.remove(row)


def _write(found: _Found, target: Path, report: Recovered) -> None:
    journal = SqliteJournal(target, fingerprint=b"")
    try:
        with journal.writing() as cursor:
            for turn, row in found.turns.values():
                cursor.execute(f"INSERT INTO turn ({rows.TURN}) VALUES ({marks(len(row))})", row)
                cursor.execute(
                    "INSERT INTO name (tenant, response_id, session, seq) VALUES (?, ?, ?, ?)",
                    (turn.tenant, turn.response_id, turn.session, turn.seq),
                )
                for item in _items(turn):
                    cursor.execute(f"INSERT INTO item ({rows.ITEM}) VALUES (?, ?, ?, ?)", item)
            for header in found.headers.items():
                cursor.execute("INSERT INTO header (digest, body) VALUES (?, ?)", header)
            for table, kept in found.usage.items():
                for row in kept:
                    cursor.execute(f"INSERT INTO {table} VALUES ({marks(len(row))})", row)
            for reservation in found.reservations:
                cursor.execute("INSERT INTO reservation VALUES (?, ?, ?, ?, ?, ?)", reservation)
            for state in found.calls:
                if (state[0], state[1]) in found.turns:
                    cursor.execute("INSERT INTO call_state VALUES (?, ?, ?, ?, ?)", state)
            for row in found.conversations:
                sql = f"INSERT INTO conversation ({conversations.CONVERSATION})"
                cursor.execute(f"{sql} VALUES ({marks(len(row))})", row)
            by_session: dict[tuple[str, str], list[StoredTurn]] = {}
            for turn, _ in found.turns.values():
                by_session.setdefault((turn.tenant, turn.session), []).append(turn)
            for key in found.sessions.keys() | by_session.keys():
                session = _session(key, found.sessions.get(key), by_session.get(key, []))
                account = (key[0], session_account(key[1]))
                if account not in found.accounts:
                    total = _added_up(by_session.get(key, []))
                    found.accounts[account] = rows.account_columns(*account, total)
                spent = rows.read_account(found.accounts[account])
                missing = missing_part(spent.usage.cached_tokens, spent.usage.input_tokens)
                session = replace(session, cost=spent.cost, missing=missing)
                journal.write_session(cursor, session)
                write_found_by(cursor, session, (), options_kept(session.options).labels)
            for row in found.accounts.values():
                sql = f"INSERT INTO account ({rows.ACCOUNT}) VALUES ({marks(len(row))})"
                cursor.execute(sql, row)
            report.sessions = len(found.sessions | by_session)
            bodies = (decode_turn(turn) for turn, _ in found.turns.values())
            report.turns = sum(body.status not in NO_TURNS for body in bodies)
    finally:
        journal.close()


def _items(turn: StoredTurn) -> list[Row]:
    """Where the turn's items are looked for by their ids."""
    items = chain.from_iterable(map(link_items, decode_links(turn)))
    return rows.item_columns(turn.tenant, turn.response_id, turn.created_s, items)


def _session(
    key: tuple[str, str], known: SessionRow | None, turns: Sequence[StoredTurn]
) -> SessionRow:
    """The session's row over the turns that are left; its head is the newest of them."""
    row = known or SessionRow(tenant=key[0], name=key[1], owner="", epoch=0)
    last = max((turn.seq for turn in turns), default=0)
    head_seq = max(row.head_seq, last)
    heads = [turn for turn in turns if turn.continuable]
    head = max(heads, key=lambda turn: turn.seq).response_id if heads else None
    bodies = [(turn, decode_turn(turn)) for turn in turns]
    ended_s = [turn.created_s for turn, body in bodies if body.status not in NO_TURNS]
    return replace(
        row,
        head_id=head,
        head_seq=head_seq,
        gone=head_seq - len(turns),
        turns_begun=max([row.turns_begun, *(body.number for _, body in bodies)]),
        updated_ms=max([row.updated_ms, *(round(at * 1000) for at in ended_s)]),
    )


def _added_up(turns: Sequence[StoredTurn]) -> SpendTotal:
    total = SpendTotal()
    for body in map(decode_turn, turns):
        mine = SpendTotal(
            turns=body.status not in NO_TURNS, usage=body.usage, cost=body.cost, saved=body.saved
        )
        total = _sum(total, mine)
    return total


def _sum(one: SpendTotal, other: SpendTotal) -> SpendTotal:
    return SpendTotal(
        turns=one.turns + other.turns,
        usage=one.usage + other.usage,
        cost=one.cost + other.cost,
        saved=one.saved + other.saved,
    )
