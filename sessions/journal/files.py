"""Whether a journal's open files are those that their paths name, and whether their disk has room.

Compares by device, inode and size; a second hard link is a backup and no fault. A database file is
never opened and closed here, since that gives up the locks that SQLite has on it: what SQLite has
open is found among the descriptors of this process, where the system shows them.

Always true: nothing here writes into a database or its log. The reserve is there in full, or the
disk had no room for it when it was looked for last.
"""

import contextlib
import os
from dataclasses import dataclass
from pathlib import Path

from sessions.journal.file_state import file_beside

RESERVE_BYTES = 1024 * 1024
_PAGE = bytes(4096)
_HEADER = b"SQLite format 3\0"
_DESCRIPTORS = Path("/proc/self/fd")


@dataclass(slots=True)
class _Open:
    path: Path
    what: str
    device: int
    inode: int
    descriptor: int | None


class JournalFiles:
    """The files of one journal that is open, in the order in which they were noted."""

    def __init__(self) -> None:
        self._files: list[_Open] = []
        self._seen: tuple[int, int] | None = None
        """Size and time of the database file's last change, after our own last one."""

    def note(self, path: Path, what: str, descriptor: int | None = None) -> None:
        """``path`` names a file that is open here; the database's comes first.

        Args:
            descriptor: of the open file, if it is one of our own.
        """
        named = path.stat()
        if descriptor is None:
            descriptor = _descriptor_of(named)
        self._files.append(_Open(path, what, named.st_dev, named.st_ino, descriptor))
        if len(self._files) == 1:
            self.changed_here()

    def changed_here(self) -> None:
        """We have changed the database file."""
        if self._files:
            with contextlib.suppress(OSError):
                self._seen = _state(self._stat(self._files[0]))

    def displaced(self) -> str | None:
        """Which path names another file than the one that is open, or none; None: none does."""
        for each in self._files:
            try:
                named = each.path.stat()
            except FileNotFoundError:
                return f"the {each.what} {each.path} is gone"
            except OSError as error:
                return f"the {each.what} {each.path} cannot be found: {error.strerror}"
            if (named.st_dev, named.st_ino) != (each.device, each.inode):
                return f"the {each.what} {each.path} is another file than the one that is open"
        return None

    def emptied(self) -> str | None:
        """The database file does not even begin as one."""
        if not self._files:
            return None
        database = self._files[0]
        if database.descriptor is None:
            empty = self._stat(database).st_size == 0
        else:
            empty = os.pread(database.descriptor, len(_HEADER), 0) != _HEADER
        return f"the journal {database.path} was emptied" if empty else None

    @property
    def changed_elsewhere(self) -> bool:
        """The database file is not as we left it: another program has written into it."""
        return bool(self._files) and _state(self._stat(self._files[0])) != self._seen

    def _stat(self, file: _Open) -> os.stat_result:
        return file.path.stat() if file.descriptor is None else os.fstat(file.descriptor)


def _state(stat: os.stat_result) -> tuple[int, int]:
    return stat.st_size, stat.st_mtime_ns


def _descriptor_of(named: os.stat_result) -> int | None:
    """The descriptor of the file that is open in this process."""
    with contextlib.suppress(OSError):
        for name in os.listdir(_DESCRIPTORS):
            with contextlib.suppress(OSError):  # that which listed them is closed
                found = os.fstat(int(name))
                if (found.st_dev, found.st_ino) == (named.st_dev, named.st_ino):
                    return int(name)
    return None


class DiskReserve:
    """Room beside the journal, kept for what is owed when the disk is full."""

    def __init__(self, path: Path) -> None:
        self._path = file_beside(path, "reserve")
        self._descriptor: int | None = None

    def renew(self) -> None:
        """Have it in full, and see whether there is room behind it, or raise OSError."""
        if self._descriptor is None:
            flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
            self._descriptor = os.open(self._path, flags, 0o600)
        has = os.fstat(self._descriptor).st_size
        try:
            for at in range(has - has % len(_PAGE), RESERVE_BYTES, len(_PAGE)):
                os.pwrite(self._descriptor, _PAGE, at)
            os.pwrite(self._descriptor, _PAGE, RESERVE_BYTES)
        except OSError:
            with contextlib.suppress(OSError):
                os.ftruncate(self._descriptor, min(has, RESERVE_BYTES))
            raise
        os.ftruncate(self._descriptor, RESERVE_BYTES)

    def sync(self) -> None:
        """Write a little of it to the disk. Raises OSError: the disk does not take it."""
        assert self._descriptor is not None
        os.pwrite(self._descriptor, _PAGE, 0)
        os.fdatasync(self._descriptor)

    def spend(self) -> bool:
        """Give the room up; False: there was none."""
        try:
            spent = self._path.stat().st_size > 0
            os.truncate(self._path, 0)
        except OSError:
            return False
        return spent

    def close(self) -> None:
        """Close the reserve; its file stays for the next start."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None
