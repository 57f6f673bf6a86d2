"""Reading safetensors files: the header is checked wholly before a byte of data is mapped.

Format: 8 bytes little-endian length, a JSON header of that length, data. Each header entry
gives a tensor's dtype, shape and its byte range in the data. Ranges must be in bounds, of
the right size, and tile the data without overlap or gap (specification of safetensors 0.4).

Always true: a ``SafetensorsFile`` that exists has a valid header.
"""

import json
import math
import mmap
import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from runtime.folder_files import HEADER, UnfitFile, refuse_beyond
from runtime.model.config import LoadError
from runtime.model.config_fields import unique_names

_MOST_TENSORS = 65_536
"""Most tensors in one file; the largest published ones have some ten thousand."""
_MOST_RANK = 8
_MOST_SHOWN_CHARS = 200
_LENGTH_BYTES = 8
_POINTER = b"version https://git-lfs.github.com/spec/"
_DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
    "F8_E8M0": torch.float8_e8m0fnu,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Entry:
    dtype: torch.dtype
    shape: tuple[int, ...]
    begin: int
    end: int


class SafetensorsFile:
    """One file, mapped into memory when the first tensor is taken."""

    def __init__(self, path: Path) -> None:
        """Read and check the header.

        Raises:
            LoadError: the file cannot be read or its header is not valid.
        """
        self.path = path
        self._entries, self._data_start = _read_header(path)
        self._map: mmap.mmap | None = None

    def names(self) -> Iterator[str]:
        return iter(self._entries)

    def __contains__(self, name: str) -> bool:
        return name in self._entries

    def shape(self, name: str) -> tuple[int, ...]:
        return self._entries[name].shape

    def dtype(self, name: str) -> torch.dtype:
        return self._entries[name].dtype

    def num_bytes(self, name: str) -> int:
        entry = self._entries[name]
        return entry.end - entry.begin

    def tensor(self, name: str) -> Tensor:
        """The named tensor; a view of the mapped file that must not be written to."""
        entry = self._entries[name]
        count = math.prod(entry.shape)
        if count == 0:
            return torch.empty(entry.shape, dtype=entry.dtype)
        if self._map is None:
            with self.path.open("rb") as file:
                self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
        offset = self._data_start + entry.begin
        if offset % entry.dtype.itemsize:
            raw = bytearray(self._map[offset : self._data_start + entry.end])
            return torch.frombuffer(raw, dtype=entry.dtype).view(entry.shape)
        flat = torch.frombuffer(self._map, dtype=entry.dtype, count=count, offset=offset)
        return flat.view(entry.shape)


def _read_header(path: Path) -> tuple[dict[str, _Entry], int]:
    try:
        size, text = _header_text(path)
        refuse_beyond(text, HEADER, path)
        header = json.loads(text, object_pairs_hook=unique_names)
    except UnfitFile as error:
        raise LoadError(str(error)) from error
    except OSError as error:
        raise LoadError(f"{path}: {error.strerror or error}") from error
    except (ValueError, RecursionError) as error:
        raise LoadError(f"{path}: header is not valid JSON ({error})") from error
    if not isinstance(header, dict):
        raise LoadError(f"{path}: header is not a JSON object")
    header.pop("__metadata__", None)
    if len(header) > _MOST_TENSORS:
        raise LoadError(f"{path}: {len(header)} tensors, at most {_MOST_TENSORS} are read")
    start = _LENGTH_BYTES + len(text)
    entries = {name: _entry(path, name, value) for name, value in header.items()}
    _check_tiling(path, entries, size - start)
    return entries, start


def _header_text(path: Path) -> tuple[int, bytes]:
    """The file's size, and its header as it stands there."""
    handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    with os.fdopen(handle, "rb") as file:
        kind = os.fstat(handle)
        if not stat.S_ISREG(kind.st_mode):
            raise UnfitFile(path, "not a regular file")
        size = kind.st_size
        prefix = file.read(_LENGTH_BYTES)
        if prefix == _POINTER[:_LENGTH_BYTES] and (prefix + file.read(120)).startswith(_POINTER):
            raise UnfitFile(
                path,
                "a pointer of Git LFS, not the weights: fetch these (git lfs pull, keepwarm pull)",
            )
        length = int.from_bytes(prefix, "little")
        text = b"" if length > size else file.read(min(length, HEADER.most_bytes))
    if len(prefix) < _LENGTH_BYTES or len(text) < min(length, HEADER.most_bytes):
        raise UnfitFile(path, f"truncated: {size} bytes do not hold the header")
    if length > HEADER.most_bytes:
        raise UnfitFile(path, f"its header has {length} bytes, {HEADER.most_bytes} are read")
    return size, text


def _entry(path: Path, name: str, value: object) -> _Entry:
    def wrong(what: str) -> LoadError:
        return LoadError(f"{path}: tensor {_shown(name)}: {what}")

    if not isinstance(value, dict):
        raise wrong("its entry is not an object")
    dtype, shape, offsets = (value.get(key) for key in ("dtype", "shape", "data_offsets"))
    if not isinstance(dtype, str) or dtype not in _DTYPES:
        raise wrong(f"dtype {_shown(dtype)} is not known")
    if not isinstance(shape, list) or not all(map(_is_count, shape)):
        raise wrong(f"shape {_shown(shape)} is not a list of sizes")
    if len(shape) > _MOST_RANK:
        raise wrong(f"its shape has {len(shape)} sizes, at most {_MOST_RANK} are read")
    if not isinstance(offsets, list) or len(offsets) != 2 or not all(map(_is_count, offsets)):
        raise wrong(f"data_offsets {_shown(offsets)} are not two offsets")
    begin, end = offsets
    needed = math.prod(shape) * _DTYPES[dtype].itemsize
    if end - begin != needed:
        raise wrong(f"{dtype} of shape {shape} takes {needed} bytes, its range has {end - begin}")
    return _Entry(dtype=_DTYPES[dtype], shape=tuple(shape), begin=begin, end=end)


def _shown(value: object) -> str:
    """The value that was found, cut where it is long."""
    text = repr(value)
    return text if len(text) <= _MOST_SHOWN_CHARS else text[:_MOST_SHOWN_CHARS] + "..."


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 62


def _check_tiling(path: Path, entries: dict[str, _Entry], size: int) -> None:
    at = 0
    for name, entry in sorted(entries.items(), key=lambda item: (item[1].begin, item[1].end)):
        if entry.begin != at:
            raise LoadError(
                f"{path}: tensor {name!r} begins at {entry.begin}, {at} is expected: "
                "ranges overlap or leave a gap"
            )
        at = entry.end
    if at > size:
        raise LoadError(f"{path}: truncated: tensors need {at} bytes of data, {size} are there")
    if at < size:
        raise LoadError(f"{path}: {size - at} bytes of data belong to no tensor")
