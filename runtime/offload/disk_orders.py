"""Orders from and to a file of slots, carried out beside steps: blocks by ``KVStore``.

A file of slots is that of ``runtime.offload.disk`` or ``runtime.offload.state_file``; who gives
the orders is ``runtime.offload.transfer``.
"""

import logging
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor
from typing import Protocol

import numpy as np
import numpy.typing as npt

from radix_cache.block_pool import BlockArray
from radix_cache.transfers import BlockMove, Content
from runtime.offload.disk import ByteRows, DamagedSlot, NearRows, slot_payload

log = logging.getLogger(__name__)


class SlotStore(Protocol):
    """A file of slots; its methods block, one thread calls them at a time."""

    block_bytes: int

    def write(
        self,
        content: Content,
        blocks: BlockArray,
        memory: ByteRows,
        rows: BlockArray,
        near: NearRows | None = None,
    ) -> int:
        """Write ``memory[rows[i]]`` to slot ``blocks[i]``, and what ``near`` has of it; returns how
        many bytes that are. Raises OSError."""
        ...

    def read(
        self,
        block: int,
        row: npt.NDArray[np.uint8],
        near: npt.NDArray[np.uint8] | None = None,
    ) -> int:
        """Read a slot into ``row`` and ``near``; returns how many bytes that are. Raises
        DamagedSlot, OSError."""
        ...

    def mark(self, block: int) -> bytes:
        """``MARK_BYTES`` bytes that say of what a slot holds something, the same on each rank of a
        model; none where it is not known."""
        ...

    def expect(self, block: int, mark: bytes) -> None:
        """Have ``read`` refuse a slot that holds something of anything else."""
        ...

    def close(self) -> None: ...


class KVStore:
    """Carries out orders from and to a file of slots on a thread of its own, one by one.

    Args:
        file: the slots.
        worker: runs one task at a time, in order.
        ended: is told each order that is over, as ``take_over`` tells it, by the thread that
            carried it out.
    """

    def __init__(
        self,
        file: SlotStore,
        worker: Executor,
        *,
        ended: Callable[[int, bool], None] = lambda number, ok: None,
    ) -> None:
        self.file = file
        self._worker = worker
        self._ended = ended
        self._over: deque[tuple[int, bool]] = deque()
        self.damaged_blocks = 0
        """Blocks that were read and were not what had been written."""
        self.bytes_read = self.bytes_written = 0
        self.read_s = self.write_s = 0.0

    def write(
        self,
        move: BlockMove,
        memory: ByteRows,
        rows: BlockArray,
        arrived: Callable[[], None],
        *,
        near: NearRows | None = None,
    ) -> None:
        """Take the order to write ``memory[rows]`` and ``near``, once ``arrived`` returns."""
        self._worker.submit(self._write, move, memory, rows, arrived, near)

    def read(
        self,
        move: BlockMove,
        memory: ByteRows,
        rows: BlockArray,
        arrived: Callable[[], None],
        done: Callable[[], object],
        *,
        near: NearRows | None = None,
    ) -> None:
        """Take the order to read into ``memory[rows]`` and ``near``, once ``arrived`` returns;
        ``done`` is called when all of them hold what was written."""
        self._worker.submit(self._read, move, memory, rows, (arrived, done), near)

    def marks(self, blocks: BlockArray) -> list[bytes]:
        """The marks of slots (``SlotStore.mark``); no order to write to them is under way."""
        return [self.file.mark(block) for block in blocks.tolist()]

    def expect(self, blocks: BlockArray, marks: Sequence[bytes]) -> None:
        """Have orders to read these slots refuse those that hold something else."""
        for block, mark in zip(blocks.tolist(), marks, strict=True):
            self.file.expect(block, mark)

    def take_over(self) -> Iterator[tuple[int, bool]]:
        """Orders that are over since the last call: their numbers, and whether all is well."""
        while self._over:
            yield self._over.popleft()

    def close(self) -> None:
        """End the thread and give the folder back. Orders not begun are dropped."""
        self._worker.shutdown(cancel_futures=True)
        self.file.close()

    def _write(
        self,
        move: BlockMove,
        memory: ByteRows,
        rows: BlockArray,
        arrived: Callable[[], None],
        near: NearRows | None,
    ) -> None:
        started, ok = time.perf_counter(), False
        try:
            arrived()
            assert move.content is not None
            written = self.file.write(move.content, move.target_blocks, memory, rows, near)
            ok = True
            self.bytes_written += written
        except OSError as error:
            log.warning("disk cache is not written any more: %s", error)
        except Exception:
            log.exception("an order to the disk cache failed")
        self.write_s += time.perf_counter() - started
        self._end(move.number, ok)

    def _read(
        self,
        move: BlockMove,
        memory: ByteRows,
        rows: BlockArray,
        around: tuple[Callable[[], None], Callable[[], object]],
        near: NearRows | None,
    ) -> None:
        started, damaged = time.perf_counter(), len(rows)
        arrived, done = around
        try:
            arrived()
            blocks = move.source_blocks.tolist()
            damaged = sum(
                not self._read_block(block, slot_payload(memory[row], near, index))
                for index, (block, row) in enumerate(zip(blocks, rows.tolist(), strict=True))
            )
            if not damaged:
                done()
        except Exception:
            log.exception("an order from the disk cache failed")
        self.damaged_blocks += damaged
        self.read_s += time.perf_counter() - started
        self._end(move.number, not damaged)

    def _end(self, number: int, ok: bool) -> None:
        self._over.append((number, ok))
        self._ended(number, ok)

    def _read_block(self, block: int, parts: list[npt.NDArray[np.uint8]]) -> bool:
        try:
            self.bytes_read += self.file.read(block, *parts)
        except (DamagedSlot, OSError) as error:
            log.warning("a block of the disk cache is computed again: %s", error)
            return False
        return True
