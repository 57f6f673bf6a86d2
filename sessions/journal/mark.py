"""How far a journal's file has come, in a second small file.

A write-ahead log that was damaged ends, for SQLite, before the damage, without a word. The mark
says how many commits there were: a database that knows of fewer has lost some.

There are two slots, and a note goes over the one that says less, so that the other is whole
whatever is cut off. Several programs may have the file open; they take turns. The mark is in the
hands of the system before a commit is told of, and on the disk soon after.

Always true: no slot with a wrong checksum is believed; the count never falls, whoever writes.
"""

import os
import struct
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from fcntl import LOCK_EX, LOCK_UN, flock
from functools import lru_cache
from pathlib import Path

import xxhash

_SLOT = struct.Struct("<8s16sQQB")
_MAGIC = b"kwmark01"
_SLOT_BYTES = 512
_SLOTS = 2
_CHECKSUM_BYTES = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """The content of a mark file: how far a journal has come."""

    identity: bytes
    """Identity of the journal, 16 bytes."""
    number: int
    """The number of this note: of two with as many commits the higher is the newer."""
    commits: int
    clean: bool
    """The journal was closed, and nothing has been written since."""


def read_mark(path: Path) -> Mark | None:
    """The whole slot that says the most; None: there is no file, or none of it is whole. No more
    than a mark has is read of it, and no pipe is waited for."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except FileNotFoundError:
        return None
    with os.fdopen(descriptor, "rb", buffering=0) as file:
        return _most(_slots(file.read(_SLOTS * _SLOT_BYTES) or b""))


class MarkFile:
    """The file of a journal that is open. ``sync`` may be called from another thread."""

    def __init__(self, path: Path, identity: bytes) -> None:
        self._identity = identity
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._lock = threading.Lock()
        self._doubtful = False
        """A sync has failed: another one would not tell what of it is on the disk."""
        if os.fstat(self._descriptor).st_size < _SLOTS * _SLOT_BYTES:
            os.truncate(self._descriptor, _SLOTS * _SLOT_BYTES)

    def write(self, commits: int, *, clean: bool = False) -> None:
        """Note how many commits there are; what is behind an earlier note is passed over."""
        with self._lock:  # the file's is one for all threads
            flock(self._descriptor, LOCK_EX)
            try:
                self._write(commits, clean)
            finally:
                flock(self._descriptor, LOCK_UN)

    def _write(self, commits: int, clean: bool) -> None:
        slots = _slots(os.pread(self._descriptor, _SLOTS * _SLOT_BYTES, 0))
        most = _most(slots)
        if most is not None and commits < most.commits:
            return
        number = 1 if most is None else most.number + 1
        body = _SLOT.pack(_MAGIC, self._identity, number, commits, clean)
        body += xxhash.xxh3_128_digest(body)
        os.pwrite(self._descriptor, body, _SLOT_BYTES if slots[0] is most else 0)

    def sync(self) -> None:
        """Wait until what was written is on the disk."""
        doubtful, self._doubtful = self._doubtful, True
        if doubtful:
            self._write_anew()
        os.fdatasync(self._descriptor)
        self._doubtful = False

    def _write_anew(self) -> None:
        with self._lock:
            flock(self._descriptor, LOCK_EX)
            try:
                size = _SLOTS * _SLOT_BYTES
                os.pwrite(self._descriptor, os.pread(self._descriptor, size, 0), 0)
            finally:
                flock(self._descriptor, LOCK_UN)

    @property
    def descriptor(self) -> int:
        """The descriptor of the open file."""
        return self._descriptor

    def close(self) -> None:
        os.close(self._descriptor)


def _slots(data: bytes) -> list[Mark | None]:
    starts = range(0, _SLOTS * _SLOT_BYTES, _SLOT_BYTES)
    return [_slot(data[at : at + _SLOT.size + _CHECKSUM_BYTES]) for at in starts]


def _most(slots: Sequence[Mark | None]) -> Mark | None:
    whole = (slot for slot in slots if slot is not None)
    return max(whole, key=lambda mark: (mark.commits, mark.number), default=None)


@lru_cache(maxsize=16)
def _slot(data: bytes) -> Mark | None:
    body, checksum = data[: _SLOT.size], data[_SLOT.size :]
    if len(checksum) < _CHECKSUM_BYTES or xxhash.xxh3_128_digest(body) != checksum:
        return None
    magic, identity, number, commits, clean = _SLOT.unpack(body)
    if magic != _MAGIC:
        return None
    return Mark(identity=identity, number=number, commits=commits, clean=bool(clean))
