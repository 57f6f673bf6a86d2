"""States on disk: one file of slots beside the file of blocks, in the same folder.

A slot holds one state, the KV of its tail behind it, and a header that says whose it is, behind
which tokens and how it is laid out. All of it is checksummed. What is cut, harmed, or of another
model or layout is a state that is not there.

Always true: what ``read`` gives is, byte by byte, what was written to that slot under this layout.
"""

import contextlib
import logging
import os
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt
import xxhash

from radix_cache.block_pool import BlockArray
from radix_cache.snapshots import SnapshotKind, StateContent, StoredState
from radix_cache.transfers import Content
from runtime.offload.disk import MARK_BYTES, ByteRows, DamagedSlot, NearRows, StoreError, open_slots

log = logging.getLogger(__name__)

STATES: Final = "states"
_FORMAT: Final = "states 1"
_MAGIC: Final = b"KWSTATES"
_KINDS: Final = tuple(SnapshotKind)
_HEADER: Final = struct.Struct("<8s16sIHHH16s16s")
"""magic, layout, blocks before, tokens of the tail, kind, bytes of the tenant's name, key of the
blocks, checksum of the state."""
_SUM_BYTES: Final = 16
_HEADER_BYTES: Final = 2048
_PAGE: Final = 4096


class _OtherLayout(Exception):
    """A whole header, of a state that means nothing here."""


def state_slot_bytes(row_bytes: int) -> int:
    """Bytes of disk that one state and its tail take."""
    return -(-(_HEADER_BYTES + row_bytes) // _PAGE) * _PAGE


class StateFile:
    """The file. Reads and writes block; one thread at a time.

    Args:
        folder: that of the blocks, which is claimed already.
        num_slots: slots beyond are cut off.
        row_bytes: of a state and its tail.
        layout: names model, number type and the way states are laid out.

    Raises:
        StoreError: the file cannot be used, or the disk has too little room.
    """

    def __init__(self, folder: Path, *, num_slots: int, row_bytes: int, layout: str) -> None:
        self.num_slots = num_slots
        self.block_bytes = row_bytes
        self._layout = xxhash.xxh3_128_digest(f"{_FORMAT}\n{layout}".encode())
        self._slot = state_slot_bytes(row_bytes)
        self._padding = bytes(self._slot - _HEADER_BYTES - row_bytes)
        self._marks: dict[int, bytes] = {}
        try:
            self._file = open_slots(folder / STATES, num_slots * self._slot)
        except OSError as error:
            raise StoreError(f"{folder / STATES}: {error.strerror or error}") from error

    def close(self) -> None:
        """Close the file; it keeps what is written."""
        os.close(self._file)

    def stored(self) -> Iterator[StoredState]:
        """The states that earlier processes have left, by their headers; bytes are verified when
        read. Those of another model or layout are told of in one line."""
        others = 0
        for slot in range(self.num_slots):
            header = os.pread(self._file, _HEADER_BYTES, slot * self._slot)
            with contextlib.suppress(DamagedSlot):
                try:
                    content, _ = self._parse(header)
                except _OtherLayout:
                    others += 1
                    continue
                self._marks[slot] = _mark(content)
                yield StoredState(content=content, slot=slot)
        if others:
            log.warning("disk cache: states of another model or layout not used=%d", others)

    def write(
        self,
        content: Content,
        blocks: BlockArray,
        memory: ByteRows,
        rows: BlockArray,
        near: NearRows | None = None,
    ) -> int:
        """Write ``memory[rows[0]]`` to slot ``blocks[0]``: a state at a time, which has no rows
        ``near``; returns how many bytes it has.

        Raises:
            OSError: the disk is full or broken.
        """
        assert isinstance(content, StateContent)
        assert near is None
        (slot,), (row,) = blocks.tolist(), rows.tolist()
        payload = memory[row]
        header = self._header(content, xxhash.xxh3_128_digest(payload.data))
        self._marks.pop(slot, None)
        parts = (header, payload.data, self._padding)
        written = os.pwritev(self._file, parts, slot * self._slot)
        if written != self._slot:
            raise OSError(f"{written} of {self._slot} bytes were written")
        self._marks[slot] = _mark(content)
        return self.block_bytes

    def read(
        self,
        block: int,
        row: npt.NDArray[np.uint8],
        near: npt.NDArray[np.uint8] | None = None,
    ) -> int:
        """Read a slot's state and tail into ``row``, uint8 [row_bytes]; returns how many bytes
        these are.

        Raises:
            DamagedSlot: it is not what was written there; ``row`` holds anything.
            OSError: the disk cannot be read.
        """
        assert near is None
        header = bytearray(_HEADER_BYTES)
        count = os.preadv(self._file, (header, row.data), block * self._slot)
        try:
            content, checksum = self._parse(bytes(header))
        except _OtherLayout as error:
            raise DamagedSlot(f"state {block} is of another layout") from error
        whole = count == _HEADER_BYTES + self.block_bytes
        if not whole or _mark(content) != self._marks.get(block):
            raise DamagedSlot(f"state {block} is another one, or cut")
        if xxhash.xxh3_128_digest(row.data) != checksum:
            raise DamagedSlot(f"state {block} holds other bytes")
        return self.block_bytes

    def mark(self, block: int) -> bytes:
        """See ``disk_orders.SlotStore.mark``."""
        return self._marks.get(block, b"")

    def expect(self, block: int, mark: bytes) -> None:
        """See ``disk_orders.SlotStore.expect``."""
        self._marks[block] = mark

    def _header(self, content: StateContent, checksum: bytes) -> bytes:
        name, tail = content.tenant.encode(), content.tail.astype("<i4").tobytes()
        fixed = _HEADER.pack(
            _MAGIC,
            self._layout,
            content.blocks,
            len(content.tail),
            _KINDS.index(content.kind),
            len(name),
            content.key,
            checksum,
        )
        said = fixed + name + tail
        if len(said) > _HEADER_BYTES - _SUM_BYTES:
            raise OSError(f"a tenant's name of {len(name)} bytes")
        said += bytes(_HEADER_BYTES - _SUM_BYTES - len(said))
        return said + xxhash.xxh3_128_digest(said)

    def _parse(self, header: bytes) -> tuple[StateContent, bytes]:
        """What a slot's state is of, and its checksum.

        Raises:
            DamagedSlot: this is no header of ours, or not as it was written.
            _OtherLayout: it is a header of something else.
        """
        said, total = header[:-_SUM_BYTES], header[-_SUM_BYTES:]
        if len(header) != _HEADER_BYTES or not said.startswith(_MAGIC):
            raise DamagedSlot("no header of a state")
        if xxhash.xxh3_128_digest(said) != total:
            raise DamagedSlot("a damaged header of a state")
        _, layout, blocks, count, kind, name_bytes, key, checksum = _HEADER.unpack_from(said)
        if layout != self._layout:
            raise _OtherLayout
        start = _HEADER.size + name_bytes
        tail = np.frombuffer(said, dtype="<i4", count=count, offset=start).astype(np.int32)
        content = StateContent(
            tenant=said[_HEADER.size : start].decode(),
            kind=_KINDS[kind],
            blocks=blocks,
            key=key,
            tail=tail,
        )
        return content, checksum


def _mark(content: StateContent) -> bytes:
    parts = (content.tenant.encode(), content.key, content.tail.astype("<i4").tobytes())
    numbers = f"{content.blocks} {_KINDS.index(content.kind)} {len(content.tail)}"
    return xxhash.xxh3_128_digest(b"\0".join((numbers.encode(), *parts))).ljust(MARK_BYTES, b"\0")
