"""Having a journal's file for writing: its lock, and its tables made or checked.

Always true: a file that knows of fewer commits than its mark is refused; of two programs that find
no file one makes it.
"""

import contextlib
import os
import secrets
import sqlite3
from fcntl import LOCK_NB, flock
from pathlib import Path

from sessions.journal.errors import JournalInUse
from sessions.journal.file_state import file_beside, first_row, has_tables, lost, unusable
from sessions.journal.mark import Mark, read_mark
from sessions.journal.tables import VERSION, Cursor, statements


def locked(path: Path, how: int | None) -> int:
    """The open lock file of a journal, locked.

    Args:
        how: ``LOCK_SH`` or ``LOCK_EX``; None: whoever else has locked it.

    Raises:
        JournalInUse, JournalUnavailable: another program has it, or it cannot be opened.
    """
    try:
        lock = os.open(file_beside(path, "lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise unusable(path, error.strerror) from error
    if how is None:
        return lock
    try:
        flock(lock, how | LOCK_NB)
    except OSError as error:
        os.close(lock)
        raise JournalInUse(
            f"the journal {path} is another server's: name another file with --journal, keep "
            "nothing with '--journal :memory:', or start all its servers with --journal-shared"
        ) from error
    return lock


def made_file(path: Path) -> Mark | None:
    """Make the file where there is none; returns its mark, if it has one. Raises JournalDamaged:
    it has gone, JournalUnavailable: it is a folder."""
    if path.is_dir():
        raise unusable(path, "it is a folder")
    mark = read_mark(file_beside(path, "mark"))
    if mark is not None and mark.commits and (not path.exists() or path.stat().st_size == 0):
        raise lost(path, 0, mark.commits)
    with contextlib.suppress(FileExistsError):
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC, 0o600))
    return mark


def prepare(cursor: sqlite3.Cursor, path: Path, mark: Mark | None) -> tuple[int, bytes, bool]:
    """Make or check the tables: the file's commits, its identity, and whether it is known to be
    whole. Raises as ``has_tables`` and ``first_row``."""
    made = has_tables(cursor, path, mark)
    cursor.execute("PRAGMA journal_mode=WAL")
    if not made:
        _make_tables(cursor)
        cursor.execute("PRAGMA wal_checkpoint(PASSIVE)")
    cursor.execute("BEGIN IMMEDIATE")
    cursor.execute("UPDATE journal SET commits = commits")  # fails where it may only be read
    cursor.execute("ROLLBACK")
    identity, commits = first_row(cursor, path, mark)
    return commits, identity, not made or (mark is not None and mark.clean)


def _make_tables(cursor: Cursor) -> None:
    cursor.execute("BEGIN IMMEDIATE")
    (version,) = cursor.execute("PRAGMA user_version").fetchone()  # another may have done it
    if version == 0:
        for statement in statements("BLOB"):
            cursor.execute(statement)
        first = "INSERT INTO journal (id, identity, commits) VALUES (1, ?, 0)"
        cursor.execute(first, (secrets.token_bytes(16),))
        cursor.execute(f"PRAGMA user_version={VERSION}")
    cursor.execute("COMMIT")
