"""A journal's file copied while a server uses it, and put back where no server does.

A backup is one state of the file, with all that was committed before it began; writers wait for
nothing meanwhile. It is one file without a log beside it. The key that signs compaction items lies
beside a journal's file, and goes along. For a journal in PostgreSQL that database's own programs do
this.

Always true: what is not whole has never the name that was asked for; nothing is written over.
"""

import contextlib
import os
import secrets
import shutil
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from sessions.journal.errors import (
    JournalAbsent,
    JournalDamaged,
    JournalError,
    JournalUnavailable,
)
from sessions.journal.file_state import (
    compaction_key,
    file_beside,
    first_row,
    has_tables,
    left_alone,
    said,
)
from sessions.journal.records import session_account
from sessions.journal.tables import Cursor

_PAGES = 1024
"""That are copied between two looks at whether somebody has had enough."""
_TARGETS = frozenset(
    {sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN}
)
"""Errors of the file that is written, where one is written."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BackedUp:
    """The content of a backup, or of what was restored from one."""

    path: Path
    sessions: int
    turns: int
    """Turns that its sessions have had."""
    cost: int
    """Cost of all sessions, in nano-dollars."""
    commits: int
    num_bytes: int
    with_key: bool
    """The key that signs compaction items is beside it."""
    aside: Path | None = None
    """Where the journal lies that was there before."""


def back_up(source: Path, target: Path) -> BackedUp:
    """Copy a journal's file as it is at this moment, also one that servers use.

    Raises:
        JournalError: there is no whole journal, ``target`` exists, or cannot be written.
    """
    keys = compaction_key(source), file_beside(target, "key")
    _refuse_existing(target)
    if with_key := keys[0].is_file():
        _refuse_existing(keys[1])
    with _drawn_up(target) as draft:
        with closing(_opened(source)) as connection:
            found = _one_state(connection, source, draft, target)
        with _written(target):
            if with_key:
                _copy_key(*keys)
            _put(draft, target)
    return _told(found, target, with_key=with_key)


def restore(source: Path, target: Path, *, aside: str | None) -> BackedUp:
    """Put a backup where a server will look for its journal.

    Args:
        source: a backup, or a journal's file that no server uses.
        aside: added to the name of a journal that is there, whose files stay under that; None: it
            is refused.

    Raises:
        JournalInUse: a server has one of them.
        JournalError: ``source`` is no whole journal; ``target`` is there and may not be put aside,
            or cannot be written.
    """
    if source.exists() and target.exists() and source.samefile(target):
        raise JournalError(f"{target} is what was to be restored")
    with _written(target):
        target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with left_alone(source, "restore"), _drawn_up(target) as draft:
        with closing(_opened(source)) as connection:
            found = _one_state(connection, source, draft, target)
        with left_alone(target, "restore", make=True), _written(target):
            keys = file_beside(source, "key"), compaction_key(target)
            with_key = keys[0].is_file()
            if with_key and keys[1].exists() and keys[0].read_bytes() != keys[1].read_bytes():
                _put_aside([keys[1]], keys[1], aside)
            parts = [Path(f"{target}{suffix}") for suffix in ("", "-wal", ".mark")]
            moved = _put_aside(parts, target, aside)
            Path(f"{target}-shm").unlink(missing_ok=True)
            if with_key and not keys[1].exists():
                _copy_key(*keys)
            _put(draft, target)
    return _told(found, target, with_key=with_key, aside=moved)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Found:
    sessions: int
    turns: int
    cost: int
    commits: int


def _told(found: _Found, path: Path, *, with_key: bool, aside: Path | None = None) -> BackedUp:
    return BackedUp(
        path=path,
        sessions=found.sessions,
        turns=found.turns,
        cost=found.cost,
        commits=found.commits,
        num_bytes=path.stat().st_size,
        with_key=with_key,
        aside=aside,
    )


def _opened(source: Path) -> sqlite3.Connection:
    """A connection that changes nothing, on a file that has a journal's tables."""
    if not source.is_file():
        raise JournalUnavailable(f"{source}: no such file")
    with said(source):
        address = f"{source.resolve().as_uri()}?mode=ro"
        connection = sqlite3.connect(address, uri=True, isolation_level=None)
        try:
            if not has_tables(connection.cursor(), source, None):
                raise JournalAbsent(f"there is no journal in {source} yet")
        except BaseException:
            connection.close()
            raise
    return connection


