"""How far a journal's file has come, in a second small file.

A write-ahead log that was damaged ends, for SQLite, before the damage, without a word. The mark
says how many commits there were: a database that knows of fewer has lost some.

Two slots are written in turn, so that one of them is whole whatever is cut off. The mark is in
the hands of the system before a commit is told of, and on the disk soon after.

Always true: no slot with a wrong checksum is believed; the count never falls.
"""

import os
import struct
import threading
from dataclasses import dataclass
from pathlib import Path

import xxhash

_SLOT = struct.Struct("<8s16sQQB")
_MAGIC = b"kwmark01"
_SLOT_BYTES = 512
_SLOTS = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """What stands in the file."""

    identity: bytes
    """Of the journal, 16 bytes."""
    number: int
    """Of this note: the highest is the newest."""
    commits: int
    clean: bool
    """The journal was closed, and nothing has been written since."""


def read_mark(path: Path) -> Mark | None:
    """The newest whole slot; None: there is no file, or none of it is whole."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return None
    slots = [_slot(data[at : at + _SLOT_BYTES]) for at in range(0, len(data), _SLOT_BYTES)]
    whole = [slot for slot in slots[:_SLOTS] if slot is not None]
    return max(whole, key=lambda mark: mark.number, default=None)


class MarkFile:
    """The file of a journal that is open. ``sync`` may be called from another thread."""

    def __init__(self, path: Path, identity: bytes) -> None:
        before = read_mark(path)
        self._number = 0 if before is None else before.number
        self._identity = identity
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._lock = threading.Lock()
        self._commits = -1
        if os.fstat(self._descriptor).st_size < _SLOTS * _SLOT_BYTES:
            os.truncate(self._descriptor, _SLOTS * _SLOT_BYTES)

    def write(self, commits: int, *, clean: bool = False) -> None:
        """Note how many commits there are; what is behind an earlier note is passed over."""
        with self._lock:
            if commits < self._commits:
                return
            self._commits = commits
            self._number += 1
            body = _SLOT.pack(_MAGIC, self._identity, self._number, commits, clean)
            body += xxhash.xxh3_128_digest(body)
            os.pwrite(self._descriptor, body, self._number % _SLOTS * _SLOT_BYTES)

    def sync(self) -> None:
        """Wait until what was written is on the disk."""
        os.fdatasync(self._descriptor)

    def close(self) -> None:
        os.close(self._descriptor)


def _slot(data: bytes) -> Mark | None:
    body, checksum = data[: _SLOT.size], data[_SLOT.size : _SLOT.size + 16]
    if len(checksum) < 16 or xxhash.xxh3_128_digest(body) != checksum:
        return None
    magic, identity, number, commits, clean = _SLOT.unpack(body)
    if magic != _MAGIC:
        return None
    return Mark(identity=identity, number=number, commits=commits, clean=bool(clean))
