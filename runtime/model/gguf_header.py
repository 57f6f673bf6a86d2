"""The part of a GGUF file before its data: metadata and where its tensors are, read within bounds.

Format: magic, version, two counts, metadata as keys with typed values, tensor descriptions, then
the data of each at its offset (specification of GGUF 3, ggml's docs/gguf.md). No torch here.

Always true: a ``GgufHeader`` that exists describes tensors that lie within the file, aligned, one
beside the other and not over one another.
"""

import math
import mmap
import os
import stat
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from runtime.model.config import LoadError

_MAGIC = b"GGUF"
_VERSIONS = (2, 3)
_MOST_ENTRIES = 65_536
"""The most entries of metadata, and of tensors."""
_MOST_STRING = 4 << 20
"""Bytes; a chat template has some ten thousand."""
_MOST_ELEMENTS = 2_000_000
"""The most elements of an array; vocabularies have a quarter of a million tokens and twice as many
merges."""
_MOST_RANK = 4
_MOST_ALIGNMENT = 1 << 16
_STRING, _ARRAY = 8, 9
_NUMBERS = {
    0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d",
}  # fmt: skip
"""Types of values, as ``struct`` calls them."""
KINDS: Mapping[int, tuple[str, int, int]] = {
    0: ("F32", 1, 4),
    1: ("F16", 1, 2),
    30: ("BF16", 1, 2),
    2: ("Q4_0", 32, 18),
    8: ("Q8_0", 32, 34),
    39: ("MXFP4", 32, 17),
    3: ("Q4_1", 32, 20),
    6: ("Q5_0", 32, 22),
    7: ("Q5_1", 32, 24),
    10: ("Q2_K", 256, 84),
    11: ("Q3_K", 256, 110),
    12: ("Q4_K", 256, 144),
    13: ("Q5_K", 256, 176),
    14: ("Q6_K", 256, 210),
}
"""Kinds of tensors: name, numbers in a block, bytes of a block."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GgufTensor:
    """Kind, shape and place of a tensor in a GGUF file."""

    kind: str
    """The code of its numbers, a key of ``KINDS``."""
    shape: tuple[int, ...]
    """Outputs before inputs, as everywhere else here."""
    begin: int
    """Where it begins in the file, in bytes."""
    num_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GgufHeader:
    """Metadata and tensors of one GGUF file."""

    path: Path
    metadata: Mapping[str, Any]
    tensors: Mapping[str, GgufTensor]
    num_bytes: int
    """Bytes of all that stands before the data."""


def read_gguf_header(path: Path) -> GgufHeader:
    """Read and check it.

    Raises:
        LoadError: the file is no GGUF file, damaged, or beyond bounds; the message names it.
    """
    try:
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        with os.fdopen(handle, "rb"):
            status = os.fstat(handle)
            if not stat.S_ISREG(status.st_mode):
                raise LoadError(f"{path}: not a regular file")
            if status.st_size < 24:
                raise LoadError(f"{path}: truncated: {status.st_size} bytes hold no header")
            with mmap.mmap(handle, 0, access=mmap.ACCESS_READ) as content:
                return _Reader(path, content).header()
    except OSError as error:
        raise LoadError(f"{path}: {error.strerror or error}") from error


class _Reader:
    """Goes through a file's head once."""

    def __init__(self, path: Path, content: mmap.mmap) -> None:
        self._path = path
        self._content = content
        self._at = 0

    def header(self) -> GgufHeader:
        if self._taken(4, "its magic") != _MAGIC:
            raise LoadError(f"{self._path}: not a GGUF file")
        version = self._number("I", "its version")
        if version not in _VERSIONS:
            raise LoadError(f"{self._path}: version {version} of GGUF, {_VERSIONS} are read")
        tensors = self._count("tensors", _MOST_ENTRIES)
        entries = self._count("metadata", _MOST_ENTRIES)
        metadata = self._named(entries, "metadata", self._value)
        described = self._named(tensors, "tensor", self._description)
        alignment = metadata.get("general.alignment", 32)
        if type(alignment) is not int or not 1 <= alignment <= _MOST_ALIGNMENT:
            raise LoadError(f"{self._path}: general.alignment is {alignment!r}, not a small size")
        start = -(-self._at // alignment) * alignment
        placed = {
            name: GgufTensor(
                kind=each.kind, shape=each.shape, begin=start + each.begin, num_bytes=each.num_bytes
            )
            for name, each in described.items()
        }
        self._check_places(placed, start, alignment)
        return GgufHeader(path=self._path, metadata=metadata, tensors=placed, num_bytes=self._at)

    def _named(self, count: int, what: str, read: Callable[[str], Any]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for _ in range(count):
            name = self._string(f"a name of {what}")
            if name in found:
                raise LoadError(f"{self._path}: {what} {name[:100]!r} is there twice")
            found[name] = read(name)
        return found

    def _description(self, name: str) -> GgufTensor:
        rank = self._number("I", f"the rank of tensor {name[:100]!r}")
        if not 1 <= rank <= _MOST_RANK:
            raise LoadError(f"{self._path}: tensor {name[:100]!r} has {rank} sizes, not 1 to 4")
        sizes = [self._number("Q", f"the sizes of tensor {name[:100]!r}") for _ in range(rank)]
        kind, offset = self._number("I", "a tensor's type"), self._number("Q", "an offset")
        if kind not in KINDS:
            known = ", ".join(each for each, *_ in KINDS.values())
            raise LoadError(
                f"{self._path}: tensor {name[:100]!r} is of type {kind}, those read are {known}"
            )
        label, numbers, width = KINDS[kind]
        if any(not 1 <= size < 1 << 32 for size in sizes) or sizes[0] % numbers:
            raise LoadError(
                f"{self._path}: tensor {name[:100]!r} of {label} has sizes {sizes}; the first has "
                f"to be a multiple of {numbers}"
            )
        return GgufTensor(
            kind=label,
            shape=tuple(reversed(sizes)),
            begin=offset,
            num_bytes=math.prod(sizes) // numbers * width,
        )

    def _check_places(self, tensors: Mapping[str, GgufTensor], start: int, alignment: int) -> None:
        end = start
        for name, each in sorted(tensors.items(), key=lambda item: item[1].begin):
            if each.begin < end or (each.begin - start) % alignment:
                raise LoadError(
                    f"{self._path}: tensor {name[:100]!r} begins at {each.begin}, within another "
                    f"or not at a multiple of {alignment}"
                )
            end = each.begin + each.num_bytes
            if end > len(self._content):
                raise LoadError(
                    f"{self._path}: truncated: tensor {name[:100]!r} ends at {end}, the file at "
                    f"{len(self._content)}"
                )

    def _value(self, name: str) -> Any:
        kind = self._number("I", f"the type of {name[:100]!r}")
        if kind == _STRING:
            return self._string(name)
        if kind != _ARRAY:
            return self._number(self._spelt(kind, name), name)
        inner = self._number("I", f"the type of {name[:100]!r}")
        count = self._count(name, _MOST_ELEMENTS)
        if inner == _STRING:
            return [self._string(name) for _ in range(count)]
        spelt = self._spelt(inner, name)
        size = struct.calcsize(f"<{spelt}")
        return list(struct.unpack(f"<{count}{spelt}", self._taken(count * size, name)))

    def _spelt(self, kind: int, name: str) -> str:
        if kind not in _NUMBERS:
            raise LoadError(f"{self._path}: {name[:100]!r} has a value of type {kind}: not known")
        return _NUMBERS[kind]

    def _count(self, what: str, most: int) -> int:
        count: int = self._number("Q", f"the number of {what[:100]!r}")
        if count > most:
            raise LoadError(f"{self._path}: {count} of {what[:100]!r}, at most {most} are read")
        return count

    def _string(self, what: str) -> str:
        length = self._number("Q", f"the length of {what[:100]!r}")
        if length > _MOST_STRING:
            raise LoadError(
                f"{self._path}: {what[:100]!r} has {length} bytes, at most {_MOST_STRING} are read"
            )
        text = self._taken(length, what)
        try:
            return text.decode()
        except UnicodeDecodeError as error:
            raise LoadError(f"{self._path}: {what[:100]!r} is no UTF-8") from error

    def _number(self, spelt: str, what: str) -> Any:
        raw = self._taken(struct.calcsize(f"<{spelt}"), what)
        return struct.unpack(f"<{spelt}", raw)[0]

    def _taken(self, count: int, what: str) -> bytes:
        taken = self._content[self._at : self._at + count]
        if len(taken) < count:
            raise LoadError(f"{self._path}: truncated: the file ends in {what[:100]!r}")
        self._at += count
        return taken
