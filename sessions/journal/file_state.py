"""State of a journal's file when it is opened, and what is wrong with it.

Whoever opens it asks the same: the server that is going to write, and those who only look.
"""

import contextlib
import errno
import os
import sqlite3
from collections.abc import Iterator
from fcntl import LOCK_EX, LOCK_NB, flock
from pathlib import Path

from sessions.journal.errors import (
    JournalDamaged,
    JournalError,
    JournalInUse,
    JournalUnavailable,
    other_version,
)
from sessions.journal.mark import Mark
from sessions.journal.tables import VERSION, Cursor

_LATER = frozenset(
    {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_FULL, sqlite3.SQLITE_READONLY}
    | {sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CANTOPEN}
)

NOW_SQL = "SELECT CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER)"
"""See ``SqlTables.now_sql``."""
_OF_THE_DISK = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO})


def file_beside(path: Path, what: str) -> Path:
    """A file that belongs to a journal's: its ``lock``, its ``mark``."""
    return path.with_name(f"{path.name}.{what}")


def compaction_key(path: Path) -> Path:
    """The file of the key that signs compaction items, where a server of this journal makes one."""
    return path.with_suffix(".key")


@contextlib.contextmanager
def left_alone(path: Path, what: str, *, make: bool = False) -> Iterator[None]:
    """Nothing but this program has the journal meanwhile.

    Args:
        what: is done then, for people.
        make: its lock, where no server has ever had the file: none has it before this is over.

    Raises:
        JournalInUse: a server has it.
    """
    try:
        # Only to be read where it is there: also of a read-only disk.
        flags = os.O_RDWR | os.O_CREAT if make else os.O_RDONLY
        lock = os.open(file_beside(path, "lock"), flags | os.O_CLOEXEC, 0o600)
    except FileNotFoundError:  # made before anything else: no server has ever had the file
        yield
        return
    except OSError as error:
        raise JournalUnavailable(f"{path}.lock: {error.strerror}") from error
    try:
        try:
            flock(lock, LOCK_EX | LOCK_NB)
        except BlockingIOError as error:
            raise JournalInUse(f"a server has {path} open: stop it, then {what}") from error
        yield
    finally:
        os.close(lock)


def has_tables(cursor: Cursor, path: Path, mark: Mark | None) -> bool:
    """Whether the file has a journal's tables, or is empty yet.

    Raises:
        JournalOtherVersion: it has those of another version.
        JournalDamaged: what it had is gone.
        JournalUnavailable: it holds what no journal does.
    """
    cursor.execute("BEGIN")
    (version,) = cursor.execute("PRAGMA user_version").fetchone()
    (tables,) = cursor.execute("SELECT count(*) FROM sqlite_master").fetchone()
    cursor.execute("ROLLBACK")
    if version not in (0, VERSION):
        raise other_version(str(path), version, VERSION)
    if version == 0 and mark is not None and mark.commits:
        raise lost(path, 0, mark.commits)
    if version == 0 and tables:
        raise unusable(path, "it is another program's database")
    return bool(version)


def first_row(cursor: Cursor, path: Path, mark: Mark | None) -> tuple[bytes, int]:
    """The identity of a file that has tables, and how many commits it knows of.

    Raises:
        JournalDamaged: there is no such row, or the mark beside the file knows of more.
    """
    row = cursor.execute("SELECT identity, commits FROM journal WHERE id = 1").fetchone()
    if row is None:
        raise JournalDamaged(f"{path} has lost its first row: run 'keepwarm sessions recover'")
    identity, commits = row
    if mark is not None and (mark.identity != identity or commits < mark.commits):
        raise lost(path, commits if mark.identity == identity else 0, mark.commits)
    return identity, commits


def by_the_disk(error: BaseException, path: Path) -> bool:
    """Whether the disk keeps a journal from being opened: full, failing, or only to be read."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, OSError) and cause.errno in _OF_THE_DISK:
            return True
        code = getattr(cause, "sqlite_errorcode", 0) & 0xFF
        if code in (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_BUSY):
            return True
        if code in (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN):
            return _takes_nothing(path.parent)
        cause = cause.__cause__
    return False


def _takes_nothing(folder: Path) -> bool:
    try:
        disk = os.statvfs(folder)
    except OSError:
        return False
    return bool(disk.f_flag & os.ST_RDONLY) or not disk.f_bavail


def taken_bytes(path: Path) -> int:
    """Bytes that a journal takes on the disk: its file and the log of what is not there yet."""
    log = Path(f"{path}-wal")
    return path.stat().st_size + (log.stat().st_size if log.exists() else 0)


def read_only(path: Path) -> sqlite3.Connection:
    """A connection to a file that may not be written, nor anything beside it.

    Raises:
        JournalUnavailable: there is nothing that can be read.
        JournalOtherVersion: it has tables of another version.
    """
    log = Path(f"{path}-wal")
    for how in ("mode=ro", "mode=ro&immutable=1"):
        if "immutable" in how and log.exists() and log.stat().st_size:
            break
        address = f"{path.resolve().as_uri()}?{how}"
        connection = None
        try:
            connection = sqlite3.connect(
                address, uri=True, isolation_level=None, check_same_thread=False
            )
            (version,) = connection.execute("PRAGMA user_version").fetchone()
        except sqlite3.OperationalError:
            if connection is not None:  # one that stays open keeps others from writing
                connection.close()
            continue
        if version == VERSION:
            return connection
        connection.close()
        if version:
            raise other_version(str(path), version, VERSION)
        break
    raise JournalUnavailable(f"{path} cannot be read before it can be written")


def unusable(path: Path, why: str | None) -> JournalUnavailable:
    """The error for a file that cannot be opened."""
    return JournalUnavailable(
        f"the journal {path} cannot be opened: {why}; name another with --journal"
    )


def unopened(path: Path, error: OSError | JournalUnavailable) -> JournalUnavailable:
    """The error for a journal that cannot be opened, with what the system, SQLite or we have
    said."""
    if isinstance(error, OSError):
        return unusable(path, error.strerror)
    if error.__cause__ is None:  # which is ours and says all
        return JournalUnavailable(str(error))
    return unusable(path, str(error.__cause__))


def lost(path: Path, found: int, marked: int) -> JournalDamaged:
    """The error for a journal that has fewer commits than were told of."""
    return JournalDamaged(
        f"{path} has lost commits ({found} of {marked} are there): 'keepwarm sessions recover' "
        f"saves what is whole; if an older copy was put there on purpose, delete {path.name}.mark"
    )


@contextlib.contextmanager
def said(path: Path) -> Iterator[None]:
    """SQLite's errors in the journal's words."""
    try:
        yield
    except sqlite3.Error as error:
        if isinstance(error, sqlite3.ProgrammingError) and "closed" in str(error):
            raise JournalUnavailable(f"{path}: it is being opened anew") from error
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF
        if code in _LATER:
            raise JournalUnavailable(f"{path}: {error}") from error
        if code == sqlite3.SQLITE_NOTADB:
            raise JournalDamaged(
                f"{path} is no journal, or a damaged one ({error}): name another with --journal; "
                "if it was one, run 'keepwarm sessions recover'"
            ) from error
        if code == sqlite3.SQLITE_CORRUPT or "decode" in str(error) or "no such" in str(error):
            raise JournalDamaged(
                f"{path} is damaged: {error}; run 'keepwarm sessions recover'"
            ) from error
        raise JournalError(f"{path}: {error}") from error
    except (OverflowError, UnicodeDecodeError) as error:
        raise JournalDamaged(f"{path} is damaged: {error}") from error
