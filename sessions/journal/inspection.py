"""Faults of a journal, asked by somebody who opens it as a server would, changing nothing.

Looks at a file beside the server that may use it. A file of some GiB takes long to look through:
what is not done in time is told, not waited for.
"""

import os
import sqlite3
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from fcntl import LOCK_EX, LOCK_NB, LOCK_SH, flock
from pathlib import Path

from sessions.journal.errors import JournalAbsent, JournalDamaged, JournalInUse
from sessions.journal.file_state import (
    file_beside,
    first_row,
    lost,
    unusable,
)
from sessions.journal.mark import Mark, read_mark
from sessions.journal.view import SqliteView

LOOK_S = 10.0
"""How long a file is looked through."""
_STEPS = 1000
"""Steps of SQLite's machine between two looks at the clock."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """A journal with which nothing was found wrong."""

    sessions: int
    num_bytes: int
    whole: bool
    """Whether it was looked through to its end."""


def look_at(
    path: Path,
    *,
    shared: bool,
    look_s: float = LOOK_S,
    clock: Callable[[], float] = time.monotonic,
) -> Seen | None:
    """Open a journal's file as a server would that is to share it with others or not.

    Returns:
        what is in it; None: there is no such file yet, and it can be made.

    Raises:
        JournalError: the server would not start, or would soon find the file damaged.
    """
    if path.is_dir():
        raise unusable(path, "it is a folder")
    _refuse_held(path, shared)
    try:
        mark = read_mark(file_beside(path, "mark"))
        if not path.exists() or path.stat().st_size == 0:
            _refuse_unmakeable(path, mark)
            return None
        for file in (path, file_beside(path, "mark")):
            if file.exists():
                os.close(os.open(file, os.O_RDWR | os.O_CLOEXEC))
    except OSError as error:
        raise unusable(path, error.strerror) from error
    try:
        view = SqliteView(path)
    except JournalAbsent:
        return None
    with closing(view):
        return _look_through(view, path, mark, clock, clock() + look_s)


def _refuse_held(path: Path, shared: bool) -> None:
    """Raise JournalInUse where a server has the file that would not share it."""
    try:
        lock = os.open(file_beside(path, "lock"), os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:  # made before anything else: no server has ever had the file
        return
    except OSError as error:
        raise unusable(path, error.strerror) from error
    try:
        flock(lock, (LOCK_SH if shared else LOCK_EX) | LOCK_NB)
    except BlockingIOError as error:
        raise JournalInUse(f"the journal {path} is another server's, which runs") from error
    finally:
        os.close(lock)


def _refuse_unmakeable(path: Path, mark: Mark | None) -> None:
    if mark is not None and mark.commits:
        raise lost(path, 0, mark.commits)
    folder = path.parent
    if not folder.is_dir():
        raise unusable(path, f"there is no folder {folder}")
    if not os.access(
        folder, os.W_OK | os.X_OK, effective_ids=os.access in os.supports_effective_ids
    ):
        raise unusable(path, f"{folder} may not be written to")


def _look_through(
    view: SqliteView, path: Path, mark: Mark | None, clock: Callable[[], float], until_s: float
) -> Seen:
    with view.reading() as cursor:
        first_row(cursor, path, mark)
        whole = True
        view.interrupt_if(lambda: clock() > until_s, every=_STEPS)
        try:
            (found,) = cursor.execute("PRAGMA integrity_check(1)").fetchone()
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode != sqlite3.SQLITE_INTERRUPT:
                raise
            whole, found = False, "ok"
        view.interrupt_if(None)
        if found != "ok":
            first = str(found).splitlines()[0]
            raise JournalDamaged(f"{path}: {first}; run 'keepwarm sessions recover'")
    return Seen(sessions=len(view.sessions()), num_bytes=path.stat().st_size, whole=whole)
