"""KV on disk: a folder with one file of slots, which survives a restart.

A slot holds one block: a header with everything that says whose and which tokens' KV it is,
and the bytes. Both are checksummed, so that a torn or flipped slot is noticed when it is
read; nothing is synced, for what is lost is computed again. Which block goes where is
``radix_cache.tiers``'s decision; which bytes it has in memory, ``runtime.offload.transfer``'s;
what carries that out beside steps, ``runtime.offload.disk_orders``'.

Always true: one process has the folder at a time, and what it holds is of the model that
its mark names.
"""

import contextlib
import fcntl
import json
import os
import stat
import struct
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import xxhash

from radix_cache.block_pool import BlockArray
from radix_cache.edge import TokenArray
from radix_cache.keys import chain_keys
from radix_cache.transfers import Content, RunContent, StoredRun

MARK_BYTES: Final = 17
"""The length of what is said of a slot's content (``disk_orders.SlotStore.mark``)."""
ByteRows = npt.NDArray[np.uint8]
"""[rows, block_bytes]"""
NearRows = tuple[ByteRows, BlockArray]
"""Rows of layers with a window in main memory, where not every block has them: the memory of all,
and int32, for each of some blocks, which row is its; -1: it has none."""

MARK: Final = "keepwarm-kv.json"
BLOCKS: Final = "blocks"
_OWN_FILE: Final = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
"""Files in the folder are opened without following links: its blocks are overwritten."""
_Bytes = bytes | bytearray | memoryview
_FORMAT: Final = 1
_MAGIC: Final = b"KWKVSLOT"
_MAGIC_MAIN: Final = b"KWKVMAIN"
"""The same for a slot whose block has no rows of layers with a window."""
_HEADER: Final = struct.Struct("<8sIHH16s16s16s")
"""magic, position, tokens, bytes of the tenant's name, parent key, key, checksum of the KV."""
_SUM_BYTES: Final = 16
_HEADER_BYTES: Final = 2048
_PAGE: Final = 4096
_MOST_NAME_BYTES: Final = _HEADER_BYTES - _HEADER.size - _SUM_BYTES - 4 * 256


class StoreError(Exception):
    """The folder cannot be used. The message is meant for the person who named it."""


class DamagedSlot(Exception):
    """A slot does not hold, unharmed, what was written to it."""


