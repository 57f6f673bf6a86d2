"""What a disk holds when its power is cut: all that was synced, and some of what was not.

A child process works on a journal with ``write_log.c`` preloaded. Of its log images are made: at
a random point, each file as it was at its last sync, and of later writes a random subset, the last
of them perhaps torn at a sector. ``python -m tests.support.power_cuts FOLDER MODE`` is the child.
"""

import os
import random
import struct
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from sessions.journal import file_connections
from sessions.journal.sqlite import SqliteJournal
from tests.support.journals import record

SOURCE = Path(__file__).with_name("write_log.c")
SECTOR = 512
_HEAD = struct.Struct("<cIqI")
TURNS = 40


@dataclass(frozen=True, slots=True)
class Operation:
    kind: str
    """``w``: data at an offset; ``t``: truncated to it; ``u``: unlinked; ``s``: synced, of the
    folder as well."""
    name: str
    offset: int
    data: bytes


def played(folder: Path, synchronous: str) -> list[Operation]:
    """The operations of a child that writes ``TURNS`` turns and notes each that was told of."""
    folder.mkdir()
    library, log = folder.parent / "write_log.so", folder.parent / f"log-{synchronous}"
    if not library.exists():
        command = ["cc", "-shared", "-fPIC", "-O1", "-o", str(library), str(SOURCE), "-ldl"]
        subprocess.run([*command, "-lpthread"], check=True)
    environment = os.environ | {
        "LD_PRELOAD": str(library),
        "WRITE_LOG": str(log),
        "WRITE_LOG_FOLDER": str(folder),
    }
    words = [sys.executable, "-m", "tests.support.power_cuts", str(folder), synchronous]
    subprocess.run(words, check=True, env=environment, timeout=60)
    return list(_operations(log.read_bytes()))


def _operations(data: bytes) -> Iterator[Operation]:
    at = 0
    while at < len(data):
        kind, length, offset, size = _HEAD.unpack_from(data, at)
        at += _HEAD.size
        name = Path(data[at : at + length].decode()).name
        at += length
        yield Operation(kind.decode(), name, offset, data[at : at + size])
        at += size


def image(
    operations: list[Operation],
    cut: int,
    chance: random.Random,
    folder: Path,
    operations_folder: str,
) -> list[str]:
    """Write what a cut before operation ``cut`` leaves; returns who had been told by then.

    Args:
        operations_folder: name of the folder that the operations were in.
    """
    done = operations[:cut]
    told = [each.data.decode() for each in done if each.name == "told"]
    folder.mkdir()
    folders = [n for n, each in enumerate(done) if each.name == operations_folder]
    for name in {each.name for each in done} - {"told", "j-shm", operations_folder}:
        gone = [n for n, each in enumerate(done) if each.name == name and each.kind == "u"]
        surely = [n for n in gone if any(at > n for at in folders) or chance.random() < 0.5]
        first = max(surely, default=-1) + 1
        mine = [each for each in done[first:] if each.name == name and each.kind != "u"]
        if first and not mine:
            continue
        last = max((n for n, each in enumerate(mine) if each.kind == "s"), default=-1)
        content = bytearray()
        for n, each in enumerate(mine):
            if n <= last or chance.random() < 0.5:
                _apply(content, each, torn=n > last and chance.random() < 0.3, chance=chance)
        (folder / name).write_bytes(content)
    return told


def _apply(content: bytearray, each: Operation, *, torn: bool, chance: random.Random) -> None:
    if each.kind == "t":
        del content[each.offset :]
        content.extend(bytes(each.offset - len(content)))
    elif each.kind == "w":
        data = each.data
        if torn:
            data = data[: chance.randrange(len(data) // SECTOR + 1) * SECTOR]
        content.extend(bytes(max(each.offset + len(data) - len(content), 0)))
        content[each.offset : each.offset + len(data)] = data


def _child(folder: Path, synchronous: str) -> None:
    file_connections.CHECKPOINT_BYTES = 64 * 1024
    journal = SqliteJournal(folder / "j", fingerprint=b"f", synchronous=synchronous)
    told = os.open(folder / "told", os.O_WRONLY | os.O_CREAT)
    parent = None
    for n in range(TURNS):
        parent = record(f"r{n}", parent=parent, size=500)
        journal.append([parent])
        os.write(told, f"r{n}".encode())
    os._exit(0)  # the machine loses its power: nothing is closed


if __name__ == "__main__":
    _child(Path(sys.argv[1]), sys.argv[2])