def _one_state(connection: sqlite3.Connection, source: Path, draft: Path, target: Path) -> _Found:
    """Copy what the connection sees at one moment into ``draft``, and look it through."""
    try:
        with closing(sqlite3.connect(draft, isolation_level=None)) as copy:
            connection.execute("BEGIN")
            _, commits = first_row(connection.cursor(), source, None)
            connection.backup(copy, pages=_PAGES)
            connection.execute("ROLLBACK")
            copy.execute("PRAGMA journal_mode=DELETE")
            (whole,) = copy.execute("PRAGMA integrity_check(1)").fetchone()
            found = _counted(copy.cursor())
    except sqlite3.Error as error:
        theirs = getattr(error, "sqlite_errorcode", 0) & 0xFF in _TARGETS
        with said(target if theirs else source):
            raise
    if whole != "ok" or found.commits != commits:
        first = whole.splitlines()[0] if whole != "ok" else "the copy lacks some of it"
        raise JournalDamaged(f"{source}: {first}; run 'keepwarm sessions recover'")
    return found


def _counted(cursor: Cursor) -> _Found:
    (sessions, cost) = cursor.execute("SELECT count(*), sum(cost) FROM session").fetchone()
    sql = "SELECT COALESCE(sum(turns), 0) FROM account WHERE name LIKE ?"
    (turns,) = cursor.execute(sql, (session_account("%"),)).fetchone()
    (commits,) = cursor.execute("SELECT commits FROM journal WHERE id = 1").fetchone()
    return _Found(sessions=sessions, turns=turns, cost=cost or 0, commits=commits)


@contextlib.contextmanager
def _drawn_up(target: Path) -> Iterator[Path]:
    """A file beside ``target`` that its user alone may read, gone in the end."""
    draft = target.with_name(f"{target.name}.{os.getpid()}.{secrets.token_hex(4)}")
    with _written(target):
        os.close(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    try:
        yield draft
    finally:
        for left in (draft, Path(f"{draft}-journal")):
            left.unlink(missing_ok=True)


def _put(draft: Path, target: Path) -> None:
    """Give the file its name once it is on the disk; nothing that has it already loses it."""
    descriptor = os.open(draft, os.O_RDWR | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    os.link(draft, target)
    _sync_folder(target.parent)


def _put_aside(parts: Sequence[Path], path: Path, aside: str | None) -> Path | None:
    """Rename what is there of the ``parts`` of ``path``: the mark of a journal last, so that one
    of which half is renamed is not taken for a new one."""
    there = [part for part in parts if part.exists()]
    if not there:
        return None
    if aside is None:
        raise JournalError(f"{there[0]} exists: --replace puts it aside")
    moved = path.with_name(f"{path.name}{aside}")
    _refuse_existing(moved)
    for part in there:
        part.rename(f"{moved}{part.name.removeprefix(path.name)}")
    _sync_folder(path.parent)
    return moved


def _copy_key(source: Path, target: Path) -> None:
    descriptor = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "wb") as out, source.open("rb") as key:
        shutil.copyfileobj(key, out)
        out.flush()
        os.fsync(out.fileno())


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _refuse_existing(path: Path) -> None:
    if path.is_symlink() or path.exists():
        raise JournalError(f"{path} exists: name another file")


@contextlib.contextmanager
def _written(target: Path) -> Iterator[None]:
    """The system's refusals to write in the journal's words."""
    try:
        yield
    except FileExistsError as error:
        raise JournalError(f"{error.filename2 or error.filename} exists: name another") from error
    except OSError as error:
        raise JournalUnavailable(f"{error.filename or target}: {error.strerror}") from error