def slot_bytes(block_bytes: int) -> int:
    """Bytes of disk that one block takes."""
    return -(-(_HEADER_BYTES + block_bytes) // _PAGE) * _PAGE


class SlotFile:
    """The folder and its file. Reads and writes block; one thread at a time.

    Args:
        folder: made if missing. One that holds other files, belongs to somebody else, may be
            written by others or is in use by another process is refused.
        num_blocks: slots the file has room for; slots beyond are cut off.
        block_size: tokens per block.
        block_bytes: bytes of a block's KV.
        identity: of the model; KV of another one is refused, not overwritten.
        near_bytes: of these, what rows of layers with a window take, behind the others; 0: every
            block has all rows.

    Raises:
        StoreError: the folder cannot be used, or the disk has too little room.
    """

    def __init__(
        self,
        folder: Path,
        *,
        num_blocks: int,
        block_size: int,
        block_bytes: int,
        identity: str,
        near_bytes: int = 0,
    ) -> None:
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.block_bytes = block_bytes
        self._slot = slot_bytes(block_bytes)
        self._main_bytes = block_bytes - near_bytes
        self._keys: dict[int, bytes] = {}
        self._bare: set[int] = set()
        """Slots whose blocks have no rows of layers with a window."""
        mark = {
            "format": _FORMAT,
            "identity": identity,
            "block_size": block_size,
            "block_bytes": block_bytes,
        } | ({"near_bytes": near_bytes} if near_bytes else {})
        try:
            self._lock = _claim_folder(folder, mark)
        except OSError as error:
            raise StoreError(f"disk cache folder {folder}: {error.strerror or error}") from error
        try:
            self._file = open_slots(folder / BLOCKS, num_blocks * self._slot)
        except OSError as error:
            os.close(self._lock)
            raise StoreError(f"{folder / BLOCKS}: {error.strerror or error}") from error
        except StoreError:
            os.close(self._lock)
            raise

    def close(self) -> None:
        """Give the folder back. What is written stays."""
        os.close(self._file)
        os.close(self._lock)

    def stored(self) -> Iterator[StoredRun]:
        """The blocks that earlier processes have left, by their headers; bytes are verified when
        read."""
        for block in range(self.num_blocks):
            header = os.pread(self._file, _HEADER_BYTES, block * self._slot)
            with contextlib.suppress(DamagedSlot):
                content, key, _ = self._parse(header)
                bare = self._note(block, key, bare=header.startswith(_MAGIC_MAIN))
                blocks = np.array([block], dtype=np.int32)
                yield StoredRun(content=content, blocks=blocks, near=np.array([not bare]))

    def _note(self, block: int, key: bytes, *, bare: bool) -> bool:
        """Note what a slot holds; returns ``bare``."""
        self._keys[block] = key
        (self._bare.add if bare else self._bare.discard)(block)
        return bare

    def write(
        self,
        content: Content,
        blocks: BlockArray,
        memory: ByteRows,
        rows: BlockArray,
        near: NearRows | None = None,
    ) -> int:
        """Write ``memory[rows[i]]`` to slot ``blocks[i]``, for a run of blocks, and behind it the
        rows of layers with a window that it has; returns how many bytes of KV that are.

        Raises:
            OSError: the disk is full or broken; slots not yet written keep what they had.
        """
        assert isinstance(content, RunContent)
        size = self.block_size
        keys = [content.parent_key, *chain_keys(content.parent_key, content.tokens, size)]
        total = 0
        for index, (block, row) in enumerate(zip(blocks.tolist(), rows.tolist(), strict=True)):
            payload = slot_payload(memory[row], near, index)
            header = self._header(
                content.tenant,
                content.position + index,
                content.tokens[index * size : (index + 1) * size],
                keys[index : index + 2],
                _checksum(payload),
                bare=near is not None and len(payload) == 1,
            )
            self._keys.pop(block, None)
            size_here = sum(part.nbytes for part in payload)
            padding = bytes(-(_HEADER_BYTES + size_here) % _PAGE)
            parts: list[_Bytes] = [header, *(part.data for part in payload), padding]
            written = os.pwritev(self._file, parts, block * self._slot)
            wanted = _HEADER_BYTES + size_here + len(padding)
            if written != wanted:
                raise OSError(f"{written} of {wanted} bytes were written")
            self._note(block, keys[index + 1], bare=header.startswith(_MAGIC_MAIN))
            total += size_here
        return total

    def read(
        self,
        block: int,
        row: npt.NDArray[np.uint8],
        near: npt.NDArray[np.uint8] | None = None,
    ) -> int:
        """Read a slot's KV into ``row``, uint8 [block_bytes], without rows of layers with a window
        where blocks have these apart: into ``near``, uint8, if these are wanted, too. Returns how
        many bytes of KV were read.

        Raises:
            DamagedSlot: it is not what was written there; ``row`` holds anything.
            OSError: the disk cannot be read.
        """
        header, bare = bytearray(_HEADER_BYTES), block in self._bare
        if bare and near is not None:
            raise DamagedSlot(f"slot {block} has no rows of layers with a window")
        apart = self._main_bytes < self.block_bytes and not bare
        if apart and near is None:
            near = np.empty(self.block_bytes - self._main_bytes, dtype=np.uint8)
        parts = [row] if near is None else [row, near]
        size = sum(part.nbytes for part in parts)
        buffers: list[_Bytes] = [header, *(part.data for part in parts)]
        count = os.preadv(self._file, buffers, block * self._slot)
        _, key, checksum = self._parse(bytes(header))
        same = header.startswith(_MAGIC_MAIN) == bare and key == self._keys.get(block)
        if count != _HEADER_BYTES + size or not same:
            raise DamagedSlot(f"slot {block} holds other tokens")
        if _checksum(parts) != checksum:
            raise DamagedSlot(f"slot {block} holds other bytes")
        return size

    def mark(self, block: int) -> bytes:
        """See ``disk_orders.SlotStore.mark``: the chained key of the tokens, and whether rows of
        layers with a window are missing."""
        key = self._keys.get(block)
        return b"" if key is None else key + bytes([block in self._bare])

    def expect(self, block: int, mark: bytes) -> None:
        """See ``disk_orders.SlotStore.expect``."""
        self._note(block, mark[:-1], bare=bool(mark[-1]))

    def _header(
        self,
        tenant: str,
        position: int,
        tokens: TokenArray,
        keys: list[bytes],
        checksum: bytes,
        *,
        bare: bool,
    ) -> bytes:
        name = tenant.encode()
        if len(name) > _MOST_NAME_BYTES:
            raise OSError(f"a tenant's name of {len(name)} bytes")
        magic = _MAGIC_MAIN if bare else _MAGIC
        fixed = _HEADER.pack(magic, position, len(tokens), len(name), *keys, checksum)
        said = fixed + name + tokens.astype("<i4").tobytes()
        said += bytes(_HEADER_BYTES - _SUM_BYTES - len(said))
        return said + xxhash.xxh3_128_digest(said)

    def _parse(self, header: bytes) -> tuple[RunContent, bytes, bytes]:
        """A slot's content, key and checksum.

        Raises:
            DamagedSlot: this is no header of ours, or not as it was written.
        """
        said, total = header[:-_SUM_BYTES], header[-_SUM_BYTES:]
        if len(header) != _HEADER_BYTES or not said.startswith((_MAGIC, _MAGIC_MAIN)):
            raise DamagedSlot("no header")
        if xxhash.xxh3_128_digest(said) != total:
            raise DamagedSlot("a damaged header")
        _, position, count, name_bytes, parent_key, key, checksum = _HEADER.unpack_from(said)
        start = _HEADER.size + name_bytes
        try:
            tenant = said[_HEADER.size : start].decode()
            tokens = np.frombuffer(said, dtype="<i4", count=count, offset=start).astype(np.int32)
        except ValueError as error:
            raise DamagedSlot("a name that is none") from error
        if count != self.block_size or chain_keys(parent_key, tokens, count) != [key]:
            raise DamagedSlot("tokens of another key")
        content = RunContent(
            tenant=tenant,
            position=position,
            parent_key=parent_key,
            tokens=tokens,
        )
        return content, key, checksum


def slot_payload(
    row: npt.NDArray[np.uint8], near: NearRows | None, index: int
) -> list[npt.NDArray[np.uint8]]:
    """The content of a slot: that of the block with number ``index`` of a run.

    ``row``, uint8 [bytes], and behind it, where the block has one, its row of ``near``, uint8
    [bytes]; both are views.
    """
    if near is None or near[1][index] < 0:
        return [row]
    memory, places = near
    return [row, memory[places[index]]]


def _checksum(parts: Iterable[npt.NDArray[np.uint8]]) -> bytes:
    digest = xxhash.xxh3_128()
    for part in parts:
        digest.update(part.data)
    return digest.digest()


def open_slots(path: Path, size: int) -> int:
    """The descriptor of a file of ``size`` bytes, which is made, or cut or grown to that.

    Raises:
        OSError, StoreError: the disk has too little room.
    """
    file = os.open(path, _OWN_FILE, 0o600)
    try:
        disk = os.fstatvfs(file)
        missing = size - os.fstat(file).st_blocks * 512
        free = disk.f_bavail * disk.f_frsize
        if missing > free:
            raise StoreError(
                f"disk cache folder {path.parent}: {missing >> 20} MiB more are needed, "
                f"{free >> 20} MiB are free; give a smaller disk_kv_bytes"
            )
        os.ftruncate(file, size)
    except BaseException:
        os.close(file)
        raise
    return file


def _claim_folder(folder: Path, mark: dict[str, Any]) -> int:
    """Check that the folder is ours to use and mark it; returns the descriptor that locks it.

    Raises:
        OSError, StoreError
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    status = os.stat(folder)
    if status.st_uid != os.geteuid():
        raise StoreError(f"disk cache folder {folder} belongs to another user")
    if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise StoreError(f"disk cache folder {folder} may be written by others; chmod go-w it")
    path = folder / MARK
    if not path.exists() and any(folder.iterdir()):
        raise StoreError(f"disk cache folder {folder} holds other files; give an empty one")
    lock = os.open(path, _OWN_FILE, 0o600)
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise StoreError(f"disk cache folder {folder} is used by another engine") from error
        text = os.pread(lock, 1 << 16, 0)
        if not text:
            os.pwrite(lock, json.dumps(mark, indent=1).encode(), 0)
        elif _json(text) != mark:
            raise StoreError(
                f"disk cache folder {folder} holds the KV of another model or another layout; "
                "give another folder or remove this one"
            )
    except BaseException:
        os.close(lock)
        raise
    return lock


def _json(text: bytes) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return None
