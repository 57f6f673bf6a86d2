"""The journal in one SQLite file: what a server uses that is told nothing else.

The file is in WAL mode with ``synchronous=FULL``: a commit is on the disk before anybody hears of
it. Beside it lie its lock, and the mark of how far it has come (``mark``). One server has the
file to itself unless it is opened as shared. Writers take turns under a lock of this process
and then under SQLite's own; readers have a connection for each thread and wait for nobody.

A file that cannot be written just now, as on a full disk, is opened to be read, and for good as
soon as that can be done. What a failed sync covered is written anew: another one proves nothing.

Always true: the mark is written between a commit and its being told of; a file that knows of
fewer commits than its mark is not opened; no commit is told of that is not in the file which the
path names.
"""

import contextlib
import logging
import os
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from fcntl import LOCK_EX, LOCK_SH
from pathlib import Path

from sessions.journal import file_connections, retention
from sessions.journal.errors import (
    JournalDamaged,
    JournalDisplaced,
    JournalError,
    JournalUnavailable,
)
from sessions.journal.file_check import FileCheck, still_ours
from sessions.journal.file_connections import FileConnections
from sessions.journal.file_opening import locked, made_file, prepare
from sessions.journal.file_state import (
    NOW_SQL,
    by_the_disk,
    file_beside,
    read_only,
    said,
    taken_bytes,
    unopened,
)
from sessions.journal.files import DiskReserve, JournalFiles
from sessions.journal.mark import MarkFile
from sessions.journal.ownership import Ownership, SystemWaiter
from sessions.journal.records import SessionRecord, TurnRecord
from sessions.journal.sql import SqlJournal
from sessions.journal.tables import Cursor

log = logging.getLogger(__name__)

UPKEEP_S = 0.02
"""Seconds between two looks at what commits have left to be done beside them."""
LOOK_S = 1.0
"""Seconds that a look waits for a commit that is under way; and for which the disk is believed
after one that was written."""
LOCKED_S = 0.5
"""Seconds that a look waits for another program's lock."""


