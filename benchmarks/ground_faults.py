"""Faults of the ground under a server: faults as they are made, and ended where they can be.

Made without root: the disk's by a library of our own (``tests/support/failing_disk.c``) that the
server's process has preloaded, the file's by whoever may write into its folder.
"""

import os
import resource
import shutil
import signal
import sqlite3
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil

from tests.support.postgres import PostgresServer

SOURCE = Path(__file__).parent.parent / "tests/support/failing_disk.c"


@dataclass(slots=True, kw_only=True)
class Ground:
    """The ground under one server."""

    process: psutil.Process
    journal: Path
    """Alone in a folder of its own, but for what belongs to it."""
    control: Path
    """The file that the preloaded library reads."""
    database: PostgresServer | None = None

    @property
    def reader(self) -> psutil.Process:
        """The process that reads large requests."""
        children = self.process.children(recursive=True)
        return next(each for each in children if "sessions.wire.read_process" in each.cmdline())


End = Callable[[], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One kind."""

    name: str
    make: Callable[[Ground], End | None]
    """None: it cannot end, the next start decides."""
    destroys: bool = False
    """Whether it destroys acknowledged records, as far as they were in the file alone."""
    refuses: bool = True
    """Turns, while it lasts."""


def _disk(letter: str) -> Callable[[Ground], End]:
    def make(ground: Ground) -> End:
        ground.control.write_text(letter)
        return ground.control.unlink

    return make


def _locked(ground: Ground) -> End:
    other = sqlite3.connect(ground.journal, isolation_level=None, check_same_thread=False)
    other.execute("PRAGMA busy_timeout=10000")
    other.execute("BEGIN IMMEDIATE")
    return other.close


def _moved(ground: Ground) -> End:
    folder = ground.journal.parent
    away = folder.rename(folder.with_name(folder.name + ".moved"))

    def back() -> None:
        away.rename(folder)

    return back


def _removed(ground: Ground) -> None:
    for each in ground.journal.parent.glob(f"{ground.journal.name}*"):
        each.unlink()


def _emptied(ground: Ground) -> None:
    os.truncate(ground.journal, 0)


def _replaced(ground: Ground) -> None:
    """By a copy of itself as it is without its log."""
    copy = ground.journal.with_name("copy")
    shutil.copy(ground.journal, copy)
    copy.replace(ground.journal)


def _log_removed(ground: Ground) -> None:
    Path(f"{ground.journal}-wal").unlink()


def _descriptors(ground: Ground) -> End:
    before = resource.prlimit(ground.process.pid, resource.RLIMIT_NOFILE)
    resource.prlimit(
        ground.process.pid, resource.RLIMIT_NOFILE, (ground.process.num_fds(), before[1])
    )
    return lambda: resource.prlimit(ground.process.pid, resource.RLIMIT_NOFILE, before) and None


def _reader_stopped(ground: Ground) -> End:
    reader = ground.reader
    reader.suspend()

    def go_on() -> None:
        if reader.is_running():
            reader.send_signal(signal.SIGCONT)

    return go_on


def _database_gone(ground: Ground) -> End:
    assert ground.database is not None
    ground.database.stop()
    return ground.database.start


FAULTS = (
    Fault(name="disk_full", make=_disk("f")),
    Fault(name="quota", make=_disk("q")),
    Fault(name="fsync_eio", make=_disk("e")),
    Fault(name="read_only", make=_disk("r")),
    Fault(name="locked", make=_locked),
    Fault(name="moved", make=_moved),
    Fault(name="reader_stopped", make=_reader_stopped, refuses=False),
    Fault(name="descriptors", make=_descriptors, refuses=False),
    Fault(name="removed", make=_removed),
    Fault(name="replaced", make=_replaced),
    Fault(name="log_removed", make=_log_removed),
    Fault(name="emptied", make=_emptied, destroys=True),
)
ENDLESS = frozenset({"removed", "replaced", "log_removed", "emptied"})
DATABASE_GONE = Fault(name="database_gone", make=_database_gone)


@contextmanager
def failing_disk(folder: Path, control: Path) -> Iterator[None]:
    """Processes that are started meanwhile have the library preloaded."""
    library = control.with_suffix(".so")
    command = ["cc", "-O2", "-shared", "-fPIC", "-o", str(library), str(SOURCE), "-ldl"]
    subprocess.run(command, check=True)
    added = {
        "LD_PRELOAD": str(library),
        "FAILING_DISK": str(control),
        "FAILING_DISK_FOLDER": str(folder),
    }
    before = {name: os.environ.get(name) for name in added}
    os.environ.update(added)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