class SqliteJournal(SqlJournal):
    """``Journal`` in one SQLite file."""

    now_sql = NOW_SQL

    def __init__(
        self,
        path: Path,
        *,
        fingerprint: bytes,
        owner: str = "",
        shared: bool = False,
        beside: bool = False,
        patient: bool = False,
        synchronous: str = "FULL",
    ) -> None:
        """
        Args:
            beside: to delete something, also while a server has the file: no turn is appended.
            patient: where the disk is what keeps it from being written it is only read until then.
            synchronous: SQLite's word; less than FULL is for tests of what that would lose.

        Raises:
            JournalInUse, JournalOtherVersion, JournalDamaged, JournalUnavailable: it was not
            opened.
        """
        super().__init__(fingerprint=fingerprint, owner=owner, shared=shared)
        self.path = path
        self._synchronous = synchronous
        self._connections = FileConnections(path, synchronous)
        self.write_lock = threading.Lock()
        self._closed = False
        self.damage: str | None = None
        self._beside = beside
        self._unopened: str | None = None
        """Why it can only be read so far."""
        self._begin()
        self._ownership = Ownership(journal=self, now_ms=self.now_ms, waiter=SystemWaiter())
        try:
            self._open()
        except JournalUnavailable as error:
            if not (patient and by_the_disk(error, path)):
                raise
            self._open_with_reserve(str(error))

    # Opening

    def _begin(self) -> None:
        """Set the state of a journal of which nothing is open yet."""
        self._whole, self._commits = False, 0
        self._lock_file: int | None = None
        self._mark: MarkFile | None = None
        self._upkeep: threading.Thread | None = None
        self._check: FileCheck | None = None
        self._unsynced, self._closing = threading.Event(), threading.Event()
        self._files, self._reserve = JournalFiles(), DiskReserve(self.path)
        self._moving = threading.Lock()
        """The log is being moved into the database."""
        self._unsure = False
        """A sync has failed: the log may not be on the disk, and nothing would tell."""
        self._spoilt: str | None = None
        """Why the file is not believed any more: another program has written over it."""
        self._wrote: sqlite3.Connection | None = None
        """The connection that wrote last."""
        self._committed_s = 0.0

    def _open(self) -> None:
        """Have it for writing. Raises JournalError: it is closed as before."""
        self._check = None
        try:
            if self._lock_file is None:
                how = None if self._beside else LOCK_SH if self.shared else LOCK_EX
                self._lock_file = locked(self.path, how)
            with said(self.path):
                mark = made_file(self.path)
                cursor = self._connection().cursor()
                self._commits, identity, self._whole = prepare(cursor, self.path, mark)
                if not (self._whole or self._beside):
                    self._check = FileCheck(self.path, self._connections.one_more())
            self._mark = MarkFile(file_beside(self.path, "mark"), identity)
            self._mark.write(self._commits)
            self._note_files()
        except (OSError, JournalUnavailable) as error:
            self._close_files()
            raise unopened(self.path, error) from error
        except BaseException:
            self._close_files()
            raise
        self._upkeep = threading.Thread(target=self._keep_up, name="journal upkeep", daemon=True)
        self._upkeep.start()
        if self._check is not None:
            self._check.start(self._guarded)

    def _note_files(self) -> None:
        if self._beside:
            return
        assert self._lock_file is not None
        assert self._mark is not None
        self._files = JournalFiles()
        self._files.note(self.path, "file")
        self._files.note(Path(f"{self.path}-wal"), "log")
        self._files.note(file_beside(self.path, "mark"), "mark", self._mark.descriptor)
        self._files.note(file_beside(self.path, "lock"), "lock", self._lock_file)

    def _open_with_reserve(self, why: str) -> None:
        """SQLite itself needs a little room to open; if that is not there it is read for now."""
        self._connections.renew()
        try:
            if not self._reserve.spend():
                raise JournalUnavailable(why)
            self._closed = False
            self._open()
        except JournalUnavailable:
            self._closed, self._unopened = False, why
            self._connections.renew()

    def _open_late(self) -> None:
        """Have for writing what could only be read so far. Raises JournalUnavailable: not yet."""
        try:
            self._reserve.renew()
        except OSError as error:
            raise JournalUnavailable(f"{self.path}: {error.strerror}") from error
        with self.write_lock:
            self._connections.close()
            self._connections.renew()  # what was opened to be read is used no more
            why, self._unopened = self._unopened, None
            try:
                self._open()
            except JournalError as error:
                self._closed, self._unopened = False, why
                self._connections.renew()
                if isinstance(error, JournalDamaged):
                    self.damage = str(error)
                raise

    def _connection(self) -> sqlite3.Connection:
        """This thread's connection, opened if it has none."""
        return self._connections.mine(self._new_connection)

    def _new_connection(self) -> sqlite3.Connection:
        if self._closed:
            raise JournalUnavailable(f"{self.path} is closed")
        if self._unopened is not None:
            return self._connections.keep(read_only(self.path))
        self._refuse_displaced()
        return self._connections.one_more()

    # Transactions

    @contextlib.contextmanager
    def writing(self, *, synced: bool = True) -> Iterator[Cursor]:
        """See ``SqlTables``. What is not synced is in no mark either: it may be gone one day."""
        with self.write_lock, said(self.path):
            self._refuse_damaged()
            if self._unopened is not None:
                raise JournalUnavailable(self._unopened)
            self._refuse_displaced()
            self._write_anew()
            connection = self._connection()
            cursor = connection.cursor()
            if not synced and self._synchronous != "OFF":
                cursor.execute("PRAGMA synchronous=NORMAL")
            try:
                cursor.execute("BEGIN IMMEDIATE")
                commits = self._count_commit(cursor) if synced else self._commits
                yield cursor
                cursor.execute("COMMIT")
            except BaseException as error:
                if connection.in_transaction:
                    cursor.execute("ROLLBACK")
                self._note_failure(error)
                raise
            finally:
                if not synced:
                    cursor.execute(f"PRAGMA synchronous={self._synchronous}")
            self._wrote = connection
            if synced:
                self._commits = commits  # not before: a commit may fail, as on a full disk
                self._committed(commits)

    def _committed(self, commits: int) -> None:
        """Before a commit is told of. Raises JournalUnavailable: it is there and must not be."""
        assert self._mark is not None
        try:
            self._mark.write(commits)
        except OSError as error:
            raise JournalUnavailable(f"{self.path}: its mark: {error.strerror}") from error
        self._refuse_displaced()
        self._committed_s = time.monotonic()
        self._unsynced.set()

    def _note_failure(self, error: BaseException) -> None:
        match getattr(error, "sqlite_errorcode", 0) & 0xFF:
            case sqlite3.SQLITE_FULL:
                self._reserve.spend()
            case sqlite3.SQLITE_IOERR:
                self._unsure = True

    def _write_anew(self) -> None:
        """After a sync that failed: all that the log holds goes into the database, and the log
        begins anew. For who has the lock."""
        if not self._unsure:
            return
        self._empty_log("written anew")
        self._unsure = False

    def _empty_log(self, why: str) -> None:
        """Move all of the log into the database. Raises JournalUnavailable: somebody reads it."""
        with self._moving:
            cursor = self._connection().cursor()
            (busy, *_) = cursor.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
            self._files.changed_here()
        if busy:
            raise JournalUnavailable(f"{self.path} is being read: its log cannot be {why}")

    def _count_commit(self, cursor: Cursor) -> int:
        sql = "UPDATE journal SET commits = commits + 1 WHERE id = 1 RETURNING commits"
        (commits,) = cursor.execute(sql).fetchone()
        if commits != self._commits + 1:
            self.kept_headers.clear()  # somebody else has written, and may have deleted some
        return int(commits)

    @contextlib.contextmanager
    def reading(self) -> Iterator[Cursor]:
        """See ``SqlTables``."""
        with said(self.path):
            self._refuse_damaged()
            cursor = self._connection().cursor()
            cursor.execute("BEGIN")
            try:
                yield cursor
            finally:
                if cursor.connection.in_transaction:
                    cursor.execute("ROLLBACK")

    def _refuse_damaged(self) -> None:
        if self.damage is not None:
            raise JournalDamaged(self.damage)

    def _refuse_displaced(self) -> None:
        if self._unopened is not None:
            return
        if (reason := self._spoilt or self._files.displaced()) is None:
            reason = self._spoilt = self._files.emptied()
        if reason is not None:
            raise JournalDisplaced(reason)

    # Whether it could be written

    def look(self) -> None:
        """See ``Journal``."""
        if self._unopened is not None:
            self._open_late()
        with said(self.path):
            self._refuse_damaged()
            self._refuse_displaced()
            if self._moving.acquire(blocking=False):
                try:
                    if self._files.changed_elsewhere:
                        self._verify()
                finally:
                    self._moving.release()
            try:
                self._reserve.renew()
                if self._unsure or time.monotonic() - self._committed_s > LOOK_S:
                    self._reserve.sync()
            except OSError as error:
                raise JournalUnavailable(f"{self.path}: {error.strerror}") from error
            self._try_lock()

    def _try_lock(self) -> None:
        if not self.write_lock.acquire(timeout=LOOK_S):
            raise JournalUnavailable(f"{self.path}: a commit takes longer than {LOOK_S:g} s")
        try:
            cursor = self._connection().cursor()
            cursor.execute(f"PRAGMA busy_timeout={LOCKED_S * 1000:.0f}")
            cursor.execute("BEGIN IMMEDIATE")
            cursor.execute("ROLLBACK")
            self._write_anew()
        finally:
            self.write_lock.release()

    def _verify(self) -> None:
        """Another program has written into the file: what it holds has to be ours still."""
        connect, commits = self._connections.open, self._commits
        ours = still_ours(self.path, connect, commits, looks_through=not self.shared)
        if ours is None:
            return
        if not ours:
            self._spoilt = f"the journal {self.path} was written over"
            raise JournalDisplaced(self._spoilt)
        self._files.changed_here()

    @property
    def commits(self) -> int:
        """Number of commits so far."""
        return self._commits

    @contextlib.contextmanager
    def held(self) -> Iterator[sqlite3.Connection]:
        """The connection that wrote last, which nobody uses meanwhile: of a file that no path
        names any more it still reads what was committed."""
        with self.write_lock:
            yield self._wrote or self._connections.first

    # Beside the commits

    def _keep_up(self) -> None:
        """Sync the mark, and keep the log short."""
        while not self._closed:
            self._unsynced.wait()
            self._unsynced.clear()
            assert self._mark is not None
            self._guarded(self._mark.sync)
            self._guarded(self.checkpoint)
            self._closing.wait(UPKEEP_S)

    def _guarded(self, work: Callable[[], object]) -> None:
        try:
            with said(self.path):
                work()
        except JournalDamaged as error:
            self.damage = str(error)
            log.error("journal is damaged reason=%s", error)
        except (JournalError, OSError) as error:  # tried again behind the next commit
            log.debug("journal upkeep failed reason=%s", error)

    def checkpoint(self) -> None:
        """Most of the log is moved beside the commits, what has come meanwhile between two of
        them: a log begins anew only where all of it was moved."""
        log_file = Path(f"{self.path}-wal")
        if not log_file.exists() or log_file.stat().st_size <= file_connections.CHECKPOINT_BYTES:
            return
        self._refuse_displaced()
        connection = self._connection()
        with self._moving:
            try:
                connection.execute("PRAGMA wal_checkpoint(PASSIVE)")
                if self.write_lock.acquire(timeout=UPKEEP_S):
                    try:
                        connection.execute("PRAGMA wal_checkpoint(PASSIVE)")
                    finally:
                        self.write_lock.release()
            finally:
                self._files.changed_here()

    @property
    def is_checking(self) -> bool:
        """The file is being looked through, as after a server that was killed."""
        return self._check is not None and self._check.is_running

    def wait_checked(self) -> None:
        """Return when it has been looked through."""
        if self._check is not None:
            self._check.wait()

    # Journal

    def claim(self, tenant: str, session: str, wait_s: float) -> SessionRecord | None:
        """See ``Journal``."""
        if not self.shared:
            return self.session(tenant, session)
        return self._ownership.claim(tenant, session, wait_s)

    def release(self, tenant: str, sessions: Sequence[str], *, unasked: bool = False) -> None:
        """See ``Journal``."""
        if self.shared:
            self._ownership.release(tenant, sessions, unasked=unasked)

    @property
    def ownership(self) -> Ownership | None:
        """See ``Journal``."""
        return self._ownership if self.shared else None

    def settle_left(self) -> list[TurnRecord]:
        """See ``Journal``."""
        return self._ownership.settle_left() if self.shared else super().settle_left()

    def delete_session(self, tenant: str, name: str) -> tuple[str, ...]:
        """See ``Journal``."""
        return retention.delete_session(self, tenant, name)

    def expire(self, before_s: float) -> int:
        """See ``Journal``."""
        return retention.expire(self, round(before_s * 1000))

    def vacuum(self) -> int:
        """Leave nothing of what was deleted in the file and its log; returns how many bytes they
        have shrunk by. Others wait while SQLite copies it, in one transaction of its own."""
        before = taken_bytes(self.path)
        retention.sweep_headers(self)
        with self.write_lock, said(self.path):
            self._connection().execute("VACUUM")
            self._empty_log("emptied")
        return before - taken_bytes(self.path)

    def close(self) -> None:
        """See ``Journal``."""
        if self._closed:
            return
        if self.shared:
            with contextlib.suppress(JournalError):
                self._ownership.leave()
        with self.write_lock:
            self._closed = True
        self._unsynced.set()
        self._closing.set()
        if self._check is not None:
            self._check.give_up()
        if self._upkeep is not None:
            self._upkeep.join()
        if self._mark is not None:
            self._leave(self._mark)
            self._mark.close()
        self._close_files()

    def _leave(self, mark: MarkFile) -> None:
        """A journal that was displaced is left as it is: its path may name what is another's."""
        try:
            self._refuse_displaced()
        except JournalDisplaced:
            # SQLite deletes, as it closes the last connection, what the log's path names.
            self._connections.leave_open()
            return
        with contextlib.suppress(sqlite3.Error):
            self._connections.first.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        with contextlib.suppress(OSError):  # then the next start looks the file through
            whole = self._whole or (self._check is not None and self._check.whole)
            if whole and not (self.shared or self._beside) and self.damage is None:
                mark.write(self._commits, clean=True)
            mark.sync()

    def _close_files(self) -> None:
        self._closed = True
        self._connections.close()
        self._reserve.close()
        if self._lock_file is not None:
            os.close(self._lock_file)
            self._lock_file = None
